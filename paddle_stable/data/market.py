"""Real series for the recipes, from files that two packages carry; nothing is downloaded.

- `arch` (NCSA licence): daily S&P 500, NASDAQ, VIX and oil (WTI). Missing values stay as they are, written `.`.
- `bokeh-sampledata` (BSD licence): daily share prices whose Close is not adjusted for splits.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import final

from paddle_stable.errors import InputError

ARCH_SERIES = ("sp500", "nasdaq", "vix", "wti")
_COLUMN_NAMES = {"vix": "VIX", "DCOILWTICO": "WTI"}
_STOCKS_FILE = "bokeh_sampledata/_data/stocks.csv.gz"


@final
@dataclass(frozen=True, slots=True)
class WrittenSeries:
    """One file that was written."""

    path: Path
    columns: tuple[str, ...]
    rows: int
    first: str
    """Date of the first row."""
    last: str

    def __str__(self) -> str:
        return f"{self.path}: {self.rows} rows, {self.first} to {self.last}, {', '.join(self.columns[1:])}"


def write_market_series(folder: Path) -> list[WrittenSeries]:
    """Write one CSV a series into `folder`: ISO dates, numbers exactly as in the package.

    Raises:
        InputError: when a package or its file is missing.
    """
    tables = {name: _arch_rows(name) for name in ARCH_SERIES} | _stock_rows()
    folder.mkdir(parents=True, exist_ok=True)
    return [_write(folder / f"{name}.csv", rows) for name, rows in tables.items()]


def _arch_rows(name: str) -> list[list[str]]:
    """Header and rows of one of arch's series, whose dates are written 1/4/1999."""
    header, *body = _rows("arch", f"arch/data/{name}/{name}.csv.gz")
    rows = [[_COLUMN_NAMES.get(cell, cell) for cell in header]]
    rows += [[datetime.strptime(date, "%m/%d/%Y").date().isoformat(), *cells] for date, *cells in body]
    return rows


def _stock_rows() -> dict[str, list[list[str]]]:
    """Header and rows of every share, by its ticker in small letters."""
    header, *body = _rows("bokeh-sampledata", _STOCKS_FILE)
    tables: dict[str, list[list[str]]] = {}
    for ticker, *cells in body:
        tables.setdefault(ticker.lower(), [header[1:]]).append(cells)
    return tables


def _rows(package: str, name: str) -> Iterator[list[str]]:
    """Rows of a compressed CSV file that an installed package carries; the package itself is not imported."""
    advice = "Install what requirements.txt lists."
    try:
        found = [file for file in files(package) or () if file.as_posix() == name]
    except PackageNotFoundError as error:
        raise InputError.single(package, f"the package is not installed. {advice}") from error
    if not found:
        raise InputError.single(package, f"the installed version has no {name}. {advice}")
    text = gzip.decompress(Path(str(found[0].locate())).read_bytes()).decode("utf-8")
    return csv.reader(text.splitlines())


def _write(path: Path, rows: Sequence[Sequence[str]]) -> WrittenSeries:
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows(rows)
    return WrittenSeries(path, tuple(rows[0]), len(rows) - 1, rows[1][0], rows[-1][0])
