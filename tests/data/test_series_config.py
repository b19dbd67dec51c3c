"""What a recipe may say of a series, and what it is told when it says something else."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from paddle_stable.data.series_config import FeatureConfig, Kind, PolicyConfig, SeriesConfig


def config(**changes: Any) -> SeriesConfig:
    return SeriesConfig(**{"file": "series.csv", "time_column": "day", "target_column": "a", **changes})


@pytest.mark.parametrize("features", [None, [{"column": "a"}]])
def test_the_time_is_no_target(features: Any) -> None:
    with pytest.raises(ValidationError, match="target_column: must be a column of numbers, got the time_column 'a'"):
        config(time_column="a", features=features)


def test_every_kind_of_finding_has_a_policy_of_its_own() -> None:
    assert {*get_args(Kind), "scope"} == set(PolicyConfig.model_fields)
    for kind in get_args(Kind):
        assert PolicyConfig().of(kind) == ("keep" if kind == "jump" else "stop")
        changed = PolicyConfig(**{kind: "drop"})
        assert [other for other in get_args(Kind) if changed.of(other) == "drop"] == [kind]


@pytest.mark.parametrize(
    ("feature", "name", "reach"),
    [
        ({}, "Close", 0),
        ({"rows": 5}, "Close", 0),
        ({"transform": "log"}, "log(Close)", 0),
        ({"transform": "log_return"}, "log_return(Close, 1)", 1),
        ({"transform": "log_return", "rows": 5}, "log_return(Close, 5)", 5),
        ({"transform": "log_realised_volatility", "rows": 22}, "log_realised_volatility(Close, 22)", 22),
    ],
)
def test_a_feature_has_a_name_and_a_reach(feature: dict[str, Any], name: str, reach: int) -> None:
    found = FeatureConfig(column="Close", **feature)
    assert (found.name, found.reach) == (name, reach)


@pytest.mark.parametrize(
    ("cut", "kept"),
    [
        (1, 1),
        (1e-9, 1e-9),
        (0.999, 0.999),
        ("7e-1", 0.7),  # text for YAML
        ("2013-01-01", "2013-01-01"),
        ("2013-01-01 16:30:00", "2013-01-01 16:30:00"),
        (date(2013, 1, 1), "2013-01-01"),  # what YAML makes of it without quotes
        (datetime(2013, 1, 1, 16, 30), "2013-01-01T16:30:00"),
    ],
)
@pytest.mark.parametrize("key", ["dev_from", "test_from", "until"])
def test_a_cut_is_a_fraction_a_number_of_rows_or_a_date(key: str, cut: Any, kept: Any) -> None:
    found = getattr(config(**{key: cut}), key)
    assert (type(found), found) == (type(kept), kept)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dev_from": 1.5}, "a fraction of the rows must lie between 0 and 1, got 1.5"),
        ({"dev_from": 0.0}, "a fraction of the rows must lie between 0 and 1, got 0.0"),
        ({"until": 1.0}, "a fraction of the rows must lie between 0 and 1, got 1.0"),
        ({"dev_from": float("nan")}, "dev_from"),
        ({"dev_from": 0}, "a number of rows must be at least 1, got 0"),
        ({"test_from": -3}, "a number of rows must be at least 1, got -3"),
        ({"dev_from": "next year"}, "a fraction, a number of rows or a date like 2013-01-01, got 'next year'"),
        ({"dev_from": "15e-1"}, "a fraction, a number of rows or a date like 2013-01-01, got '15e-1'"),
        ({"dev_from": None}, "dev_from"),
        ({"time_column": None, "until": "2020-01-29"}, "can only be dates when time_column is given"),
        ({"bad_samples": "skip"}, "bad_samples: a series has `policy` instead"),
        ({"features": []}, "features: needs at least one"),
        ({"features": [{"column": "a", "rows": 0}]}, "features.0.rows"),
        ({"delimiter": ""}, "delimiter"),
        ({"delimiter": ";;"}, "delimiter"),
        ({"lookback": 0}, "lookback"),
        ({"horizon": 0}, "horizon"),
        ({"stride": 0}, "stride"),
        ({"policy": {"ragged": "keep"}}, "policy.ragged"),
        ({"policy": {"repeated_time": "forward_fill"}}, "policy.repeated_time"),
        ({"policy": {"unordered_time": "keep"}}, "policy.unordered_time"),
        ({"policy": {"undefined": "forward_fill"}}, "policy.undefined"),
        ({"policy": {"jumps": "drop"}}, "policy.jumps"),
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        config(**changes)
    assert said in str(raised.value)


@pytest.mark.parametrize("pattern", ["%Q", "", "YYYY-MM-DD", "%H:%M", "%d %d", "%m-%d", "%Y-%d", "%Y %H"])
def test_a_format_that_cannot_name_a_day_is_a_mistake_in_the_recipe(pattern: str) -> None:
    with pytest.raises(ValidationError, match=r"time_format(.|\n)*expected a format"):
        config(time_format=pattern)
