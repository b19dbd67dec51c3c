from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paddle_stable.progress import Best, Progress
from paddle_stable.stability.step_report import SkipReason, Verdict

APPLIED = Verdict(loss=1.0, samples=1, grad_norm=1.0, clip_scale=1.0, clipped=False, skipped=None)


def skip(reason: SkipReason) -> Verdict:
    return replace(APPLIED, skipped=reason)


def test_attempted_is_applied_plus_skipped_plus_undone_at_every_step() -> None:
    progress = Progress()
    for verdict in [APPLIED, skip(SkipReason.OVERFLOW), skip(SkipReason.NONFINITE), APPLIED, skip(SkipReason.WITHHELD)]:
        progress = progress.after(verdict)
        assert progress.applied + progress.skipped + progress.undone == progress.step
    assert (progress.step, progress.applied, progress.skipped) == (5, 2, 3)
    assert Progress.from_state(progress.state()) == progress


def test_only_unusable_steps_count_towards_giving_up() -> None:
    progress = Progress()
    for reason, expected in [
        (SkipReason.NONFINITE, 1),
        (SkipReason.OVERFLOW, 1),
        (SkipReason.SPIKE, 2),
        (SkipReason.WITHHELD, 2),
    ]:
        progress = progress.after(skip(reason))
        assert progress.unusable_in_a_row == expected
    assert progress.after(APPLIED).unusable_in_a_row == 0


@pytest.mark.parametrize(("higher", "values", "best_step"), [(True, [0.5, 0.7, 0.6], 2), (False, [0.5, 0.7, 0.4], 3)])
def test_the_best_is_the_best(higher: bool, values: list[float], best_step: int) -> None:
    best = Best("x", higher)
    for step, value in enumerate(values, start=1):
        best = best.after(step, value)
    assert best.step == best_step
    assert best.evaluations_since == len(values) - best_step
    assert Best.from_state(best.state()) == best


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_non_finite_metric_is_never_the_best(higher: bool, bad: float) -> None:
    best = Best("x", higher).after(1, bad)
    assert best.value is None
    best = best.after(2, 0.5).after(3, bad)
    assert (best.value, best.step, best.evaluations_since) == (0.5, 2, 1)


def test_an_equal_value_is_not_better() -> None:
    assert Best("x", True).after(1, 0.5).after(2, 0.5).step == 1
