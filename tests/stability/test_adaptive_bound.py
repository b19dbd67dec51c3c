"""Bounds that follow the run: right by their formulas, poisoned by nothing, locked in nowhere, restored exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Literal

import numpy as np
import pytest

from paddle_stable.recipe import AdaptiveClipConfig
from paddle_stable.stability.adaptive_bound import AdaptiveBound, build_bound

METHODS: tuple[Literal["percentile", "zscore"], ...] = ("percentile", "zscore")


def usual(count: int, sigma: float = 0.2, seed: int = 0) -> list[float]:
    return [float(math.exp(sigma * z)) for z in np.random.default_rng(seed).normal(size=count)]


def clip_all(bound: AdaptiveBound, norms: Iterable[float]) -> list[float]:
    """What is left of each norm."""
    left = []
    for norm in norms:
        left.append(min(norm, bound.bound(norm)))
        bound.learn(norm, left[-1])
    return left


def bound_of(norms: Iterable[float] = (), **config: Any) -> AdaptiveBound:
    result = build_bound(AdaptiveClipConfig(**config))
    clip_all(result, norms)
    return result


@pytest.mark.parametrize("percent", [1.0, 10.0, 50.0, 95.0, 100.0])
@pytest.mark.parametrize("count", [25, 100, 130])
def test_percentile_is_that_of_the_newest_norms(percent: float, count: int) -> None:
    norms = usual(count)
    bound = bound_of(norms, method="percentile", percentile=percent, window=100)
    assert bound.bound(1.0) == pytest.approx(np.percentile(norms[-100:], percent), rel=1e-12)


def test_zscore_follows_the_paper_step_by_step() -> None:
    """Mean and variance of the first 25, then the exponential averages of ZClip's equations, written out again."""
    norms = usual(200, seed=3)
    norms[60] = norms[61] = 9.0
    bound = bound_of(norms[:25], method="zscore")
    mean, variance = float(np.mean(norms[:25])), float(np.var(norms[:25]))
    for norm in norms[25:]:
        z = (norm - mean) / math.sqrt(variance)
        expected = mean + 2.5**2 / z * math.sqrt(variance) if z > 2.5 else norm
        (left,) = clip_all(bound, [norm])
        assert left == pytest.approx(expected, rel=1e-9)
        mean = 0.97 * mean + 0.03 * left
        variance = 0.97 * variance + 0.03 * (left - mean) ** 2


def test_zscore_limits_the_farther_the_harder() -> None:
    bound = bound_of(usual(100), method="zscore")
    bounds = [bound.bound(norm) for norm in (3.0, 10.0, 1e3, 1e30)]
    assert bounds == sorted(bounds, reverse=True)
    assert all(0.5 < value < 2.0 for value in bounds)


@pytest.mark.parametrize("method", METHODS)
def test_there_is_no_bound_during_warm_up(method: str) -> None:
    bound = bound_of(usual(24), method=method)
    assert bound.bound(1e9) == math.inf
    clip_all(bound, [1.0])
    assert bound.bound(1e9) < 2.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("seen", [0, 10, 100])
def test_a_norm_that_is_not_finite_teaches_nothing(method: str, poison: float, seen: int) -> None:
    bound = bound_of(usual(seen), method=method)
    before = json.dumps(bound.state())
    bound.bound(poison)
    bound.learn(poison, poison)
    assert json.dumps(bound.state()) == before


@pytest.mark.parametrize("method", METHODS)
def test_a_burst_of_spikes_hardly_moves_the_bound(method: str) -> None:
    bound = bound_of(usual(200), method=method)
    before = bound.bound(100.0)
    left = clip_all(bound, [100.0] * 10)
    assert all(value < 2.0 for value in left)
    assert bound.bound(100.0) == pytest.approx(before, rel=0.35)


@pytest.mark.parametrize("method", METHODS)
def test_a_level_that_stays_is_followed(method: str) -> None:
    bound = bound_of(usual(200), method=method, window=200)
    left = clip_all(bound, [5.0 * norm for norm in usual(400, seed=1)])
    rate = np.mean([value < 5.0 * norm for value, norm in zip(left[-100:], usual(400, seed=1)[-100:], strict=True)])
    assert rate <= (0.95 if method == "percentile" else 0.1)
    assert np.median(left[-100:]) > 3.0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cut", [0, 10, 25, 190, 215, 300])
def test_a_restored_bound_goes_on_as_if_nothing_had_happened(method: str, cut: int) -> None:
    norms = [*usual(200), *[20.0 * norm for norm in usual(30)], *usual(100, seed=5)]
    whole, first, second = (bound_of(method=method, window=64) for _ in range(3))
    expected = clip_all(whole, norms)
    before = clip_all(first, norms[:cut])
    second.load_state(json.loads(json.dumps(first.state())))
    assert before + clip_all(second, norms[cut:]) == expected
    assert second.state() == whole.state()


@pytest.mark.parametrize("method", METHODS)
def test_equal_norms_have_a_bound_too(method: str) -> None:
    bound = bound_of([2.0] * 30, method=method)
    assert min(2.0, bound.bound(2.0)) == 2.0
    assert bound.bound(8.0) == 2.0
