"""The LSTM task: its loss, its scores beside the naive forecasts, its picture, and that it learns."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest
from matplotlib.image import imread

from paddle_stable.data.dataset import Array, Batch, Splits
from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_windows import SeriesWindows
from paddle_stable.tasks.lstm import LstmConfig, LstmForecast, forecast_scores, naive_errors

RNG = np.random.default_rng(0)


def task_and_splits(folder: Path, *, data: dict[str, Any] | None = None, **config: Any) -> tuple[LstmForecast, Splits]:
    """A task over its own sample data."""
    sample = {key.removeprefix("data."): value for key, value in LstmForecast.write_sample_data(folder).items()}
    settings = {**sample, "lookback": 12, "horizon": 3, **(data or {})}
    task = LstmForecast(
        LstmConfig(target="paddle_stable.tasks.lstm.LstmForecast", hidden=8, **config), SeriesConfig(**settings), seed=1
    )
    return task, task.load_splits()


def windows(dataset: Any) -> SeriesWindows:
    assert isinstance(dataset, SeriesWindows)
    return dataset


def batch_of(dataset: SeriesWindows, indices: range) -> Batch:
    arrays = dataset.collate([dataset.sample(index, RNG) for index in indices])
    return Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, tuple(indices))


def evaluate(task: LstmForecast, model: paddle.nn.Layer, dataset: SeriesWindows, *, size: int) -> dict[str, Array]:
    model.eval()
    parts = [
        task.outputs(model, batch_of(dataset, range(first, min(first + size, len(dataset)))))
        for first in range(0, len(dataset), size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.parametrize(("loss", "delta"), [("mse", 1.0), ("huber", 0.1), ("huber", 1.0), ("huber", 50.0)])
@pytest.mark.parametrize("size", [1, 7])
def test_the_loss_is_the_mean_over_the_samples(tmp_path: Path, loss: str, delta: float, size: int) -> None:
    task, splits = task_and_splits(tmp_path, loss=loss, huber_delta=delta)
    model = task.build_model()
    batch = batch_of(windows(splits.train), range(size))
    error = np.abs(model(batch["inputs"]).numpy().astype(np.float64) - batch["target"].numpy())
    if loss == "mse":
        expected = error**2
    else:
        expected = np.where(error <= delta, 0.5 * error**2, delta * (error - 0.5 * delta))
    found = task.loss(model, batch)
    assert found.dtype == paddle.float32
    assert found.size == 1
    np.testing.assert_allclose(found.numpy(), expected.mean(), rtol=1e-5)
    np.testing.assert_allclose(task.outputs(model, batch)["loss"], expected.mean(axis=1), rtol=1e-5)


@pytest.mark.parametrize("loss", ["mse", "huber"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_sample_makes_the_loss_non_finite(tmp_path: Path, loss: str, bad: float) -> None:
    """The guard sees a bad value in the loss or in the gradient: nothing on the way may hide it."""
    task, splits = task_and_splits(tmp_path, loss=loss)
    model = task.build_model()
    for name, place in (("inputs", (2, 5, 1)), ("target", (2, 0))):
        arrays = {key: tensor.numpy() for key, tensor in batch_of(windows(splits.train), range(4)).tensors.items()}
        arrays[name][place] = bad
        value = task.loss(model, Batch({key: paddle.to_tensor(array) for key, array in arrays.items()}, (0, 1, 2, 3)))
        value.backward()
        gradients = [parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None]
        finite = bool(np.isfinite(value.numpy()).all()) and all(np.isfinite(array).all() for array in gradients)
        saturates = name == "inputs" and math.isinf(bad)  # a gate's sigmoid takes inf, and answers 0 or 1
        assert not finite or saturates
        model.clear_gradients()


def test_the_loss_reads_nothing_on_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, splits = task_and_splits(tmp_path, layers=2, dropout=0.5, loss="huber")
    model, batch = task.build_model(), batch_of(windows(splits.train), range(4))
    reads: list[str] = []
    for name in ("numpy", "item", "tolist", "__float__", "__bool__", "__int__"):
        monkeypatch.setattr(paddle.Tensor, name, lambda *_, name=name: reads.append(name))
    task.loss(model, batch).backward()
    monkeypatch.undo()
    assert reads == []


@pytest.mark.parametrize("size", [1, 16, 1000])
def test_scores_do_not_depend_on_the_batches_and_are_in_original_units(tmp_path: Path, size: int) -> None:
    task, splits = task_and_splits(tmp_path)
    model, dev = task.build_model(), windows(splits.dev)
    outputs = evaluate(task, model, dev, size=size)
    scores = task.metrics(outputs, dev)
    assert set(scores) == set(task.metric_names)
    inputs = np.stack([dev.sample(index, RNG)["inputs"] for index in range(len(dev))])
    scaling = dev.fitted.target_scaling
    forecast = model(paddle.to_tensor(inputs)).numpy() * scaling.scale + scaling.center
    np.testing.assert_allclose(scores["mse"], np.mean((forecast - dev.targets) ** 2), rtol=1e-4)
    np.testing.assert_allclose(scores["loss"], scores["mse"] / scaling.scale[0] ** 2, rtol=1e-4)


def test_naive_forecasts_score_as_they_should(tmp_path: Path) -> None:
    _, splits = task_and_splits(tmp_path)
    dev = windows(splits.dev)
    naive = naive_errors(dev)
    last_value = forecast_scores(dev.last_values, dev)
    assert (last_value["mse"], last_value["mae"]) == (naive["last_value_mse"], naive["last_value_mae"])
    assert last_value["skill"] == 0.0
    assert last_value["directional_accuracy"] == 0.0  # it foresees no change, and there was one everywhere
    constant = forecast_scores(np.broadcast_to(dev.fitted.constant, dev.targets.shape), dev)
    assert (constant["mse"], constant["constant_skill"]) == (naive["constant_mse"], 0.0)
    perfect = forecast_scores(dev.targets, dev)
    assert (perfect["mse"], perfect["skill"], perfect["constant_skill"], perfect["directional_accuracy"]) == (
        0,
        1,
        1,
        1,
    )
    assert perfect["rmse"] == 0.0


def test_directional_accuracy_counts_rises_and_falls_from_the_last_value(tmp_path: Path) -> None:
    _, splits = task_and_splits(tmp_path)
    dev = windows(splits.dev)
    right = dev.last_values + 3.0 * (dev.targets - dev.last_values)  # far too much, in the right direction
    half = right.copy()
    half[::2] = dev.last_values[::2] - 3.0 * (dev.targets[::2] - dev.last_values[::2])
    assert forecast_scores(right, dev)["directional_accuracy"] == 1.0
    expected = (len(half) - len(half[::2])) / len(half)
    np.testing.assert_allclose(forecast_scores(half, dev)["directional_accuracy"], expected)


def test_where_nothing_changed_there_is_no_direction_to_foresee(tmp_path: Path) -> None:
    path = tmp_path / "still.csv"
    path.write_text("wave,slow\n" + "".join(f"{row // 2},{row % 7}\n" for row in range(400)), encoding="utf-8")
    features = [{"column": "wave"}, {"column": "slow"}]
    _, splits = task_and_splits(
        tmp_path, data={"file": str(path), "features": features, "time_column": None, "horizon": 1}
    )
    dev = windows(splits.dev)
    assert 0.0 < np.mean(dev.targets == dev.last_values) < 1.0
    wrong = dev.last_values - (dev.targets - dev.last_values)
    assert forecast_scores(wrong, dev)["directional_accuracy"] == 0.0


def test_forecasts_that_are_not_finite_have_no_finite_error(tmp_path: Path) -> None:
    _, splits = task_and_splits(tmp_path)
    dev = windows(splits.dev)
    forecast = dev.targets.copy()
    forecast[3] = math.nan
    scores = forecast_scores(forecast, dev)
    assert all(math.isnan(scores[name]) for name in ("mse", "mae", "rmse", "skill", "constant_skill"))
    assert 0.0 < scores["directional_accuracy"] < 1.0


def test_the_naive_answer_is_the_better_of_the_two_on_dev(tmp_path: Path) -> None:
    _, splits = task_and_splits(tmp_path)
    naive = naive_errors(windows(splits.dev))
    assert splits.naive is not None
    assert splits.naive.value == min(naive["last_value_mse"], naive["constant_mse"])
    assert splits.facts is not None
    assert splits.facts["dev_last_value_mse"] == naive["last_value_mse"]
    assert splits.facts["test_windows"] == len(windows(splits.test))


def test_the_saved_scaling_is_enough_to_forecast(tmp_path: Path) -> None:
    """From the text file alone: scale the raw rows, run the network, scale back."""
    task, splits = task_and_splits(tmp_path)
    model, test = task.build_model(), windows(splits.test)
    saved = json.loads(task.assets()["series.json"])
    assert saved["features"] == ["wave", "slow"]
    with (tmp_path / "series.csv").open(encoding="utf-8", newline="") as stream:
        rows = [[float(row[name]) for name in saved["features"]] for row in csv.DictReader(stream)]
    end = int(test.lines[5]) - 2 - saved["horizon"]
    window = (np.array(rows)[end - saved["lookback"] + 1 : end + 1] - saved["input_center"]) / saved["input_scale"]
    scaled = model(paddle.to_tensor(window[None].astype(np.float32))).numpy()
    forecast = scaled * saved["target_scale"] + saved["target_center"]
    np.testing.assert_allclose(forecast, evaluate(task, model, test, size=64)["forecast"][5:6], rtol=1e-5)


@pytest.mark.parametrize(
    ("transform", "time_column"), [("value", None), ("log_return", "day"), ("log_realised_volatility", "day")]
)
def test_the_picture_and_its_table_show_the_split(tmp_path: Path, transform: str, time_column: str | None) -> None:
    data: dict[str, Any] = {"target_transform": transform, "time_column": time_column}
    sample = tmp_path / "series.csv"
    LstmForecast.write_sample_data(tmp_path)
    positive = [line.split(",") for line in sample.read_text(encoding="utf-8").splitlines()]
    lines = [positive[0], *([day, str(float(wave) + 5), slow] for day, wave, slow in positive[1:])]
    path = tmp_path / "positive.csv"
    path.write_text("".join(",".join(cells) + "\n" for cells in lines), encoding="utf-8")
    features = [{"column": "wave"}, {"column": "slow"}]
    task, splits = task_and_splits(tmp_path, data={**data, "file": str(path), "features": features})
    test = windows(splits.test)
    outputs = evaluate(task, task.build_model(), test, size=64)
    [(tag, picture)] = task.pictures(outputs, test, tmp_path / "run").items()
    assert (tag, picture) == ("forecast/test", tmp_path / "run" / "forecast_test.png")
    image = imread(picture)
    assert image.shape[:2] == (800, 1200)
    assert len(np.unique(image[..., :3].reshape(-1, 3), axis=0)) > 50
    with (tmp_path / "run" / "forecast_test.csv").open(encoding="utf-8", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["truth"]) for row in table] == test.targets[:, -1].tolist()
    assert [float(row["forecast"]) for row in table] == outputs["forecast"][:, -1].tolist()
    assert [int(row["line"]) for row in table] == test.lines.tolist()


def test_it_learns_to_beat_both_naive_forecasts(tmp_path: Path) -> None:
    paddle.seed(1)
    task, splits = task_and_splits(tmp_path)
    model = task.build_model()
    optimizer = paddle.optimizer.AdamW(2e-2, parameters=model.parameters())
    order = np.random.default_rng(1)
    train = windows(splits.train)
    for _ in range(120):
        indices = order.choice(len(train), 32, replace=False)
        arrays = train.collate([train.sample(int(index), RNG) for index in indices])
        batch = Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, tuple(indices.tolist()))
        task.loss(model, batch).backward()
        optimizer.step()
        optimizer.clear_grad()
    test = windows(splits.test)
    scores = task.metrics(evaluate(task, model, test, size=64), test)
    assert scores["skill"] > 0.5
    assert scores["constant_skill"] > 0.5
    assert scores["directional_accuracy"] > 0.8
