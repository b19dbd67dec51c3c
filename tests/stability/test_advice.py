"""Advice: given when the figures call for it, with the figures, and silent otherwise."""

from __future__ import annotations

import math
from typing import Any

import pytest

from paddle_stable.recipe import AmpConfig, ClipConfig, ModelKind
from paddle_stable.stability.advice import Clipping, NaiveComparison, advice
from paddle_stable.stability.monitor import Monitor
from paddle_stable.stability.step_report import SkipReason, StepReport, Verdict

FLOAT32 = AmpConfig()


def monitor_of(
    *,
    plain: int = 0,
    clipped: int = 0,
    norm: float = 0.9,
    loss_scale: float = 1.0,
    window: int = 1000,
    **skips: int,
) -> Monitor:
    """A monitor that has seen that many steps of each sort."""
    monitor = Monitor(window)
    verdicts = [
        *[Verdict(1.0, 4, norm, 0.5, clipped=True, skipped=None, loss_scale=loss_scale)] * clipped,
        *[Verdict(1.0, 4, norm, 1.0, clipped=False, skipped=None, loss_scale=loss_scale)] * plain,
    ]
    for reason, count in skips.items():
        skip = Verdict(1.0, 4, math.inf, 1.0, clipped=False, skipped=SkipReason(reason), loss_scale=loss_scale)
        verdicts.extend([skip] * count)
    for step, verdict in enumerate(verdicts, start=1):
        monitor.update(StepReport(step, 0.0, verdict, 0.1, seconds=0.1, data_seconds=0.0))
    return monitor


def clipping(model: ModelKind = "transformer", bound: float | None = None, **clip: Any) -> Clipping:
    config = ClipConfig(**clip)
    return Clipping(config, config.max_norm if bound is None else bound, model)


def said(
    monitor: Monitor,
    amp: AmpConfig = FLOAT32,
    comparison: NaiveComparison | None = None,
    model: ModelKind = "transformer",
    in_force: float | None = None,
    **clip: Any,
) -> str:
    lines = advice(monitor, clipping=clipping(model, in_force, **clip), amp=amp, comparison=comparison)
    return "\n".join(lines)


def test_a_healthy_run_gets_no_advice() -> None:
    comparison = NaiveComparison("accuracy", 0.9, 0.5, "the majority class", higher_is_better=True)
    assert said(monitor_of(plain=95, clipped=5, nonfinite=2), comparison=comparison) == ""


@pytest.mark.parametrize(("clipped", "expected"), [(30, False), (31, True), (100, True)])
def test_a_clip_rate_above_30_percent_blames_the_model_or_the_learning_rate(clipped: int, expected: bool) -> None:
    text = said(monitor_of(plain=100 - clipped, clipped=clipped, norm=3.5))
    assert (f"{clipped} of 100 applied steps ({clipped}%) were clipped" in text) is expected
    assert ("the model or the learning rate is at fault, not the threshold" in text) is expected
    assert ("95 % below 3.5" in text) is expected


@pytest.mark.parametrize(("kind", "part"), [("value", "One element"), ("norm", "One parameter")])
def test_kinds_that_clip_by_construction_are_not_blamed_on_the_model(kind: str, part: str) -> None:
    text = said(monitor_of(clipped=100), kind=kind)
    assert "the rate alone is no alarm" in text
    assert part in text
    assert "at fault" not in text


def test_the_clip_rate_is_that_of_the_whole_run_and_not_of_the_window() -> None:
    assert "50 of 100 applied steps" in said(monitor_of(clipped=50, plain=50, window=10))


@pytest.mark.parametrize(("max_norm", "expected"), [(0.95, False), (2.7, False), (2.71, True), (1e6, True)])
def test_never_clipping_suggests_the_95th_percentile_when_the_bound_is_far_above(
    max_norm: float, expected: bool
) -> None:
    text = said(monitor_of(plain=100, norm=0.9), max_norm=max_norm)
    assert ("None of 100 applied steps was clipped" in text) is expected
    assert ("clip.max_norm=0.9, the 95th percentile." in text) is expected


@pytest.mark.parametrize(
    ("model", "expected"), [("rnn", "clip.max_norm=1, of 1–5"), ("cnn", "clip.max_norm=5, of 5–10")]
)
def test_a_bound_below_the_usual_range_of_such_models_is_raised_to_it(model: ModelKind, expected: str) -> None:
    monitor = monitor_of(plain=100, norm=0.3)
    assert expected in said(monitor, model=model, kind="none")
    assert expected in said(monitor, model=model, max_norm=100.0)
    assert said(monitor, model=model, max_norm=float(expected.partition("=")[2].partition(",")[0])) == ""


def test_a_bound_that_would_limit_most_steps_is_not_advised() -> None:
    text = said(monitor_of(plain=100, norm=40.0), model="transformer", kind="none")
    assert "clip.max_norm=40, the 95th percentile." in text


def test_the_bound_of_the_schedule_that_was_in_force_counts() -> None:
    schedule = [{"from_step": 5, "max_norm": 1.0}]
    assert said(monitor_of(plain=100), max_norm=100.0, schedule=schedule, in_force=1.0) == ""
    text = said(monitor_of(plain=50, clipped=50), max_norm=100.0, schedule=schedule, in_force=1.0)
    assert "(clip.max_norm=100, and 1 in the end by clip.schedule)" in text


