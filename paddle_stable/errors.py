"""What a person gets to see when something given to the program is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar, final

SHOWN_PROBLEMS = 50
"""That many mistakes are shown of a data file; the others are counted."""
_Value = TypeVar("_Value")


class ExitCode(IntEnum):
    """What a process leaves behind; also written to `exit.json` in the run folder."""

    DONE = 0
    ERROR = 1
    """A bug or a failing operation: there is a traceback."""
    INPUT = 2
    """The recipe, the command line or a data file is wrong."""
    DIVERGED = 3
    """Training cannot go on in a useful way; the best checkpoint is intact."""
    HANG = 4
    STOPPED = 75
    """Stopped by a signal with a checkpoint saved, or before the first step: run again with `--resume auto`."""


@final
@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One mistake: where it is, and what was expected, what was found and the way out in one sentence or two."""

    file: str
    """Path as the user gave it, or "command line"."""
    line: int
    """1-based; 0 when the mistake has no line."""
    message: str
    """For a recipe it begins with the key: `clip.max_norm: must be > 0, got -1.0`."""

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}  {self.message}"


@final
class InputError(Exception):
    """Everything that is wrong with what the user gave, all at once. Ends a command with `ExitCode.INPUT`."""

    def __init__(self, title: str, problems: Sequence[Problem]) -> None:
        super().__init__(title, tuple(problems))
        self.title = title
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {problem}" for problem in self.problems)])

    @staticmethod
    def single(file: str, message: str, *, line: int = 0) -> InputError:
        """An error with one problem."""
        return InputError("There is a problem:", [Problem(file, line, message)])


@final
class Diverged(Exception):
    """Training cannot go on in a useful way. The message explains; the best checkpoint is intact."""


@final
class Stopped(Exception):
    """A signal asked for an end; a checkpoint is saved."""


@final
class StepFailed(Exception):
    """An operation of the forward or backward pass raised; the message names the samples that were in it."""


def capped(problems: Sequence[Problem], limit: int = SHOWN_PROBLEMS) -> list[Problem]:
    """The first problems, and one line that counts the rest by file."""
    if len(problems) <= limit:
        return list(problems)
    rest = Counter(problem.file for problem in problems[limit:])
    counts = ", ".join(f"{count} in {file}" for file, count in rest.items())
    return [*problems[:limit], Problem("…", 0, f"and {len(problems) - limit} more: {counts}.")]


def attempt(problems: list[Problem], read: Callable[[], _Value]) -> _Value | None:
    """What `read` returns; or None, with its problems added to those found so far, so that reading can go on."""
    try:
        return read()
    except InputError as error:
        problems.extend(error.problems)
        return None
