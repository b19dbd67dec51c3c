"""When a state is kept, when the run goes back to it, and what that does to the learning rate."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from paddle_stable.recipe import RecoveryConfig
from paddle_stable.stability.recovery import Recovery, Setback, Snapshot
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

CONFIG = RecoveryConfig(snapshot_every=10, healthy_steps=3, loss_steps=4, loss_factor=2.0, max_rollbacks=2)
GOOD = Verdict(loss=1.0, samples=4, grad_norm=1.0, clip_scale=1.0, clipped=False, skipped=None)


def report(step: int, **changes: object) -> StepReport:
    return StepReport(step, 0.0, replace(GOOD, **changes), lr=0.1, seconds=0.0, data_seconds=0.0)


def snapshot(value: float = 1.0) -> Snapshot:
    return Snapshot({"w": np.full(3, value, dtype=np.float32)}, {"w/moment1": np.zeros(3)}, {"applied": 0})


def recovery_after(*losses: float, config: RecoveryConfig = CONFIG) -> Recovery:
    recovery = Recovery(config)
    recovery.keep(snapshot(), 0)
    for step, loss in enumerate(losses):
        recovery.observe(report(step, loss=loss))
    return recovery


def test_the_first_state_is_kept_at_once_and_later_ones_when_due() -> None:
    recovery = Recovery(CONFIG)
    assert recovery.wants_snapshot(0)
    recovery.keep(snapshot(), 0)
    for step in range(5):
        recovery.observe(report(step))
    assert not recovery.wants_snapshot(9)
    assert recovery.wants_snapshot(10)
    recovery.keep(snapshot(), 10)
    assert not recovery.wants_snapshot(19)


@pytest.mark.parametrize(
    "trouble",
    [
        {"skipped": SkipReason.NONFINITE, "loss": math.nan},
        {"skipped": SkipReason.SPIKE},
        {"spike": ("norm",)},
    ],
    ids=["nonfinite", "spike skipped", "spike clipped"],
)
def test_a_state_close_to_trouble_is_not_kept(trouble: dict[str, object]) -> None:
    recovery = recovery_after(1.0, 1.0, 1.0, 1.0)
    assert recovery.wants_snapshot(10)
    recovery.observe(report(4, **trouble))
    for step in range(5, 7):
        recovery.observe(report(step))
        assert not recovery.wants_snapshot(100)
    recovery.observe(report(7))
    assert recovery.wants_snapshot(100)


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (math.nan, False), (math.inf, False)])
def test_a_snapshot_knows_whether_it_is_finite(value: float, finite: bool) -> None:
    assert snapshot(value).is_finite() is finite


def test_too_many_unusable_steps_are_divergence() -> None:
    recovery = recovery_after(1.0)
    assert recovery.divergence(4, limit=5) is None
    why = recovery.divergence(5, limit=5)
    assert why is not None
    assert "5 steps in a row" in why


def test_a_loss_that_stays_far_above_its_best_is_divergence_and_a_short_bump_is_not() -> None:
    assert recovery_after(*[1.0] * 10, *[100.0], *[1.0] * 20).divergence(0, limit=5) is None
    why = recovery_after(*[1.0] * 10, *[50.0] * 8).divergence(0, limit=5)
    assert why is not None
    assert "2 times its best for 4 steps" in why


def ever_diverged(recovery: Recovery, losses: Sequence[float]) -> bool:
    found = False
    for step, loss in enumerate(losses):
        recovery.observe(report(step, loss=loss))
        found = found or recovery.divergence(0, limit=5) is not None
    return found


def test_one_large_loss_right_after_a_rollback_is_not_divergence_and_many_are() -> None:
    for losses, expected in (([100.0, *[1.0] * 60], False), ([50.0] * 20, True)):
        recovery = recovery_after(*[1.0] * 20)
        recovery.rolled_back(0)
        assert ever_diverged(recovery, losses) is expected


def test_a_small_loss_at_the_very_beginning_is_not_the_best_for_ever() -> None:
    assert not ever_diverged(recovery_after(0.2), [1.0] * 100)


def test_losses_below_zero_are_never_far_above_their_best() -> None:
    recovery = recovery_after(*[-1.0] * 2000)
    assert recovery.state()["health"]["best_loss"] == pytest.approx(-1.0)
    assert not ever_diverged(recovery, [5.0] * 20)


def test_a_state_whose_loss_is_far_above_its_best_is_not_kept() -> None:
    recovery = recovery_after(*[1.0] * 10, *[50.0] * 6)
    assert recovery.divergence(0, limit=5) is None
    assert not recovery.wants_snapshot(1000)


def test_overflows_and_withheld_steps_say_nothing_about_the_model() -> None:
    recovery = recovery_after(1.0, 1.0, 1.0)
    for reason in (SkipReason.OVERFLOW, SkipReason.WITHHELD):
        recovery.observe(report(5, skipped=reason, loss=math.nan))
    assert recovery.wants_snapshot(10)


def test_after_a_rollback_the_learning_rate_is_lower_and_warms_up_again() -> None:
    config = RecoveryConfig(lr_backoff=0.5, rewarm_steps=4)
    setback = Setback(rollbacks=2, applied=100)
    factors = [setback.lr_factor(100 + i, config) for i in range(7)]
    assert factors == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.25, 0.25])
    assert Setback().lr_factor(0, config) == 1.0


def test_rollbacks_are_bounded() -> None:
    recovery = recovery_after(1.0)
    for number in range(2):
        assert recovery.is_possible
        recovery.rolled_back(0)
        assert recovery.rollbacks == number + 1
    assert not recovery.is_possible


def test_without_rollbacks_no_state_is_kept_and_the_loss_is_not_judged() -> None:
    recovery = recovery_after(*[1.0] * 5, *[50.0] * 10, config=RecoveryConfig(max_rollbacks=0, loss_steps=4))
    assert not recovery.wants_snapshot(1000)
    assert not recovery.is_possible
    assert recovery.divergence(0, limit=5) is None
    assert recovery.divergence(5, limit=5) is not None


def test_the_state_round_trips_through_json() -> None:
    recovery = recovery_after(1.0, 2.0, 3.0, 9.0)
    recovery.rolled_back(0)
    recovery.observe(report(9, loss=2.0))
    assert recovery.snapshot is not None
    again = Recovery(CONFIG)
    again.load_state(json.loads(json.dumps(recovery.state())), recovery.snapshot.arrays())
    assert again.state() == recovery.state()
    assert again.snapshot is not None
    assert again.snapshot.model["w"].tolist() == [1.0, 1.0, 1.0]
    assert list(again.snapshot.optimizer) == ["w/moment1"]
    assert again.lr_factor(3) == recovery.lr_factor(3)
