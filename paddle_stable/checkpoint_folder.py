"""One checkpoint: a folder of safetensors, JSON and text, with a manifest that notices every changed bit.

Needs no Paddle and runs nothing that it reads. docs/checkpoints.md describes the format for other readers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar, final

import ml_dtypes
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

Array = npt.NDArray[Any]

FORMAT_VERSION = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
SNAPSHOT = "snapshot.safetensors"
STATE = "state.json"
MANIFEST = "manifest.json"

_OWN_FILES = (MODEL, OPTIMIZER, STATE, MANIFEST, SNAPSHOT)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SMALL = 4096
"""Elements up to which it takes longer to call a function than to look at them."""
_WORTH_THREADS = 16 << 20
"""Bytes from which on it takes longer to read them than to start threads."""
_TYPES = (
    *map(np.dtype, ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")),
    _BFLOAT16,
)
_FLOAT = "$float"
_DIGEST = b',\n "manifest_sha256": "'
_END = b'"\n}\n'

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


@final
class CheckpointError(Exception):
    """A checkpoint cannot be written or read. What had been saved before is as it was."""


@final
class NonFiniteState(Exception):
    """A parameter or a moment is NaN or infinite, and such a state is never written."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        super().__init__(self.names)

    def __str__(self) -> str:
        shown = ", ".join(self.names[:8]) + (" …" if len(self.names) > 8 else "")
        return f"{len(self.names)} tensors hold NaN or inf and are not saved: {shown}"


@final
@dataclass(frozen=True)
class CheckpointParts:
    """What a checkpoint consists of. Nothing in it is shared with a running training."""

    model: Mapping[str, Array]
    """Parameters and other state of the model, by structured name."""
    optimizer: Mapping[str, Array]
    """Moments, by `<parameter>/<kind>`; see `training_state.optimizer_arrays`."""
    state: Mapping[str, Any]
    """Everything else: dicts with string keys, lists, strings, numbers (NaN and inf too), booleans and None."""
    assets: Mapping[str, str]
    """Text files by name: vocabulary, labels, the recipe."""
    snapshot: Mapping[str, Array] = field(default_factory=dict)
    """The last good state that a rollback would go back to; see `stability.recovery.Snapshot.arrays`."""


@final
class FileRecord(BaseModel):
    """What a file has to be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    """Bytes."""
    sha256: str


@final
class BestRecord(BaseModel):
    """The best checkpoint, and the evaluation that made it so."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    step: int
    metric: str
    value: float


@final
class Manifest(BaseModel):
    """What a checkpoint holds and where it comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: str
    format_version: int
    step: int
    written: str
    """UTC, for people: nothing depends on a clock."""
    best: BestRecord | None
    """The best checkpoint when this one was written; often an earlier one."""
    environment: dict[str, Any]
    """Versions, device, threads and processes: see `training_state.current_environment`."""
    files: dict[str, FileRecord]
    """Every file of the folder but the manifest."""


def write_folder(
    folder: Path, step: int, parts: CheckpointParts, *, best: BestRecord | None, environment: Mapping[str, Any]
) -> None:
    """Write a checkpoint into an empty folder and make sure that it is on the disk, not only in a cache.

    Raises:
        CheckpointError: when something in `parts` has no safe form in a file.
        OSError, SafetensorError: when writing fails.
    """
    texts = {STATE: json_bytes(parts.state), **{name: _asset_bytes(name, text) for name, text in parts.assets.items()}}
    jobs: list[tuple[str, Mapping[str, Array] | bytes]] = [
        (OPTIMIZER, parts.optimizer),
        (MODEL, parts.model),
        *([(SNAPSHOT, parts.snapshot)] if parts.snapshot else []),
        *texts.items(),
    ]
    records = in_parallel(lambda job: _write_file(folder / job[0], job[1]), jobs)
    manifest = Manifest(
        format="paddle_stable checkpoint",
        format_version=FORMAT_VERSION,
        step=step,
        written=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        best=best,
        environment=dict(environment),
        files={name: record for (name, _), record in zip(jobs, records, strict=True)},
    )
    write_durably(folder / MANIFEST, _manifest_bytes(manifest))
    flush_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest, whose own digest has been checked.

    Raises:
        CheckpointError: when it is missing, unreadable, changed, or of another format.
    """
    try:
        content = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{MANIFEST} is missing") from None
    except OSError as error:
        raise CheckpointError(f"{MANIFEST} cannot be read: {error.strerror}") from error
    body, digest, end = content[: -64 - len(_END)], content[-64 - len(_END) : -len(_END)], content[-len(_END) :]
    if end != _END or hashlib.sha256(body).hexdigest().encode() != digest:
        raise CheckpointError(f"{MANIFEST} has been changed or cut short: it does not have its own SHA-256")
    try:
        fields = json.loads(content)
        found = fields["format_version"]
        if found != FORMAT_VERSION:
            raise CheckpointError(f"its format is version {found}, and this program reads version {FORMAT_VERSION}")
        del fields["manifest_sha256"]
        return Manifest.model_validate(fields)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise CheckpointError(f"{MANIFEST} is not a checkpoint's manifest: {error}") from error


