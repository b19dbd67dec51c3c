"""The picture: curves where they belong, errors computed by hand, and words as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_windows import SeriesWindows, load_windows
from paddle_stable.forecast_figure import Caption, draw_forecast, forecast_figure

CAPTION = Caption("A title", "a unit")


def windows(folder: Path, rows: int = 60, *, horizon: int = 2) -> SeriesWindows:
    """Dev windows of a wave; dev is the second half of the file."""
    days = np.datetime64("2020-01-01") + np.arange(rows)
    path = folder / "wave.csv"
    path.write_text("day,wave\n" + "".join(f"{day},{np.sin(n / 5.0)!r}\n" for n, day in enumerate(days)))
    config = SeriesConfig(
        file=str(path), time_column="day", features=[{"column": "wave"}], target_column="wave",
        lookback=4, horizon=horizon, dev_from=rows // 2, test_from=None,
    )  # fmt: skip
    return load_windows(config).datasets["dev"]


def curves(axes: Any) -> dict[str, Any]:
    return {line.get_label(): np.asarray(line.get_ydata()) for line in axes.get_lines()}


@pytest.mark.parametrize("words", ["$x^$", "Price in $, before $^$ went"])
def test_dollar_signs_in_the_name_of_a_column_are_no_formula(tmp_path: Path, words: str) -> None:
    dev = windows(tmp_path)
    figure = forecast_figure(dev, dev.targets, Caption(words, words))
    figure.draw_without_rendering()
    assert figure.get_suptitle().startswith(words)


@pytest.mark.parametrize("horizon", [1, 3])
def test_the_picture_draws_truth_and_forecasts_where_they_belong(tmp_path: Path, horizon: int) -> None:
    """Of several outputs the last one, farthest ahead."""
    dev = windows(tmp_path, horizon=horizon)
    whole, close_up = forecast_figure(dev, dev.targets + np.arange(1.0, horizon + 1.0), CAPTION).axes
    for axes in (whole, close_up):
        np.testing.assert_array_equal(curves(axes)["what happened"], dev.targets[:, -1])
        np.testing.assert_allclose(curves(axes)["forecast"], dev.targets[:, -1] + horizon)
        np.testing.assert_array_equal(axes.get_lines()[0].get_xdata(), dev.times)
    assert list(curves(whole)) == ["what happened", "training mean", "forecast"]
    assert list(curves(close_up)) == ["what happened", "last value", "forecast"]
    np.testing.assert_array_equal(curves(close_up)["last value"], dev.last_values[:, -1])
    np.testing.assert_array_equal(curves(whole)["training mean"], np.full(len(dev), dev.fitted.constant[-1]))


def test_the_errors_in_the_title_are_those_of_the_curves(tmp_path: Path) -> None:
    dev = windows(tmp_path)
    title = forecast_figure(dev, dev.targets + np.array([9.0, 0.5]), CAPTION).get_suptitle()
    truth = dev.targets[:, -1]
    naive = np.mean((dev.last_values[:, -1] - truth) ** 2), np.mean((dev.fitted.constant[-1] - truth) ** 2)
    assert title == (
        f"A title\nMean squared error: forecast 0.25, last value {naive[0]:.4g}, training mean {naive[1]:.4g}"
    )


@pytest.mark.parametrize(("rows", "shown"), [(60, 29), (302, 150), (304, 150)])
def test_the_close_up_shows_the_last_windows_at_most_150(tmp_path: Path, rows: int, shown: int) -> None:
    dev = windows(tmp_path, rows)
    whole, close_up = forecast_figure(dev, dev.targets, CAPTION).axes
    assert whole.get_title(loc="left") == f"All {len(dev)} windows"
    assert close_up.get_title(loc="left") == f"The last {shown} of them"
    np.testing.assert_array_equal(curves(close_up)["what happened"], dev.targets[-shown:, -1])
    np.testing.assert_array_equal(
        close_up.get_lines()[0].get_xdata(), dev.lines[-shown:] if dev.times is None else dev.times[-shown:]
    )


def test_without_times_it_is_drawn_over_the_lines_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("wave\n" + "".join(f"{np.sin(n / 5.0)!r}\n" for n in range(40)))
    config = SeriesConfig(file=str(path), target_column="wave", lookback=4, dev_from=20, test_from=None)
    dev = load_windows(config).datasets["dev"]
    for axes in forecast_figure(dev, dev.targets, CAPTION).axes:
        assert axes.get_xlabel() == "line of the file"
        assert axes.get_lines()[0].get_xdata().tolist() == list(range(22, 42))


def test_a_forecast_that_is_not_finite_is_still_a_picture_of_1200_by_800(tmp_path: Path) -> None:
    dev = windows(tmp_path)
    forecast = dev.targets.astype(np.float32)
    forecast[3], forecast[7] = np.nan, np.inf
    path = tmp_path / "folder" / "that is not there" / "picture.png"
    draw_forecast(path, dev, forecast, CAPTION)
    assert imread(path).shape[:2] == (800, 1200)
