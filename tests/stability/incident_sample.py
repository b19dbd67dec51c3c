"""Small LSTM runs in which one step can be spoiled, shared by the tests of incidents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.dataset import Batch
from paddle_stable.data.loader import Window
from paddle_stable.digest import digest
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import model_arrays, optimizer_arrays

RECIPE = Path(__file__).parents[2] / "configs" / "lstm_forecast.yaml"


def open_run(folder: Path, network: Callable[[Any], Any] | None = None, **overrides: Any) -> Trainer:
    """A trainer on made-up data; `network` may change the model. Overrides have `__` for the dot."""
    values = load_recipe(str(RECIPE)).task_class.write_sample_data(folder / "data")
    values |= {"run.output_dir": str(folder / "run"), **{k.replace("__", "."): v for k, v in overrides.items()}}
    prepared = prepare(
        load_recipe(
            str(RECIPE),
            smoke=True,
            set_values={"stability.bad_samples": "skip", "stability.quarantine.after": None, **values},
        ),
        World.single(),
    )
    if network is not None:
        model = network(prepared.model)
        prepared = replace(prepared, model=model, statistics=RunningStatistics(model))
    return build_trainer(prepared, World.single(), folder=folder / "run")


def with_batch_norm(model: Any) -> Any:
    """The same forecaster with running statistics in it."""
    model.head = paddle.nn.Sequential(("norm", paddle.nn.BatchNorm1D(16)), ("linear", model.head))
    return model


def spoiled(window: Window, *, row: int = 3, value: float = np.nan) -> Window:
    """The window with one bad number in one sample."""
    first = window.parts[0]
    inputs = first["inputs"].numpy().copy()
    inputs[row, 5, 0] = value
    batch = Batch({**first.tensors, "inputs": paddle.to_tensor(inputs)}, first.indices, first.weight)
    return replace(window, parts=(batch, *window.parts[1:]))


def spoiling(windows: Iterator[Window], *numbers: int) -> Iterator[Window]:
    """All windows, those of the given numbers (from 1) spoiled."""
    for number, window in enumerate(windows, start=1):
        yield spoiled(window) if number in numbers else window


def take_steps(trainer: Trainer, windows: Iterator[Window], count: int) -> None:
    """Train, and tell the monitor."""
    for _ in range(count):
        trainer.monitor.update(trainer.train_step(windows))


def everything_that_learns(trainer: Trainer) -> str:
    """Digest of parameters, running statistics and moments, with the precision's state."""
    arrays = {**model_arrays(trainer.model), **optimizer_arrays(trainer.optimizer, trainer.model)}
    return f"{digest(arrays)} {trainer.precision.scaling.state()}"