def size_problems(folder: Path, manifest: Manifest) -> list[str]:
    """Files that are missing, too many or of another size than the manifest says: what can be seen without reading.

    Returns:
        One sentence a problem; empty when all is well.
    """
    try:
        found = {entry.name: entry.stat() for entry in folder.iterdir()}
    except OSError as error:
        return [f"{folder} cannot be read: {error.strerror}"]
    problems = [f"{name} is missing" for name in manifest.files if name not in found]
    for name, status in found.items():
        record = manifest.files.get(name)
        if record is None:
            if name != MANIFEST:
                problems.append(f"{name} does not belong to the checkpoint")
        elif not stat.S_ISREG(status.st_mode):
            problems.append(f"{name} is not a file")
        elif status.st_size != record.size:
            problems.append(f"{name} has {status.st_size} bytes instead of {record.size}")
    return problems


def read_folder(folder: Path, *, verify: bool) -> tuple[CheckpointParts | None, list[str]]:
    """Read a checkpoint.

    Args:
        folder: the checkpoint.
        verify: also hash every file and look at every number. Without it, sizes and the manifest are checked.

    Returns:
        The parts, or None when there is any problem; and one sentence a problem.
    """
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        return None, [str(error)]
    problems = size_problems(folder, manifest)
    if problems:
        return None, problems
    results = _read_files(folder, manifest, verify=verify)
    problems = [problem for result in results.values() for problem in result.problems]
    missing = [f"{name} is not in the manifest" for name in _OWN_FILES[:3] if name not in results]
    if problems or missing:
        return None, problems + missing
    content = {name: result.content for name, result in results.items()}
    model, optimizer, state = (content.pop(name) for name in (MODEL, OPTIMIZER, STATE))
    snapshot = content.pop(SNAPSHOT, {})
    return CheckpointParts(model=model, optimizer=optimizer, state=state, assets=content, snapshot=snapshot), []


def non_finite_names(arrays: Mapping[str, Array]) -> list[str]:
    """Names of the arrays that hold NaN or inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        # Training waits for this, and most arrays of a state are small: those are looked at as one, and each for
        # itself only when something is wrong.
        small = {name for name, array in arrays.items() if array.size <= _SMALL and array.dtype == np.float32}
        if small and _is_finite(np.concatenate([arrays[name].reshape(-1) for name in small])):
            arrays = {name: array for name, array in arrays.items() if name not in small}
        return [name for name, array in arrays.items() if not _is_finite(array)]


def _is_finite(array: Array) -> bool:
    if array.dtype.char in "fd":  # float32 and float64
        # Training waits for this. A sum of squares is finite only when all values are, and reads the memory once;
        # large finite values may overflow it, and only then, or when something is wrong, all are looked at.
        flat = array.reshape(-1)
        if np.isfinite(np.dot(flat, flat)):
            return True
    elif array.dtype.kind != "f" and array.dtype != _BFLOAT16:
        return True
    return bool(np.isfinite(array).all())


def json_bytes(state: Mapping[str, Any]) -> bytes:
    """A state as JSON that reads back equal.

    JSON has no NaN and no infinity; they become `{"$float": "nan"}`, `"inf"` or `"-inf"`, which any parser accepts.

    Raises:
        CheckpointError: for what would read back as something else: a tuple, a number as a key, an array.
    """
    return (json.dumps(_json_safe(state, "state"), indent=1, allow_nan=False) + "\n").encode("ascii")


def write_durably(path: Path, content: bytes) -> None:
    """Write a new file, through to the disk.

    Raises:
        OSError: when that fails.
    """
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def flush_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # some network file systems do it by themselves
            raise
    finally:
        os.close(descriptor)


def in_parallel(work: Callable[[_Job], _Result], jobs: Iterable[_Job]) -> list[_Result]:
    """Results in the order of the jobs. Hashing and file access let go of the interpreter, so threads help."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return list(pool.map(work, jobs))


