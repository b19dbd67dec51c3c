"""Forecasting a series with an LSTM: values, returns or volatility, always beside the naive forecasts."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
import paddle
from pydantic import Field, PositiveFloat, PositiveInt

from paddle_stable.data.dataset import Array, Batch, Dataset, NaiveAnswer, Splits
from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_table import Floats
from paddle_stable.data.series_windows import Fitted, SeriesWindows, load_windows
from paddle_stable.forecast_figure import Caption, draw_forecast
from paddle_stable.models.lstm import LstmForecaster
from paddle_stable.recipe import DataConfig, ModelKind, TaskConfig
from paddle_stable.task import Task


@final
class LstmConfig(TaskConfig):
    """The network and its loss."""

    hidden: PositiveInt = 64
    """Width of every LSTM layer."""
    layers: PositiveInt = 1
    """LSTM layers."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Between LSTM layers and before the linear head."""
    loss: Literal["mse", "huber"] = "mse"
    """Over the scaled target. huber: quadratic up to `huber_delta`, linear beyond, so that outliers pull less."""
    huber_delta: PositiveFloat = 1.0
    """In scaled units (about standard deviations of the target)."""


@final
class LstmForecast(Task):
    """Windows of a series in, what comes after them out."""

    Config: ClassVar[type[TaskConfig]] = LstmConfig
    Data: ClassVar[type[DataConfig]] = SeriesConfig
    model_kind: ClassVar[ModelKind] = "rnn"
    metric_names: ClassVar[Mapping[str, bool]] = {
        "mse": False,
        "mae": False,
        "rmse": False,
        "directional_accuracy": True,
        "loss": False,
        "skill": True,
        "constant_skill": True,
        "last_value_mse": False,
        "last_value_mae": False,
        "constant_mse": False,
    }

    def __init__(self, config: LstmConfig, data: SeriesConfig, *, seed: int) -> None:
        """Keep the two sections."""
        self._config = config
        self._data = data
        self._fitted: Fitted | None = None

    def load_splits(self) -> Splits:
        """Read, check and cut the series; scaling and naive forecasts come from the training rows."""
        loaded = load_windows(self._data)
        train, dev, test = (loaded.datasets.get(name) for name in ("train", "dev", "test"))
        assert train is not None
        assert dev is not None
        self._fitted = train.fitted
        facts: dict[str, float | str] = {
            "features": ", ".join(train.fitted.features),
            "target": f"{self._data.target_transform} of {self._data.target_column}, {self._data.horizon} ahead",
        }
        for dataset in loaded.datasets.values():
            facts[f"{dataset.name}_windows"] = float(len(dataset))
            if dataset is not train:  # training targets may hold what a policy keeps
                facts |= {f"{dataset.name}_{name}": value for name, value in naive_errors(dataset).items()}
        return Splits(train, dev, test, loaded.warnings, facts, _better_naive(naive_errors(dev)))

    def build_model(self) -> paddle.nn.Layer:
        """A fresh LSTM for the features and outputs of the data."""
        assert self._fitted is not None
        return LstmForecaster(
            len(self._fitted.features),
            len(self._fitted.constant),
            hidden=self._config.hidden,
            layers=self._config.layers,
            dropout=self._config.dropout,
        )

    def loss(self, model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        """Mean over the windows of their mean loss over the outputs, in scaled units."""
        return self._window_losses(model(batch["inputs"]).astype("float32"), batch["target"]).mean()

    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        """`forecast` [windows, outputs] in original units, float64, and `loss` [windows]."""
        assert self._fitted is not None
        scaled = model(batch["inputs"]).astype("float32")
        losses = self._window_losses(scaled, batch["target"])
        return {"forecast": self._fitted.target_scaling.invert(scaled.numpy()), "loss": losses.numpy()}

    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        """Errors in original units of the target, beside those of the naive forecasts."""
        assert isinstance(dataset, SeriesWindows)
        loss = float(np.mean(outputs["loss"].astype(np.float64)))
        return {**forecast_scores(outputs["forecast"], dataset), "loss": loss}

    def pictures(self, outputs: Mapping[str, Array], dataset: Dataset, folder: Path) -> dict[str, Path]:
        """`forecast/<split>`: forecast against truth, also saved as a table `forecast_<split>.csv`."""
        assert isinstance(dataset, SeriesWindows)
        forecast = outputs["forecast"]
        picture, table = (folder / f"forecast_{dataset.name}.{kind}" for kind in ("png", "csv"))
        draw_forecast(picture, dataset, forecast, self._caption(dataset.name))
        _write_table(table, dataset, forecast)
        return {f"forecast/{dataset.name}": picture}

    def assets(self) -> Mapping[str, str]:
        """`series.json`: what has to be done to a series before the network sees it, and to what it answers."""
        assert self._fitted is not None
        fitted, data = self._fitted, self._data
        content = {
            "lookback": data.lookback,
            "horizon": data.horizon,
            "target": {"column": data.target_column, "transform": data.target_transform},
            "features": fitted.features,
            "input_center": fitted.input_scaling.center.tolist(),
            "input_scale": fitted.input_scaling.scale.tolist(),
            "target_center": fitted.target_scaling.center.tolist(),
            "target_scale": fitted.target_scaling.scale.tolist(),
            "train_mean_target": fitted.constant.tolist(),
        }
        return {"series.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n"}

    @staticmethod
    def write_sample_data(folder: Path) -> dict[str, Any]:
        """400 days of a noisy wave and a slower one that it follows."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "series.csv"
        path.write_text(sample_series(rows=400), encoding="utf-8")
        return {
            "data.file": str(path),
            "data.header": True,
            "data.delimiter": ",",
            "data.time_column": "day",
            "data.time_format": None,
            "data.features": None,
            "data.target_column": "wave",
            "data.target_transform": "value",
            "data.dev_from": 0.7,
            "data.test_from": 0.85,
            "data.until": None,
        }

    def _caption(self, split: str) -> Caption:
        """What is forecast, in words."""
        column, rows = self._data.target_column, f"{self._data.horizon} row{'s' if self._data.horizon > 1 else ''}"
        match self._data.target_transform:
            case "value":
                return Caption(f"{column}, {rows} ahead ({split} split)", column)
            case "log_return":
                return Caption(f"Log return of {column} over the next {rows} ({split} split)", "log return")
            case "log_realised_volatility":
                title = f"Volatility of {column} over the next {rows} ({split} split)"
                return Caption(title, "log of the root mean square of one-row log returns")

    def _window_losses(self, scaled: paddle.Tensor, target: paddle.Tensor) -> paddle.Tensor:
        """[windows] loss of every window, from [windows, outputs]."""
        if self._config.loss == "mse":
            return ((scaled - target) ** 2).mean(axis=1)
        delta = self._config.huber_delta
        error = (scaled - target).abs()
        # Quadratic on the part within delta, linear on the rest: no mask, so that NaN stays NaN.
        within = error.clip(max=delta)
        return (0.5 * within**2 + delta * (error - within)).mean(axis=1)


def naive_errors(dataset: SeriesWindows) -> dict[str, float]:
    """Errors of the two forecasts that need no learning: nothing changes, and always the training mean."""
    last_value = dataset.targets - dataset.last_values
    return {
        "last_value_mse": float(np.mean(last_value**2)),
        "last_value_mae": float(np.mean(np.abs(last_value))),
        "constant_mse": float(np.mean((dataset.targets - dataset.fitted.constant) ** 2)),
    }


def _better_naive(errors: Mapping[str, float]) -> NaiveAnswer:
    answers = {"last_value_mse": "nothing changes", "constant_mse": "always the mean of the training targets"}
    best = min(answers, key=lambda name: errors[name])
    return NaiveAnswer("mse", errors[best], answers[best])


def forecast_scores(forecast: Floats, dataset: SeriesWindows) -> dict[str, float]:
    """Scores of forecasts [windows, outputs] in original units of the target.

    Skill is 1 - MSE / MSE of a naive forecast: 0 is as good as it, 1 is perfect, below 0 is worse. Directional
    accuracy is the share of rises and falls from the last known value that were foreseen; where nothing changed
    there is no direction to foresee, and a forecast of no change is wrong where something did.
    """
    naive = naive_errors(dataset)
    error = forecast - dataset.targets
    mse = float(np.mean(error**2))
    moved = np.sign(dataset.targets - dataset.last_values)
    foreseen = np.sign(forecast - dataset.last_values)
    return {
        "mse": mse,
        "mae": float(np.mean(np.abs(error))),
        "rmse": math.sqrt(mse),
        "directional_accuracy": float((foreseen == moved)[moved != 0].mean()) if moved.any() else 0.0,
        "skill": _skill(mse, naive["last_value_mse"]),
        "constant_skill": _skill(mse, naive["constant_mse"]),
        **naive,
    }


def _skill(mse: float, naive_mse: float) -> float:
    """1 - mse / naive_mse; where the naive forecast is perfect, 0 for a perfect one, else minus infinity."""
    if naive_mse > 0:
        return 1.0 - mse / naive_mse
    return 0.0 if mse == 0 else -math.inf


def _write_table(path: Path, dataset: SeriesWindows, forecast: Floats) -> None:
    """One row for each window: where its last target row is, then truth, forecast and last value of that row."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["line", "truth", "forecast", "last_value"])
        last = (values[:, -1].tolist() for values in (dataset.targets, forecast, dataset.last_values))
        writer.writerows(zip(dataset.lines.tolist(), *last, strict=True))


def sample_series(rows: int) -> str:
    """CSV text with a day, a wave of 25 days with noise, and a slower one."""
    noise = np.random.default_rng(7).normal(0.0, 0.1, size=rows)
    first = np.datetime64("2020-01-01")
    lines = ["day,wave,slow"]
    for row in range(rows):
        wave = math.sin(2 * math.pi * row / 25) + noise[row]
        lines.append(f"{first + row},{wave:.6f},{math.cos(2 * math.pi * row / 100):.6f}")
    return "\n".join(lines) + "\n"
