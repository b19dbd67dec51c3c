"""One training process of the kill campaign: a fork of the campaign, which has imported Paddle and not used it.

It is `tools/train.py` from there on, except that methods are wrapped to tell in which phase the process is, to write
down the samples of every step, and to ask for a kill (or meet another mishap) at one moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

PHASES = ("elsewhere", "step", "save", "writing", "rollback", "evaluation", "conclusion")
"""What a process can be in: `writing` is the thread that writes a checkpoint, the others are the one that trains."""
NEWS = b"!"


@final
@dataclass(frozen=True)
class Moment:
    """When something happens to a process."""

    phase: str
    number: int
    """The how-manyth time that this process is in the phase, from 1."""
    part: float = 0.0
    """How far into the phase, as a part of its usual duration."""
    mishap: str = "kill"
    """kill: tell the campaign, which kills; fsize: no file may grow beyond 4 kB; fill: no room on the disk."""


@final
@dataclass(frozen=True)
class Assignment:
    """What one process is to do."""

    recipe: str
    values: Mapping[str, Any]
    folder: Path
    number: int
    """Of the process among those of its run, from 0; a resumed one has a higher number."""
    moment: Moment | None = None
    forgets_position: bool = False
    """The negative control: the place in the epoch is not restored."""
    clock: float = 0.0
    """Seconds by which the clock is off."""
    environment: Mapping[str, str] = field(default_factory=dict)


@final
class Board:
    """Memory shared with the campaign, which reads it when the process is dead: where it was, and what it did."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 4096)

    @property
    def phase(self) -> str:
        """Where the process is; with `+writing` while a checkpoint is being written beside it."""
        main = PHASES[self._memory[0]]
        return f"{main}+writing" if self._memory[1] else main

    def set_main(self, phase: int) -> int:
        """Say where the thread that trains is; returns where it was."""
        before = self._memory[0]
        self._memory[0] = phase
        return before

    def set_writing(self, on: bool) -> None:
        """Say whether a checkpoint is being written."""
        self._memory[1] = on


def live(assignment: Assignment, board: Board, news: int) -> None:
    """Train and leave; never returns."""
    code = 99
    try:
        log = os.open(assignment.folder / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(assignment.environment)
        code = int(_train(assignment, board, news))
    except BaseException:  # noqa: BLE001 - a fork must not go on as the campaign
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _train(assignment: Assignment, board: Board, news: int) -> int:
    from paddle_stable.data.loader import Loader
    from paddle_stable.run import TrainingRequest, run_training

    watch = _Watch(assignment, board, news)
    watch.wrap_all()
    if assignment.forgets_position:
        Loader.skip_to = lambda self, position: None  # type: ignore[method-assign]
    if assignment.clock:
        clock = time.time
        time.time = lambda: clock() + assignment.clock
    overrides = tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in assignment.values.items())
    request = TrainingRequest(assignment.recipe, overrides, resume="auto", smoke=True)
    code = run_training(request)
    watch.write_durations()
    return code


@final
class _Watch:
    """Wraps what the phases consist of."""

    def __init__(self, assignment: Assignment, board: Board, news: int) -> None:
        self._assignment, self._board, self._news = assignment, board, news
        self._counts = dict.fromkeys(PHASES, 0)
        self._seconds = dict.fromkeys(PHASES, 0.0)
        rank = os.environ.get("PADDLE_TRAINER_ID", "0")
        self._rank = int(rank)
        self._samples = os.open(
            assignment.folder / f"samples{rank}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o666
        )

    def wrap_all(self) -> None:
        """From here on every phase is told."""
        from paddle_stable import run
        from paddle_stable.checkpoint import CheckpointStore
        from paddle_stable.trainer import Trainer

        for owner, name, phase in (
            (Trainer, "train_step", "step"),
            (Trainer, "save", "save"),
            (CheckpointStore, "save", "writing"),
            (Trainer, "_roll_back", "rollback"),
            (Trainer, "evaluate", "evaluation"),
            (run, "conclude", "conclusion"),
        ):
            self._wrap(owner, name, phase)
        step = Trainer.train_step

        def step_with_samples(trainer: Trainer, windows: Iterator[Any], **named: Any) -> Any:
            return step(trainer, self._noted(trainer.progress.step + 1, windows), **named)

        Trainer.train_step = step_with_samples  # type: ignore[method-assign, assignment]

    def write_durations(self) -> None:
        """How often every phase was entered and how long it took in the middle; and what was imported for it."""
        usual = {name: [count, self._seconds[name] / max(count, 1)] for name, count in self._counts.items()}
        path = self._assignment.folder / f"phases{self._rank}.json"
        path.write_text(json.dumps(usual), encoding="utf8")
        imported = self._assignment.folder / "modules.json"
        imported.write_text(json.dumps(list(sys.modules)), encoding="utf8")

    def _wrap(self, owner: Any, name: str, phase: str) -> None:
        whole: Callable[..., Any] = getattr(owner, name)  # fails loudly when it is called otherwise one day

        def told(*arguments: Any, **named: Any) -> Any:
            with self._within(phase):
                return whole(*arguments, **named)

        setattr(owner, name, told)

    @contextlib.contextmanager
    def _within(self, phase: str) -> Iterator[None]:
        apart = threading.current_thread() is not threading.main_thread()
        before = 0
        if apart:
            self._board.set_writing(True)
        else:
            before = self._board.set_main(PHASES.index(phase))
        self._counts[phase] += 1
        self._meet(phase)
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - started
            if apart:
                self._board.set_writing(False)
            else:
                self._board.set_main(before)

    def _meet(self, phase: str) -> None:
        moment = self._assignment.moment
        if moment is None or (moment.phase, moment.number) != (phase, self._counts[phase]):
            return
        match moment.mishap:
            case "kill":
                os.write(self._news, NEWS)
            case "fsize":
                resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            case "fill":
                fill(self._assignment.folder / "run" / "filler")

    def _noted(self, step: int, windows: Iterator[Any]) -> Iterator[Any]:
        """The next window, its samples written down before they are trained on."""
        window = next(windows)
        indices = [int(i) for batch in window.parts if batch.weight > 0.0 for i in batch.indices]
        os.write(self._samples, (json.dumps([self._assignment.number, step, indices]) + "\n").encode())
        yield window


def fill(path: Path) -> None:
    """Leave no room on a disk."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 8, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
