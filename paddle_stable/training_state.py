"""Model and AdamW as named arrays in host memory, and back.

Copying to the host happens here and nowhere else, so that whatever is done with the copies (writing, hashing, keeping
them for a rollback) may happen later and in another thread. Names are the model's own structured ones, never those
that Paddle makes up (`linear_3.w_0_moment1_0`), which depend on what else the process has built before.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, final

import ml_dtypes
import numpy as np
import numpy.typing as npt
import paddle

from paddle_stable import __version__
from paddle_stable.stability.paddle_private import create_accumulators, forget_accumulators

Array = npt.NDArray[Any]

_ACCUMULATOR = re.compile(r"(?P<tensor>.+)_(?P<kind>moment1|moment2|moment2_max|beta1_pow|beta2_pow)(_acc)?_\d+")
_MASTER_WEIGHT = "master_weight"
_LARGE = 1 << 16
"""Elements from which on it is worth to have the copy made in a certain place."""


@final
class StateMismatch(Exception):
    """Arrays do not belong to this model or optimizer; nothing was changed."""

    def __init__(
        self,
        what: str,
        *,
        missing: Iterable[str] = (),
        unexpected: Iterable[str] = (),
        misshapen: Iterable[str] = (),
    ) -> None:
        """`misshapen` holds sentences with the name, what was expected and what was found; the others hold names."""
        self.missing = tuple(sorted(missing))
        self.unexpected = tuple(sorted(unexpected))
        self.misshapen = tuple(sorted(misshapen))
        self.what = what
        super().__init__(what, self.missing, self.unexpected, self.misshapen)

    def __str__(self) -> str:
        parts = [
            f"{title}: {', '.join(names)}"
            for title, names in (
                ("missing", self.missing),
                ("unexpected", self.unexpected),
                ("of another shape or type", self.misshapen),
            )
            if names
        ]
        return "\n  ".join([f"The saved {self.what} does not fit; nothing was loaded.", *parts])


@final
class HostMemory:
    """Memory that copies of a state are put into, again and again.

    Getting it from the system takes several times as long as copying: the first copy pays for that, later ones do not.
    """

    def __init__(self) -> None:
        """Without any memory."""
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def rewind(self) -> None:
        """Give up all arrays that were taken: what is taken next is in the same place."""
        if self._used > self._block.size:
            self._block = np.empty(self._used, np.uint8)
        self._used = 0

    def take(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """An array of any content; where there is no room for it, it is apart, and there is from the next time on."""
        size = math.prod(shape) * dtype.itemsize
        start = self._used
        self._used += -(-size // 64) * 64  # every array begins at a multiple of 64
        if self._used > self._block.size:
            return np.empty(shape, dtype)
        return self._block[start : start + size].view(dtype).reshape(shape)


def model_arrays(model: paddle.nn.Layer, memory: HostMemory | None = None) -> dict[str, Array]:
    """Copy everything that a model consists of to host memory, each tensor under one name.

    That is all parameters, BatchNorm's statistics (parameters that are not trainable) and persistable buffers.
    A layer that is used twice, and `nn.LSTM`, which lists its weights twice, keep the first name of
    `named_parameters()`. Give the model itself, not its data-parallel wrapper.

    Returns:
        Arrays by structured name, in the model's order, shapes and types kept (bfloat16 as `ml_dtypes.bfloat16`).
        Nothing in them is shared with the model. With `memory` they are valid until its next `rewind`.
    """
    return _copies(_model_tensors(model), memory)


def load_model_arrays(model: paddle.nn.Layer, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into a model, in place: the optimizer goes on with the same parameters.

    Raises:
        StateMismatch: with every name that is missing or unexpected and every other shape or type; then nothing has
            been changed.
    """
    tensors = _model_tensors(model)
    _refuse_differences("model", tensors, arrays)
    _copy_in(tensors, arrays)


def optimizer_arrays(
    optimizer: paddle.optimizer.AdamW, model: paddle.nn.Layer, memory: HostMemory | None = None
) -> dict[str, Array]:
    """Copy AdamW's state to host memory; with `memory`, the arrays are valid until its next `rewind`.

    Returns:
        Arrays by `<parameter>/<kind>`, kind being moment1, moment2 (shape of the parameter), beta1_pow, beta2_pow
        (shape [1]), moment2_max with AMSGrad, and master_weight for parameters in half precision. A parameter that
        never had a gradient, such as a frozen one, has no entries; an optimizer that never stepped has none at all.

    Raises:
        StateMismatch: when the optimizer holds state of a parameter that the model does not have.
    """
    return _copies(_optimizer_tensors(optimizer, model), memory)


