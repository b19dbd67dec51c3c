"""Every recipe in configs/ is valid as it is, and every task trains on its recipe's smoke sizes.

Both tests find recipes and tasks by themselves: adding a task needs no change here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
import yaml

from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.dataset import Batch
from paddle_stable.distributed import World
from paddle_stable.recipe_io import LoadedRecipe, load_recipe
from paddle_stable.seeding import seed_step
from paddle_stable.stop_signal import StopSignal
from paddle_stable.task import Task
from paddle_stable.trainer import Trainer

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "configs").glob("*.yaml"))
BUILT_IN = sorted(p.stem for p in (ROOT / "paddle_stable" / "tasks").glob("*.py") if p.stem != "__init__")


def smoke(recipe: Path, folder: Path, **values: Any) -> LoadedRecipe:
    """The recipe at its smoke sizes, on the task's sample data."""
    task: type[Task] = load_recipe(str(recipe)).task_class
    sample = task.write_sample_data(folder / "data")
    return load_recipe(str(recipe), smoke=True, set_values={**sample, "run.output_dir": str(folder / "run"), **values})


def trainer_of(loaded: LoadedRecipe, folder: Path) -> Trainer:
    world = World.single()
    return build_trainer(prepare(loaded, world), world, folder=folder)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_valid_as_it_is_and_says_how_to_launch_it(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name = f"configs/{recipe.name}"
    loaded = load_recipe(name)
    assert loaded.recipe.smoke, "every recipe has a smoke section"
    text = recipe.read_text(encoding="utf8")
    assert f"python tools/train.py -c {name}" in text
    assert f"python -m paddle.distributed.launch --nproc_per_node 2 tools/train.py -c {name}" in text
    assert "--resume auto" in text


OF_OTHER_CLIPS = {"clip.max_value", "clip.schedule", "clip.adaptive", "clip.groups"}
ANSWERED_BY_A_POLICY = {"data.bad_samples", "data.max_bad_samples"}
"""In the recipe of a series, which has `data.policy` for it."""


def left_out(section: Mapping[str, Any], written: Mapping[str, Any], path: str = "") -> set[str]:
    """Dotted keys of a section that a file does not have."""
    missing = {f"{path}{key}" for key in section if key not in written}
    for key in section.keys() & written.keys():
        if isinstance(section[key], dict) and isinstance(written[key], dict):
            missing |= left_out(section[key], written[key], f"{path}{key}.")
    return missing


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_has_every_key_written_out(recipe: Path) -> None:
    written = yaml.safe_load(recipe.read_text(encoding="utf8"))
    allowed = OF_OTHER_CLIPS | (ANSWERED_BY_A_POLICY if "policy" in written["data"] else set())
    assert left_out(load_recipe(str(recipe)).recipe.model_dump(), written) <= allowed


def test_every_task_has_a_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    targets = {load_recipe(f"configs/{recipe.name}").recipe.task.target.split(".")[-2] for recipe in RECIPES}
    assert targets == set(BUILT_IN)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_trains_at_its_smoke_sizes(recipe: Path, tmp_path: Path) -> None:
    trainer = trainer_of(smoke(recipe, tmp_path), tmp_path / "run")
    before = {name: p.numpy().copy() for name, p in trainer.model.named_parameters() if not p.stop_gradient}
    with StopSignal() as stop:
        trainer.fit(stop)
    assert trainer.progress.applied == trainer.schedule.total > 0
    still = [n for n, p in trainer.model.named_parameters() if n in before and (p.numpy() == before[n]).all()]
    assert not still, f"parameters that did not move: {still}"
    assert set(trainer.dev_metrics) == set(trainer.task.metric_names)
    assert all(np.isfinite(value) for value in trainer.dev_metrics.values())
    assert trainer.store.best() is not None


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_thirty_steps_on_one_batch_halve_the_loss(recipe: Path, tmp_path: Path) -> None:
    trainer = trainer_of(smoke(recipe, tmp_path), tmp_path / "run")
    batch: Batch = next(trainer.loader.steps()).parts[0]
    losses = []
    for step in range(1, 31):
        seed_step(trainer.recipe.run.seed, 0, step)
        trainer.guard.begin()
        loss = trainer.task.loss(trainer.model, batch)
        loss.backward()
        losses.append(trainer.guard.step(trainer.optimizer, [loss], samples=batch.size, applied=step - 1).loss)
    assert np.mean(losses[-3:]) < losses[0] / 2, losses


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_task_keeps_its_contract(recipe: Path, tmp_path: Path) -> None:
    trainer = trainer_of(smoke(recipe, tmp_path), tmp_path / "run")
    task, train = trainer.task, trainer.splits.train
    batch = next(trainer.loader.steps()).parts[0]
    loss = task.loss(trainer.model, batch)
    assert loss.size == 1
    assert loss.dtype == paddle.float32
    outputs = task.outputs(trainer.model, batch)
    assert {len(array) for array in outputs.values()} == {batch.size}
    lengths = train.lengths()
    assert lengths is None or len(lengths) == len(train)
    origin = train.origin(0)
    assert Path(origin.file).exists()
    assert origin.line >= 0
    assert all(isinstance(text, str) for text in task.assets().values())
    evaluation = trainer.evaluate(trainer.splits.dev)
    pictures = task.pictures(evaluation.outputs, trainer.splits.dev, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures.values())
