"""Metrics of a run's best checkpoint on its test set.

python tools/evaluate.py runs/ernie_cls
python tools/evaluate.py runs/ernie_cls --split dev --newest
python tools/evaluate.py runs/ernie_cls/checkpoints/step-000433 -o data.test=other.txt
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Parse first: `--help` has to answer before Paddle is imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder, or the folder of one checkpoint")
    parser.add_argument("--split", choices=["train", "dev", "test"], default="test")
    parser.add_argument("--newest", action="store_true", help="the newest checkpoint instead of the best one")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="as in train.py")
    parser.add_argument("--trust", action="store_true", help="allow task.target outside paddle_stable.tasks")
    arguments = parser.parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    if arguments.trust:
        sys.path.insert(0, str(Path.cwd()))
    from paddle_stable.scoring import ScoringRequest, score

    return score(
        ScoringRequest(
            run=arguments.run,
            split=arguments.split,
            newest=arguments.newest,
            overrides=tuple(arguments.override),
            trust=arguments.trust,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
