"""A small file of a series, and ways to spoil it, shared by the tests of reading and of policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paddle_stable.data.series_config import SeriesConfig

ROWS = 40
TRAIN, DEV, TEST = 12, 30, 36
"""Lines of the file that lie in train, dev and test: dev begins at line 30 (row 28), test at line 36 (row 34)."""


def table_lines() -> list[str]:
    """A header and 40 days of two columns that move gently."""
    days = np.datetime64("2020-01-01") + np.arange(ROWS)
    return ["day,a,b", *(f"{day},{100 + row % 7},{50 + row % 5}" for row, day in enumerate(days))]


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "series.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def config(path: Path, **changes: Any) -> SeriesConfig:
    settings: dict[str, Any] = {
        "file": str(path),
        "time_column": "day",
        "target_column": "a",
        "lookback": 4,
        "dev_from": 28,
        "test_from": 34,
    }
    return SeriesConfig(**{**settings, **changes})


def spoil(line: int, text: str) -> list[str]:
    """The table with another text in one line (1-based)."""
    lines = table_lines()
    lines[line - 1] = text.format(day=lines[line - 1].split(",")[0])
    return lines
