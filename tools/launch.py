"""Train with several processes, and come back by itself after a hang or a killed process.

python tools/launch.py --nproc_per_node 2 tools/train.py -c configs/ernie_cls.yaml
python tools/launch.py --max-restarts 5 --nproc_per_node 8 --log_dir log tools/train.py -c configs/ernie_cls.yaml

All arguments but --max-restarts go to `python -m paddle.distributed.launch`. The exit code is the one in exit.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddle_stable.errors import ExitCode, InputError
from paddle_stable.launching import launch
from paddle_stable.terminal import complain


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [--max-restarts N] [options of Paddle's launcher] tools/train.py -c RECIPE …",
        allow_abbrev=False,
    )
    result.add_argument(
        "--max-restarts", type=int, default=3, metavar="N", help="start again at most that often (default 3)"
    )
    return result


def main() -> int:
    """Watch the launcher until the run has ended for good."""
    arguments, launched = parser().parse_known_args()
    try:
        return launch(launched, max_restarts=arguments.max_restarts, say=complain)
    except InputError as error:
        complain(str(error))
        return ExitCode.INPUT


if __name__ == "__main__":
    sys.exit(main())
