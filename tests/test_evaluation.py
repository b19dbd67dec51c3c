"""Evaluation: the metrics of all samples in their order, without a trace in the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import numpy as np
import paddle
import pytest
from paddle import nn

from paddle_stable.data.dataset import Array, Batch, Dataset
from paddle_stable.data.workers import SampleError
from paddle_stable.distributed import World
from paddle_stable.evaluation import Evaluation, evaluate
from paddle_stable.recipe import AmpConfig
from paddle_stable.stability.amp import Precision, build_precision
from paddle_stable.task import Task
from paddle_stable.watchdog import Heartbeat

from .data.loader_sample import COUNT, Ragged

SUMS = [float(sum(range(length))) + 100.0 * index * length for index, length in enumerate(Ragged().lengths().tolist())]
"""Of the rows of the data set: whole numbers that float32 holds."""


class Doubler(Task):
    """Puts out 2 x the sum of a row + 1, and their mean as the metric."""

    metric_names: ClassVar[Mapping[str, bool]] = {"mean": True}

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool, int]] = []
        self.spoil: Callable[[], object] | None = None

    def outputs(self, model: nn.Layer, batch: Batch) -> dict[str, Array]:
        if self.spoil is not None:
            self.spoil()
        answer = model(batch["row"].sum(axis=1, keepdim=True))
        self.seen.append((model.training, answer.stop_gradient, batch.size))
        return {"answer": answer.numpy()[:, 0], "label": batch["label"].numpy()}

    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        assert len(outputs["answer"]) == len(dataset)
        return {"mean": float(np.mean(outputs["answer"], dtype=np.float64))}


Doubler.__abstractmethods__ = frozenset()  # trains nothing and builds nothing


@pytest.fixture
def model() -> nn.Layer:
    """Random while training."""
    linear = nn.Linear(1, 1)
    linear.weight.set_value(np.full((1, 1), 2.0, np.float32))
    linear.bias.set_value(np.ones(1, np.float32))
    return nn.Sequential(nn.Dropout(0.5), linear)


def run(task: Any, model: nn.Layer, *, dataset: Dataset | None = None, batch_size: int = 4) -> Evaluation:
    return evaluate(
        task, model, build_precision(AmpConfig(), model), dataset or Ragged(), batch_size=batch_size,
        world=World.single(), heartbeat=Heartbeat(),
    )  # fmt: skip


@pytest.mark.parametrize("batch_size", [1, 4, 28, 29, 1000])
def test_outputs_and_metrics_are_those_computed_by_hand(model: nn.Layer, batch_size: int) -> None:
    task = Doubler()
    found = run(task, model, batch_size=batch_size)
    assert found.outputs["label"].tolist() == list(range(COUNT))
    assert found.outputs["answer"].tolist() == [2.0 * value + 1.0 for value in SUMS]
    assert found.metrics == {"mean": sum(2.0 * value + 1.0 for value in SUMS) / COUNT}
    assert [size for _, _, size in task.seen] == [
        min(batch_size, COUNT - begin) for begin in range(0, COUNT, batch_size)
    ]


def test_metrics_become_numbers_that_a_checkpoint_can_hold(model: nn.Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Doubler()
    monkeypatch.setattr(task, "metrics", lambda outputs, dataset: {"mean": np.float32(0.5), "count": COUNT})
    assert {name: type(value) for name, value in run(task, model).metrics.items()} == {"mean": float, "count": float}


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_evaluated_without_gradients_and_left_as_it_was(model: nn.Layer, training: bool) -> None:
    model.train() if training else model.eval()
    task = Doubler()
    run(task, model)
    assert {(mode, cut) for mode, cut, _ in task.seen} == {(False, True)}
    assert [layer.training for layer in model.sublayers(include_self=True)] == [training] * 3


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_comes_back_after_an_error_too(model: nn.Layer, training: bool) -> None:
    def refuse() -> None:
        raise RuntimeError("out of memory")

    model.train() if training else model.eval()
    task = Doubler()
    task.spoil = refuse
    with pytest.raises(RuntimeError, match="out of memory"):
        run(task, model)
    assert model.training is training
    assert paddle.is_grad_enabled()


def test_the_number_format_of_the_run_holds_in_evaluation(model: nn.Layer) -> None:
    inside: list[bool] = []

    class Watched:
        """Notes when its context is open."""

        @contextmanager
        def autocast(self) -> Iterator[None]:
            inside.append(True)
            yield
            inside.append(False)

    task = Doubler()
    task.spoil = lambda: inside.append(inside[-1])
    world = World.single()
    evaluate(task, model, cast(Precision, Watched()), Ragged(), batch_size=29, world=world, heartbeat=Heartbeat())
    assert inside == [True, True, False]


@pytest.mark.parametrize("index", [0, 17])
def test_a_sample_that_cannot_be_read_is_named(model: nn.Layer, index: int) -> None:
    def spoil(asked: int) -> None:
        if asked == index:
            raise OSError("cannot be read")

    with pytest.raises(SampleError, match=rf"OSError: cannot be read\nSample: rows\.txt:{index + 1} "):
        run(Doubler(), model, dataset=Ragged(spoil))
    assert model.training


def test_a_model_that_answers_nan_has_metrics_that_say_so(model: nn.Layer) -> None:
    model[1].bias.set_value(np.full(1, np.nan, np.float32))
    found = run(Doubler(), model)
    assert np.isnan(found.outputs["answer"]).all()
    assert np.isnan(found.metrics["mean"])
    assert found.outputs["label"].tolist() == list(range(COUNT))
