"""metrics.jsonl: everything that a run plots, one JSON object a line. The truth that VisualDL's file is made from.

```
{"step":10,"time":1764511200000,"kind":"scalars","scalars":{"train/loss":0.61,"stability/clip_rate":0.1},"dropped":[]}
```
A record's `step` is the number of steps attempted when it was written; text that belongs to the run's start has 0.
`time` is in milliseconds since 1970. Values are finite, and fit VisualDL's single precision: others are named under
`dropped`.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from paddle_stable.checkpoint_folder import flush_folder
from paddle_stable.errors import InputError

FILE_NAME = "metrics.jsonl"
LARGEST = float(np.finfo(np.float32).max)
"""VisualDL keeps scalars in single precision: a value beyond this would become inf there, which breaks its page."""
BUCKETS = 64
"""Buckets of a recorded histogram."""
SAMPLED = 1_000_000
"""At most about that many values of a tensor are counted into its histogram, taken at equal distances."""


def _now() -> int:
    return time.time_ns() // 1_000_000


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    step: NonNegativeInt
    time: NonNegativeInt = Field(default_factory=_now)


@final
class Scalars(_Record):
    """Values of one step, by tag."""

    kind: Literal["scalars"] = "scalars"
    scalars: dict[str, float]
    dropped: tuple[str, ...] = ()
    """Tags whose value was NaN, inf or beyond single precision."""

    @staticmethod
    def of(step: int, values: Mapping[str, float]) -> Scalars:
        """A record of the values that can be plotted."""
        kept = {tag: float(value) for tag, value in values.items() if _can_be_plotted(value)}
        return Scalars(step=step, scalars=kept, dropped=tuple(tag for tag in values if tag not in kept))


@final
class Histogram(_Record):
    """The values of a tensor, counted into `BUCKETS` equal parts of the range from `low` to `high`."""

    kind: Literal["histogram"] = "histogram"
    tag: str
    low: float
    high: float
    counts: tuple[NonNegativeInt, ...]
    """Empty when the tensor has no finite value. Counts of a sample when the tensor has more than `SAMPLED` values."""
    size: NonNegativeInt
    """Values in the tensor."""
    nonfinite: NonNegativeInt
    """Those of them that are NaN or inf; they are in no bucket."""

    @staticmethod
    def of(step: int, tag: str, values: npt.NDArray[Any]) -> Histogram:
        """A record of an array of any shape and any real type."""
        flat = np.asarray(values).ravel()
        finite = flat[np.isfinite(flat)]
        low, high, counts = 0.0, 0.0, np.zeros(0, np.int64)
        if finite.size:
            low, high = _bucket_range(float(finite.min()), float(finite.max()))
            sample = finite[:: -(-finite.size // SAMPLED)]
            counts, _ = np.histogram(sample.astype(np.float64), bins=BUCKETS, range=(low, high))
        return Histogram(
            step=step,
            tag=tag,
            low=low,
            high=high,
            counts=tuple(counts.tolist()),
            size=flat.size,
            nonfinite=flat.size - finite.size,
        )


@final
class Text(_Record):
    """A text, such as the recipe."""

    kind: Literal["text"] = "text"
    tag: str
    text: str


@final
class Image(_Record):
    """A picture that is a file of the run folder."""

    kind: Literal["image"] = "image"
    tag: str
    path: str
    """Relative to the run folder, so that the folder can move."""


@final
class HyperParameters(_Record):
    """What the run was asked to do and how it ended. Written at the end of a run, dropped when it goes on."""

    kind: Literal["hyper_parameters"] = "hyper_parameters"
    values: dict[str, int | float | str]
    metrics: dict[str, float]
    dropped: tuple[str, ...] = ()
    """Metrics that were NaN, inf or beyond single precision."""

    @staticmethod
    def of(step: int, values: Mapping[str, Any], metrics: Mapping[str, float]) -> HyperParameters:
        """A record of possibly nested values (keys are joined by dots, nulls are left out) and plain metrics."""
        kept = {name: float(value) for name, value in metrics.items() if _can_be_plotted(value)}
        return HyperParameters(
            step=step, values=_flat(values), metrics=kept, dropped=tuple(name for name in metrics if name not in kept)
        )


Record: TypeAlias = Scalars | Histogram | Text | Image | HyperParameters
_parser: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


def values_left_out(record: Record) -> int:
    """How many values of a record could not be plotted; a tensor with non-finite elements counts as one."""
    match record:
        case Scalars() | HyperParameters():
            return len(record.dropped)
        case Histogram():
            return int(record.nonfinite > 0)
        case Text() | Image():
            return 0


def read_records(path: Path) -> list[Record]:
    """All records of a file that may still be written to; a last line that is not complete is left out.

    Raises:
        InputError: when another line is not a record.
    """
    return [record for _, record in _read_lines(path)]


@final
class MetricsLog:
    """metrics.jsonl, open for appending. A record is handed to the system before `append` returns."""

    def __init__(self, path: Path, kept: Sequence[Record]) -> None:
        """Go on behind the `kept` records that the file holds. Use `create` or `resume`."""
        self.kept = tuple(kept)
        """Records that were there when the file was opened."""
        # Unbuffered: one write a record, so that a killed process leaves at most one torn line, and a fork nothing.
        self._file = path.open("ab", buffering=0)

    @staticmethod
    def create(path: Path) -> MetricsLog:
        """A new file.

        Raises:
            InputError: when there is one already.
        """
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            raise InputError.single(
                str(path), "holds the curves of an earlier run: go on with --resume auto, or use another run.output_dir"
            ) from None
        return MetricsLog(path, ())

    @staticmethod
    def resume(path: Path, step: int) -> MetricsLog:
        """Cut the file back to a checkpoint's step and go on behind it. A missing file counts as empty.

        Records of later steps, hyper-parameters (they belong to a run's end) and a torn last line are dropped. The
        shorter file is written aside and renamed: a kill in between leaves the old one.

        Raises:
            InputError: when a line, other than a torn last one, is not a record.
        """
        lines = _read_lines(path) if path.exists() else []
        kept = [(raw, record) for raw, record in lines if _stays(record, step)]
        _replace(path, b"".join(raw for raw, _ in kept))
        return MetricsLog(path, [record for _, record in kept])

    def append(self, record: Record) -> None:
        """Add one line, whole or not at all.

        Raises:
            OSError: when it cannot be written.
        """
        line = record.model_dump_json().encode() + b"\n"
        end = self._file.seek(0, os.SEEK_END)
        written = self._file.write(line)
        if written != len(line):  # a disk that has just become full takes a part of it, and says nothing
            self._file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._file.name)

    def flush(self) -> None:
        """Wait until all that was appended is on the disk: no power failure then takes it from under a checkpoint."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        self._file.close()


def _stays(record: Record, step: int) -> bool:
    return record.step <= step and not isinstance(record, HyperParameters)


def _read_lines(path: Path) -> list[tuple[bytes, Record]]:
    """Lines with their newline, as they are and as records."""
    lines = path.read_bytes().splitlines(keepends=True)
    if lines and not _is_complete(lines[-1]):
        lines.pop()
    found = []
    for number, raw in enumerate(lines, start=1):
        try:
            found.append((raw, _parser.validate_json(raw)))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise InputError.single(
                str(path),
                f"not a record of a run ({first['msg']}). Delete this line, or start afresh in another run.output_dir",
                line=number,
            ) from error
    return found


def _is_complete(line: bytes) -> bool:
    """Whether a file's last line was written to its end."""
    if not line.endswith(b"\n"):
        return False
    try:
        _parser.validate_json(line)
    except ValidationError:
        return False
    return True


def _replace(path: Path, content: bytes) -> None:
    aside = path.with_name(f".{path.name}.cut")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    flush_folder(path.parent)


def _can_be_plotted(value: float) -> bool:
    return abs(value) <= LARGEST  # false for NaN


def _bucket_range(low: float, high: float) -> tuple[float, float]:
    # Buckets narrower than a float64 can tell apart would have no width.
    if (high - low) / BUCKETS <= np.spacing(max(abs(low), abs(high))):
        half = max(0.5, abs(low) * 1e-6)
        return low - half, high + half
    return low, high


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, int | float | str]:
    found: dict[str, int | float | str] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        match value:
            case None:
                continue
            case Mapping():
                found |= _flat(value, f"{name}.")
            case bool():
                found[name] = str(value).lower()
            case str():
                found[name] = value
            case int() if abs(value) < 2**63:  # what VisualDL can hold
                found[name] = value
            case float() if _can_be_plotted(value):
                found[name] = value
            case _:
                found[name] = str(value)
    return found


def count_left_out(records: Iterable[Record]) -> int:
    """`values_left_out` of many records together."""
    return sum(values_left_out(record) for record in records)
