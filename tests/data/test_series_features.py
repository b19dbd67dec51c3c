"""Features look back and targets look ahead, each exactly as far as it says; scaling is fitted on what is there."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.series import Series
from paddle_stable.data.series_config import FeatureConfig, SeriesConfig
from paddle_stable.data.series_features import Derived, Scaling, derive, transform
from paddle_stable.data.series_table import Floats

ROWS = 30
FEATURES = [
    FeatureConfig(column="a"),
    FeatureConfig(column="a", transform="log"),
    FeatureConfig(column="a", transform="log_return"),
    FeatureConfig(column="a", transform="log_return", rows=4),
    FeatureConfig(column="a", transform="log_realised_volatility", rows=1),
    FeatureConfig(column="a", transform="log_realised_volatility", rows=5),
]
TARGETS = ["value", "log_return", "log_realised_volatility"]


def prices() -> Floats:
    """[rows] a positive series that moves on every row."""
    return np.asarray(100.0 * np.exp(np.cumsum(np.random.default_rng(5).normal(0, 0.01, ROWS))))


def changed_rows(before: Floats, after: Floats) -> list[int]:
    """Rows with a difference, to the last bit; NaN equals NaN."""
    return np.flatnonzero(~((before == after) | (np.isnan(before) & np.isnan(after)))).tolist()


def derived(values: Floats, **changes: Any) -> Derived:
    """What is computed of a series of one column."""
    lines = np.arange(2, len(values) + 2)
    zeros = np.zeros(len(values), dtype=np.int64)
    series = Series("a.csv", ("a",), values[:, None], None, lines, zeros, zeros.astype(np.bool_))
    return derive(series, SeriesConfig(file="a.csv", target_column="a", **changes))


@pytest.mark.parametrize("row", [0, 13, ROWS - 1])
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_a_feature_uses_its_row_and_those_before_it_as_far_as_it_says(feature: FeatureConfig, row: int) -> None:
    values = prices()
    before = transform(values, feature)
    changed = values.copy()
    changed[row] *= 1.5
    found = changed_rows(before, transform(changed, feature))
    reached = range(max(row, feature.reach), min(row + feature.reach, ROWS - 1) + 1)
    between = feature.transform == "log_return"  # only the two ends of its reach count
    assert found == [r for r in reached if not between or r in (row, row + feature.reach)]


@pytest.mark.parametrize("length", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("feature", FEATURES, ids=lambda feature: feature.name)
def test_rows_that_a_feature_does_not_reach_are_nan_however_short_the_series(
    feature: FeatureConfig, length: int
) -> None:
    found = transform(prices()[:length], feature)
    assert np.isnan(found).tolist() == [row < feature.reach for row in range(length)]


@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, math.nan, -math.inf])
def test_a_logarithm_that_does_not_exist_is_nan_and_never_infinite(bad: float) -> None:
    values = prices()
    values[10] = bad
    for feature, rows in zip(FEATURES[1:], [[10], [10, 11], [10, 14], [10, 11], range(10, 16)], strict=True):
        found = transform(values, feature)
        assert not np.isinf(found).any()
        assert np.flatnonzero(np.isnan(found[feature.reach :])).tolist() == [row - feature.reach for row in rows]


def test_transforms_by_hand() -> None:
    values = np.array([1.0, math.e, math.e**3, math.e**3, math.e])
    found = [transform(values, feature) for feature in (*FEATURES[:3], FeatureConfig(
        column="a", transform="log_realised_volatility", rows=2))]  # fmt: skip
    nan = math.nan
    np.testing.assert_array_equal(found[0], values)
    np.testing.assert_allclose(found[1], [0, 1, 3, 3, 1], atol=1e-12)
    np.testing.assert_allclose(found[2], [nan, 1, 2, 0, -2], atol=1e-12)
    squares = [(1 + 4) / 2, (4 + 0) / 2, (0 + 4) / 2]
    np.testing.assert_allclose(found[3], [nan, nan, *(0.5 * math.log(s) for s in squares)], atol=1e-12)


def test_a_series_that_stands_still_has_no_log_volatility() -> None:
    assert np.isnan(transform(np.full(8, 3.0), FEATURES[-1])).all()


@pytest.mark.parametrize("horizon", [1, 3, ROWS - 1, ROWS, ROWS + 5])
@pytest.mark.parametrize("kind", TARGETS)
def test_a_target_looks_ahead_and_its_naive_forecast_back(kind: str, horizon: int) -> None:
    values = prices()
    before = derived(values, target_transform=kind, horizon=horizon)
    outputs = 1 if kind == "log_realised_volatility" else horizon
    assert before.targets.shape == before.last_values.shape == (ROWS, outputs)
    last = before.targets[:, -1]
    assert np.isnan(last).tolist() == [row + horizon >= ROWS for row in range(ROWS)]
    changed = values.copy()
    changed[15] *= 1.5
    after = derived(changed, target_transform=kind, horizon=horizon)
    ahead = {"value": [15 - horizon], "log_return": [15 - horizon, 15]}.get(kind, range(15 - horizon, 16))
    behind = {"value": [15], "log_return": []}.get(kind, range(15, 16 + horizon))
    assert changed_rows(last, after.targets[:, -1]) == [row for row in ahead if 0 <= row < ROWS - horizon]
    naive = changed_rows(before.last_values[:, -1], after.last_values[:, -1])
    assert naive == [row for row in behind if row < ROWS and not np.isnan(before.last_values[row, -1])]


def test_without_features_every_column_is_one() -> None:
    found = derived(prices())
    assert [feature.name for feature in found.features] == ["a"]
    np.testing.assert_array_equal(found.inputs[:, 0], prices())
    assert (found.input_before, found.target_before) == (0, 0)
    volatile = derived(prices(), features=FEATURES, target_transform="log_realised_volatility", horizon=7)
    assert (volatile.input_before, volatile.target_before) == (5, 7)


@pytest.mark.parametrize(
    ("kind", "center", "scale"), [("standard", 2.5, math.sqrt(1.25)), ("robust", 2.5, 1.5 / 1.349)]
)
def test_scaling_by_hand_leaves_out_what_is_not_finite(kind: Any, center: float, scale: float) -> None:
    values = np.array([[1.0, 5.0], [math.nan, 5.0], [2.0, math.inf], [3.0, 5.0], [-math.inf, 5.0], [4.0, math.nan]])
    scaling = Scaling.fit(values, kind)
    np.testing.assert_allclose(scaling.center, [center, 5.0])
    np.testing.assert_allclose(scaling.scale, [scale, 1.0])


@pytest.mark.parametrize("kind", ["standard", "robust"])
@pytest.mark.parametrize("value", [0.0, 0.1, 7.3, 1e9 / 3])
def test_a_column_that_never_moves_is_scaled_to_nothing(kind: Any, value: float) -> None:
    """The mean of many equal values need not equal them to the last bit, nor is their deviation 0."""
    values = np.full((80, 1), value)
    scaling = Scaling.fit(values, kind)
    assert scaling.scale.tolist() == [1.0]
    np.testing.assert_allclose(scaling.apply(values), 0.0, atol=1e-6)


@pytest.mark.parametrize("kind", ["standard", "robust"])
def test_scaling_comes_back(kind: Any) -> None:
    values = np.random.default_rng(3).lognormal(size=(50, 3)) * [1.0, 1e6, 1e-6]
    scaling = Scaling.fit(values, kind)
    np.testing.assert_allclose(scaling.invert(scaling.apply(values)), values, rtol=1e-12)


def test_robust_scaling_is_not_moved_by_a_wrong_unit_and_survives_many_equal_rows() -> None:
    values = np.random.default_rng(3).normal(5.0, 2.0, size=(1000, 1))
    spoiled = values.copy()
    spoiled[:3] *= 1e4
    clean, robust = Scaling.fit(values, "robust"), Scaling.fit(spoiled, "robust")
    np.testing.assert_allclose(robust.scale, clean.scale, rtol=0.02)
    np.testing.assert_allclose(clean.scale, 2.0, rtol=0.05)
    assert Scaling.fit(spoiled, "standard").scale[0] > 100
    mostly_equal = np.array([0.0] * 90 + [1.0] * 10)[:, None]
    np.testing.assert_allclose(Scaling.fit(mostly_equal, "robust").scale, 0.3)
