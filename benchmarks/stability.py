"""How often training survives the faults that real series have, with and without a guard.

python benchmarks/stability.py --jobs 2
python benchmarks/stability.py --budget-minutes 60     then the same again goes on where it stopped

The volatility recipe on the S&P 500 (odd seeds) and the NASDAQ (even seeds), in copies of the CSV with three unit
errors, a missing price and a heavy-tailed shock in the training rows (benchmarks/claim/faults.py); and, apart, on clean
data with ten times the recipe's learning rate. Arms and sizes: benchmarks/claim/arms.py; success: claim/figures.py.
Clean runs come first: where they do not beat both naive forecasts by 15 %, nothing else is run and no table printed.
One JSON line a finished cell goes to the output file; lines of another recipe do not count.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: F401  has to be there before denormals are flushed

from paddle_stable.tool_start import start_tool

if __name__ in ("__main__", "__mp_main__"):  # the command, and the processes of --jobs
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny networks: a second thread only costs
    start_tool()  # before the first tensor

from benchmarks.claim.arms import SERIES, SIZES, Arm, Cell, Condition, Setting, run_cell
from benchmarks.claim.figures import NotWorthATable, Yardstick, draw, report
from benchmarks.finished_cells import append, finished
from paddle_stable.data.market import write_market_series

SEEDS: dict[Arm, int] = {"a": 50, "b": 50, "c": 200, "d": 200}
CLEAN_SEEDS = 50
BESIDE_SEEDS = 50
"""Of the condition that is no part of the two tables."""


def clean_cells(seeds: int = CLEAN_SEEDS) -> list[Cell]:
    """The yardstick, and the runs that do nothing."""
    return [Cell("clean", arm, seed) for seed in range(1, seeds + 1) for arm in ("d", "z")]


def cells() -> list[Cell]:
    """All cells. Whenever it is stopped, every arm has as many runs as the others, or all of its own."""
    conditions: tuple[Condition, ...] = ("keep", "policy", "lr")
    seeds = range(1, max(SEEDS.values()) + 1)
    tables = [Cell(c, arm, seed) for seed in seeds for c in conditions for arm in SEEDS if seed <= SEEDS[arm]]
    beside = [Cell("finite", arm, seed) for seed in range(1, BESIDE_SEEDS + 1) for arm in SEEDS]
    first = [cell for cell in tables if cell.seed <= BESIDE_SEEDS]
    return [*clean_cells(), *first, *beside, *(cell for cell in tables if cell.seed > BESIDE_SEEDS)]


@cache
def _setting(data: Path) -> Setting:
    return Setting(data, SIZES)


def _run(cell: Cell, data: Path) -> dict[str, Any]:
    return run_cell(cell, _setting(data))


def results(left: Sequence[Cell], data: Path, *, jobs: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Run cells in order, in this process or in `jobs` others; none begins after the deadline (`time.monotonic`)."""
    if jobs == 1:
        for cell in left:
            if time.monotonic() > deadline:
                return
            yield _run(cell, data)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running: set[Future[dict[str, Any]]] = set()
        for cell in left:
            if time.monotonic() > deadline:
                break
            running.add(pool.submit(_run, cell, data))
            if len(running) == jobs:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        yield from (future.result() for future in running)


def of_this_recipe(path: Path, setting: Setting) -> dict[str, dict[str, Any]]:
    """Lines of the file of results, by cell; those of another recipe do not count."""
    return {line["cell"]: line for line in finished(path) if line["recipe"] == setting.digest(line["arm"])}


def run_missing(
    plan: Sequence[Cell], path: Path, data: Path, *, jobs: int, deadline: float, only: str = ""
) -> dict[str, dict[str, Any]]:
    """Run what the file of results does not hold yet; all finished cells of the plan, in its order."""
    done = of_this_recipe(path, _setting(data))
    left = [cell for cell in plan if cell.name not in done and only in cell.name]
    for line in results(left, data, jobs=jobs, deadline=deadline):
        append(path, line)
        done[line["cell"]] = line
    return {cell.name: done[cell.name] for cell in plan if cell.name in done}


def main() -> int:
    """Run what is missing, then print the tables and draw the picture of all that is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=ROOT / "data" / "series", help="clean series; written if absent")
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks" / "stability.jsonl")
    parser.add_argument("--picture", type=Path, default=ROOT / "runs" / "benchmarks" / "stability.png")
    parser.add_argument("--budget-minutes", type=float, default=30.0, help="begin no further cell after that")
    parser.add_argument("--only", default="", metavar="TEXT", help="cells with this in their name, clean ones besides")
    parser.add_argument("--jobs", type=int, default=1, help="processes, of one thread each (%(default)s)")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60.0 * arguments.budget_minutes
    if not all((arguments.data / f"{series}.csv").exists() for series in SERIES):
        write_market_series(arguments.data)
    how: dict[str, Any] = {"jobs": arguments.jobs, "deadline": deadline}
    try:
        Yardstick.of(run_missing(clean_cells(), arguments.output, arguments.data, **how).values())
        lines = list(run_missing(cells(), arguments.output, arguments.data, only=arguments.only, **how).values())
        print(report(lines, len(cells())))
        arguments.picture.parent.mkdir(parents=True, exist_ok=True)
        draw(lines, arguments.picture)
    except NotWorthATable as error:
        print(f"No table: {error}.", file=sys.stderr)
        return 1
    if len(lines) < len(cells()):
        print(f"\n{len(cells()) - len(lines)} cells are left; the same command goes on with them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
