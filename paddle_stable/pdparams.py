"""Reads the arrays out of a foreign `.pdparams` file without running anything that is in it.

`paddle.save` writes a pickle, and unpickling runs whatever the file's author put into it. Here the file is only
disassembled (`pickletools.genops` decodes, it executes nothing), and a small machine interprets the operations that
arrays with names consist of. It never imports, calls or constructs what the file names; anything else is refused.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np

from paddle_stable.data.dataset import Array
from paddle_stable.errors import InputError

PARAMETER_NAMES = "StructuredToParameterName@@"
"""Entry that Paddle adds: the framework's own names of the parameters, of no use to us."""

_RECONSTRUCT = {"numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"}
_NDARRAY, _DTYPE = "numpy.ndarray", "numpy.dtype"
_TUPLE = {"builtins.tuple", "__builtin__.tuple"}
_DICT = {"collections.OrderedDict"}
_ENCODE = "_codecs.encode"
_BYTES = {"builtins.bytes", "__builtin__.bytes"}
_KNOWN = {*_RECONSTRUCT, *_TUPLE, *_DICT, *_BYTES, _NDARRAY, _DTYPE, _ENCODE}

_LITERALS = {
    *("BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINSTRING", "SHORT_BINSTRING"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_TUPLE_SIZES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_Order = Literal["<", ">", "=", "|"]
_ORDERS = get_args(_Order)
_NUMBERS = {f"{kind}{size}" for kind, sizes in {"f": "248", "i": "1248", "u": "1248"}.items() for size in sizes} | {
    "b1"
}


class _RefusedError(ValueError):
    """The file holds something that is not an array or a name."""


@final
@dataclass(frozen=True)
class _Name:
    """Something the file wants imported; here it is only a word."""

    path: str


@final
@dataclass(eq=False)
class _NumberType:
    """A numpy dtype under construction."""

    code: str
    order: _Order = "="


@final
@dataclass(eq=False)
class _Cell:
    """An array under construction: the file first asks for an empty one, then fills it."""

    array: Array | None = None


@final
@dataclass
class _Machine:
    """The stack, the marks on it, and what has been remembered."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memory: dict[int, Any] = field(default_factory=dict)

    def do(self, name: str, argument: Any) -> None:
        """Interpret one operation.

        Raises:
            _RefusedError: when it is not one that arrays with names need.
        """
        if name in _LITERALS:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name])
        elif name in _TUPLE_SIZES:
            self.stack[-_TUPLE_SIZES[name] :] = [tuple(self.stack[-_TUPLE_SIZES[name] :])]
        elif name in ("BINPUT", "LONG_BINPUT"):
            self.memory[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memory[argument])
        elif name in _OPERATIONS:
            _OPERATIONS[name](self, argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _RefusedError(f"it uses the operation {name}")

    def above_mark(self) -> list[Any]:
        """Take everything above the last mark off the stack."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def set_items(self, values: list[Any]) -> None:
        """Put keys and values that alternate into the dict on top."""
        target = self._top(dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            if not isinstance(key, str):
                raise _RefusedError(f"it has a key that is no name: {key!r}")
            target[key] = value

    def append(self, values: list[Any]) -> None:
        """Put values behind the list on top."""
        self._top(list).extend(values)

    def name(self, path: str) -> None:
        """Note a name that the file wants imported."""
        if path not in _KNOWN:
            raise _RefusedError(f"it names {path}")
        self.stack.append(_Name(path))

    def reduce(self) -> None:
        """What the file believes to be a call."""
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Name) or not isinstance(arguments, tuple):
            raise _RefusedError("it calls something that is no name")
        self.stack.append(_construct(function.path, arguments))

    def build(self) -> None:
        """Fill the number type or the array on top with its state."""
        state = self.stack.pop()
        target = self.stack[-1]
        if isinstance(target, _NumberType) and isinstance(state, tuple):
            if any(part is not None for part in state[2:5]):
                raise _RefusedError("it has an array of records")
            if state[1] not in _ORDERS:
                raise _RefusedError(f"it has the byte order {state[1]!r}")
            target.order = state[1]
        elif isinstance(target, _Cell) and isinstance(state, tuple) and len(state) == 5:
            target.array = _array(*state[1:])
        else:
            raise _RefusedError("it sets the state of something that is no array")

    def _top(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise _RefusedError(f"it fills something that is no {kind.__name__}")
        return self.stack[-1]


def _stack_name(machine: _Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.name(f"{module}.{name}")


_OPERATIONS: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "MEMOIZE": lambda machine, _: machine.memory.update({len(machine.memory): machine.stack[-1]}),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.above_mark())),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop(-2), machine.stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.above_mark()),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.above_mark()),
    "GLOBAL": lambda machine, argument: machine.name(str(argument).replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda machine, _: _stack_name(machine),
    "REDUCE": lambda machine, _: machine.reduce(),
    "BUILD": lambda machine, _: machine.build(),
}


