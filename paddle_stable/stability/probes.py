"""Layer probes: what went into every layer and came out of it, forward and backward, during one replay.

Hooks are on the layers only inside `probed`; the ordinary training step has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, final

import numpy as np
import paddle

Direction = Literal["forward", "backward"]

LOSS = "the loss"
"""Stands in place of a layer's name for what the task computes behind the network."""
NETWORK = "the network"
"""Stands in place of a name for the outermost layer, which has none."""


@final
@dataclass(frozen=True, slots=True)
class Range:
    """What values a tensor holds."""

    shape: tuple[int, ...]
    dtype: str
    low: float | None
    """Smallest finite value; None when there is none."""
    high: float | None
    """Largest finite value; None when there is none."""
    nan: int
    """How many are NaN."""
    inf: int
    """How many are plus or minus inf."""

    @staticmethod
    def of(tensor: paddle.Tensor) -> Range:
        """Copies the tensor to the host: for a replay only."""
        dtype = str(tensor.dtype).removeprefix("paddle.")
        values = tensor.detach().astype("float32" if dtype in ("float16", "bfloat16") else tensor.dtype).numpy()
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (None, None)
        nan = int(np.isnan(values).sum())
        return Range(tuple(tensor.shape), dtype, low, high, nan, int(values.size - finite.size) - nan)

    @property
    def is_finite(self) -> bool:
        """Whether neither NaN nor inf is in it."""
        return self.nan == 0 and self.inf == 0

    @property
    def magnitude(self) -> float:
        """Largest absolute value; inf when one of them is not finite."""
        if not self.is_finite:
            return math.inf
        return max(abs(self.low or 0.0), abs(self.high or 0.0))

    def __str__(self) -> str:
        span = "nothing finite" if self.low is None or self.high is None else f"{self.low:.4g} … {self.high:.4g}"
        bad = [f"{count:,} {name}" for name, count in (("NaN", self.nan), ("inf", self.inf)) if count]
        return ", ".join([span, *bad, f"{self.dtype} {list(self.shape)}"])


@final
@dataclass(slots=True)
class LayerCall:
    """One forward pass through one layer, and what flowed back through it."""

    number: int
    """Place among all calls, in the order in which they began."""
    name: str
    layer: paddle.nn.Layer
    parent: LayerCall | None
    """The call inside which this one happened."""
    inputs: list[Range] = field(default_factory=list)
    outputs: list[Range] = field(default_factory=list)
    output_gradients: list[Range] = field(default_factory=list)
    """What came in from behind, in the order of arrival."""
    input_gradients: list[Range] = field(default_factory=list)
    """What it passed on to the layers before it."""
    growth: float = 0.0
    """Recurrent layers: how much larger values are at the end of the sequence, or gradients at its beginning."""

    parameter_gradients: dict[str, Range] = field(default_factory=dict)
    """Of the layer's own parameters, once they have been kept."""

    @property
    def kind(self) -> str:
        """Class of the layer."""
        return type(self.layer).__name__

    def parameters(self) -> dict[str, paddle.Tensor]:
        """The layer's own parameters, without those of its sublayers."""
        return dict(self.layer.named_parameters(include_sublayers=False))


@final
@dataclass(frozen=True, slots=True)
class FirstBad:
    """Where the first value that is not finite appeared."""

    layer: str
    """Name of the layer as in the checkpoint; `NETWORK` or `LOSS`."""
    kind: str
    """Class of the layer; empty for the loss."""
    direction: Direction
    tensor: str
    """In words: which tensor."""
    inputs: tuple[Range, ...] = ()
    """Of the layer; of a backward pass, the gradients that came in from behind."""
    outputs: tuple[Range, ...] = ()
    """Of the layer; of a backward pass, the gradients that it passed on."""
    parameters: Mapping[str, Range] = field(default_factory=dict)
    """Of the layer; of a backward pass, their gradients."""
    from_batch: bool = False
    """The layer did nothing wrong: it was fed NaN or inf by the batch."""
    call: int | None = None
    """Number of the call in which it appeared, among all calls of the pass; None for the loss."""
    before_call: int | None = None
    """Number of the call into which it went, when that is known: it was there before that one began."""


