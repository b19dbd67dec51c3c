"""A picture of forecasts against what happened, for people who did not train the model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from paddle_stable.data.dataset import Array
from paddle_stable.data.series_table import Floats
from paddle_stable.data.series_windows import SeriesWindows

_CLOSE_UP = 150
"""Last windows that are drawn large."""
_STYLES: dict[str, dict[str, Any]] = {
    "what happened": {"color": "#8a8a8a", "linewidth": 1.1},
    "forecast": {"color": "#0b6fc2", "linewidth": 1.8},
    "last value": {"color": "#d9822b", "linewidth": 1.1, "linestyle": "--"},
    "training mean": {"color": "#3c3c3c", "linewidth": 1.0, "linestyle": ":"},
}


@final
@dataclass(frozen=True, slots=True)
class Caption:
    """Words on the picture."""

    title: str
    unit: str
    """What the vertical axis shows."""


def draw_forecast(path: Path, dataset: SeriesWindows, forecast: Array, caption: Caption) -> None:
    """Save a PNG of 1200 x 800 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = forecast_figure(dataset, forecast, caption)
    FigureCanvasAgg(figure).print_figure(path, format="png", dpi=100)


def forecast_figure(dataset: SeriesWindows, forecast: Array, caption: Caption) -> Figure:
    """The whole split above, its last windows below, both beside the naive forecasts.

    Args:
        forecast: [windows, outputs] in original units; the last output, farthest ahead, is drawn.
    """
    truth = dataset.targets[:, -1]
    curves = {
        "what happened": truth,
        "last value": dataset.last_values[:, -1],
        "training mean": np.full_like(truth, dataset.fitted.constant[-1]),
        "forecast": forecast[:, -1].astype(np.float64),
    }
    errors = {name: f"{np.mean((values - truth) ** 2):.4g}" for name, values in curves.items()}
    figure = Figure(figsize=(12, 8), layout="constrained")
    comparison = ", ".join(f"{name} {errors[name]}" for name in ("forecast", "last value", "training mean"))
    # Names of columns are in the words: two dollar signs there are no formula.
    words = f"{caption.title}\nMean squared error: {comparison}"
    figure.suptitle(words, fontsize=13, x=0.01, ha="left", parse_math=False)
    whole, close_up = figure.subplots(2, 1)
    recent = slice(max(0, len(truth) - _CLOSE_UP), None)
    _lines(whole, dataset, {name: curves[name] for name in ("what happened", "training mean", "forecast")}, slice(None))
    _lines(close_up, dataset, {name: curves[name] for name in ("what happened", "last value", "forecast")}, recent)
    whole.set_title(f"All {len(truth)} windows", loc="left", fontsize=11)
    close_up.set_title(f"The last {len(truth[recent])} of them", loc="left", fontsize=11)
    figure.supylabel(caption.unit, fontsize=11, parse_math=False)
    figure.supxlabel("Every point stands at the last row that it forecasts", fontsize=10, color="#6a6a6a")
    return figure


def _lines(axes: Axes, dataset: SeriesWindows, curves: dict[str, Floats], part: slice) -> None:
    """Draw curves over time, or over the file's lines when there is no time."""
    x = dataset.lines if dataset.times is None else dataset.times
    for name, values in curves.items():
        axes.plot(x[part], values[part], label=name, **_STYLES[name])
    if dataset.times is None:
        axes.set_xlabel("line of the file")
    else:
        locator = AutoDateLocator()  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.grid(alpha=0.25)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=len(curves), frameon=False, borderaxespad=0.1)
