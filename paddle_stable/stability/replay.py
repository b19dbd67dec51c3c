"""Computing a step once more, forward and backward, without leaving a trace in anything that learns."""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import IO, final

import numpy as np
import paddle
from paddle.amp.debugging import set_skipped_op_list

from paddle_stable.data.dataset import Batch
from paddle_stable.seeding import seed_step
from paddle_stable.stability.amp import Precision
from paddle_stable.stability.probes import Direction, FirstBad, Probes, followed, probed
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.task import Task

_CHECK = "FLAGS_check_nan_inf"
# They make no value that was not there before, or that is not a constant of the program: what is not finite behind them
# is a mask, or another operation's. Paddle compares with the names that operations had in its static graphs.
_CARRIERS = (
    "assign", "assign_value", "concat", "elementwise_add", "elementwise_sub", "expand_as_v2", "expand_v2",
    "fill_any_like", "fill_constant", "flatten_contiguous_range", "gather", "gather_nd", "index_select", "masked_fill",
    "pad3d", "put_along_axis", "reshape2", "scatter", "set_value", "slice", "split", "squeeze2", "stack",
    "strided_slice", "tile", "transpose2", "tril", "tril_triu", "triu", "unsqueeze2", "unstack", "where",
)  # fmt: skip
_OPERATION = re.compile(r"\bop=(\w+)")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_PADDLE = str(Path(paddle.__file__).parent)
_OWN = str(Path(__file__).parent)


@final
@dataclass(frozen=True)
class Replayed:
    """What came out of computing some micro-batches again."""

    loss: float
    """Sum over the micro-batches of loss x weight."""
    losses: tuple[float, ...]
    """Loss of every micro-batch, without its weight."""
    norms: Mapping[str, float]
    """L2 norm of every trainable parameter's accumulated gradient, loss scale taken out; not finite where it is not."""
    first_bad_part: int | None
    """The first micro-batch after which loss or a gradient was not finite."""

    @property
    def grad_norm(self) -> float:
        """L2 norm over all parameters."""
        return math.sqrt(sum(norm**2 for norm in self.norms.values()))

    @property
    def is_finite(self) -> bool:
        """Whether loss and all gradients are."""
        return self.first_bad_part is None


@final
@dataclass(frozen=True, slots=True)
class Operation:
    """The operation from whose kernel the first non-finite value came."""

    name: str
    """As Paddle calls it, such as `log` or `sqrt_grad`."""
    direction: Direction
    layers: tuple[str, ...]
    """Layers whose forward pass was going on, outermost first; empty in the loss and in a backward pass."""
    place: str
    """file:line of the statement that called it; empty when it is not known."""