def _construct(path: str, arguments: tuple[Any, ...]) -> Any:
    """What a call of a known name with these arguments would give, made by us."""
    if path in _RECONSTRUCT and arguments and arguments[0] == _Name(_NDARRAY):
        return _Cell()
    if path == _DTYPE and arguments:
        if arguments[0] not in _NUMBERS:
            raise _RefusedError(f"it has an array of {arguments[0]!r}, which are no numbers")
        return _NumberType(arguments[0])
    if path == _ENCODE and len(arguments) == 2 and arguments[1] == "latin1":
        return arguments[0].encode("latin-1")  # how old protocols write bytes
    if path in _TUPLE and len(arguments) == 1 and isinstance(arguments[0], tuple):
        return arguments[0]
    if path in _BYTES and not arguments:
        return b""  # likewise
    if path in _DICT and not arguments:
        return {}
    raise _RefusedError(f"it calls {path} in an unusual way")


def _array(shape: Any, kind: Any, fortran: Any, raw: Any) -> Array:
    """A copy of the numbers, in the byte order of this machine."""
    if isinstance(raw, str):
        raw = raw.encode("latin-1")  # bytes written by Python 2
    sizes_fit = isinstance(shape, tuple) and all(isinstance(size, int) and size >= 0 for size in shape)
    if not isinstance(kind, _NumberType) or not isinstance(raw, bytes) or not sizes_fit:
        raise _RefusedError("it has an array whose state is unusual")
    number = np.dtype(kind.code).newbyteorder(kind.order)
    array: Array = np.ndarray(shape, dtype=number, buffer=raw, order="F" if fortran else "C")
    if array.nbytes != len(raw):
        raise _RefusedError(f"it has an array of shape {shape} with {len(raw)} bytes instead of {array.nbytes}")
    return np.array(array, dtype=number.newbyteorder("="), order="C")


def read_pdparams(path: Path) -> dict[str, Array]:
    """The arrays of a `.pdparams` file by name, as host arrays.

    Raises:
        InputError: when the file cannot be read, is damaged, or holds anything but arrays with names.
    """
    machine = _Machine()
    try:
        with path.open("rb") as file:
            for operation, argument, _ in pickletools.genops(file):
                machine.do(operation.name, argument)
        content = machine.stack.pop()
        return _named_arrays(content)
    except OSError as error:
        raise InputError.single(str(path), f"cannot be read: {error.strerror}.") from error
    except _RefusedError as error:
        message = f"refused: {error}. Only arrays and their names are read from a .pdparams file; save the weights as"
        raise InputError.single(str(path), f"{message} model.safetensors where you trust it.") from error
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError, struct.error) as error:
        raise InputError.single(str(path), f"not a whole .pdparams file ({error}). Copy it again.") from error


def _named_arrays(content: Any) -> dict[str, Array]:
    if not isinstance(content, dict):
        raise _RefusedError(f"it holds a {type(content).__name__} instead of arrays by name")
    arrays: dict[str, Array] = {}
    for name, value in content.items():
        if name == PARAMETER_NAMES:
            continue
        # A tensor saved on its own is a pair of the framework's name for it and the array.
        cell = value[1] if isinstance(value, tuple) and len(value) == 2 else value
        if not isinstance(cell, _Cell) or cell.array is None:
            raise _RefusedError(f"its entry {name!r} is a {type(value).__name__}, no array")
        arrays[name] = cell.array
    return arrays
