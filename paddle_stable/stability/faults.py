"""Faults on demand, for tests, benchmarks and the curious. The guard knows nothing of them; reports only name them."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import final

import paddle

from paddle_stable.data.dataset import Batch
from paddle_stable.errors import InputError, Problem
from paddle_stable.recipe import FaultConfig

_SPOILED_GRADIENT = {"inf_grad": math.inf, "nan_grad": math.nan, "huge_grad": 1e30}
_SPOILED_LOSS = {"nan_loss": math.nan, "loss_spike": 1000.0}
_LABELS = ("label", "target", "shrink_map")
"""What the tasks here call the tensor that is to be predicted: ERNIE, LSTM and DBNet."""
_ON_ALL_RANKS = ("withhold", "nan_parameter", "nan_embedding", "grow_weights")
"""Faults that would otherwise make the processes' parameters differ, or let them wait for each other."""


class InjectedError(Exception):
    """What the forward pass raises for `kind: raise`."""


@final
class Faults:
    """The recipe's `faults:`, asked at the places of the training step where they happen.

    Without faults every answer is "nothing".
    """

    def __init__(self, faults: tuple[FaultConfig, ...], rank: int) -> None:
        self._faults = tuple(f for f in faults if f.rank == rank or f.kind in _ON_ALL_RANKS)
        self._to_check = faults

    def withholds(self, step: int) -> bool:
        """Whether the step is to be left out."""
        return bool(self._now(step, "withhold"))

    def spoil_parameters(self, step: int, model: paddle.nn.Layer) -> None:
        """Before the step: put a NaN into a parameter or a whole row of NaN, or let all weights grow."""
        for fault in self._now(step, "nan_parameter"):
            _add_to_first_element(_first(model, fault.parameter), math.nan)
        for fault in self._now(step, "nan_embedding"):
            parameter = _first(model, fault.parameter)
            with paddle.no_grad():
                parameter[fault.row] = math.nan
        for _ in self._now(step, "grow_weights"):
            with paddle.no_grad():
                for parameter in model.parameters():
                    if not parameter.stop_gradient:
                        parameter.scale_(1.1)

    def spoil_batch(self, step: int, batch: Batch) -> Batch:
        """The batch, or one whose first sample holds NaN wherever it can, or whose labels are not its own.

        Raises:
            InputError: with the first batch, on all processes alike, when a fault could change nothing in it: a fault
                that does not happen must not pass for one that was survived.
        """
        tensors = batch.tensors
        _check(self._to_check, batch)
        self._to_check = ()
        if self._now(step, "nan_input"):
            batch = replace(batch, tensors={name: _with_nan_in_first_sample(t) for name, t in tensors.items()})
        for fault in self._now(step, "corrupt_label"):
            name = _label(batch, fault.tensor)
            assert name is not None, "checked with the first batch"
            batch = replace(batch, tensors={**batch.tensors, name: _with_foreign_labels(batch[name])})
        return batch

    def spoil_loss(self, step: int, loss: paddle.Tensor) -> paddle.Tensor:
        """The loss, or NaN or a thousand times as much in its place; or an exception; or no answer for ever."""
        if self._now(step, "block"):
            threading.Event().wait()
        if self._now(step, "raise"):
            raise InjectedError(f"the recipe's faults ask for it in step {step}")
        for kind, factor in _SPOILED_LOSS.items():
            if self._now(step, kind):
                loss = loss * factor
        return loss

    def spoil_backward(self, step: int, loss: paddle.Tensor) -> paddle.Tensor:
        """What the backward pass begins with: the loss, or far too much of it."""
        return loss * 1e30 if self._now(step, "overflow") else loss

    def spoil_gradients(self, step: int, model: paddle.nn.Layer) -> None:
        """Spoil one element of the gradient of the first trainable parameter that the fault's pattern matches."""
        for kind, value in _SPOILED_GRADIENT.items():
            for fault in self._now(step, kind):
                _add_to_first_element(_first(model, fault.parameter).grad, value)

    def _now(self, step: int, kind: str) -> list[FaultConfig]:
        return [f for f in self._faults if f.kind == kind and f.step <= step < f.step + f.steps]


def _check(faults: tuple[FaultConfig, ...], batch: Batch) -> None:
    problems = []
    for number, fault in enumerate(faults):
        at = f"faults.{number}: {fault.kind}"
        if fault.kind == "nan_input" and not any(t.is_floating_point() for t in batch.tensors.values()):
            message = f"{at} would change nothing: {', '.join(batch)} hold whole numbers only. Use nan_embedding"
            problems.append(Problem("the recipe", 0, message))
        if fault.kind == "corrupt_label" and _label(batch, fault.tensor) is None:
            known = f"`tensor` has to name one of {', '.join(batch)}, got {fault.tensor!r}"
            problems.append(Problem("the recipe", 0, f"{at} does not know what to change: {known}"))
    if problems:
        raise InputError("The recipe's faults do not fit its data:", problems)


def _label(batch: Batch, pattern: str) -> str | None:
    """The first tensor whose name matches; without a pattern the one that is to be predicted."""
    if pattern == "*":
        return next((name for name in _LABELS if name in batch), None)
    return next((name for name in batch if fnmatchcase(name, pattern)), None)


def _first(model: paddle.nn.Layer, pattern: str) -> paddle.Tensor:
    """The first trainable parameter whose name matches.

    Raises:
        ValueError: when there is none: a fault that does not happen must not pass for one that was survived.
    """
    for name, parameter in model.named_parameters():
        if not parameter.stop_gradient and fnmatchcase(name, pattern):
            return parameter
    raise ValueError(f"faults: no trainable parameter matches {pattern!r}")


def _add_to_first_element(tensor: paddle.Tensor, value: float) -> None:
    addend = paddle.zeros_like(tensor).flatten()
    addend[0] = value
    with paddle.no_grad():
        tensor.add_(addend.reshape(tensor.shape))


def _with_nan_in_first_sample(tensor: paddle.Tensor) -> paddle.Tensor:
    if not tensor.is_floating_point():
        return tensor
    spoiled = tensor.clone()
    spoiled[0] = math.nan
    return spoiled


def _with_foreign_labels(tensor: paddle.Tensor) -> paddle.Tensor:
    if not tensor.is_floating_point():
        return paddle.roll(tensor, 1, axis=0)
    spoiled = tensor.clone()
    spoiled[0] = spoiled[0] * 1e4
    return spoiled
