"""One step and the loop around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.stability.step_report import SkipReason
from paddle_stable.stop_signal import StopSignal

from .conftest import curve, open_trainer, sample_values
from .test_resume import finish

QUIET = {"task.dropout": 0.0, "forensics.enabled": False}


def test_a_skipped_step_uses_up_no_learning_rate(tmp_path: Path) -> None:
    faults = [{"step": 2, "kind": "nan_loss"}, {"step": 4, "kind": "withhold"}]
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **QUIET, "faults": faults})
    windows = trainer.loader.steps()
    reports = [trainer.train_step(windows) for _ in range(6)]
    assert [r.verdict.skipped for r in reports] == [
        None, SkipReason.NONFINITE, None, SkipReason.WITHHELD, None, None,
    ]  # fmt: skip
    rates = [r.lr for r in reports]
    assert rates[1] == rates[2]
    assert rates[3] == rates[4]
    assert rates[0] > rates[1] > rates[3] > rates[5]
    assert [r.step for r in reports] == [1, 2, 3, 4, 5, 6]
    assert reports[5].epoch == pytest.approx(1.0)
    trainer.writers.close()


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_the_accumulated_gradient_is_clipped_and_equals_that_of_one_batch(parts: int, tmp_path: Path) -> None:
    """64 samples at once and in parts, the short last window of an epoch among them."""
    values = {**sample_values(tmp_path), **QUIET, "clip.max_norm": 0.05}
    reports = []
    for name, split in (("one", 1), ("parts", parts)):
        changed = {"data.batch_size": 64 // split, "run.accumulate": split}
        trainer = open_trainer(tmp_path / name, {**values, **changed})
        windows = trainer.loader.steps()
        reports.append([trainer.train_step(windows).verdict for _ in range(6)])
        trainer.writers.close()
    for one, accumulated in zip(*reports, strict=True):
        assert accumulated.loss == pytest.approx(one.loss, rel=1e-5)
        assert accumulated.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
        assert accumulated.clip_scale == pytest.approx(one.clip_scale, rel=1e-5)
        assert accumulated.samples == one.samples
        assert accumulated.clipped
    assert len({verdict.samples for verdict in reports[0]}) == 2  # full windows and the short one


def test_evaluations_and_checkpoints_come_when_they_are_due(tmp_path: Path) -> None:
    values: dict[str, Any] = {"run.steps": 11, "run.eval_every": 4, "run.save_every": 5, "run.keep_last": 9}
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **QUIET, **values})
    finish(trainer)
    assert [step for tag, step, _ in curve(tmp_path / "run") if tag == "eval/mse"] == [4, 8, 11]
    saved = {int(path.name[5:]) for path in (tmp_path / "run" / "checkpoints").glob("step-*")}
    assert {5, 10, 11} <= saved
    assert saved <= {4, 5, 8, 10, 11}  # 4 and 8 where they were the best so far
    assert trainer.best.step in saved


def test_early_stop_ends_the_run_when_nothing_gets_better(tmp_path: Path) -> None:
    values = {"run.steps": 200, "run.eval_every": 1, "run.early_stop": 3, "optim.lr": 1e-12}
    values["run.best_metric"] = "directional_accuracy"
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **QUIET, **values})
    finish(trainer)
    assert trainer.best.evaluations_since == 3
    assert trainer.progress.step == trainer.best.step + 3 < 200


def test_a_model_whose_norms_were_measured_is_the_model_that_is_saved(tmp_path: Path) -> None:
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **QUIET, "run.steps": 3})
    with StopSignal() as stop:
        trainer.fit(stop)
    newest, passed_over = trainer.store.newest_valid()
    assert newest is not None
    assert not passed_over
    saved = trainer.store.load(newest).model
    for name, parameter in trainer.model.named_parameters():
        if name in saved:
            np.testing.assert_array_equal(saved[name], parameter.numpy())
    trainer.writers.close()
