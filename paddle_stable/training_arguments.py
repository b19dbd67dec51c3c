"""The command line of `tools/train.py`; `tools/launch.py` reads it too. Imports nothing: `--help` answers at once."""

from __future__ import annotations

import argparse


def training_parser(description: str | None) -> argparse.ArgumentParser:
    """Parser of the arguments of a training run."""
    result = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
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
