"""Promise 4: a resumed run equals the uninterrupted one, bit for bit."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import paddle
import pytest

from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.data.dataset import Batch
from paddle_stable.data.loader import Position
from paddle_stable.errors import InputError, Stopped
from paddle_stable.resume import find_resume_point, restore
from paddle_stable.stability.faults import Faults
from paddle_stable.stability.incident_files import read_incident
from paddle_stable.stability.step_report import StepReport
from paddle_stable.stop_signal import StopSignal
from paddle_stable.trainer import Trainer

from .conftest import curve, final_digest, final_state, open_trainer, sample_values

PLAIN: dict[str, Any] = {"run.steps": 14, "run.log_every": 3, "run.eval_every": 4}
POISONED = {**PLAIN, "faults": [{"step": 3, "kind": "nan_loss"}, {"step": 8, "kind": "inf_grad"}]}
HALF = {**PLAIN, "amp.dtype": "float16", "amp.emulate": True, "amp.init_scale": 2.0**24, "amp.growth_interval": 3}
LEARNING = {"clip.kind": "adaptive", "clip.max_norm": 5.0, "clip.adaptive.warmup_steps": 3}
QUICK = {"stability.spike.warmup_steps": 5, "stability.spike.window": 10, "stability.spike.ratio": 1.05}
PERCENTILE = {**POISONED, **LEARNING, "clip.adaptive.window": 6, "stability.spike.k": 0.5, **QUICK}
ZSCORE = {**PLAIN, **LEARNING, "clip.adaptive.method": "zscore", "clip.adaptive.z_threshold": 0.2}
SPIKY = {**PLAIN, **QUICK, "stability.spike.action": "skip", "stability.spike.k": 0.5}
LAYERS = {**PLAIN, "clip.kind": "layers", "clip.groups": [{"match": "*bias*", "max_norm": 0.01}]}
ACCUMULATED = {**PLAIN, "run.accumulate": 2, "data.batch_size": 20}


class ActsAt:
    """Faults that do something besides in the middle of a step."""

    def __init__(self, faults: Faults, step: int, act: Callable[[], None]) -> None:
        self._faults, self._step, self._act = faults, step, act

    def withholds(self, step: int) -> bool:
        if step == self._step:
            self._act()
        return self._faults.withholds(step)

    def spoil_parameters(self, step: int, model: paddle.nn.Layer) -> None:
        self._faults.spoil_parameters(step, model)

    def spoil_batch(self, step: int, batch: Batch) -> Batch:
        return self._faults.spoil_batch(step, batch)

    def spoil_loss(self, step: int, loss: paddle.Tensor) -> paddle.Tensor:
        return self._faults.spoil_loss(step, loss)

    def spoil_backward(self, step: int, loss: paddle.Tensor) -> paddle.Tensor:
        return self._faults.spoil_backward(step, loss)

    def spoil_gradients(self, step: int, model: paddle.nn.Layer) -> None:
        self._faults.spoil_gradients(step, model)


def stop_at(trainer: Trainer, step: int) -> str:
    """Train until a signal arrives in `step`; the run stops after the step behind it. Returns what it says."""
    told = ActsAt(trainer.faults, step, lambda: os.kill(os.getpid(), signal.SIGTERM))
    trainer.faults = told  # type: ignore[assignment]
    with StopSignal() as stop, pytest.raises(Stopped) as stopped:
        trainer.fit(stop)
    trainer.writers.close()
    return str(stopped.value)


def finish(trainer: Trainer) -> None:
    try:
        with StopSignal() as stop:
            trainer.fit(stop)
    finally:
        trainer.writers.close()


@pytest.mark.parametrize("stops", [(1,), (4,), (6,), (2, 4, 6, 8, 10)], ids=str)
@pytest.mark.parametrize(
    "values",
    [PLAIN, POISONED, HALF, ACCUMULATED, PERCENTILE, ZSCORE, SPIKY, LAYERS],
    ids=["plain", "poisoned", "half precision", "accumulated", "percentile", "zscore", "spiky", "layers"],
)
def test_a_resumed_run_equals_the_uninterrupted_one(
    values: dict[str, Any], stops: tuple[int, ...], tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    data = sample_values(tmp_path)
    finish(open_trainer(whole, {**data, **values}))
    for number, step in enumerate(stops):
        stop_at(open_trainer(broken, {**data, **values}, resume="auto" if number else None), step)
    finish(open_trainer(broken, {**data, **values}, resume="auto"))
    assert final_digest(broken / "run") == final_digest(whole / "run")
    assert str(final_state(broken / "run")) == str(final_state(whole / "run"))  # text, because NaN equals itself there
    assert curve(broken / "run") == curve(whole / "run")


@pytest.mark.parametrize("values", [PERCENTILE, ZSCORE, SPIKY], ids=["percentile", "zscore", "spiky"])
def test_negative_control_a_run_that_forgets_what_clip_and_detector_have_learned_differs(
    values: dict[str, Any], tmp_path: Path
) -> None:
    values = {**values, **sample_values(tmp_path), "run.steps": 16}
    finish(open_trainer(tmp_path / "whole", values))
    stop_at(open_trainer(tmp_path / "broken", values), 9)
    forgetful = open_trainer(tmp_path / "broken", values, resume="auto")
    fresh = open_trainer(tmp_path / "fresh", values)
    forgetful.guard.clip.load_state(fresh.guard.clip.state())
    forgetful.guard.spikes.load_state(fresh.guard.spikes.state())
    fresh.writers.close()
    finish(forgetful)
    assert final_digest(tmp_path / "broken" / "run") != final_digest(tmp_path / "whole" / "run")


def test_negative_control_a_run_that_forgets_its_position_differs(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    finish(open_trainer(tmp_path / "whole", {**data, **PLAIN}))
    stop_at(open_trainer(tmp_path / "broken", {**data, **PLAIN}), 4)
    forgetful = open_trainer(tmp_path / "broken", {**data, **PLAIN}, resume="auto")
    forgetful.loader.skip_to(Position())
    finish(forgetful)
    assert final_digest(tmp_path / "broken" / "run") != final_digest(tmp_path / "whole" / "run")


def test_best_and_patience_survive(tmp_path: Path) -> None:
    values = {**PLAIN, **sample_values(tmp_path), "run.eval_every": 1, "run.early_stop": 30}
    stop_at(open_trainer(tmp_path, values), 6)
    before = open_trainer(tmp_path, values, resume="auto")
    assert before.best.step > 0
    assert before.best.step + before.best.evaluations_since == before.progress.step == 7
    best = before.store.best()
    assert best is not None
    assert best.name == f"step-{before.best.step:06d}"
    before.writers.close()


def test_another_precision_is_refused_with_the_way_out(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    records = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"saved with amp\.dtype=float32, this recipe asks for float16"):
        open_trainer(tmp_path, {**data, **HALF}, resume="auto")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == records


def test_another_model_is_refused_with_the_names(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    with pytest.raises(InputError, match="l1"):
        open_trainer(tmp_path, {**data, **PLAIN, "task.layers": 2}, resume="auto")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"data.batch_size": 32}, "samples a step 64 → 32"), ({"run.seed": 9}, "seed 1 → 9")],
    ids=["batch size", "seed"],
)
def test_another_order_of_samples_is_refused(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    with pytest.raises(InputError, match=named):
        open_trainer(tmp_path, {**data, **PLAIN, **change}, resume="auto")


def test_edited_training_data_are_noticed_and_a_run_may_go_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    store = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2)
    newest, _ = store.newest_valid()
    assert newest is not None
    trainer = open_trainer(tmp_path, {**data, **PLAIN}, resume="auto")
    assert restore(trainer, newest) == []
    monkeypatch.setattr(trainer.loader, "data_digest", "another")
    (remark,) = restore(trainer, newest)
    trainer.writers.close()
    assert "the training data are not those of the checkpoint" in remark


def test_another_metric_for_the_best_is_refused(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    with pytest.raises(InputError, match=r"chosen by run\.best_metric=mse"):
        open_trainer(tmp_path, {**data, **PLAIN, "run.best_metric": "mae"}, resume="auto")


def test_a_changed_recipe_is_gone_on_with_and_named(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    newest, _ = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2).newest_valid()
    assert newest is not None
    trainer = open_trainer(tmp_path, {**data, **PLAIN, "optim.lr": 0.125}, resume="auto")
    (remark,) = restore(trainer, newest)
    trainer.writers.close()
    assert re.fullmatch(r"the recipe is not the checkpoint's: optim\.lr \S+ → 0\.125", remark)


def test_a_checkpoint_of_another_task_is_refused(tmp_path: Path) -> None:
    data = sample_values(tmp_path)
    stop_at(open_trainer(tmp_path, {**data, **PLAIN}), 2)
    trainer = open_trainer(tmp_path / "other", {**data, **PLAIN})
    trainer.recipe = trainer.recipe.model_copy(
        update={
            "task": trainer.recipe.task.model_copy(update={"target": "paddle_stable.tasks.ernie.ErnieClassification"})
        }
    )
    newest, _ = CheckpointStore(tmp_path / "run" / "checkpoints", keep_last=2).newest_valid()
    assert newest is not None
    with pytest.raises(InputError, match=r"is a checkpoint of paddle_stable\.tasks\.lstm\S+, this recipe trains"):
        restore(trainer, newest)
    trainer.writers.close()


def test_a_mistyped_checkpoint_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such checkpoint folder; --resume auto"):
        find_resume_point("Auto", CheckpointStore(tmp_path, keep_last=2))


def test_another_list_of_samples_in_quarantine_is_noticed(tmp_path: Path) -> None:
    listed = tmp_path / "listed.jsonl"
    listed.write_text("", encoding="utf8")
    values = {**sample_values(tmp_path), **PLAIN, "stability.quarantine.file": str(listed)}
    stop_at(open_trainer(tmp_path, values), 4)
    newest = max((tmp_path / "run" / "checkpoints").glob("step-*"))
    trainer = open_trainer(tmp_path, values, resume="auto")
    assert restore(trainer, newest) == []
    trainer.writers.close()
    origin = trainer.splits.train.origin(3)
    entry = {"file": origin.file, "line": origin.line, "excerpt": origin.excerpt}
    listed.write_text(json.dumps(entry) + "\n", encoding="utf8")
    edited = open_trainer(tmp_path, values, resume="auto")
    assert any("stability.quarantine.file names other samples" in line for line in restore(edited, newest))
    edited.writers.close()


def test_what_the_newest_evaluation_said_survives(tmp_path: Path) -> None:
    values = {**sample_values(tmp_path), **PLAIN}
    first = open_trainer(tmp_path, values)
    stop_at(first, 6)
    assert first.dev_metrics
    resumed = open_trainer(tmp_path, values, resume="auto")
    assert resumed.dev_metrics == first.dev_metrics
    resumed.writers.close()


def test_the_incident_report_of_a_resumed_run_is_that_of_the_uninterrupted_one(tmp_path: Path) -> None:
    values = {**sample_values(tmp_path), **PLAIN, "faults": [{"step": 8, "kind": "nan_loss"}]}
    finish(open_trainer(tmp_path / "whole", values))
    stop_at(open_trainer(tmp_path / "broken", values), 5)
    finish(open_trainer(tmp_path / "broken", values, resume="auto"))
    whole, broken = (
        read_incident(tmp_path / name / "run" / "incidents" / "step-000008")[0] for name in ("whole", "broken")
    )
    assert [report.step for report in broken.history] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [what_it_did(report) for report in broken.history] == [what_it_did(report) for report in whole.history]
    assert broken.usual_norms == whole.usual_norms


def what_it_did(report: StepReport) -> str:
    """Without times and the stop; as text, because a loss that is NaN equals itself there."""
    verdict = replace(report.verdict, stop_requested=False)
    return str(replace(report, verdict=verdict, seconds=0.0, data_seconds=0.0))
