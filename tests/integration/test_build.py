"""What can only be checked when recipe, data and model meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paddle_stable.build import prepare
from paddle_stable.distributed import World
from paddle_stable.dry_run import describe
from paddle_stable.errors import InputError
from paddle_stable.recipe_io import load_recipe

from .conftest import RECIPE, open_trainer, sample_values


def prepared(folder: Path, **values: Any) -> Any:
    changed = {key.replace("__", "."): value for key, value in values.items()}
    loaded = load_recipe(str(RECIPE), smoke=True, set_values={**sample_values(folder), **changed})
    return prepare(loaded, World.single())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"data__batch_size": 100_000}, r"data\.batch_size 100000 x run\.accumulate 1 x 1 process"),
        ({"run__accumulate": 100}, r"one step takes 6400 samples"),
        (
            {"run__steps": None, "run__epochs": 1, "schedule__warmup_ratio": None, "schedule__warmup_steps": 50},
            r"warmup_steps: 50 is more than the \d+",
        ),
        ({"optim__groups": [{"match": "decoder.*", "freeze": True}]}, r"optim\.groups\.0\.match: 'decoder"),
        ({"faults": [{"step": 2, "kind": "nan_grad", "parameter": "zzz"}]}, r"faults\.0\.parameter: 'zzz' matches no"),
        ({"faults": [{"step": 2, "kind": "nan_loss", "rank": 7}]}, r"faults\.0\.rank: must be below the number"),
        (
            {"amp__dtype": "float16", "amp__emulate": True, "amp__emulate_layers": ["zzz"]},
            r"amp\.emulate_layers: no pattern matches",
        ),
    ],
    ids=["batch", "accumulate", "warm-up", "group", "fault name", "fault rank", "emulated layers"],
)
def test_what_does_not_fit_is_said_before_step_0(values: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=named):
        prepared(tmp_path, **values)


def test_the_same_seed_builds_the_same_model_and_another_does_not(tmp_path: Path) -> None:
    weights = [
        next(iter(prepared(tmp_path, run__seed=seed).model.parameters())).numpy().tobytes() for seed in (1, 1, 2)
    ]
    assert weights[0] == weights[1] != weights[2]


def test_epochs_and_steps_count_the_same_windows(tmp_path: Path) -> None:
    by_epochs = prepared(tmp_path, run__steps=None, run__epochs=3)
    assert by_epochs.total_steps == 3 * by_epochs.plan.steps_per_epoch
    assert prepared(tmp_path, run__steps=7).total_steps == 7


def test_frozen_parameters_are_not_trained(tmp_path: Path) -> None:
    values = {**sample_values(tmp_path), "optim.groups": [{"match": "lstm.*", "freeze": True}], "run.steps": 3}
    trainer = open_trainer(tmp_path, values)
    before = {name: p.numpy().copy() for name, p in trainer.model.named_parameters()}
    windows = trainer.loader.steps()
    for _ in range(3):
        trainer.train_step(windows)
    moved = {name for name, p in trainer.model.named_parameters() if (p.numpy() != before[name]).any()}
    assert moved
    assert not any(name.startswith("lstm.") for name in moved)
    trainer.writers.close()


def test_the_dry_run_says_what_would_run_and_leaves_the_model_alone(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    before = [p.numpy().copy() for p in ready.model.parameters()]
    text = describe(ready, World.single())
    parameters = sum(p.size for p in ready.model.parameters())
    assert f"{parameters:,}, of which {parameters:,} are trained" in text
    assert "30 in all, 5 an epoch, 64 samples a step (64 x accumulate 1 x 1 process)" in text
    assert "MiB a process" in text
    assert all((p.numpy() == b).all() for p, b in zip(ready.model.parameters(), before, strict=True))
    assert not any(layer._forward_post_hooks for layer in ready.model.sublayers())


def test_a_model_beyond_all_memory_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="task: the model does not fit into memory"):
        prepared(tmp_path, task__hidden=4_000_000)