def _read_files(folder: Path, manifest: Manifest, *, verify: bool) -> dict[str, _FileResult]:
    """What is in the files, by name, the largest first."""

    def read(name: str) -> _FileResult:
        return _read_file(folder / name, manifest.files[name].sha256 if verify else None)

    names = sorted(manifest.files, key=lambda name: -manifest.files[name].size)
    pays = sum(record.size for record in manifest.files.values()) >= _WORTH_THREADS
    return dict(zip(names, in_parallel(read, names) if pays else map(read, names), strict=True))


@final
@dataclass(frozen=True)
class _FileResult:
    content: Any
    problems: list[str]


def _write_file(path: Path, content: Mapping[str, Array] | bytes) -> FileRecord:
    if isinstance(content, bytes):
        write_durably(path, content)
        return FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())
    arrays = {name: _storable(name, array) for name, array in content.items()}
    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    # safetensors writes straight from the arrays, without a copy, into a private file that it then gives this name.
    save_file(arrays, path, metadata={"format": "np"})
    path.chmod(mode)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return FileRecord(size=os.fstat(file.fileno()).st_size, sha256=_sha256(file.readinto))


def _read_file(path: Path, sha256: str | None) -> _FileResult:
    """The content of one file; its digest and the finiteness of its numbers are checked when `sha256` is given."""
    try:
        if path.suffix != ".safetensors":
            data = path.read_bytes()
            if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
                return _FileResult(None, [f"{path.name} has been changed: its SHA-256 is not the manifest's"])
            text = data.decode()
            return _FileResult(_from_json(json.loads(text)) if path.name == STATE else text, [])
        if sha256 is not None:
            with path.open("rb", buffering=0) as file:
                if _sha256(file.readinto) != sha256:
                    return _FileResult(None, [f"{path.name} has been changed: its SHA-256 is not the manifest's"])
        arrays: dict[str, Array] = load_file(path)
        bad = non_finite_names(arrays) if sha256 is not None else []
        return _FileResult(arrays, [f"{path.name} holds NaN or inf in {name}" for name in bad])
    except OSError as error:
        return _FileResult(None, [f"{path.name} cannot be read: {error.strerror}"])
    except (ValueError, TypeError, SafetensorError) as error:
        return _FileResult(None, [f"{path.name} cannot be read: {error}"])


def _sha256(read_into: Callable[[bytearray], int | None]) -> str:
    total, buffer = hashlib.sha256(), bytearray(1 << 20)
    view = memoryview(buffer)
    while size := read_into(buffer):
        total.update(view[:size])
    return total.hexdigest()


def _storable(name: str, array: Array) -> Array:
    if array.dtype not in _TYPES:
        raise CheckpointError(f"{name} is an array of {array.dtype}, which a checkpoint does not hold")
    # safetensors takes the memory as it is: a transposed view would be written in the wrong order
    return np.asarray(array, order="C")


def _asset_bytes(name: str, text: str) -> bytes:
    plain = re.fullmatch(r"[^\x00-\x1f/\\.][^\x00-\x1f/\\]*", name)
    if not plain or name in _OWN_FILES or name.endswith(".safetensors"):
        raise CheckpointError(f"{name!r} cannot be the name of a text file in a checkpoint")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"{name} cannot be written as UTF-8: {error}") from error


def _manifest_bytes(manifest: Manifest) -> bytes:
    """JSON whose last entry is the SHA-256 of every byte before its own digits; the bytes behind them are fixed."""
    text = json.dumps(manifest.model_dump(), indent=1, allow_nan=False)
    body = text.removesuffix("\n}").encode("ascii") + _DIGEST
    return body + hashlib.sha256(body).hexdigest().encode("ascii") + _END


def _json_safe(value: Any, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_json_safe(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT:
                raise CheckpointError(f"{where} has the key {key!r}; keys are strings, and not {_FLOAT!r}")
        return {key: _json_safe(item, f"{where}.{key}") for key, item in value.items()}
    raise CheckpointError(f"{where} is a {type(value).__name__}, which would not read back from JSON as it was")


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _from_json(item) for key, item in value.items()}
    return value
