"""What is computed of a series before it is cut into windows: inputs, targets, naive forecasts and their scaling.

Every input of a row depends on that row and rows before it only; every target on rows after it (and, for returns, on
the last value before them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np

from paddle_stable.data.dataset import Array
from paddle_stable.data.series import Series
from paddle_stable.data.series_config import FeatureConfig, SeriesConfig
from paddle_stable.data.series_table import Floats


@final
@dataclass(frozen=True, slots=True)
class Scaling:
    """(x - center) / scale, by column."""

    center: Floats
    """[columns]."""
    scale: Floats
    """[columns], positive."""

    @staticmethod
    def fit(values: Floats, kind: Literal["standard", "robust"]) -> Scaling:
        """Fit on `values` [rows, columns], leaving out what is not finite; a column that never moves gets scale 1.

        `robust` takes the interquartile range over 1.349, which is the standard deviation of a normal distribution;
        where more than half of the rows are alike it is 0, and the standard deviation stands in.
        """
        known = np.where(np.isfinite(values), values, np.nan)
        center = np.nanmean(known, axis=0)
        # Of a column of one value, 0.1 say, the mean need not be that value to the last bit: its deviation is not 0.
        moves = np.nanmin(known, axis=0) < np.nanmax(known, axis=0)
        spread = np.where(moves, np.nanstd(known, axis=0), 0.0)
        if kind == "robust":
            low, center, high = np.nanpercentile(known, [25, 50, 75], axis=0)
            spread = np.where(high > low, (high - low) / 1.349, spread)
        return Scaling(center, np.where(spread > 0, spread, 1.0))

    def apply(self, values: Floats) -> Floats:
        """Original units to scaled ones."""
        return np.asarray((values - self.center) / self.scale)

    def invert(self, scaled: Array) -> Floats:
        """Scaled units to original ones, in float64."""
        return np.asarray(scaled.astype(np.float64) * self.scale + self.center)


@final
@dataclass(frozen=True, slots=True)
class Derived:
    """Inputs and targets of every row; NaN where the rows do not reach, or a logarithm does not exist."""

    features: tuple[FeatureConfig, ...]
    inputs: Floats
    """[rows, features]: row r depends on rows up to r."""
    targets: Floats
    """[rows, outputs]: row r is what comes after r, in original units of the target."""
    last_values: Floats
    """[rows, outputs] The naive forecast made in row r: nothing changes."""
    input_before: int
    """Rows before its own that an input needs."""
    target_before: int
    """Rows before its own that the last-value forecast needs."""


def derive(series: Series, config: SeriesConfig) -> Derived:
    """Compute features, targets and last-value forecasts of every row."""
    features = config.features or tuple(FeatureConfig(column=name) for name in series.columns)
    with np.errstate(invalid="ignore"):  # inf - inf, where the policy lets an infinite value through
        inputs = np.stack([transform(series.column(feature.column), feature) for feature in features], axis=1)
        targets, last_values = _targets(series.column(config.target_column), config)
    target_before = config.horizon if config.target_transform == "log_realised_volatility" else 0
    return Derived(features, inputs, targets, last_values, max(feature.reach for feature in features), target_before)


def transform(values: Floats, feature: FeatureConfig) -> Floats:
    """One feature of one column [rows]; NaN in the first `feature.reach` rows, and where a logarithm does not exist."""
    match feature.transform:
        case "value":
            return values
        case "log":
            return _log(values)
        case "log_return":
            return _log_return(values, feature.rows)
        case "log_realised_volatility":
            return _log_realised_volatility(values, feature.rows)


def _log(values: Floats) -> Floats:
    """Natural logarithm; NaN where there is none, so that minus infinity cannot pass for a number."""
    return np.asarray(np.log(np.where(values > 0, values, np.nan)))


def _log_return(values: Floats, rows: int) -> Floats:
    logs = _log(values)
    result = np.full(len(values), np.nan)
    result[rows:] = logs[rows:] - logs[:-rows]
    return result


def _log_realised_volatility(values: Floats, rows: int) -> Floats:
    """Log of the root mean square of the last `rows` one-row log returns."""
    squares = _log_return(values, 1) ** 2
    result = np.full(len(values), np.nan)
    if len(values) > rows:
        result[rows:] = np.lib.stride_tricks.sliding_window_view(squares[1:], rows).mean(axis=1)
    return 0.5 * _log(result)


def _targets(values: Floats, config: SeriesConfig) -> tuple[Floats, Floats]:
    """Targets and last-value forecasts, both [rows, outputs]."""
    horizon = config.horizon
    if config.target_transform == "log_realised_volatility":
        past = _log_realised_volatility(values, horizon)  # of row r: rows r-horizon+1 ... r
        return _ahead(past, horizon)[:, None], past[:, None]
    ahead = np.stack([_ahead(values, step) for step in range(1, horizon + 1)], axis=1)
    now = np.repeat(values[:, None], horizon, axis=1)
    if config.target_transform == "log_return":
        return _log(ahead) - _log(now), np.where(np.isnan(now), np.nan, 0.0)
    return ahead, now


def _ahead(values: Floats, steps: int) -> Floats:
    """Row r holds the value of row r + steps."""
    result = np.full(len(values), np.nan)
    result[:-steps] = values[steps:]
    return result
