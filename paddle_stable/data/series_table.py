"""Reading a CSV file of numbers over time: every cell is looked at, nothing is repaired, everything odd is noted."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.series_config import Kind, SeriesConfig
from paddle_stable.errors import InputError, Problem

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.datetime64]

_MISSING = frozenset({"", ".", "na", "n/a", "#n/a", "nan", "+nan", "-nan", "null", "none"})
_INFINITE = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_NEVER = np.datetime64("NaT")


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """Something odd in one row."""

    kind: Kind
    row: int
    """0-based row of the table."""
    line: int
    """1-based line of the file."""
    column: str
    """"" when it is the whole row."""
    message: str
    """What is odd, without the place."""


@final
@dataclass(frozen=True, slots=True)
class Table:
    """The used columns of a file, as they stand."""

    file: str
    columns: tuple[str, ...]
    """Names of the columns of `values`."""
    values: Floats
    """[rows, columns]; NaN where there is no number."""
    times: Times | None
    """[rows], NaT where it cannot be read; None without a time column."""
    lines: npt.NDArray[np.int64]
    """[rows] 1-based line of the file at which the row begins."""
    findings: tuple[Finding, ...]


def read_table(config: SeriesConfig) -> Table:
    """Read the columns that the recipe uses.

    Raises:
        InputError: when the file as a whole cannot be used: absent, not UTF-8, empty, without the named columns.
    """
    rows = list(_rows(config))
    if not rows or (config.header and len(rows) == 1):
        raise InputError.single(config.file, "has no row of data: expected a header and one row for every time step.")
    header = tuple(cell.strip() for cell in rows[0][1]) if config.header else _invented(len(rows[0][1]))
    body = rows[1:] if config.header else rows
    used = _used_columns(config, header, first_line=rows[0][0])
    lines = np.array([line for line, _ in body], dtype=np.int64)
    findings: list[Finding] = []
    whole = [len(cells) == len(header) for _, cells in body]
    for row, (line, cells) in enumerate(body):
        if not whole[row]:
            findings.append(Finding("ragged", row, line, "", f"has {len(cells)} cells, expected {len(header)}"))
    values = np.full((len(body), len(used)), np.nan)
    for column, name in enumerate(used):
        place = header.index(name)
        for row, (line, cells) in enumerate(body):
            if whole[row]:
                values[row, column], kind, message = _number(cells[place])
                if kind is not None:
                    findings.append(Finding(kind, row, line, name, message))
    times = None
    if config.time_column is not None:
        place = header.index(config.time_column)
        texts = [cells[place].strip() if whole[row] else None for row, (_, cells) in enumerate(body)]
        times = _times(texts, config, lines, findings)
        if np.isnat(times).all():  # no cut by date could be found: that is not the mistake to report
            first = min((finding for finding in findings if finding.kind == "ragged"), key=lambda finding: finding.row)
            message = f"no row has a time that can be read: the first {first.message}"
            raise InputError.single(config.file, message, line=first.line)
        findings.extend(_order(times, lines, config))
    return Table(config.file, used, values, times, lines, tuple(findings))


def _rows(config: SeriesConfig) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row."""
    path = Path(config.file)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError as error:
        message = "no such file (data.file). Market series come from `python tools/prepare_data.py series`."
        raise InputError.single(config.file, message) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError.single(config.file, f"cannot be read: {error} (data.file).") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1  # `raw` may have a byte order mark before
        message = f"is not UTF-8: byte 0x{error.object[error.start]:02x}. Convert the file, for example with iconv."
        raise InputError.single(config.file, message, line=line) from error
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=config.delimiter, strict=True)
    line = 1
    begun = False
    empty: list[tuple[int, list[str]]] = []
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                # Empty cells between rows are missing values, in a table of one column even a blank line. Elsewhere a
                # blank line is nothing, and so is all that is empty before the first row or behind the last.
                if begun:
                    yield from ((place, row or [""]) for place, row in empty if len(row) > 1 or len(cells) == 1)
                begun, empty = True, []
                yield line, cells
            else:
                empty.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError.single(config.file, f"is not CSV: {error}.", line=line) from error


def _invented(count: int) -> tuple[str, ...]:
    return tuple(f"column_{number}" for number in range(1, count + 1))


