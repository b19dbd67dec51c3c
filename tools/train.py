"""Train a recipe.

python tools/train.py -c configs/ernie_cls.yaml
python tools/train.py -c configs/ernie_cls.yaml -o optim.lr=1e-3 -o clip.max_norm=5.0 --resume auto
python -m paddle.distributed.launch --nproc_per_node 2 tools/train.py -c configs/ernie_cls.yaml
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
        help="override one key, such as optim.lr=1e-3; any number of times, the last one wins",
    )  # fmt: skip
    result.add_argument(
        "--resume", metavar="auto|FOLDER",
        help="go on from the newest checkpoint that verifies, or from this one; auto starts afresh where there is none",
    )  # fmt: skip
    result.add_argument("--check", action="store_true", help="validate recipe and data, print what would run, and stop")
    result.add_argument("--smoke", action="store_true", help="apply the recipe's smoke section: tiny sizes")
    result.add_argument("--trust", action="store_true", help="allow task.target outside paddle_stable.tasks")
    return result


def main() -> int:
    """Parse first: `--help` has to answer before Paddle is imported."""
    arguments = parser().parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    if arguments.trust:
        sys.path.insert(0, str(Path.cwd()))
    from paddle_stable.run import TrainingRequest, run_training

    return run_training(
        TrainingRequest(
            config=arguments.config,
            overrides=tuple(arguments.override),
            resume=arguments.resume,
            smoke=arguments.smoke,
            trust=arguments.trust,
            check=arguments.check,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
