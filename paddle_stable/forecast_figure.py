"""A picture of forecasts against what happened, for people who did not train the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from paddle_stable.data.dataset import Array
from paddle_stable.data.series_table import Floats
from paddle_stable.data.series_windows import SeriesWindows

_TRUTH, _FORECAST, _NAIVE = "#3c3c3c", "#0b6fc2", "#d9822b"
_CLOSE_UP = 150
"""Last windows that are drawn large."""


def draw_forecast(path: Path, dataset: SeriesWindows, forecast: Array, *, name: str, horizon: int) -> None:
    """Save a PNG of 1200 x 800 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = forecast_figure(dataset, forecast, name=name, horizon=horizon)
    FigureCanvasAgg(figure).print_figure(path, format="png", dpi=100)


def forecast_figure(dataset: SeriesWindows, forecast: Array, *, name: str, horizon: int) -> Figure:
    """The whole split above, its last windows with the last-value forecast below.

    Args:
        forecast: [windows, outputs] in original units; the last output, farthest ahead, is drawn.
        name: What is forecast, in words.
        horizon: Rows between the last known row and the one drawn.
    """
    truth, ahead = dataset.targets[:, -1], forecast[:, -1].astype(np.float64)
    last_value = dataset.last_values[:, -1]
    figure = Figure(figsize=(12, 8), layout="constrained")
    whole, close_up = figure.subplots(2, 1)
    figure.suptitle(
        f"{name}: forecast {horizon} {'row' if horizon == 1 else 'rows'} ahead, {dataset.name} split",
        fontsize=15,
        x=0.01,
        ha="left",
    )
    mse = {
        label: float(np.mean((values - truth) ** 2))
        for label, values in (
            ("model", ahead),
            ("last", last_value),
            ("constant", np.full_like(truth, dataset.fitted.constant[-1])),
        )
    }
    whole.set_title(
        f"All {len(truth)} windows.  Mean squared error: model {mse['model']:.4g}, last value {mse['last']:.4g}, "
        f"training mean {mse['constant']:.4g}",
        loc="left",
        fontsize=11,
    )
    _lines(whole, dataset, {"what happened": truth, "forecast": ahead}, slice(None))
    recent = slice(max(0, len(truth) - _CLOSE_UP), None)
    close_up.set_title(f"The last {len(truth[recent])} of them", loc="left", fontsize=11)
    _lines(close_up, dataset, {"what happened": truth, "forecast": ahead, "last value": last_value}, recent)
    return figure


def _lines(axes: Axes, dataset: SeriesWindows, curves: dict[str, Floats], part: slice) -> None:
    """Draw curves over time, or over the file's lines when there is no time."""
    x = dataset.lines if dataset.times is None else dataset.times
    styles: dict[str, dict[str, Any]] = {
        "what happened": {"color": _TRUTH, "linewidth": 1.0},
        "forecast": {"color": _FORECAST, "linewidth": 1.8},
        "last value": {"color": _NAIVE, "linewidth": 1.0, "linestyle": "--"},
    }
    for label, values in curves.items():
        axes.plot(x[part], values[part], label=label, **styles[label])
    if dataset.times is None:
        axes.set_xlabel("line of the file")
    else:
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", ncols=len(curves), frameon=False)
