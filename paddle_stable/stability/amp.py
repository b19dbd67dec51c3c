"""Half precision: where it is allowed, the loss scale with a floor, and its emulation on any device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, final

import paddle

from paddle_stable.recipe import AmpConfig


@final
@dataclass(frozen=True, slots=True)
class LossScale:
    """The loss scale and the two counters that move it. Frozen: `after` gives the next one."""

    scale: float
    finite_steps: int = 0
    """Finite steps in a row since the scale last changed."""
    overflows: int = 0
    """Overflows in a row: one finite step sets it back to 0, so hysteresis is truly consecutive."""

    def after(self, *, overflow: bool, config: AmpConfig) -> LossScale:
        """The scale for the next step.

        Paddle's and torch's rule (×2 after `growth_interval` finite steps, ×½ on overflow) with a floor, a ceiling
        and hysteresis added: without a floor persistent overflow halves the scale to nothing and training goes on
        learning nothing (PaddleOCR#6848).
        """
        if overflow:
            if self.overflows + 1 < config.hysteresis:
                return replace(self, overflows=self.overflows + 1, finite_steps=0)
            return LossScale(max(self.scale / 2.0, config.min_scale))
        if self.finite_steps + 1 < config.growth_interval:
            return replace(self, overflows=0, finite_steps=self.finite_steps + 1)
        return LossScale(min(self.scale * 2.0, config.max_scale))


_NEVER = 2**31 - 1


@final
class Scaling:
    """The loss scale of a run: what it is now, and what a checkpoint keeps of it. Only float16 has one."""

    def __init__(self, config: AmpConfig) -> None:
        """Begin with `config.init_scale`, or with 1.0 for good where the format needs none."""
        self._config = config
        self._scale = LossScale(config.init_scale if self._moves else 1.0)

    @property
    def value(self) -> float:
        """The scale in force; 1.0 when there is none."""
        return self._scale.scale

    def may_be_lowered(self) -> bool:
        """Whether a non-finite gradient can be explained by a loss scale that is still above its floor."""
        return self._moves and self._scale.scale > self._config.min_scale

    def update(self, *, overflow: bool) -> None:
        """Adapt the scale after a step that was applied (`overflow=False`) or skipped for overflow."""
        if self._moves:
            self._scale = self._scale.after(overflow=overflow, config=self._config)

    def state(self) -> dict[str, Any]:
        """Format, scale and counters; JSON."""
        return {"dtype": self._config.dtype, **asdict(self._scale)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on with the scale and counters of a checkpoint made with the same recipe section."""
        self._scale = LossScale(float(state["scale"]), int(state["finite_steps"]), int(state["overflows"]))

    @property
    def _moves(self) -> bool:
        return self._config.dtype == "float16"


class Precision(ABC):
    """How forward, backward and unscaling are done in one number format."""

    @property
    @abstractmethod
    def scaling(self) -> Scaling:
        """The loss scale, which whoever decides about the step moves."""

    @abstractmethod
    def autocast(self) -> AbstractContextManager[None]:
        """Context for the forward pass."""

    @abstractmethod
    def backward(self, loss: paddle.Tensor) -> None:
        """Backward from the loss, scaled where the format needs it."""

    @abstractmethod
    def unscale(self, optimizer: paddle.optimizer.Optimizer, parameters: Sequence[paddle.Tensor]) -> None:
        """Take the scale out of the accumulated gradients, in place."""

    @abstractmethod
    def switched_off(self) -> AbstractContextManager[None]:
        """Context for a forward pass in float32, as far as the parameters are; used by replays."""


@final
class FullPrecision(Precision):
    """float32: nothing to do."""

    def __init__(self, config: AmpConfig) -> None:
        """Keep the scale that never moves."""
        self._scaling = Scaling(config)

    @property
    def scaling(self) -> Scaling:
        """1.0, for good."""
        return self._scaling

    def autocast(self) -> AbstractContextManager[None]:
        """No casting."""
        return nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Plain backward."""
        loss.backward()

    def unscale(self, optimizer: paddle.optimizer.Optimizer, parameters: Sequence[paddle.Tensor]) -> None:
        """Gradients carry no scale."""

    def switched_off(self) -> AbstractContextManager[None]:
        """Nothing is on outside `autocast`."""
        return nullcontext()


@final
class DevicePrecision(Precision):
    """Paddle's autocast and, for float16, Paddle's GradScaler with our scale policy in the driver's seat."""

    def __init__(self, config: AmpConfig) -> None:
        """Make a GradScaler that never moves its scale by itself."""
        self._config = config
        self._scaling = Scaling(config)
        # Intervals that are never reached: the scale moves by our policy only. (`use_dynamic_loss_scaling=False` would
        # say the same, but then `update()` does not forget that the gradients were unscaled, and the second
        # `unscale_()` raises.)
        self._scaler = paddle.amp.GradScaler(
            enable=config.dtype == "float16",
            init_loss_scaling=self._scaling.value,
            incr_every_n_steps=_NEVER,
            decr_every_n_nan_or_inf=_NEVER,
        )

    @property
    def scaling(self) -> Scaling:
        """The scale of our policy; the GradScaler takes it over with the next backward."""
        return self._scaling

    def autocast(self) -> AbstractContextManager[None]:
        """Paddle's autocast with the recipe's format and level."""
        context: AbstractContextManager[None] = paddle.amp.auto_cast(
            enable=True, dtype=self._config.dtype, level=self._config.level
        )
        return context

    def backward(self, loss: paddle.Tensor) -> None:
        """Backward from the scaled loss.

        Raises:
            RuntimeError: when the GradScaler has switched itself off, as it does for good when `scale()` is called
                after an autocast of another format was entered.
        """
        # Compared on the host: setting it makes a new tensor, which is needed only when the policy has moved.
        if self._scaler.get_init_loss_scaling() != self._scaling.value:
            self._scaler.set_init_loss_scaling(self._scaling.value)
        scaled = self._scaler.scale(loss)
        if self._config.dtype == "float16" and not self._scaler.is_enable():
            raise RuntimeError("GradScaler has switched itself off: the task entered an auto_cast of another dtype")
        scaled.backward()

    def unscale(self, optimizer: paddle.optimizer.Optimizer, parameters: Sequence[paddle.Tensor]) -> None:
        """Unscale through the GradScaler, and make it ready for the next step.

        `update()` moves nothing here; it only forgets that this optimizer was unscaled.
        """
        self._scaler.unscale_(optimizer)
        self._scaler.update()

    def switched_off(self) -> AbstractContextManager[None]:
        """Nothing is on outside `autocast`."""
        return nullcontext()


@final
class EmulatedPrecision(Precision):
    """Rounds activations, and through the casts' own backward the gradients, to half precision on any device.

    What it shows: overflow of activations and scaled gradients, underflow to zero, skipping and scaling. What it does
    not show: half-precision accumulation inside a kernel, speed, memory.
    """

    def __init__(self, config: AmpConfig, model: paddle.nn.Layer) -> None:
        """Put a rounding hook on every one of `rounded_layers` whose name matches `config.emulate_layers`."""
        self._config = config
        self._rounds = True
        self._scaling = Scaling(config)
        for name, layer in rounded_layers(model).items():
            if any(fnmatchcase(name, pattern) for pattern in config.emulate_layers):
                layer.register_forward_post_hook(self._round_outputs)

    @property
    def scaling(self) -> Scaling:
        """The scale of our policy."""
        return self._scaling

    def autocast(self) -> AbstractContextManager[None]:
        """The hooks do the rounding."""
        return nullcontext()

    def backward(self, loss: paddle.Tensor) -> None:
        """Backward from the scaled loss."""
        (loss * self._scaling.value if self._scaling.value != 1.0 else loss).backward()

    def unscale(self, optimizer: paddle.optimizer.Optimizer, parameters: Sequence[paddle.Tensor]) -> None:
        """Divide by the scale; exact, because scales are powers of two (or overflow, which is measured next)."""
        if self._scaling.value == 1.0:
            return
        with paddle.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.scale_(1.0 / self._scaling.value)

    @contextmanager
    def switched_off(self) -> Iterator[None]:
        """Without rounding."""
        self._rounds = False
        try:
            yield
        finally:
            self._rounds = True

    def _round_outputs(self, layer: paddle.nn.Layer, inputs: Any, outputs: Any) -> Any:
        if isinstance(outputs, paddle.Tensor):
            return self._round(outputs)
        if isinstance(outputs, tuple | list):
            return type(outputs)(self._round_outputs(layer, inputs, output) for output in outputs)
        return outputs

    def _round(self, tensor: paddle.Tensor) -> paddle.Tensor:
        if tensor.dtype != paddle.float32 or not self._rounds:
            return tensor
        return tensor.astype(self._config.dtype).astype("float32")


def rounded_layers(model: paddle.nn.Layer) -> dict[str, paddle.nn.Layer]:
    """The layers whose outputs can be rounded, by name: those without sublayers, and whole recurrent ones.

    A recurrent layer is one kernel over the whole sequence, which never calls the cells below it.
    """
    found: dict[str, paddle.nn.Layer] = {}
    kernels: list[str] = []
    for name, layer in model.named_sublayers():
        if any(name.startswith(f"{kernel}.") for kernel in kernels):
            continue
        if isinstance(layer, paddle.nn.SimpleRNN | paddle.nn.LSTM | paddle.nn.GRU):
            kernels.append(name)
            found[name] = layer
        elif not list(layer.children()):
            found[name] = layer
    return found


def build_precision(config: AmpConfig, model: paddle.nn.Layer) -> Precision:
    """The precision that the recipe asks for. Whether the device can do it, the recipe's check has said before."""
    if config.dtype == "float32":
        return FullPrecision(config)
    if config.emulate:
        return EmulatedPrecision(config, model)
    return DevicePrecision(config)


def decorate_for_o2(
    config: AmpConfig, model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer
) -> tuple[paddle.nn.Layer, paddle.optimizer.Optimizer]:
    """Half-precision parameters with float32 master weights and float32 gradients, for `amp.level: O2` on a device."""
    if config.dtype == "float32" or config.emulate or config.level != "O2":
        return model, optimizer
    decorated: tuple[paddle.nn.Layer, paddle.optimizer.Optimizer] = paddle.amp.decorate(
        models=model, optimizers=optimizer, level="O2", dtype=config.dtype, master_weight=True, master_grad=True
    )
    return decorated