def load_optimizer_arrays(
    optimizer: paddle.optimizer.AdamW, model: paddle.nn.Layer, arrays: Mapping[str, Array]
) -> None:
    """Bring AdamW into the state that `optimizer_arrays` has copied; afterwards `optimizer_arrays` gives the same.

    Works before the optimizer's first step (resume) and at any later time (rollback), also back to a time when
    some parameters had no state yet. The learning rate is not part of it.

    Raises:
        StateMismatch: for state of parameters that the model does not have or does not train, for parameters whose
            state is incomplete, and for other shapes or types; then nothing has been changed.
    """
    parameters = _model_tensors(model)
    had = {name.rpartition("/")[0] for name in _optimizer_tensors(optimizer, model)}
    loadable = had | {name for name, parameter in parameters.items() if not parameter.stop_gradient}
    wanted = {name.rpartition("/")[0] for name in arrays} & loadable
    created = [parameters[name] for name in sorted(wanted - had)]
    create_accumulators(optimizer, created)
    tensors = {
        name: tensor
        for name, tensor in _optimizer_tensors(optimizer, model).items()
        if name.rpartition("/")[0] in wanted
    }
    try:
        _refuse_differences("optimizer state", tensors, arrays)
    except StateMismatch:
        forget_accumulators(optimizer, created)
        raise
    forget_accumulators(optimizer, [parameters[name] for name in sorted(had - wanted)])
    _copy_in(tensors, arrays)


def current_environment() -> dict[str, Any]:
    """What the last bit of a result can depend on besides recipe and data: versions, device, threads, processes."""
    packages = {"paddle_stable": __version__, "paddlepaddle": paddle.__version__}
    for name in ("paddlenlp", "numpy", "safetensors"):
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "device": paddle.get_device().partition(":")[0],
        # Paddle sets it to 1 on import when it is not set.
        "threads": int(os.environ["OMP_NUM_THREADS"]),
        "world_size": paddle.distributed.get_world_size(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{f"{name} version": number for name, number in packages.items()},
    }


def environment_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two environments, one phrase each; when anything does, the last bits of results may too."""
    return [
        f"{name} {saved.get(name, 'unknown')} → {now.get(name, 'unknown')}"
        for name in sorted(saved.keys() | now.keys())
        if saved.get(name) != now.get(name)
    ]


def _model_tensors(model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    """Every tensor of the model's state under its first name. They are the live ones."""
    tensors = dict(model.named_parameters())
    seen = {id(tensor) for tensor in tensors.values()}
    # Hooks (of AMP, among others) would hand out converted copies in place of the live tensors.
    for name, tensor in model.state_dict(use_hook=False).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


def _optimizer_tensors(optimizer: paddle.optimizer.AdamW, model: paddle.nn.Layer) -> dict[str, paddle.Tensor]:
    """AdamW's live tensors by `<structured name>/<kind>`."""
    structured = {parameter.name: name for name, parameter in model.named_parameters()}
    state = optimizer.state_dict()
    tensors: dict[str, paddle.Tensor] = {}
    unknown = []
    for paddle_name, master in state.pop("master_weights", {}).items():
        if paddle_name not in structured:
            unknown.append(paddle_name)
            continue
        # The moments of a parameter in half precision are called after its master weight.
        structured[master.name] = structured[paddle_name]
        tensors[f"{structured[paddle_name]}/{_MASTER_WEIGHT}"] = master
    for key, tensor in state.items():
        match = _ACCUMULATOR.fullmatch(key)
        if match is None or match["tensor"] not in structured:
            unknown.append(key)
        else:
            tensors[f"{structured[match['tensor']]}/{match['kind']}"] = tensor
    if unknown:
        raise StateMismatch("optimizer state", unexpected=unknown)
    return tensors


def _copies(tensors: Mapping[str, paddle.Tensor], memory: HostMemory | None) -> dict[str, Array]:
    return {name: _copied(tensor, memory) for name, tensor in tensors.items()}


def _copied(tensor: paddle.Tensor, memory: HostMemory | None) -> Array:
    """The values of a tensor, which training will not change. A save waits for it: every call counts."""
    is_large = math.prod(tensor.shape) >= _LARGE
    on_host = not is_large or tensor.place.is_cpu_place()
    if is_large and on_host and tensor.dtype != paddle.bfloat16:
        return _copy(np.from_dlpack(tensor.detach()), memory)
    array: Array = tensor.numpy()
    if array.dtype == np.uint16 and tensor.dtype == paddle.bfloat16:
        array = array.view(ml_dtypes.bfloat16)  # Paddle hands it out as uint16, which numpy has for an integer
    # From a device `numpy()` cannot but copy. From the host it does today, which nothing promises.
    return _copy(array, memory) if on_host else array


def _copy(array: Array, memory: HostMemory | None) -> Array:
    if memory is None or array.size < _LARGE:
        return array.copy()
    copy = memory.take(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _copy_in(tensors: Mapping[str, paddle.Tensor], arrays: Mapping[str, Array]) -> None:
    for name, tensor in tensors.items():
        array = np.asarray(arrays[name], order="C")
        tensor.set_value(array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array)


def _refuse_differences(what: str, tensors: Mapping[str, paddle.Tensor], arrays: Mapping[str, Array]) -> None:
    misshapen = [
        f"{name} (expected {expected}, found {found})"
        for name in tensors.keys() & arrays.keys()
        if (expected := _looks(str(tensors[name].dtype).removeprefix("paddle."), tensors[name].shape))
        != (found := _looks(arrays[name].dtype.name, arrays[name].shape))
    ]
    missing, unexpected = tensors.keys() - arrays.keys(), arrays.keys() - tensors.keys()
    if missing or unexpected or misshapen:
        raise StateMismatch(what, missing=missing, unexpected=unexpected, misshapen=misshapen)


def _looks(dtype: str, shape: Iterable[int]) -> str:
    return f"{dtype}[{', '.join(str(size) for size in shape)}]"
