"""The accumulated gradient of a model: measured on its device, read on the host once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
import paddle

from paddle_stable.distributed import World
from paddle_stable.stability.paddle_private import squared_norm

FloatArray = npt.NDArray[np.float64]


def layer_group(parameter_name: str) -> str:
    """The group that a parameter's norm is reported under: `encoder.layers.3.linear1.weight` → `encoder.layers.3`."""
    parts = parameter_name.split(".")
    for position, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[: position + 1])
    return ".".join(parts[:-1][:2]) or parameter_name


@final
@dataclass(frozen=True)
class Measurement:
    """What one read brought to the host about one step."""

    loss: float
    """Mean loss over the samples of the step on all processes."""
    samples: int
    """Samples of the step on all processes."""
    flagged: bool
    """Some process had a non-finite loss."""
    stop_votes: int
    """Processes that were asked to stop by a signal."""
    norms: FloatArray
    """L2 norm of every parameter's gradient, shape [parameters]; non-finite where the gradient is."""
    clamped_norms: FloatArray | None
    """The same after limiting every element to the bound of `clip.kind: value`; None for the other kinds."""

    def is_finite(self) -> bool:
        """Whether loss and every gradient are finite on all processes."""
        return not self.flagged and bool(np.isfinite(self.norms).all())


@final
class Gradients:
    """The trainable parameters of a model, in a fixed order, and the norms of their gradients."""

    def __init__(self, model: paddle.nn.Layer, world: World) -> None:
        """Take the trainable parameters of `model` (the layer itself, not its data-parallel wrapper)."""
        named = [(name, p) for name, p in model.named_parameters() if not p.stop_gradient]
        self.names = tuple(name for name, _ in named)
        self.parameters: tuple[paddle.Tensor, ...] = tuple(p for _, p in named)
        self.clippable = np.array([bool(p.need_clip) for p in self.parameters], dtype=bool)
        """Which parameters the clip may change: Paddle's `ParamAttr(need_clip=…)`."""
        self.groups = tuple(layer_group(name) for name in self.names)
        self._world = world
        self._zero = paddle.zeros([1], dtype="float32")

    def measure(
        self, losses: Sequence[paddle.Tensor], samples: int, *, stop_vote: bool, clamp: float | None
    ) -> Measurement:
        """Measure loss and gradients with one device-to-host read.

        Args:
            losses: this process's losses, one element each, already multiplied by their weights.
            samples: this process's samples.
            stop_vote: whether this process was asked to stop.
            clamp: bound on gradient elements for which `clamped_norms` is wanted, or None.
        """
        loss = paddle.add_n([loss.detach().astype("float32").reshape([1]) for loss in losses])
        # A flag, not the reduced norm, carries the news of a non-finite loss between processes: gloo's MAX of (2, NaN)
        # depends on the order of the ranks.
        flag = paddle.logical_not(paddle.isfinite(loss)).astype("float32")
        counts = paddle.to_tensor([float(samples), float(stop_vote)], dtype="float32")
        squares = self._squares(clamp=None) + (self._squares(clamp) if clamp is not None else [])
        host = self._read(paddle.concat([loss, flag, counts, *squares]))
        count = len(self.parameters)
        # Gradients are the same on every process, so the sum over processes is `size` times each of them.
        norms = np.sqrt(host[4 : 4 + count] / self._world.size)
        clamped = np.sqrt(host[4 + count :] / self._world.size) if clamp is not None else None
        if not np.isfinite(norms).all():
            norms = self._safe_norms()
        return Measurement(
            loss=float(host[0]),
            flagged=bool(host[1] > 0),
            samples=round(float(host[2])),
            stop_votes=round(float(host[3])),
            norms=norms,
            clamped_norms=clamped,
        )

    def total(self, norms: FloatArray) -> float:
        """Global norm over the parameters that may be clipped."""
        return float(np.sqrt(np.square(norms[self.clippable]).sum()))

    def by_group(self, norms: FloatArray) -> dict[str, float]:
        """Norm of every layer group."""
        squares: dict[str, float] = {}
        for group, norm in zip(self.groups, norms, strict=True):
            squares[group] = squares.get(group, 0.0) + float(norm) ** 2
        return {group: float(np.sqrt(square)) for group, square in squares.items()}

    def refuse_sparse(self) -> None:
        """Raise TypeError when a gradient is sparse: its norm would be wrong where a row stands in it twice."""
        for name, parameter in zip(self.names, self.parameters, strict=True):
            if parameter.grad is not None and parameter.grad.is_selected_rows():
                raise TypeError(f"{name} has a sparse gradient: build its Embedding with sparse=False")

    def _squares(self, clamp: float | None) -> list[paddle.Tensor]:
        squares = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                squares.append(self._zero)
            elif clamp is None:
                squares.append(squared_norm(gradient).astype("float32"))
            else:
                squares.append(squared_norm(paddle.clip(gradient, -clamp, clamp)).astype("float32"))
        return squares

    def _safe_norms(self) -> FloatArray:
        """Norms of finite gradients whose squares overflow float32, and NaN for gradients that are not finite.

        Divides by the largest magnitude first; costs two more reads, on a step that is out of the ordinary anyway.
        """
        present = [p.grad for p in self.parameters if p.grad is not None]
        finite = paddle.stack([paddle.isfinite(g).all().astype("float32") for g in present])
        largest = paddle.stack([paddle.abs(g).max().astype("float32") for g in present])
        host = self._read(paddle.concat([finite, largest])) / self._world.size
        all_finite, maxima = host[: len(present)] > 1.0 - 0.5 / self._world.size, host[len(present) :]
        # Twice the square root, because 1/maximum can be too small for float32.
        shrink = [float(m**-0.5) if ok and m > 0 else 1.0 for ok, m in zip(all_finite, maxima, strict=True)]
        scaled = [squared_norm((g * f) * f).astype("float32") for g, f in zip(present, shrink, strict=True)]
        squares = self._read(paddle.concat(scaled)) / self._world.size
        values = [
            float(np.sqrt(square)) / factor**2 if ok else float("nan")
            for ok, square, factor in zip(all_finite, squares, shrink, strict=True)
        ]
        norms = np.zeros(len(self.parameters), dtype=np.float64)
        norms[[p.grad is not None for p in self.parameters]] = values
        return norms

    def _read(self, packed: paddle.Tensor) -> FloatArray:
        """Sum over processes and copy to the host: the one read of a step."""
        self._world.sum_(packed)
        host: FloatArray = packed.numpy().astype(np.float64)
        return host
