"""What would run, with its memory counted by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import paddle
import pytest
from paddle import nn

from paddle_stable.build import Prepared, prepare
from paddle_stable.distributed import World
from paddle_stable.dry_run import MIB, _activations, _memory, describe
from paddle_stable.recipe_io import load_recipe

RECIPE = Path(__file__).parents[1] / "configs" / "lstm_forecast.yaml"
BATCH, ROWS, COLUMNS, OUTPUTS = 16, 12, 2, 2
"""Sizes of the recipe's smoke section and of its sample data."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("data")
    values = load_recipe(str(RECIPE)).task_class.write_sample_data(folder)
    loaded = load_recipe(str(RECIPE), smoke=True, set_values={**values, "run.output_dir": str(folder / "run")})
    return prepare(loaded, World.single())


class Recurrent(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(COLUMNS, 8)
        self.head = nn.Linear(8, OUTPUTS)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp(*around: Any) -> Any:
    return nn.Sequential(nn.Flatten(), nn.Linear(ROWS * COLUMNS, 8), nn.ReLU(), *around, nn.Linear(8, OUTPUTS))


MLP = ROWS * COLUMNS + 8 + 8 + OUTPUTS


@pytest.mark.parametrize(
    ("network", "numbers"),
    [
        (mlp, MLP),
        (lambda: mlp(nn.Sequential(nn.Sequential(nn.Tanh()))), MLP + 8),
        (lambda: mlp(nn.Identity()), MLP),
        (Recurrent, ROWS * 8 + 2 * 8 + OUTPUTS),
    ],
    ids=["plain", "nested", "passed on", "recurrent"],
)
def test_every_tensor_that_a_layer_puts_out_is_counted_once(ready: Prepared, network: Any, numbers: int) -> None:
    model = network()
    assert _activations(replace(ready, model=model)) == 4 * BATCH * numbers
    assert not any(layer._forward_post_hooks for layer in model.sublayers())


def test_what_is_not_trained_needs_neither_gradient_nor_moments(ready: Prepared) -> None:
    model = mlp()
    model[1].weight.stop_gradient = True
    whole = replace(ready, model=model)
    weights, frozen = (ROWS * COLUMNS + 1) * 8 + (8 + 1) * OUTPUTS, ROWS * COLUMNS * 8
    expected = 4 * weights + 12 * (weights - frozen) + 4 * BATCH * MLP
    assert _memory(whole, weights - frozen) == expected
    text = describe(whole, World.single())
    assert f"parameters   {weights}, of which {weights - frozen} are trained" in text
    assert f"about {expected / MIB:,.0f} MiB a process" in text


def test_running_statistics_are_weights_too(ready: Prepared) -> None:
    plain, normed = mlp(), mlp(nn.BatchNorm1D(8))
    found = [_memory(replace(ready, model=model), 0) for model in (plain, normed)]
    assert found[1] - found[0] == 4 * 4 * 8 + 4 * BATCH * 8  # scale, shift, mean and variance, and what it puts out


@pytest.mark.parametrize(("size", "processes"), [(1, "1 process"), (3, "3 processes")])
def test_samples_of_a_step_are_those_of_all_processes(ready: Prepared, size: int, processes: str) -> None:
    lines = dict(line.split(None, 1) for line in describe(ready, World(0, size)).splitlines())
    assert f"{BATCH * size} samples a step ({BATCH} x accumulate 1 x {processes})" in lines["steps"]
    assert lines["steps"].startswith(f"30 in all, {ready.plan.steps_per_epoch} an epoch")
    sizes = {"training": ready.splits.train, "dev": ready.splits.dev, "test": ready.splits.test}
    assert lines["samples"] == ", ".join(f"{len(split)} {name}" for name, split in sizes.items() if split)
    assert lines["writes"] == f"to    {ready.recipe.run.output_dir}"


def test_no_hook_is_left_when_the_forward_pass_fails(ready: Prepared) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3, 8))
    with pytest.raises(ValueError, match=r"(?i)matmul|mul_op|dimension|shape"):
        describe(replace(ready, model=model), World.single())
    assert not any(layer._forward_post_hooks for layer in model.sublayers())