def _used_columns(config: SeriesConfig, header: Sequence[str], *, first_line: int) -> tuple[str, ...]:
    """Numeric columns that features and target need, in the order of the file."""
    problems = []
    known = ", ".join(header)
    for name in sorted({name for name in header if header.count(name) > 1}):
        message = f"two columns are called {name!r}; every name must stand once."
        problems.append(Problem(config.file, first_line, message))
    wanted = {"data.target_column": config.target_column}
    if config.time_column is not None:
        wanted["data.time_column"] = config.time_column
    for number, feature in enumerate(config.features or ()):
        wanted[f"data.features[{number}].column"] = feature.column
    for key, name in wanted.items():
        if name not in header:
            problems.append(Problem(config.file, first_line, f"{key}: no column {name!r}; the file has {known}."))
    if config.header and header and all(_number(cell)[1] is None for cell in header):
        message = "the first line holds numbers, not names of columns. Set data.header: false."
        problems = [Problem(config.file, first_line, message)]
    if problems:
        raise InputError("The columns of the series do not fit the recipe:", problems)
    if config.features is None:
        return tuple(name for name in header if name != config.time_column)
    names = {feature.column for feature in config.features} | {config.target_column}
    return tuple(name for name in header if name in names)


def _number(cell: str) -> tuple[float, Kind | None, str]:
    """The value of a cell (NaN when it has none) and what is odd about it."""
    text = cell.strip()
    word = text.lower()
    if word in _MISSING:
        return np.nan, "missing", f"is missing ({text!r})" if text else "is missing (empty)"
    if word in _INFINITE:
        return float(word), "infinite", f"is infinite ({text!r})"
    try:
        # Python reads 1_000 as a number; in a file it is more likely damage.
        value = float(text.replace("_", "?"))
    except ValueError:
        return np.nan, "text", f"is not a number ({text[:30]!r})"
    if np.isfinite(value):
        return value, None, ""
    return value, "infinite", f"is beyond the range of numbers ({text[:30]!r})"


def _times(
    texts: Sequence[str | None], config: SeriesConfig, lines: npt.NDArray[np.int64], findings: list[Finding]
) -> Times:
    """Times of all rows; one that cannot be read is noted and becomes NaT."""
    times = np.full(len(texts), _NEVER, dtype="datetime64[us]")
    expected = f"like {config.time_format}" if config.time_format else "in ISO 8601 (2003-05-01 16:00:00)"
    for row, text in enumerate(texts):
        if text is None:
            continue
        try:
            if config.time_format:
                moment = datetime.strptime(text, config.time_format)
            else:
                moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
            times[row] = in_utc(moment)
        except (ValueError, OverflowError):  # the first day of year 1 has no UTC east of Greenwich
            message = f"is not a time {expected}: {text[:30]!r}; see data.time_format"
            findings.append(Finding("ragged", row, int(lines[row]), config.time_column or "", message))
    return times


def _order(times: Times, lines: npt.NDArray[np.int64], config: SeriesConfig) -> Iterator[Finding]:
    """Rows that repeat the time before them or go back in time."""
    rows = np.flatnonzero(~np.isnat(times))
    known = times[rows]
    if len(known) > 2 and np.mean(known[1:] < known[:-1]) > 0.5:
        message = "time runs backwards: the file is sorted from new to old. Sort it from old to new."
        raise InputError.single(config.file, message, line=int(lines[0]))
    name = config.time_column or ""
    too_late = _too_late(known)
    for position in np.flatnonzero(too_late):
        row, after = int(rows[position]), int(rows[position + 1])
        message = f"{show_time(times[row])} comes before {show_time(times[after])} of line {lines[after]}"
        yield Finding("unordered_time", row, int(lines[row]), name, message)
    newest: int | None = None
    for row in rows[~too_late].tolist():
        if newest is None or times[row] > times[newest]:
            newest = row
        elif times[row] == times[newest]:
            message = f"{show_time(times[row])} stands a second time, as in line {lines[newest]}"
            yield Finding("repeated_time", row, int(lines[row]), name, message)
        else:
            message = f"{show_time(times[row])} comes after {show_time(times[newest])} of line {lines[newest]}"
            yield Finding("unordered_time", row, int(lines[row]), name, message)


def _too_late(times: Times) -> npt.NDArray[np.bool_]:
    """Single rows that are later than the two behind them, which are in order with each other and the row before.

    It is then that row's time that is wrong, and not those of all the rows behind it, up to which it is late.
    """
    late = np.zeros(len(times), dtype=np.bool_)
    if len(times) > 2:
        now, after, second = times[:-2], times[1:-1], times[2:]
        late[:-2] = (now > second) & (now > after) & (after <= second)
        late[1:-2] &= times[:-3] <= after[1:]
    return late


def in_utc(moment: datetime) -> np.datetime64:
    """Without its offset; what has none is taken as it stands."""
    return np.datetime64(moment if moment.tzinfo is None else moment.astimezone(timezone.utc).replace(tzinfo=None))


def show_time(moment: np.datetime64) -> str:
    """A time as short as possible: the date alone at midnight."""
    text = str(moment.astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00")
