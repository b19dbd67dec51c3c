"""Find a bound for the gradient norm: train some steps without a clip, in memory, and print the line to paste.

python tools/find_clip.py -c configs/lstm_forecast.yaml --steps 200

Checkpoints and records of the recipe's runs are neither read nor written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("-c", "--config", required=True, metavar="RECIPE", help="YAML recipe")
    result.add_argument(
        "-o", "--override", action="append", default=[], metavar="KEY=VALUE",
        help="override one key of the recipe, such as optim.lr=1e-3; any number of times",
    )  # fmt: skip
    result.add_argument("--steps", type=int, default=200, help="steps to train (%(default)s)")
    result.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="folder for norms.png and norms.json (runs/find_clip/ and the recipe's name)",
    )  # fmt: skip
    result.add_argument("--smoke", action="store_true", help="apply the recipe's smoke section: tiny sizes")
    result.add_argument("--trust", action="store_true", help="allow task.target outside paddle_stable.tasks")
    return result


def main() -> int:
    """Observe, print, draw. What is wrong with recipe or data is one message and exit code 2."""
    arguments = parser().parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    if arguments.trust:
        sys.path.insert(0, str(Path.cwd()))
    from paddle_stable.data.workers import SampleError, WorkerDied
    from paddle_stable.errors import ExitCode, InputError, StepFailed
    from paddle_stable.find_clip import describe, observe, open_folder, write_report
    from paddle_stable.recipe_io import load_recipe
    from paddle_stable.terminal import complain, say

    folder = arguments.output or Path("runs") / "find_clip" / Path(arguments.config).stem
    try:
        loaded = load_recipe(arguments.config, arguments.override, smoke=arguments.smoke, trust=arguments.trust)
        open_folder(folder)
        observed = observe(loaded, arguments.steps)
        say(describe(observed, loaded.recipe.clip.kind))
        picture, values = write_report(observed, folder)
    except InputError as error:
        complain(str(error))
        return ExitCode.INPUT
    except (StepFailed, SampleError, WorkerDied) as error:
        complain(str(error))
        return ExitCode.ERROR
    except OSError as error:
        complain(f"{folder}: the picture and the norms could not be written: {error}")
        return ExitCode.ERROR
    say(f"The picture: {picture}; the norms: {values}")
    return ExitCode.DONE


if __name__ == "__main__":
    sys.exit(main())
