"""The faults that real series have, written into a copy of a CSV file: the same for every arm, a function of the seed.

Only rows of the training range change. Dev and test rows stay as they are, to the letter.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np

UNIT_ERRORS = 3
UNIT_FACTOR = 1e4
"""A price in a hundredth of a cent for dollars, for one day."""
MISSING_PRICES = 1
SHOCKS = 1
SHOCK_LEAST = 0.10
SHOCK_TAIL = 3.0
"""A shock is a one-day log return of at least 10 %, its size from a Pareto tail with exponent 3, as the tails of stock
returns have (Gopikrishnan et al., Eur. Phys. J. B 3, 1998). The new level stays."""
SPACE = 80
"""Rows between two faults, and between a fault and either end of the training range: more than a window reaches."""

_STREAM = 20_07

Kind = Literal["unit error", "missing price", "shock"]


@final
@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one series."""

    kind: Kind
    row: int
    """0-based row of the file, the header not counted."""
    size: float = 0.0
    """unit error: factor on the price; shock: the log return that is added to that day's."""


def draw_faults(seed: int, train_rows: int) -> list[Fault]:
    """Kinds, rows and sizes of one seed's faults, in the order of rows.

    Raises:
        ValueError: when the training range is too short for them.
    """
    counts: dict[Kind, int] = {"unit error": UNIT_ERRORS, "missing price": MISSING_PRICES, "shock": SHOCKS}
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    free = train_rows - (len(kinds) + 1) * SPACE
    if free < len(kinds):
        raise ValueError(f"{len(kinds)} faults with {SPACE} rows between them do not fit into {train_rows} rows")
    rng = np.random.default_rng([_STREAM, seed])
    # Sorted places in what is left when the spaces are taken out, and the spaces put back between them.
    places = np.sort((rng.random(len(kinds)) * free).astype(int))
    rows = [int(place) + SPACE * (number + 1) for number, place in enumerate(places)]
    order = np.argsort(rng.random(len(kinds)))
    size = SHOCK_LEAST * (1.0 - rng.random()) ** (-1.0 / SHOCK_TAIL)
    sizes = {"unit error": UNIT_FACTOR, "missing price": 0.0, "shock": math.copysign(size, rng.random() - 0.5)}
    return [Fault(kinds[kind], row, sizes[kinds[kind]]) for row, kind in zip(rows, order, strict=True)]


def write_spoilt_copy(source: Path, target: Path, column: str, faults: Sequence[Fault]) -> None:
    """Copy a CSV file with a header, its faults written into one column of it."""
    with source.open(encoding="utf-8", newline="") as stream:
        header, *rows = list(csv.reader(stream))
    place = header.index(column)
    for fault in faults:
        match fault.kind:
            case "unit error":
                rows[fault.row][place] = repr(float(rows[fault.row][place]) * fault.size)
            case "missing price":
                rows[fault.row][place] = ""
            case "shock":
                # Earlier prices move, so that no later row does: the return of that day is the same.
                for row in rows[: fault.row]:
                    if row[place]:
                        row[place] = repr(float(row[place]) * math.exp(-fault.size))
    with target.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, lineterminator="\n").writerows([header, *rows])