@final
@dataclass(frozen=True)
class Replay:
    """A model with what is needed to compute one of its steps again. Communicates with no other process."""

    model: paddle.nn.Layer
    """The layer itself: through its data-parallel wrapper a replay would wait for the other processes."""
    task: Task
    precision: Precision
    statistics: RunningStatistics
    seed: int
    """The run's seed."""
    rank: int
    gradient_scale: float = 1.0
    """`World.gradient_scale` of the run."""

    def run(self, step: int, parts: Sequence[Batch], *, full_precision: bool = False) -> Replayed:
        """Forward and backward over micro-batches, from the seed of the step on.

        Args:
            step: number of the attempted step.
            parts: micro-batches, from the first of the step on.
            full_precision: in float32 without a loss scale, whatever the run's format is.
        """
        with self._leaving_no_trace(step):
            return self._run(parts, None, full_precision)

    def probe(self, step: int, parts: Sequence[Batch]) -> Probes:
        """The same with probes on all layers, which hold the last micro-batch afterwards."""
        with probed(self.model) as probes, self._leaving_no_trace(step):
            self._run(parts, probes, full_precision=False)
            probes.keep_parameter_gradients()
        return probes

    def name_operation(self, step: int, parts: Sequence[Batch], first: FirstBad) -> Operation | None:
        """Let Paddle check the results of operations, and say which one made the first non-finite value.

        Args:
            step: number of the attempted step.
            parts: micro-batches, the last of them the one with that value.
            first: where it appeared. Of the forward pass only that layer's own arithmetic is checked: elsewhere -inf,
                in a mask, harms nobody.

        Returns:
            None when none did.
        """

        def is_its_arithmetic(call: int | None, begun: int) -> bool:
            return call == first.call and (first.before_call is None or begun <= first.before_call)

        found = self._name_operation(step, parts, is_its_arithmetic)
        if first.direction == "backward" and found is not None and found.direction == "forward":
            # Harmless, as the loss came out finite. Without that check the statement behind the gradient is not known.
            found = self._name_operation(step, parts, lambda call, begun: False)
        return found

    def _name_operation(
        self, step: int, parts: Sequence[Batch], is_checked: Callable[[int | None, int], bool]
    ) -> Operation | None:
        """`is_checked` says whether to look.

        It is asked with the number of the call at work, None outside of the network, and how many calls have begun.
        """
        stage: Direction = "forward"

        def on_change(call: int | None) -> None:
            _check_numbers(batch is parts[-1] and is_checked(call, len(probes.calls)))

        with (
            followed(self.model, on_change) as probes,
            self._leaving_no_trace(step),
            _checking_put_back() as said,
        ):
            try:
                for batch in parts:
                    probes.begin()
                    stage = "forward"
                    on_change(None)
                    with self.precision.autocast():
                        loss = self.task.loss(self.model, batch) * batch.weight
                    stage = "backward"
                    _check_numbers(batch is parts[-1])
                    self.precision.backward(loss * self.gradient_scale)
            except RuntimeError as error:
                named = _OPERATION.search(str(error))
                if named is None:
                    raise
                frames = _forward_frames(said) if stage == "backward" else _frames(error)
                layers = probes.open_layers if stage == "forward" else ()
                return Operation(named[1], stage, layers, _place(frames))
        return None

    def samples(self, step: int, batch: Batch, rows: Sequence[int]) -> list[tuple[float, float]]:
        """Own loss and gradient norm of single samples of a micro-batch, in the order of `rows`."""
        found = []
        for row in rows:
            one = batch.rows(row, row + 1)
            replayed = self.run(step, [one])
            found.append((replayed.losses[0], replayed.grad_norm / one.weight))
        return found

    def _run(self, parts: Sequence[Batch], probes: Probes | None, full_precision: bool) -> Replayed:
        total, losses, first_bad = 0.0, [], None
        for number, part in enumerate(parts):
            batch = part if probes is None else _differentiable(part)
            if probes is not None:
                probes.begin()
            with self._format(full_precision):
                loss = self.task.loss(self.model, batch)
            weighted = loss * batch.weight
            if full_precision:
                weighted.backward()
            else:
                self.precision.backward(weighted * self.gradient_scale)
            losses.append(float(loss))
            total += float(weighted)
            if first_bad is None and not (math.isfinite(total) and self._gradients_are_finite()):
                first_bad = number
        scale = 1.0 if full_precision else self.precision.scaling.value * self.gradient_scale
        return Replayed(total, tuple(losses), self._norms(scale), first_bad)

    def _format(self, full_precision: bool) -> AbstractContextManager[None]:
        return self.precision.switched_off() if full_precision else self.precision.autocast()

    @property
    def holds_half_precision(self) -> bool:
        """Whether the weights themselves are in half precision (`amp.level: O2`), which do not go with float32."""
        return any(parameter.dtype in (paddle.float16, paddle.bfloat16) for parameter in self.model.parameters())

    @contextmanager
    def _leaving_no_trace(self, step: int) -> Iterator[None]:
        """Seeded as the step was; statistics put back and gradients gone afterwards."""
        seed_step(self.seed, self.rank, step)
        self.statistics.remember()
        try:
            yield
        finally:
            self.statistics.put_back()
            for parameter in self.model.parameters():
                parameter.clear_gradient(False)  # by keyword Paddle takes no notice of it

    def _norms(self, scale: float) -> dict[str, float]:
        """In float64 on the host, where the square of no float32 overflows."""
        norms = {}
        for name, parameter in self.model.named_parameters():
            if not parameter.stop_gradient:
                gradient = parameter.grad
                values = np.zeros(1) if gradient is None else gradient.astype("float32").numpy().astype(np.float64)
                norms[name] = float(np.sqrt(np.square(values).sum())) / scale
        return norms

    def _gradients_are_finite(self) -> bool:
        return all(bool(paddle.isfinite(p.grad).all()) for p in self.model.parameters() if p.grad is not None)


def _differentiable(batch: Batch) -> Batch:
    """Copies of the tensors; with respect to the floating-point ones a gradient is computed as well."""
    tensors = {name: tensor.detach().clone() for name, tensor in batch.tensors.items()}
    for tensor in tensors.values():
        tensor.stop_gradient = not tensor.is_floating_point()
    return Batch(tensors, batch.indices, batch.weight)


def _check_numbers(wanted: bool) -> None:
    """Whether Paddle is to check the result of every operation from now on."""
    paddle.set_flags({_CHECK: wanted})


@contextmanager
def _checking_put_back() -> Iterator[IO[bytes]]:
    """Paddle may check operations' results; what it prints about that goes to the file that is given."""
    before = paddle.get_flags([_CHECK])
    with tempfile.TemporaryFile() as said, _output_into(said):
        try:
            set_skipped_op_list(_CARRIERS)  # Paddle has no way to take that back; without the flag it has no effect
            yield said
        finally:
            paddle.set_flags(before)


@contextmanager
def _output_into(file: IO[bytes]) -> Iterator[None]:
    """Send what native code prints into a file: Paddle prints a page for every finding."""
    flush = ctypes.CDLL(None).fflush
    saved = {}
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        flush(None)
        for descriptor in (1, 2):
            saved[descriptor] = os.dup(descriptor)
            os.dup2(file.fileno(), descriptor)
        yield
    finally:
        flush(None)
        for descriptor, copy in saved.items():
            os.dup2(copy, descriptor)
            os.close(copy)


def _forward_frames(said: IO[bytes]) -> list[tuple[str, str]]:
    """Where the forward operation was called whose backward has failed, as Paddle has printed it; [] where it has not.

    Behind that stack it prints those of earlier operations, each from the outermost frame on.
    """
    ctypes.CDLL(None).fflush(None)
    said.seek(0)
    _, found, text = said.read().decode("utf-8", errors="replace").partition("There are nan/inf in")
    frames = _FRAME.findall(text) if found else []
    own = takewhile(lambda pair: pair[0] == 0 or pair[1][2] != frames[0][2], enumerate(frames))
    return [(file, line) for _, (file, line, _) in own]


def _frames(error: BaseException) -> list[tuple[str, str]]:
    """Frames of an exception, outermost first."""
    return [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]


def _place(frames: Sequence[tuple[str, str]]) -> str:
    """file:line of the innermost frame that is neither Paddle's nor ours."""
    for file, line in reversed(frames):
        if not file.startswith((_PADDLE, _OWN)) and Path(file).suffix == ".py":
            path = Path(file)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{shown}:{line}"
    return ""
