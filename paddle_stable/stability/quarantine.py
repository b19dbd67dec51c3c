"""Samples that spoilt steps again and again, or an earlier run: left out from then on, and listed for a person."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from paddle_stable.data.dataset import Dataset, SampleOrigin
from paddle_stable.errors import InputError, Problem, capped

FILE = "quarantine.jsonl"
WHY = "own loss or gradient not finite"


@final
@dataclass(frozen=True, slots=True)
class Blame:
    """What a sample has done in this run."""

    incidents: int
    first_step: int
    last_step: int


@final
class Quarantine:
    """Counts who was blamed and says who is left out. The same on every process, and part of the checkpoint."""

    def __init__(self, after: int | None, known: Collection[int] = ()) -> None:
        """Start with nobody blamed.

        Args:
            after: incidents after which a sample is left out (`stability.quarantine.after`); None: never.
            known: samples that are left out from the beginning.
        """
        self._after = after
        self._known = frozenset(known)
        self._blamed: dict[int, Blame] = {}

    @property
    def is_wanted(self) -> bool:
        """Whether anybody can be left out because of what happens in this run."""
        return self._after is not None

    @property
    def left_out(self) -> frozenset[int]:
        """Samples that are in no step any more, by their position in the dataset."""
        if self._after is None:
            return self._known
        return self._known | {index for index, blame in self._blamed.items() if blame.incidents >= self._after}

    def blame(self, samples: Collection[int], step: int) -> frozenset[int]:
        """Note who spoilt a step; those who are left out from now on."""
        before = self.left_out
        for index in samples:
            earlier = self._blamed.get(index, Blame(0, step, step))
            self._blamed[index] = replace(earlier, incidents=earlier.incidents + 1, last_step=step)
        return self.left_out - before

    def write(self, folder: Path, dataset: Dataset) -> None:
        """Write the list of all that this run has put into quarantine, one JSON line each; whole or not at all.

        Raises:
            OSError: when it cannot be written.
        """
        out = sorted((self.left_out - self._known) & self._blamed.keys())
        lines = [
            json.dumps({**asdict(dataset.origin(i)), **asdict(self._blamed[i]), "why": WHY}, ensure_ascii=False)
            for i in out
        ]
        aside = folder / f".{FILE}.{os.getpid()}"
        aside.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")
        aside.replace(folder / FILE)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; JSON."""
        return {
            "known": sorted(self._known),
            "blamed": {str(index): asdict(blame) for index, blame in self._blamed.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """From a checkpoint."""
        self._blamed = {int(index): Blame(**blame) for index, blame in state["blamed"].items()}


def read_quarantine(path: Path, dataset: Dataset) -> tuple[frozenset[int], str]:
    """The samples that a `quarantine.jsonl` names, by their position in the dataset, and a sentence about it.

    Samples are found again by file, line and excerpt, so that a file which has been edited since matches nothing wrong.

    Raises:
        InputError: when it cannot be read, with every line that is not an entry, or when nothing would be left.
    """
    try:
        lines = path.read_text(encoding="utf8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError.single(str(path), f"stability.quarantine.file cannot be read: {error}") from error
    wanted, problems = set(), []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            wanted.add(SampleOrigin(str(entry["file"]), int(entry["line"]), str(entry["excerpt"])))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            message = (
                f'expected an entry such as {{"file": "train.txt", "line": 12, "excerpt": "…"}}, got {line[:60]!r}'
            )
            problems.append(Problem(str(path), number, message))
    if problems:
        raise InputError(f"{path} is no list of samples in quarantine:", capped(problems))
    found = frozenset(index for index in range(len(dataset)) if dataset.origin(index) in wanted)
    if len(found) == len(dataset):
        raise InputError.single(str(path), "names every training sample: nothing would be left")
    unknown = len(wanted) - len({dataset.origin(index) for index in found})
    missing = f"; {unknown} of its entries are not in the training data" if unknown else ""
    return found, f"{len(found)} samples are left out because of {path}{missing}"
