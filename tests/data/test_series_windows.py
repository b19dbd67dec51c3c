"""Windows: no leakage across the cuts, inputs from the past alone, and every reason for leaving one out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_table import Floats
from paddle_stable.data.series_windows import SeriesWindows, WindowSplits, load_windows
from paddle_stable.errors import InputError

ROWS, DEV, TEST = 120, 80, 100
RNG = np.random.default_rng(0)
FEATURES = [
    {"column": "a", "transform": "value"},
    {"column": "a", "transform": "log"},
    {"column": "b", "transform": "log_return", "rows": 3},
    {"column": "a", "transform": "log_realised_volatility", "rows": 4},
]
TARGETS = ["value", "log_return", "log_realised_volatility"]


def prices() -> Floats:
    """[rows, 2] two positive series that move on every row."""
    return np.asarray(100.0 * np.exp(np.cumsum(np.random.default_rng(5).normal(0, 0.01, (ROWS, 2)), axis=0)))


def write(folder: Path, values: Floats) -> Path:
    path = folder / "series.csv"
    first = np.datetime64("2020-01-01")
    lines = [f"{first + row},{a!r},{b!r}" for row, (a, b) in enumerate(values.tolist())]
    path.write_text("\n".join(["day,a,b", *lines]) + "\n", encoding="utf-8")
    return path


def load(folder: Path, values: Floats, **changes: Any) -> WindowSplits:
    settings: dict[str, Any] = {
        "file": str(write(folder, values)),
        "time_column": "day",
        "features": FEATURES,
        "target_column": "a",
        "target_transform": "value",
        "lookback": 6,
        "horizon": 3,
        "dev_from": DEV,
        "test_from": TEST,
    }
    return load_windows(SeriesConfig(**{**settings, **changes}))


def arrays(dataset: SeriesWindows) -> dict[str, Any]:
    """Everything a model or a metric sees of a split."""
    samples = [dataset.sample(index, RNG) for index in range(len(dataset))]
    return {
        **dataset.collate(samples),
        "targets": dataset.targets,
        "last_values": dataset.last_values,
        "center": dataset.fitted.input_scaling.center,
        "scale": dataset.fitted.input_scaling.scale,
        "target_center": dataset.fitted.target_scaling.center,
        "constant": dataset.fitted.constant,
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("horizon", [1, 3, 8])
@pytest.mark.parametrize("lookback", [1, 6])
def test_all_target_rows_lie_in_the_split(tmp_path: Path, target: str, horizon: int, lookback: int) -> None:
    loaded = load(tmp_path, prices(), target_transform=target, horizon=horizon, lookback=lookback)
    before = max(lookback - 1 + 4, horizon if target == "log_realised_volatility" else 0)
    bounds = {"train": (0, DEV), "dev": (DEV, TEST), "test": (TEST, ROWS)}
    for name, (first, end) in bounds.items():
        last_target_rows = loaded.datasets[name].lines - 2
        expected = np.arange(max(first + horizon - 1, before + horizon), end)
        np.testing.assert_array_equal(last_target_rows, expected)


@pytest.mark.parametrize("scaling", ["standard", "robust"])
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_after_the_cut_changes_what_training_sees(tmp_path: Path, target: str, scaling: str) -> None:
    settings = {"target_transform": target, "scaling": scaling}
    values = prices()
    before = arrays(load(tmp_path, values, **settings).datasets["train"])
    values[DEV:] *= np.random.default_rng(1).uniform(0.5, 3.0, values[DEV:].shape)
    assert_same(arrays(load(tmp_path, values, **settings).datasets["train"]), before)


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_after_the_second_cut_changes_dev(tmp_path: Path, target: str) -> None:
    values = prices()
    before = arrays(load(tmp_path, values, target_transform=target).datasets["dev"])
    values[TEST:] *= 1.3
    assert_same(arrays(load(tmp_path, values, target_transform=target).datasets["dev"]), before)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("row", [20, 60, TEST + 5])
def test_inputs_and_naive_forecasts_come_from_the_past_alone(tmp_path: Path, target: str, row: int) -> None:
    values = prices()
    before = load(tmp_path, values, target_transform=target).datasets
    values[row + 1 :] *= np.random.default_rng(2).uniform(0.8, 1.2, values[row + 1 :].shape)
    after = load(tmp_path, values, target_transform=target).datasets
    for name, dataset in before.items():
        past = np.flatnonzero(dataset.lines - 2 - 3 <= row)  # windows whose last seen row is not later than `row`
        for index in past:
            scaled = [
                split[name].fitted.input_scaling.invert(split[name].sample(index, RNG)["inputs"])
                for split in (before, after)
            ]
            np.testing.assert_allclose(scaled[0], scaled[1], rtol=1e-5)
        np.testing.assert_array_equal(dataset.last_values[past], after[name].last_values[past])


def test_transforms_are_what_they_are_called(tmp_path: Path) -> None:
    values = prices()
    dataset = load(tmp_path, values).datasets["train"]
    a, b = values.T
    for index in (0, 7, len(dataset) - 1):
        end = int(dataset.lines[index]) - 2 - 3
        found = dataset.fitted.input_scaling.invert(dataset.sample(index, RNG)["inputs"])[-1]
        returns = [math.log(a[row] / a[row - 1]) for row in range(end - 3, end + 1)]
        volatility = math.log(math.sqrt(sum(r * r for r in returns) / 4))
        np.testing.assert_allclose(
            found, [a[end], math.log(a[end]), math.log(b[end] / b[end - 3]), volatility], rtol=1e-5
        )


@pytest.mark.parametrize("index", [0, 11])
def test_targets_and_last_value_forecasts_are_what_they_are_called(tmp_path: Path, index: int) -> None:
    values = prices()
    a = values[:, 0]
    by_target = {target: load(tmp_path, values, target_transform=target).datasets["test"] for target in TARGETS}
    end = int(by_target["value"].lines[index]) - 2 - 3

    def volatility(first: int) -> float:
        return math.log(math.sqrt(sum(math.log(a[row] / a[row - 1]) ** 2 for row in range(first, first + 3)) / 3))

    expected = {
        "value": (a[end + 1 : end + 4], [a[end]] * 3),
        "log_return": (np.log(a[end + 1 : end + 4] / a[end]), [0.0] * 3),
        "log_realised_volatility": ([volatility(end + 1)], [volatility(end - 2)]),
    }
    for target, (truth, naive) in expected.items():
        np.testing.assert_allclose(by_target[target].targets[index], truth, rtol=1e-9)
        np.testing.assert_allclose(by_target[target].last_values[index], naive, rtol=1e-9)


def test_the_digest_tells_other_numbers_but_not_later_ones(tmp_path: Path) -> None:
    values = prices()
    later, earlier = values.copy(), values.copy()
    later[-1, 0] *= 1.01
    earlier[10, 0] *= 1.01
    first, same, other = (load(tmp_path, changed).datasets["train"].digest() for changed in (values, later, earlier))
    assert first == same != other


def test_stride_thins_out_training_windows_only(tmp_path: Path) -> None:
    every, third = (load(tmp_path, prices(), stride=stride).datasets for stride in (1, 3))
    np.testing.assert_array_equal(third["train"].lines, every["train"].lines[::3])
    assert_same(arrays(third["test"]), arrays(every["test"]))


def test_the_origin_names_every_row_that_a_window_is_computed_from(tmp_path: Path) -> None:
    origin = load(tmp_path, prices()).datasets["train"].origin(10)
    # lookback 6 and a volatility of 4 rows reach 9 rows before the last seen one, which is row 9 + 10; horizon 3.
    assert origin.line == 2 + 10
    assert origin.excerpt == "rows 12–24, 2020-01-11…2020-01-23"
    assert origin.file == str(tmp_path / "series.csv")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_kept_values_reach_the_model_in_training_only(tmp_path: Path, bad: float) -> None:
    values = prices()
    values[DEV - 5, 0] = bad
    clean = load(tmp_path, prices()).datasets
    kept = load(tmp_path, values, policy={"missing": "keep", "infinite": "keep"})
    train = kept.datasets["train"]
    assert len(train) == len(clean["train"])
    last = len(train) - 1
    assert not np.isfinite(train.sample(last, RNG)["inputs"]).all()
    assert train.origin(last).excerpt.endswith(f"a is {bad} in row {DEV - 3}")
    assert np.isfinite(train.fitted.input_scaling.center).all()
    assert np.isfinite(train.fitted.target_scaling.scale).all()
    # Dev windows look back over the cut: those that would see it are left out, and named.
    lost = sum("dev windows are left out" in warning and "`keep`" in warning for warning in kept.warnings)
    assert lost == 1
    assert all(np.isfinite(dataset).all() for dataset in arrays(kept.datasets["dev"]).values())
    assert len(kept.datasets["dev"]) < len(clean["dev"])
    assert len(kept.datasets["test"]) == len(clean["test"])


@pytest.mark.parametrize("factor", [0.5, 1e4])
def test_windows_across_a_change_of_level_can_be_left_out(tmp_path: Path, factor: float) -> None:
    values = prices()
    values[40:, 0] *= factor
    clean = load(tmp_path, prices()).datasets["train"]
    kept = load(tmp_path, values).datasets["train"]
    dropped = load(tmp_path, values, policy={"jump": "drop"})
    assert len(kept) == len(clean)
    # A window covers 10 + 3 rows; the step into row 40 lies inside 12 of them.
    assert len(dropped.datasets["train"]) == len(clean) - 12
    assert any(f"12 of {len(clean)} train windows are left out" in warning for warning in dropped.warnings)
    firsts = {dropped.datasets["train"].origin(index).line for index in range(len(dropped.datasets["train"]))}
    assert firsts.isdisjoint(range(40 + 2 - 12, 40 + 2))


@pytest.mark.parametrize("bad", ["negative", "still"])
def test_a_logarithm_that_does_not_exist_is_named_or_left_out(tmp_path: Path, bad: str) -> None:
    values = prices()
    if bad == "negative":
        values[30, 0] = -1.0
    else:
        values[26:31, 0] = values[26, 0]  # four returns of zero
    with pytest.raises(InputError) as raised:
        load(tmp_path, values)
    [problem] = raised.value.problems
    assert problem.line == 32
    assert "data.policy.undefined" in problem.message
    dropped = load(tmp_path, values, policy={"undefined": "drop"})
    assert any("train windows are left out: they need a logarithm" in warning for warning in dropped.warnings)
    assert all(np.isfinite(array).all() for array in arrays(dropped.datasets["train"]).values())


@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_an_undefined_number_in_the_evaluation_stops_unless_asked(tmp_path: Path, policy: str) -> None:
    values = prices()
    values[DEV + 5, 0] = 0.0
    with pytest.raises(InputError, match=r"dev windows need .*data\.policy\.scope"):
        load(tmp_path, values, policy={"undefined": policy})
    if policy == "drop":
        asked = load(tmp_path, values, policy={"undefined": policy, "scope": "all"})
        assert any("dev windows are left out: they need a logarithm" in warning for warning in asked.warnings)


def test_a_feature_that_never_moves_in_training_is_named_left_out_or_kept(tmp_path: Path) -> None:
    values = prices()
    values[:DEV, 1] = 7.0
    features = [{"column": "a"}, {"column": "b"}]
    with pytest.raises(InputError, match=r"series\.csv:2  feature b is always 7 in the 80 training rows"):
        load(tmp_path, values, features=features)
    dropped = load(tmp_path, values, features=features, policy={"constant": "drop"})
    assert dropped.datasets["train"].fitted.features == ("a",)
    assert "Feature b is left out" in dropped.warnings[0]
    kept = load(tmp_path, values, features=features, policy={"constant": "keep"}).datasets["train"]
    assert not kept.sample(0, RNG)["inputs"][:, 1].any()


def test_a_target_that_never_moves_is_refused(tmp_path: Path) -> None:
    values = prices()
    values[:, 0] = 7.0
    with pytest.raises(InputError, match="the target, value of a, is always 7"):
        load(tmp_path, values, features=[{"column": "b"}], policy={"constant": "drop"})
    with pytest.raises(InputError, match="no feature is left"):
        load(tmp_path, values, features=[{"column": "a"}], policy={"constant": "drop"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lookback": 90}, ["no train window"]),
        ({"horizon": 21}, ["no dev window", "no test window"]),
        ({"lookback": 200}, ["no train window", "no dev window", "no test window"]),
        ({"horizon": 300}, ["no train window", "no dev window", "no test window"]),
    ],
)
def test_a_split_without_a_window_is_refused(tmp_path: Path, changes: dict[str, Any], expected: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        load(tmp_path, prices(), **changes)
    assert [
        problem.message[: len(text)] for problem, text in zip(raised.value.problems, expected, strict=True)
    ] == expected


def test_rows_windows_and_columns_are_reported_together(tmp_path: Path) -> None:
    values = prices()
    values[:, 1] = 7.0
    values[10, 0] = math.nan
    with pytest.raises(InputError) as raised:
        load(tmp_path, values, features=[{"column": "a"}, {"column": "b"}], horizon=21)
    messages = " ".join(problem.message for problem in raised.value.problems)
    for part in ("a is missing", "feature b is always 7", "no dev window", "no test window"):
        assert part in messages


@pytest.mark.parametrize(("horizon", "mse", "mae"), [(1, 0.0042, 0.046), (24, 0.046, 0.167)])
def test_persistence_on_etth1_has_its_known_errors(data_folder: Path, horizon: int, mse: float, mae: float) -> None:
    loaded = load_windows(
        SeriesConfig(
            file=str(data_folder / "ett" / "ETTh1.csv"),
            time_column="date",
            target_column="OT",
            features=[{"column": "OT"}],
            horizon=horizon,
            dev_from=8640,  # 12, 4 and 4 months of 30 days of 24 hours
            test_from=11520,
            until=14400,
        )
    )
    test = loaded.datasets["test"]
    error = ((test.targets - test.last_values) / test.fitted.target_scaling.scale)[:, -1]  # `horizon` hours ahead
    assert round(float(np.mean(error**2)), 4 if horizon == 1 else 3) == mse
    assert round(float(np.mean(np.abs(error))), 3) == mae
    assert loaded.warnings == ()


def test_a_compressed_file_without_header_and_dates_loads_as_it_is(data_folder: Path) -> None:
    path = data_folder / "exchange_rate" / "exchange_rate.txt.gz"
    loaded = load_windows(SeriesConfig(file=str(path), header=False, target_column="column_8"))
    assert sum(len(dataset) for dataset in loaded.datasets.values()) == 7588 - 32
    assert loaded.datasets["train"].fitted.features == tuple(f"column_{number}" for number in range(1, 9))
    assert loaded.datasets["dev"].origin(0).excerpt == "rows 5281–5313"