@final
class Probes:
    """The calls of the newest micro-batch of a replay."""

    def __init__(self) -> None:
        self.calls: list[LayerCall] = []
        self._open: list[LayerCall] = []
        self._events: list[tuple[LayerCall, str]] = []

    def begin(self) -> None:
        """Forget the micro-batch before."""
        self.calls, self._open, self._events = [], [], []

    @property
    def open_layers(self) -> tuple[str, ...]:
        """Layers whose forward pass has begun and not ended, outermost first: where an exception came from."""
        return tuple(call.name for call in self._open)

    @property
    def at_work(self) -> int | None:
        """Number of the call whose own arithmetic is going on; None outside of the network."""
        return self._open[-1].number if self._open else None

    def forward_suspects(self, *, loss_is_finite: bool) -> list[FirstBad]:
        """The first layer from which something non-finite came, behind those that may only have made a mask.

        A layer that gets a non-finite input although no layer has put one out was not its origin: it arose between the
        layers, in the forward pass of the one around them. It did no harm there when it ends in that layer, or when the
        loss has come out finite: it is an attention mask with -inf, say. Where the layer puts out something non-finite
        as well, inf that came in may be either, and the next one is suspect too.
        """
        from_batch = bool(self.calls) and not all(r.is_finite for r in self.calls[0].inputs)
        suspects: list[FirstBad] = []
        for call, what in self._events:
            if what.startswith("output"):
                return [*suspects, _forward(call, what, from_batch)]
            passed_on = not all(r.is_finite for r in call.outputs)
            if call.parent is not None and not from_batch and not loss_is_finite and passed_on:
                tensor = f"an intermediate value on the way into `{call.name}`"
                around = replace(_forward(call.parent, tensor, False), before_call=call.number)
                suspects.append(around)
                if any(r.nan for r in call.inputs) or not all(r.is_finite for r in around.parameters.values()):
                    return suspects
        return suspects

    def first_bad_backward(self) -> FirstBad | None:
        """The layer that got finite gradients from behind and made non-finite ones of them; None without any.

        Only for a replay whose forward pass was finite.
        """
        for call in sorted(self.calls, key=lambda call: -call.number):
            sound = all(r.is_finite for r in call.output_gradients)
            gradients = call.parameter_gradients
            spoilt = [name for name, gradient in gradients.items() if not gradient.is_finite]
            passed_on = any(not r.is_finite for r in call.input_gradients)
            if sound and (spoilt or (passed_on and call.output_gradients)):
                tensor = "gradient of its input" if passed_on else f"gradient of its parameter `{spoilt[0]}`"
                received, returned = tuple(call.output_gradients), tuple(call.input_gradients)
                return FirstBad(
                    call.name, call.kind, "backward", tensor, received, returned, gradients, call=call.number
                )
        if any(not r.is_finite for call in self.calls for r in call.output_gradients):
            return FirstBad(LOSS, "", "backward", "gradient of the network's output")
        return None

    def keep_parameter_gradients(self) -> None:
        """Take down the gradients of all parameters: they are cleared when a replay ends."""
        for call in self.calls:
            gradients = {name: p.grad for name, p in call.parameters().items()}
            call.parameter_gradients = {name: Range.of(g) for name, g in gradients.items() if g is not None}

    def enter(self, name: str, layer: paddle.nn.Layer, inputs: Any) -> Any:
        """A layer begins.

        Returns:
            The inputs that it is to get: the same values, as tensors of its own where a gradient goes through them.
            The gradient of a tensor that several layers share would be the sum of what they make of it.
        """
        call = LayerCall(len(self.calls), name, layer, self._open[-1] if self._open else None)
        self.calls.append(call)
        self._open.append(call)
        own = _own(inputs)
        for tensor in _tensors(own):
            call.inputs.append(Range.of(tensor))
            if not tensor.stop_gradient:
                tensor.register_hook(self._on_input_gradient(call))
        if not all(r.is_finite for r in call.inputs):
            self._events.append((call, "input"))
        return own

    def leave(self, outputs: Any) -> None:
        """The newest layer ends."""
        call = self._open.pop()
        for number, tensor in enumerate(_tensors(outputs)):
            call.outputs.append(Range.of(tensor))
            if is_recurrent(call.layer) and number == 0:
                call.growth = max(call.growth, _growth(tensor, towards_end=True))
            if not tensor.stop_gradient:
                tensor.register_hook(lambda gradient, call=call: call.output_gradients.append(Range.of(gradient)))
        spoilt = next((number for number, r in enumerate(call.outputs) if not r.is_finite), None)
        if spoilt is not None:
            count = len(call.outputs)
            self._events.append((call, "output" if count == 1 else f"output {spoilt + 1} of {count}"))

    def _on_input_gradient(self, call: LayerCall) -> Any:
        def note(gradient: paddle.Tensor) -> None:
            call.input_gradients.append(Range.of(gradient))
            if is_recurrent(call.layer):
                call.growth = max(call.growth, _growth(gradient, towards_end=False))

        return note


