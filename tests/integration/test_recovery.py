"""What guard, detector and recovery each do about every kind of fault, in whole runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from paddle_stable.distributed import World
from paddle_stable.errors import Diverged, StepFailed
from paddle_stable.stability.faults import InjectedError
from paddle_stable.stop_signal import StopSignal
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import load_optimizer_arrays, optimizer_arrays

from .conftest import curve, final_digest, open_trainer, sample_values
from .test_resume import ActsAt, finish, stop_at

RUN: dict[str, Any] = {
    "run.steps": 60,
    "run.log_every": 1,
    "run.eval_every": 30,
    "stability.max_consecutive_skips": 4,
    "stability.recovery.snapshot_every": 5,
    "stability.recovery.healthy_steps": 2,
    "stability.recovery.rewarm_steps": 3,
    "stability.spike.warmup_steps": 8,
    "stability.bad_samples": "skip",
    "forensics.enabled": False,
}


def trained(folder: Path, faults: list[dict[str, Any]], **values: Any) -> Trainer:
    trainer = open_trainer(folder, {**sample_values(folder), **RUN, **values, "faults": faults})
    finish(trainer)
    return trainer


def assert_usable(trainer: Trainer) -> None:
    """All steps attempted, the counters add up, nothing is non-finite, and something was learned."""
    progress, totals = trainer.progress, trainer.monitor.totals
    assert progress.step == RUN["run.steps"]
    assert progress.applied + progress.skipped + progress.undone == progress.step
    assert (totals.applied, totals.skipped, totals.undone) == (progress.applied, progress.skipped, progress.undone)
    assert all(np.isfinite(p.numpy()).all() for p in trainer.model.parameters())
    assert trainer.splits.naive is not None
    assert trainer.dev_metrics["mse"] < trainer.splits.naive.value


@pytest.mark.parametrize("kind", ["nan_loss", "nan_grad", "inf_grad", "nan_input"])
def test_one_non_finite_step_is_skipped(kind: str, tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": kind}])
    assert trainer.monitor.totals.skips["nonfinite"] == 1
    assert trainer.recovery.rollbacks == 0
    assert_usable(trainer)


@pytest.mark.parametrize("kind", ["huge_grad", "loss_spike"])
@pytest.mark.parametrize("action", ["clip", "skip"])
def test_a_finite_spike_is_clipped_or_skipped(kind: str, action: str, tmp_path: Path) -> None:
    values = {"stability.spike.action": action, "stability.spike.rebaseline_after": 3}
    trainer = trained(tmp_path, [{"step": 20, "kind": kind}], **values)
    assert trainer.monitor.totals.skips["spike"] == (1 if action == "skip" else 0)
    assert trainer.monitor.totals.skips["nonfinite"] == 0
    assert trainer.recovery.rollbacks == 0
    assert_usable(trainer)


def test_a_parameter_that_is_not_finite_leads_back_to_the_last_good_state(tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": "nan_parameter"}])
    assert trainer.monitor.totals.skips["nonfinite"] == 1  # it does not wait for more: none could be used
    assert trainer.recovery.rollbacks == 1
    assert trainer.progress.undone > 0
    assert_usable(trainer)
    assert not (tmp_path / "run" / "incidents").exists()
    rates = {step: value for tag, step, value in curve(tmp_path / "run") if tag == "train/lr"}
    assert rates[30] == pytest.approx(rates[19] / 2, rel=0.4)
    assert rates[21] < rates[24]


def test_weights_that_blow_up_lead_back_to_the_last_good_state(tmp_path: Path) -> None:
    values = {"stability.recovery.loss_steps": 3, "stability.recovery.loss_factor": 3.0}
    trainer = trained(tmp_path, [{"step": 25, "kind": "grow_weights", "steps": 14}], **values)
    assert trainer.recovery.rollbacks >= 1
    assert_usable(trainer)


def test_faults_without_end_stop_the_run_with_an_explanation(tmp_path: Path) -> None:
    faults = [{"step": 20, "kind": "nan_loss", "steps": 100}]
    with pytest.raises(Diverged, match=r"4 steps in a row .* after 3 rollbacks"):
        trained(tmp_path, faults)


def test_an_exception_in_the_forward_pass_names_its_samples(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match=r"series\.csv:\d+") as failed:
        trained(tmp_path, [{"step": 20, "kind": "raise"}])
    assert isinstance(failed.value.__cause__, InjectedError)


def test_half_precision_overflow_lowers_the_scale_and_learns_on(tmp_path: Path) -> None:
    amp = {"amp.dtype": "float16", "amp.emulate": True, "amp.init_scale": 1024.0}
    trainer = trained(tmp_path, [{"step": 20, "kind": "loss_spike"}], **amp)
    assert trainer.monitor.totals.skips["nonfinite"] == 0
    assert_usable(trainer)


@pytest.mark.parametrize("stop", [21, 23, 26], ids=["in the bad steps", "before the rollback", "after it"])
def test_a_run_killed_around_a_rollback_resumes_exactly(stop: int, tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    values = {**data, **RUN, "run.steps": 40, "faults": [{"step": 20, "kind": "nan_grad", "steps": 4}]}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(open_trainer(whole, values))
    stop_at(open_trainer(broken, values), stop)
    resumed = open_trainer(broken, values, resume="auto")
    finish(resumed)
    assert resumed.recovery.rollbacks == 1
    assert final_digest(broken / "run") == final_digest(whole / "run")
    assert curve(broken / "run") == curve(whole / "run")


def test_a_rollback_goes_on_past_the_data_and_says_so(tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": "nan_grad", "steps": 4}])
    log = (tmp_path / "run" / "run.log").read_text(encoding="utf8")
    assert "step 23: rolled back, 4 steps in a row could not be used" in log
    assert trainer.loader.position.epoch == 60 // trainer.loader.steps_per_epoch
    records = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf8")
    steps = [json.loads(line)["step"] for line in records.splitlines()]
    assert steps == sorted(steps)
    with StopSignal() as stop:
        trainer.fit(stop)  # it is at its end: nothing more happens
    assert trainer.progress.step == 60


def poisoned_in_the_dark(folder: Path, values: dict[str, Any], *, resume: str | None = None) -> Trainer:
    """A trainer with an infinite moment from step 18 on: its parameter stands still, and no loss ever shows it."""
    trainer = open_trainer(folder, values, resume=resume)

    def spoil() -> None:
        moments = optimizer_arrays(trainer.optimizer, trainer.model)
        name = min(name for name in moments if name.endswith("/moment2"))
        load_optimizer_arrays(trainer.optimizer, trainer.model, {**moments, name: np.full_like(moments[name], np.inf)})

    trainer.faults = ActsAt(trainer.faults, 18, spoil)  # type: ignore[assignment]
    return trainer


@pytest.mark.parametrize(("snapshot_every", "eval_every"), [(5, 60), (100, 10)], ids=["a snapshot", "a save"])
def test_what_no_loss_shows_is_met_by(snapshot_every: int, eval_every: int, tmp_path: Path) -> None:
    recovery = {"stability.recovery.snapshot_every": snapshot_every}
    values = {**sample_values(tmp_path), **RUN, "run.eval_every": eval_every, **recovery}
    trainer = poisoned_in_the_dark(tmp_path, values)
    finish(trainer)
    assert trainer.recovery.rollbacks == 1
    assert "step 20: rolled back" in (tmp_path / "run" / "run.log").read_text(encoding="utf8")
    assert_usable(trainer)


def test_an_evaluation_whose_state_cannot_be_saved_is_not_the_best(tmp_path: Path) -> None:
    recovery = {"stability.recovery.snapshot_every": 100}
    values = {**sample_values(tmp_path), **RUN, "run.steps": 20, "run.eval_every": 10, **recovery}
    trainer = poisoned_in_the_dark(tmp_path, values)
    finish(trainer)
    dev = {step: value for tag, step, value in curve(tmp_path / "run") if tag == "eval/mse"}
    assert dev[20] < dev[10]
    assert (trainer.best.step, trainer.best.value) == (10, pytest.approx(dev[10]))
    best = trainer.store.best()
    assert best is not None
    assert best.name == "step-000010"


@pytest.mark.parametrize("first_save", [10, 40], ids=["from a checkpoint", "from the beginning"])
def test_a_signal_in_a_state_that_is_not_finite_changes_nothing_of_the_run(first_save: int, tmp_path: Path) -> None:
    """Such a state cannot be saved, and to go back at the signal would be earlier than without it."""
    values = {**sample_values(tmp_path), **RUN, "run.steps": 40, "run.eval_every": first_save}
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(poisoned_in_the_dark(whole, values))
    assert "are not saved" in stop_at(poisoned_in_the_dark(broken, values), 18)
    kept = [path.name for path in (broken / "run" / "checkpoints").glob("step-*")]
    assert kept == ["step-000010"] * (first_save == 10)
    resumed = poisoned_in_the_dark(broken, values, resume="auto")
    finish(resumed)
    assert resumed.recovery.rollbacks == 1
    assert final_digest(broken / "run") == final_digest(whole / "run")
    assert curve(broken / "run") == curve(whole / "run")


def test_a_rollback_is_explained(tmp_path: Path) -> None:
    fault = {"step": 20, "kind": "nan_parameter", "parameter": "head.*"}
    trainer = trained(tmp_path, [fault], **{"forensics.enabled": True, "forensics.max_reports": 1})
    assert_usable(trainer)
    names = sorted(folder.name for folder in (tmp_path / "run" / "incidents").iterdir())
    assert names == ["step-000020", "step-000020-rollback"]
    text = (tmp_path / "run" / "incidents" / names[1] / "report.md").read_text(encoding="utf8")
    assert "`head.weight` among them" in text
    assert "a parameter is not finite" in text


def test_a_label_in_a_wrong_unit_is_limited_to_a_usual_step(tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": "corrupt_label", "tensor": "target*"}])
    totals = trainer.monitor.totals
    assert (totals.spikes, totals.skipped, trainer.recovery.rollbacks) == (1, 0, 0)
    assert_usable(trainer)


def test_an_overflow_of_float16_lowers_the_scale_and_costs_one_step(tmp_path: Path) -> None:
    values = {"amp.dtype": "float16", "amp.emulate": True, "amp.init_scale": 1024.0}
    trainer = trained(tmp_path, [{"step": 20, "kind": "overflow"}], **values)
    totals = trainer.monitor.totals
    assert (totals.skips["overflow"], totals.skips["nonfinite"], trainer.recovery.rollbacks) == (1, 0, 0)
    assert trainer.precision.scaling.value < 1024.0
    assert_usable(trainer)


def test_an_overflow_without_float16_is_a_spike(tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": "overflow"}])
    assert (trainer.monitor.totals.spikes, trainer.progress.skipped) == (1, 0)
    assert_usable(trainer)


def test_a_row_of_nan_leads_back_to_the_last_good_state(tmp_path: Path) -> None:
    trainer = trained(tmp_path, [{"step": 20, "kind": "nan_embedding", "row": 2}])
    assert trainer.recovery.rollbacks == 1
    assert_usable(trainer)


def test_a_rollback_takes_back_all_that_was_learned_since(tmp_path: Path) -> None:
    values = {
        **sample_values(tmp_path), **RUN, "amp.dtype": "float16", "amp.emulate": True, "amp.growth_interval": 3,
        "amp.init_scale": 64.0, "clip.kind": "adaptive", "clip.adaptive.warmup_steps": 3, "clip.adaptive.window": 6,
    }  # fmt: skip
    trainer = open_trainer(tmp_path, values)
    windows = trainer.loader.steps()
    parts = ("amp", "clip", "spikes")
    trainer._keep_good_state()
    for _ in range(8):
        trainer._record(trainer.train_step(windows))
    snapshot = trainer.recovery.snapshot
    assert snapshot is not None
    trainer.best = replace(trainer.best, evaluations_since=7)
    assert all(trainer.state()[part] != snapshot.state[part] for part in parts)
    trainer._roll_back(snapshot)
    assert all(trainer.state()[part] == snapshot.state[part] for part in parts)
    assert trainer.best.evaluations_since == snapshot.state["evaluations_since"]
    assert trainer.progress.applied == 0
    trainer.writers.close()


def test_a_state_that_is_not_finite_on_another_process_is_not_finite_here_either(tmp_path: Path) -> None:
    trainer = open_trainer(tmp_path, {**sample_values(tmp_path), **RUN})
    assert not trainer._is_model_spoilt()
    trainer.world = cast(World, SimpleNamespace(size=2, rank=1, is_main=False, agree_max=lambda flag: max(flag, 1)))
    assert trainer._is_model_spoilt()
    assert not trainer._keep_good_state()
    assert trainer.recovery.snapshot is None
    trainer.writers.close()
