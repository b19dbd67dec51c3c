"""Trains the detector some steps, every process on the same half of each batch; a process alone on that half only."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.loader import Loader, Window
from paddle_stable.data.windows import WindowPlan
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.tasks.dbnet import DbnetDetection
from paddle_stable.training_state import model_arrays

RECIPE = Path(__file__).parents[2] / "configs" / "dbnet_det.yaml"
STEPS, HALF = 3, 2


def main(folder: Path) -> None:
    world = World.from_environment()
    data = folder / f"data{world.rank}-{world.size}"
    values = {**DbnetDetection.write_sample_data(data), "run.output_dir": str(folder / "run"), "data.batch_size": HALF}
    prepared = prepare(load_recipe(str(RECIPE), smoke=True, set_values=values), world)
    trainer = build_trainer(prepared, world, folder=folder / "run")
    train = prepared.splits.train
    alone = Loader(train, WindowPlan(None, len(train), HALF, 1, 1, seed=1), world=World.single(), seed=1).steps()

    def same_for_all() -> Iterator[Window]:
        for window in alone:
            (batch,) = window.parts
            yield replace(window, parts=(replace(batch, weight=1.0 / world.size),))

    windows = same_for_all()
    reports = [trainer.train_step(windows) for _ in range(STEPS)]
    arrays = model_arrays(trainer.model)
    arrays["loss"] = np.array([report.verdict.loss for report in reports])
    arrays["grad_norm"] = np.array([report.verdict.grad_norm for report in reports])
    np.savez(folder / f"rank{world.rank}of{world.size}.npz", **arrays)
    world.meet()
    world.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
