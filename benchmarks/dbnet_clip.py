"""Which bound on the gradient norm the text detector learns best with: clip 1.0, 5.0, none, adaptive; several seeds.

python tools/prepare_data.py text_images
python benchmarks/dbnet_clip.py
python benchmarks/dbnet_clip.py --budget-minutes 60     then the same again goes on where it stopped

Every cell is a whole training of configs/dbnet_det.yaml that is given the same processor time, four minutes: a first
cell measures how many steps that is, and all cells then take that number, with a learning rate that has come down by
the end of them. Everything else is the recipe's. The figure is the hmean on dev of the last step. One JSON line a
finished cell goes to the output file, which belongs to one recipe and one number of steps.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: F401  has to be there before denormals are flushed

from paddle_stable.tool_start import start_tool

if __name__ == "__main__":
    start_tool()  # before the first tensor

from benchmarks.finished_cells import append, finished
from paddle_stable.build import build_trainer, prepare
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.trainer import Trainer

RECIPE = ROOT / "configs" / "dbnet_det.yaml"
ARMS: Mapping[str, Mapping[str, Any]] = {
    "1.0": {"clip.kind": "global_norm", "clip.max_norm": 1.0},
    "5.0": {"clip.kind": "global_norm", "clip.max_norm": 5.0},
    "none": {"clip.kind": "none"},
    # The percentile of AutoClip limits nine steps of ten; the z-score one only what is out of the ordinary.
    "adaptive": {"clip.kind": "adaptive", "clip.max_norm": 50.0, "clip.adaptive.method": "zscore"},
}
_WARM_UP_STEPS, _MEASURED_STEPS = 3, 10


def build(arm: str, seed: int, steps: int, folder: Path, values: Mapping[str, Any], *, smoke: bool) -> Trainer:
    """A trainer of the recipe with one arm's clip, which prepares its data itself: all its time is counted."""
    changes = {**values, **ARMS[arm], "run.seed": seed, "run.epochs": None, "run.steps": steps, "data.workers": 0}
    loaded = load_recipe(str(RECIPE), smoke=smoke, set_values={**changes, "run.output_dir": str(folder)})
    return build_trainer(prepare(loaded, World.single()), World.single(), folder=folder)


def measure_steps(minutes: float, values: Mapping[str, Any], *, smoke: bool) -> int:
    """Steps that fit into so many minutes of processor time of one core."""
    with TemporaryDirectory() as folder:
        trainer = build("5.0", 1, 1000, Path(folder), values, smoke=smoke)
        windows = trainer.loader.steps()
        for _ in range(_WARM_UP_STEPS):
            trainer.train_step(windows)
        begin = time.process_time()
        for _ in range(_MEASURED_STEPS):
            trainer.train_step(windows)
        seconds = (time.process_time() - begin) / _MEASURED_STEPS
    return max(10, round(60.0 * minutes / seconds))


def run_cell(arm: str, seed: int, steps: int, values: Mapping[str, Any], *, smoke: bool) -> dict[str, Any]:
    """Train, evaluate once, and say how it went."""
    begin = time.process_time()
    with TemporaryDirectory() as folder:
        trainer = build(arm, seed, steps, Path(folder), values, smoke=smoke)
        windows = trainer.loader.steps()
        norms = []
        for _ in range(steps):
            report = trainer.train_step(windows)
            trainer.monitor.update(report)
            norms.append(report.verdict.grad_norm)
        metrics = trainer.evaluate(trainer.splits.dev).metrics
    totals = trainer.monitor.totals
    return {
        "cell": f"{arm} seed {seed}",
        "arm": arm,
        "seed": seed,
        "steps": steps,
        **metrics,
        "clip_rate": totals.clip_rate,
        "skipped": sum(totals.skips.values()),
        "norm_median": statistics.median(norms),
        "norm_largest": max(norms),
        "cpu_seconds": round(time.process_time() - begin, 1),
    }


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """hmean by arm with its spread, and the difference to the arm 1.0 of the same seeds."""
    lines = ["| clip | seeds | hmean, mean | lowest to highest | against 1.0, same seeds | steps limited |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    base = {result["seed"]: result["hmean"] for result in results if result["arm"] == "1.0"}
    for arm in ARMS:
        mine = [result for result in results if result["arm"] == arm]
        if not mine:
            lines.append(f"| {arm} | 0 | - | - | - | - |")
            continue
        scores = [result["hmean"] for result in mine]
        gains = [result["hmean"] - base[result["seed"]] for result in mine if result["seed"] in base]
        gain = (
            "-"
            if arm == "1.0" or not gains
            else f"{statistics.mean(gains):+.4f} ({min(gains):+.4f} to {max(gains):+.4f})"
        )
        rate = statistics.mean(result["clip_rate"] for result in mine)
        lines.append(
            f"| {arm} | {len(mine)} | {statistics.mean(scores):.4f} | {min(scores):.4f} to {max(scores):.4f} | {gain} "
            f"| {rate:.0%} |"
        )
    steps = sorted({result["steps"] for result in results})
    lines.append(f"\n{len(results)} cells of {', '.join(map(str, steps))} steps each.")
    return "\n".join(lines)


def main() -> int:
    """Run the cells that are not in the output file yet, then print the table of all that are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "benchmarks" / "dbnet_clip.jsonl")
    parser.add_argument("--budget-minutes", type=float, default=60.0, help="begin no further cell after that")
    parser.add_argument("--minutes", type=float, default=4.0, help="processor time of a cell (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of every arm (%(default)s)")
    parser.add_argument("--smoke", action="store_true", help="the recipe's smoke sizes on made-up data")
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60.0 * arguments.budget_minutes
    with TemporaryDirectory() as folder:
        values = load_recipe(str(RECIPE)).task_class.write_sample_data(Path(folder)) if arguments.smoke else {}
        done = {result["cell"]: result for result in finished(arguments.output)}
        # Seed by seed, so that a budget that ends early leaves whole comparisons.
        wanted = [(arm, seed) for seed in range(1, arguments.seeds + 1) for arm in ARMS]
        left = [(arm, seed) for arm, seed in wanted if f"{arm} seed {seed}" not in done]
        steps = next(iter(done.values()))["steps"] if done else 0
        for arm, seed in left:
            if time.monotonic() > deadline:
                break
            steps = steps or measure_steps(arguments.minutes, values, smoke=arguments.smoke)
            result = run_cell(arm, seed, steps, values, smoke=arguments.smoke)
            done[result["cell"]] = result
            append(arguments.output, result)
    print(table(list(done.values())))
    missing = sum(f"{arm} seed {seed}" not in done for arm, seed in wanted)
    if missing:
        print(f"{missing} cells are left; the same command goes on with them.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
