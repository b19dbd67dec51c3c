"""Saving in the background: what is saved, what a failure does to the run, and what its end waits for."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from paddle_stable import checkpoint
from paddle_stable.background_saving import BackgroundSaving
from paddle_stable.checkpoint import CheckpointError, CheckpointParts
from paddle_stable.checkpoint_folder import read_manifest
from paddle_stable.errors import Diverged, StepFailed
from paddle_stable.run import TrainingRequest, run_training
from paddle_stable.trainer import Trainer

from .conftest import RECIPE, Train, open_trainer, sample_values
from .test_recovery import RUN
from .test_resume import finish, stop_at

OFTEN: dict[str, Any] = {**RUN, "run.steps": 24, "run.eval_every": 4, "run.keep_last": 9}
ROLLBACK = {"faults": [{"step": 13, "kind": "nan_grad", "steps": 4}]}

_write_folder = checkpoint.write_folder


class SlowDisk:
    """Begins to write a checkpoint only when training is `behind` steps further or can go no further."""

    def __init__(self, trainer: Trainer, behind: int) -> None:
        self._trainer, self._behind = trainer, behind
        self.ahead: list[int] = []

    def write(self, folder: Path, step: int, parts: CheckpointParts, **named: Any) -> None:
        target = min(step + self._behind, self._trainer.schedule.total)
        deadline = time.monotonic() + 30
        while self._trainer.progress.step < target and time.monotonic() < deadline:
            time.sleep(0.001)
        self.ahead.append(self._trainer.progress.step - step)
        _write_folder(folder, step, parts, **named)


class FullDisk:
    """Fails from a step on."""

    def __init__(self, step: int) -> None:
        self._step = step

    def write(self, folder: Path, step: int, parts: CheckpointParts, **named: Any) -> None:
        if step >= self._step:
            raise OSError(errno.ENOSPC, "No space left on device")
        _write_folder(folder, step, parts, **named)


def contents(run: Path) -> dict[str, dict[str, str]]:
    """SHA-256 of every file of every checkpoint."""
    folders = sorted((run / "checkpoints").glob("step-*"))
    return {path.name: {name: record.sha256 for name, record in read_manifest(path).files.items()} for path in folders}


def test_a_checkpoint_is_of_its_step_whatever_training_does_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps later, and with a rollback to the snapshot that is in it."""
    values = {**sample_values(tmp_path), **OFTEN, **ROLLBACK, "task.hidden": 64}  # large enough for reused memory
    at_once = open_trainer(tmp_path / "at once", values)
    with monkeypatch.context() as patched:
        begin = BackgroundSaving.begin

        def begin_and_wait(self: BackgroundSaving, step: int, parts: CheckpointParts, **named: Any) -> None:
            begin(self, step, parts, **named)
            self.wait()

        patched.setattr(BackgroundSaving, "begin", begin_and_wait)
        finish(at_once)
    later = open_trainer(tmp_path / "later", values)
    disk = SlowDisk(later, behind=3)
    monkeypatch.setattr(checkpoint, "write_folder", disk.write)
    finish(later)
    assert disk.ahead == [3, 3, 3, 3, 3, 0]
    assert at_once.recovery.rollbacks == 1
    expected = contents(tmp_path / "at once" / "run")
    assert len(expected) == 6
    for name, files in contents(tmp_path / "later" / "run").items():
        # The recipe names the run folder.
        assert {**files, "recipe.yaml": ""} == {**expected[name], "recipe.yaml": ""}


def test_a_save_that_fails_ends_the_run_at_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **OFTEN})
    monkeypatch.setattr(checkpoint, "write_folder", FullDisk(8).write)
    record = trainer._record

    def slow_step(report: Any) -> None:
        if report.step == 9:
            trainer.saving.wait()  # it fails during step 9: step 10 hears of it
        record(report)

    monkeypatch.setattr(trainer, "_record", slow_step)
    with pytest.raises(CheckpointError, match=r"step 8 could not be saved.*No space left"):
        finish(trainer)
    assert trainer.progress.step in (9, 10)
    newest, passed_over = trainer.store.newest_valid()
    assert newest is not None
    assert (newest.name, passed_over) == ("step-000004", [])


