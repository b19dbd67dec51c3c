"""Faults on demand, for tests, benchmarks and the curious. Forensics and guard know nothing of them."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import final

import paddle

from paddle_stable.recipe import FaultConfig


@final
class Faults:
    """The recipe's `faults:`, asked at three places of the training step. Without faults every answer is "nothing"."""

    def __init__(self, faults: tuple[FaultConfig, ...], rank: int) -> None:
        self._faults = faults
        self._rank = rank

    def withholds(self, step: int) -> bool:
        """Whether the step is to be left out, on all processes alike."""
        return any(f.step == step and f.kind == "withhold" for f in self._faults)

    def spoil_loss(self, step: int, loss: paddle.Tensor) -> paddle.Tensor:
        """The loss, or NaN in its place."""
        return loss * math.nan if self._here(step, "nan_loss") else loss

    def spoil_gradients(self, step: int, model: paddle.nn.Layer) -> None:
        """Put one inf into the gradient of the first trainable parameter that the fault's pattern matches."""
        for fault in self._here(step, "inf_grad"):
            for name, parameter in model.named_parameters():
                if parameter.grad is not None and fnmatchcase(name, fault.parameter):
                    spike = paddle.zeros_like(parameter.grad).flatten()
                    spike[0] = math.inf
                    with paddle.no_grad():
                        parameter.grad.add_(spike.reshape(parameter.grad.shape))
                    break

    def _here(self, step: int, kind: str) -> list[FaultConfig]:
        return [f for f in self._faults if f.step == step and f.kind == kind and f.rank == self._rank]