@contextmanager
def probed(model: paddle.nn.Layer) -> Iterator[Probes]:
    """Probes on all layers of `model` (the layer itself, not its data-parallel wrapper), gone afterwards."""
    probes, hooks = Probes(), []

    def on_entry(name: str) -> Any:
        return lambda layer, inputs, named: probes.enter(name, layer, (inputs, named))

    def on_exit(layer: paddle.nn.Layer, inputs: Any, outputs: Any) -> None:
        probes.leave(outputs)

    try:
        for name, layer in model.named_sublayers(include_self=True):
            hooks.append(layer.register_forward_pre_hook(on_entry(name or NETWORK), with_kwargs=True))
            hooks.append(layer.register_forward_post_hook(on_exit))
        yield probes
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def followed(model: paddle.nn.Layer, tell: Callable[[int | None], None]) -> Iterator[Probes]:
    """Probes that read no value and only follow which call is at work, and tell its number whenever it changes."""
    probes, hooks = Probes(), []

    def on_entry(name: str) -> Any:
        def note(layer: paddle.nn.Layer, inputs: Any) -> None:
            probes.enter(name, layer, ())
            tell(probes.at_work)

        return note

    def on_exit(layer: paddle.nn.Layer, inputs: Any, outputs: Any) -> None:
        probes.leave(())
        tell(probes.at_work)

    try:
        for name, layer in model.named_sublayers(include_self=True):
            hooks.append(layer.register_forward_pre_hook(on_entry(name or NETWORK)))
            hooks.append(layer.register_forward_post_hook(on_exit))
        yield probes
    finally:
        for hook in hooks:
            hook.remove()


def is_recurrent(layer: paddle.nn.Layer) -> bool:
    """Whether a layer applies the same weights again and again along a sequence."""
    return isinstance(layer, paddle.nn.RNN | paddle.nn.BiRNN | paddle.nn.SimpleRNN | paddle.nn.LSTM | paddle.nn.GRU)


def _forward(call: LayerCall, tensor: str, from_batch: bool) -> FirstBad:
    parameters = {name: Range.of(p) for name, p in call.parameters().items()}
    inputs, outputs = tuple(call.inputs), tuple(call.outputs)
    return FirstBad(call.name, call.kind, "forward", tensor, inputs, outputs, parameters, from_batch, call=call.number)


def _tensors(value: Any) -> Iterator[paddle.Tensor]:
    """Floating-point tensors in arguments or results, however they are packed."""
    if isinstance(value, paddle.Tensor):
        if value.is_floating_point() and value.size:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _own(value: Any) -> Any:
    """The same arguments with a copy of every tensor that a gradient goes through."""
    if isinstance(value, paddle.Tensor):
        through = value.is_floating_point() and not value.stop_gradient
        return paddle.assign(value) if through else value
    if type(value) is dict:
        return {name: _own(item) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_own(item) for item in value)
    return value


def _growth(sequence: paddle.Tensor, *, towards_end: bool) -> float:
    """Largest magnitude in [samples, time, features] at one end of time over that at the other; 0 without a time axis.

    The ends are tenths of the sequence. inf when the growing end is not finite, or the other one is nothing.
    """
    if len(sequence.shape) != 3 or sequence.shape[1] < 4:
        return 0.0
    values = np.abs(sequence.detach().astype("float32").numpy()).max(axis=(0, 2)).astype(np.float64)
    tenth = max(len(values) // 10, 1)
    first, last = float(values[:tenth].max()), float(values[-tenth:].max())
    small, large = (first, last) if towards_end else (last, first)
    if math.isnan(large) or math.isinf(large):
        return math.inf if math.isfinite(small) else 0.0
    return large / small if small > 0.0 else 0.0
