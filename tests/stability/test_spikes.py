"""The spike detector: what is flagged, what cannot poison it, and that its state is everything it knows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from paddle_stable.recipe import SpikeConfig
from paddle_stable.stability.spikes import SpikeDetector, SpikeWatch

NAN, INF = math.nan, math.inf


def usual(count: int, sigma: float = 0.1, seed: int = 0, level: float = 1.0) -> list[float]:
    return [float(level * math.exp(sigma * z)) for z in np.random.default_rng(seed).normal(size=count)]


def flags(detector: SpikeDetector, values: Iterable[float]) -> list[bool]:
    found = []
    for value in values:
        found.append(detector.is_spike(value))
        detector.take(value)
    return found


def detector(values: Iterable[float] = (), **config: Any) -> SpikeDetector:
    result = SpikeDetector(SpikeConfig(**config))
    flags(result, values)
    return result


@pytest.mark.parametrize("level", [1e-12, 1.0, 1e12])
@pytest.mark.parametrize(("factor", "flagged"), [(0.01, False), (1.0, False), (2.9, False), (3.6, True), (1e9, True)])
def test_a_spike_is_a_multiple_of_the_usual_level_whatever_that_is(level: float, factor: float, flagged: bool) -> None:
    assert detector(usual(100, level=level)).is_spike(factor * level) is flagged


def test_in_a_noisy_run_it_takes_more_to_be_a_spike() -> None:
    noisy = detector(usual(128, sigma=0.5))
    assert not noisy.is_spike(4.0)
    assert noisy.is_spike(20.0)


def test_constant_values_have_no_deviation_and_still_a_limit() -> None:
    constant = detector([2.0] * 50)
    assert not constant.is_spike(5.9)
    assert constant.is_spike(6.1)


def test_nothing_is_flagged_during_warm_up() -> None:
    young = detector(usual(29), warmup_steps=30)
    assert not young.is_spike(1e9)
    young.take(1.0)
    assert young.is_spike(1e9)


@pytest.mark.parametrize("poison", [NAN, INF, -INF, 0.0, -1.0])
def test_a_value_without_a_logarithm_is_no_spike_and_teaches_nothing(poison: float) -> None:
    told = detector(usual(100))
    before = json.dumps(told.state())
    assert not told.is_spike(poison)
    told.take(poison)
    assert json.dumps(told.state()) == before


def test_spikes_do_not_move_the_usual_level() -> None:
    values = usual(100)
    told = detector(values)
    before = told.usual
    assert flags(told, [1e6] * 10) == [True] * 10
    assert told.usual == before
    assert flags(told, values) == [False] * 100


def test_spikes_in_the_warm_up_do_not_hide_later_ones() -> None:
    told = detector([*usual(20), *[1e6] * 10, *usual(20)], warmup_steps=30)
    assert told.is_spike(1e3)


@pytest.mark.parametrize("after", [2, 20, 50])
def test_a_level_that_stays_is_taken_over(after: int) -> None:
    told = detector(usual(100), rebaseline_after=after, warmup_steps=5)
    assert flags(told, usual(200, level=50.0)) == [True] * (after - 1) + [False] * (201 - after)


def test_a_level_that_now_and_then_falls_below_the_limit_is_taken_over_too() -> None:
    told = detector(usual(128), window=128)
    shifted = [50.0 if step % 7 else 1.0 for step in range(300)]
    assert sum(flags(told, shifted)) <= 25


def test_rare_spikes_never_add_up_to_a_new_level() -> None:
    told = detector(usual(128))
    values = [50.0 if step % 10 == 9 else value for step, value in enumerate(usual(1000, seed=1))]
    assert flags(told, values) == [step % 10 == 9 for step in range(1000)]


@pytest.mark.parametrize("cut", [3, 40, 205, 215, 240])
def test_a_restored_detector_goes_on_as_if_nothing_had_happened(cut: int) -> None:
    values = [*usual(200, 0.4), *usual(30, 0.4, level=30.0), *usual(50, 0.4)]
    whole, first, second = detector(), detector(), detector()
    expected = flags(whole, values)
    before = flags(first, values[:cut])
    second.load_state(json.loads(json.dumps(first.state())))
    assert before + flags(second, values[cut:]) == expected
    assert second.state() == whole.state()


def test_a_shorter_window_keeps_the_newest_values() -> None:
    shorter = SpikeDetector(SpikeConfig(window=30))
    shorter.load_state(detector([*[1.0] * 60, *[2.0] * 30]).state())
    assert shorter.usual == pytest.approx(2.0)


def watch(steps: int = 60, **config: Any) -> SpikeWatch:
    result = SpikeWatch(SpikeConfig(**config))
    for loss, norm in zip(usual(steps, seed=1), usual(steps, seed=2, level=10.0), strict=True):
        assert result.judge(loss=loss, norm=norm) is None
    return result


@pytest.mark.parametrize(
    ("loss", "norm", "expected"),
    [(1.0, 10.0, ()), (99.0, 10.0, ("loss",)), (1.0, 999.0, ("norm",)), (99.0, 999.0, ("loss", "norm"))],
)
@pytest.mark.parametrize("watched", [("loss", "norm"), ("loss",), ("norm",)])
def test_what_is_watched_is_flagged(
    loss: float, norm: float, expected: tuple[str, ...], watched: tuple[str, ...]
) -> None:
    spike = watch(watch=watched).judge(loss=loss, norm=norm)
    flagged = tuple(name for name in expected if name in watched)
    assert (spike.flagged if spike else ()) == flagged
    if spike is not None:
        assert spike.usual_norm == pytest.approx(10.0, rel=0.1)


def test_of_a_skipped_step_only_the_spike_itself_is_remembered() -> None:
    skipping, limiting = watch(action="skip"), watch(action="clip")
    before = skipping.state()["norm"]
    assert skipping.judge(loss=99.0, norm=10.0)
    assert limiting.judge(loss=99.0, norm=10.0)
    assert skipping.state()["norm"] == before
    assert limiting.state()["norm"] != before
    assert skipping.state()["loss"] == limiting.state()["loss"]


def test_without_an_action_nothing_is_looked_at() -> None:
    idle = SpikeWatch(SpikeConfig(action="none"))
    before = idle.state()
    for value in [*usual(100), 1e9]:
        assert idle.judge(loss=value, norm=value) is None
    assert idle.state() == before


def test_a_restored_watch_decides_the_same() -> None:
    original, restored = watch(), SpikeWatch(SpikeConfig())
    restored.load_state(json.loads(json.dumps(original.state())))
    for step in range(60):
        value = 50.0 if step > 10 else 1.0
        assert restored.judge(loss=value, norm=value) == original.judge(loss=value, norm=value)
    assert restored.state() == original.state()


def test_widely_scattered_values_with_a_sharp_upper_end_leave_no_room_for_spikes() -> None:
    """As norms of real runs are: the deviation around the median alone would let three times the largest pass."""
    values = np.random.default_rng(0).uniform(0.02, 1.0, size=400).tolist()
    told = detector(values)
    assert not any(flags(told, np.random.default_rng(1).uniform(0.02, 1.0, size=200)))
    assert told.is_spike(3.0)
    assert detector(values[:30]).is_spike(3.0) is False, "too early to know the upper end"


def test_an_upper_end_that_only_looks_sharp_leaves_room_above_the_largest_value() -> None:
    """One early value is at 2, a third stand at 1: the quantiles see an end at 1, and 2.5 is nothing new."""
    values = [2.0, *np.random.default_rng(0).uniform(0.02, 0.5, size=200).tolist(), *[1.0] * 100]
    told = detector(values)
    assert told.is_spike(2.5) is False
    assert told.is_spike(2.7) is True