def test_a_last_save_that_fails_is_not_a_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {**sample_values(tmp_path), **OFTEN, "run.output_dir": str(tmp_path / "run")}
    monkeypatch.setattr(checkpoint, "write_folder", FullDisk(24).write)
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in values.items())
    assert run_training(TrainingRequest(str(RECIPE), overrides, smoke=True)) == 1
    end = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert end["code"] == 1
    assert "step 24 could not be saved" in end["reason"]
    assert not (tmp_path / "run" / "results.json").exists()


def test_a_save_that_fails_while_training_fails_is_said_besides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**sample_values(tmp_path), **OFTEN, "faults": [{"step": 9, "kind": "raise"}]}
    monkeypatch.setattr(checkpoint, "write_folder", FullDisk(8).write)
    overrides = tuple(f"{k}={json.dumps(v)}" for k, v in {**values, "run.output_dir": str(tmp_path / "run")}.items())
    assert run_training(TrainingRequest(str(RECIPE), overrides, smoke=True)) == 1
    reason = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))["reason"]
    assert reason.startswith("step 9 failed")
    assert "step-000004" in reason
    assert "Besides: The checkpoint of step 8 could not be saved" in reason
    assert "step 8 could not be saved" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")


@pytest.mark.parametrize("end", ["signal", "failed step"])
def test_no_end_leaves_a_save_behind(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = [{"step": 9, "kind": "raise"}] if end == "failed step" else []
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **OFTEN, "faults": faults})

    def slowly(*arguments: Any, **named: Any) -> None:
        time.sleep(0.1)
        _write_folder(*arguments, **named)

    monkeypatch.setattr(checkpoint, "write_folder", slowly)
    if end == "signal":
        stop_at(trainer, 9)
        expected = "step-000010"
    else:
        with pytest.raises(StepFailed, match=r"The last checkpoint is .*step-000008"):
            finish(trainer)
        expected = "step-000008"
    assert trainer.saving.finish() is None
    newest, passed_over = trainer.store.newest_valid()
    assert newest is not None
    assert (newest.name, passed_over) == (expected, [])
    assert f"step {int(expected[5:])}: checkpoint saved" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")


def test_a_save_that_fails_ends_all_processes(train: Train, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / ".lock").mkdir(parents=True)  # where a save expects a file
    done = train(run__steps=20, run__eval_every=5, ranks=2)
    assert done.returncode != 0  # the launcher passes 1 on when both leave soon enough after each other
    end = json.loads((tmp_path / "run" / "exit.json").read_text(encoding="utf8"))
    assert end["code"] == 1
    assert "step 5 could not be saved" in end["reason"]
    assert "rank 0 could not save" in (tmp_path / "launch" / "workerlog.1").read_text(encoding="utf8")


def test_the_curves_are_on_the_disk_before_the_checkpoint_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure would otherwise leave a checkpoint that is newer than the records that a resume keeps."""
    flushed: list[str] = []

    def told(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", told)
    finish(open_trainer(tmp_path, {**sample_values(tmp_path), "run.steps": 4, "run.eval_every": 4}))
    flushed = flushed[flushed.index("metrics.jsonl") :]
    assert any(name.startswith(".writing-") for name in flushed[1:])
    assert not any(name.startswith(".writing-") for name in flushed[:1])


def test_a_log_that_cannot_be_written_does_not_hide_why_training_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**sample_values(tmp_path), "run.steps": 20, "run.eval_every": 3, "stability.recovery.max_rollbacks": 0}
    faults = [{"step": 4, "kind": "nan_loss", "steps": 9}]
    trainer = open_trainer(tmp_path, {**values, "stability.max_consecutive_skips": 1, "faults": faults})
    note = trainer.writers.note

    def full(message: str) -> None:
        if "checkpoint saved" in message:
            raise OSError(errno.ENOSPC, "No space left on device")
        note(message)

    monkeypatch.setattr(type(trainer.writers), "note", lambda _, message: full(message))
    monkeypatch.setattr(BackgroundSaving, "has_saved", False)  # it is said only when training has ended
    with pytest.raises(Diverged):
        finish(trainer)
