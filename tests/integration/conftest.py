"""Runs of the LSTM recipe at its smoke sizes, in this process and as processes of their own.

The LSTM rather than ERNIE, because paddlenlp takes many seconds to import in every process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar, final

import pytest

from paddle_stable.build import build_trainer, prepare
from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.digest import digest
from paddle_stable.distributed import World
from paddle_stable.recipe_io import load_recipe
from paddle_stable.resume import find_resume_point, restore
from paddle_stable.trainer import Trainer
from paddle_stable.writers import RunRecord

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "configs" / "lstm_forecast.yaml"
SPEEDS = {"train/samples_per_second", "train/data_seconds"}


def sample_values(folder: Path, recipe: Path = RECIPE) -> dict[str, Any]:
    """Overrides that make the recipe use made-up data; for the LSTM 5 steps an epoch, the last one short."""
    task = load_recipe(str(recipe)).task_class
    sizes = {"data.batch_size": 64, "task.dropout": 0.2} if recipe == RECIPE else {}
    return {**task.write_sample_data(folder / "data"), **sizes}


def open_trainer(folder: Path, values: dict[str, Any], *, resume: str | None = None) -> Trainer:
    """A trainer with records in `folder`/run, as `tools/train.py` builds it."""
    run = folder / "run"
    loaded = load_recipe(str(RECIPE), smoke=True, set_values={**values, "run.output_dir": str(run)})
    world = World.single()
    prepared = prepare(loaded, world)
    start = find_resume_point(resume, CheckpointStore(run / "checkpoints", keep_last=2))
    trainer = build_trainer(prepared, world, folder=run)
    if start.path is not None:
        restore(trainer, start.path)
    recorded = start.step if resume is None or start.path is not None else 0
    trainer.writers = RunRecord.open(run, prepared.total_steps, recorded)
    return trainer


def curve(run: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of every scalar in metrics.jsonl, speeds left out."""
    found = []
    for line in (run / "metrics.jsonl").read_text(encoding="utf8").splitlines():
        record = json.loads(line)
        if record["kind"] == "scalars":
            found += [(tag, record["step"], value) for tag, value in record["scalars"].items() if tag not in SPEEDS]
    return found


def final_digest(run: Path) -> str:
    """Parameters and moments of the newest checkpoint."""
    store = CheckpointStore(run / "checkpoints", keep_last=2)
    path, passed_over = store.newest_valid()
    assert path is not None
    assert not passed_over
    parts = store.load(path)
    return f"{path.name} {digest({**parts.model, **parts.optimizer})}"


def final_state(run: Path) -> dict[str, Any]:
    """Everything else in the newest checkpoint: counters, clip, detector, monitor, history, best."""
    store = CheckpointStore(run / "checkpoints", keep_last=2)
    path, _ = store.newest_valid()
    assert path is not None
    return store.load(path).state


@final
class Train:
    """Runs `tools/train.py` at smoke sizes on sample data; the run folder is `folder`/run unless overridden.

    Overrides are keywords with `__` for the dot: `run__steps=20`.
    """

    environment: ClassVar[dict[str, str]] = {**os.environ, "OMP_NUM_THREADS": "1"}

    def __init__(self, folder: Path, recipe: Path = RECIPE) -> None:
        self._folder = folder
        self._recipe = recipe
        self._values = {**sample_values(folder, recipe), "run.output_dir": str(folder / "run")}

    def command(self, *arguments: str, ranks: int = 1, **overrides: Any) -> list[str]:
        """The command line, with the launcher when there are several ranks."""
        command = [sys.executable]
        if ranks > 1:
            log = str(self._folder / "launch")
            command += ["-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks), "--log_dir", log]
        command += [str(ROOT / "tools" / "train.py"), "-c", str(self._recipe), "--smoke", *arguments]
        for key, value in {**self._values, **{k.replace("__", "."): v for k, v in overrides.items()}}.items():
            command += ["-o", f"{key}={json.dumps(value, ensure_ascii=False)}"]  # JSON is YAML
        return command

    def __call__(self, *arguments: str, ranks: int = 1, **overrides: Any) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        return subprocess.run(
            self.command(*arguments, ranks=ranks, **overrides),
            capture_output=True, text=True, env=self.environment, cwd=self._folder, check=False,
        )  # fmt: skip


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """The command, in a folder of its own."""
    return Train(tmp_path)