def test_the_norms_of_a_divergence_make_no_bound() -> None:
    lines = advice(monitor_of(plain=100), clipping=clipping(kind="none"), amp=FLOAT32, diverging=True)
    assert ["lower optim.lr" in line for line in lines] == [True]


@pytest.mark.parametrize("kind", ["value", "norm"])
def test_never_clipping_suggests_no_global_norm_to_a_clip_that_has_none(kind: str) -> None:
    text = said(monitor_of(plain=100), kind=kind, max_norm=50.0, max_value=50.0)
    assert "the clip did nothing" in text
    assert "=50 in 100 applied steps" in text


def test_observing_only_suggests_a_bound() -> None:
    assert "clip.kind=global_norm clip.max_norm=0.9" in said(monitor_of(plain=100, norm=0.9), kind="none")


@pytest.mark.parametrize(
    ("skips", "expected"),
    [
        ({"nonfinite": 5}, None),
        ({"nonfinite": 6}, "6% of the steps brought nothing. 6 of 100 steps were skipped (6 nonfinite)"),
        ({"overflow": 7, "spike": 2}, "9% of the steps brought nothing. 9 of 100 steps were skipped"),
        ({"withheld": 50}, None),
    ],
)
def test_a_skip_rate_above_5_percent_is_told_and_withheld_steps_are_not_held_against_it(
    skips: dict[str, int], expected: str | None
) -> None:
    text = said(monitor_of(plain=99 - sum(skips.values()), clipped=1, **skips))
    assert expected in text if expected else text == ""


@pytest.mark.parametrize("counts", [{"clipped": 19}, {"nonfinite": 19}, {"plain": 19}])
def test_rates_of_a_few_steps_say_nothing(counts: dict[str, int]) -> None:
    assert said(monitor_of(**counts), max_norm=100.0) == ""


@pytest.mark.parametrize(
    ("dtype", "scale", "overflows", "expected"),
    [
        ("float16", 1.0, 1, True),
        ("float16", 2.0, 1, False),
        ("float16", 1.0, 0, False),
        ("float32", 1.0, 1, False),
        ("bfloat16", 1.0, 1, False),
    ],
)
def test_a_loss_scale_at_the_floor_is_told(dtype: Any, scale: float, overflows: int, expected: bool) -> None:
    monitor = monitor_of(plain=50, clipped=5, loss_scale=scale, overflow=overflows)
    assert ("at its floor (amp.min_scale=1)" in said(monitor, AmpConfig(dtype=dtype))) is expected


@pytest.mark.parametrize(
    ("value", "higher_is_better", "expected"),
    [
        (0.6, True, False),
        (0.5, True, True),
        (0.4, True, True),
        (0.4, False, False),
        (0.5, False, True),
        (0.6, False, True),
        (math.nan, True, True),
        (math.nan, False, True),
    ],
)
def test_a_model_no_better_than_the_naive_answer_is_told(value: float, higher_is_better: bool, expected: bool) -> None:
    comparison = NaiveComparison("score", value, 0.5, "the majority class", higher_is_better=higher_is_better)
    text = said(monitor_of(), comparison=comparison)
    assert ("is not better than the majority class (0.5)" in text) is expected


def test_the_most_pressing_advice_comes_first() -> None:
    comparison = NaiveComparison("accuracy", 0.5, 0.5, "the majority class", higher_is_better=True)
    monitor = monitor_of(clipped=50, nonfinite=50)
    lines = advice(monitor, clipping=clipping(), amp=AmpConfig(dtype="float16"), comparison=comparison)
    assert [line.split()[0] for line in lines] == ["50%", "The", "The", "50"]


def test_a_percentile_clip_limits_most_steps_by_construction_and_is_not_blamed() -> None:
    assert said(monitor_of(clipped=100), kind="adaptive") == ""
    assert said(monitor_of(plain=100), kind="adaptive") == ""


def test_a_zscore_clip_that_limits_that_often_blames_the_learning_rate() -> None:
    text = said(monitor_of(plain=50, clipped=50), kind="adaptive", adaptive={"method": "zscore"})
    assert "the model or the learning rate is at fault" in text


def test_groups_are_advised_on_with_their_own_rates() -> None:
    monitor, groups = Monitor(100), [{"match": "*.attention.*", "max_norm": 0.1}]
    for step in range(1, 41):
        limited = {"*.attention.*": True, "rest": False}
        verdict = Verdict(1.0, 4, 2.0, 0.5, clipped=True, skipped=None, clipped_groups=limited)
        monitor.update(StepReport(step, 0.0, verdict, 0.1, seconds=0.1, data_seconds=0.0))
    assert "*.attention.* 100%, rest 0%" in said(monitor, kind="layers", groups=groups)
    assert "No group reached its bound" in said(monitor_of(plain=100), kind="layers", groups=groups)


@pytest.mark.parametrize("kind", ["none", "global_norm"])
def test_norms_of_0_are_no_bound_to_recommend(kind: str) -> None:
    assert said(monitor_of(plain=100, norm=0.0), kind=kind, max_norm=5.0) == ""
