"""Starting Paddle's launcher, again where that helps: what `tools/launch.py` does.

Paddle's launcher brings nothing back without an etcd, and its exit code says little (docs/launch.md): `exit.json` in
the run folder says how a run ended.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.errors import ExitCode, InputError, Problem
from paddle_stable.recipe_layers import apply_layer, parse_overrides, smoke_assignments
from paddle_stable.recipe_yaml import read_yaml_file
from paddle_stable.run_folder import is_held, refuse_to_overwrite
from paddle_stable.stop_signal import StopSignal
from paddle_stable.training_arguments import training_parser

PADDLE_LAUNCHER = (sys.executable, "-m", "paddle.distributed.launch")
_SIGNAL_CHECK_SECONDS = 0.2
_OUTLIVED_SECONDS = 120.0


@final
@dataclass(frozen=True, slots=True)
class LaunchedCommand:
    """Arguments of Paddle's launcher, taken apart."""

    before: tuple[str, ...]
    """Options of the launcher, and the script."""
    training: tuple[str, ...]
    """Arguments of the script."""
    folder: Path
    """The run folder that the recipe names."""
    resume: str | None
    check: bool = False
    """Nothing is to be trained."""

    @staticmethod
    def of(arguments: Sequence[str]) -> LaunchedCommand:
        """Take the arguments apart.

        Raises:
            InputError: when there is no script, or the recipe cannot be read or names no run folder. All other
                mistakes in a recipe are found by the processes themselves.
        """
        places = [place for place, argument in enumerate(arguments) if argument.endswith(".py")]
        if not places:
            raise InputError.single(
                "command line", "no script to launch: tools/launch.py --nproc_per_node 2 tools/train.py -c RECIPE"
            )
        before, training = arguments[: places[0] + 1], arguments[places[0] + 1 :]
        parsed = training_parser(None).parse_args(training)
        folder = _run_folder(parsed.config, parsed.override, smoke=parsed.smoke)
        return LaunchedCommand(tuple(before), tuple(training), folder, parsed.resume, parsed.check)

    def again(self) -> tuple[str, ...]:
        """The arguments for going on.

        A run that was given a checkpoint to begin with, and has none of its own yet, begins with that one again.
        """
        own = any((self.folder / "checkpoints").glob("step-*"))
        if self.resume in (None, "auto") or own:
            return (*self.before, *self.training, "--resume", "auto")
        return (*self.before, *self.training)


def launch(
    arguments: Sequence[str],
    *,
    max_restarts: int,
    launcher: Sequence[str] = PADDLE_LAUNCHER,
    say: Callable[[str], None] = print,
) -> ExitCode:
    """Run the launcher until the run has ended for good, and say how.

    Started again with `--resume auto`: after a hang (4), and when processes were killed. Not after anything that
    would happen again: done, an error in an operation, bad input (2), divergence (3), a signal (75).

    Args:
        arguments: everything for Paddle's launcher, the script and its arguments included.
        max_restarts: how often at most.
        launcher: the command that takes the arguments.
        say: where words about restarts go.

    Raises:
        InputError: when the arguments name no run folder to watch, or one with a run in it and nothing to resume.
    """
    if max_restarts < 0:
        raise InputError.single("command line", f"--max-restarts: must be >= 0, got {max_restarts}")
    command = LaunchedCommand.of(arguments)
    # Here, and not only in the processes: they may be killed before they look, and would then go on with another run.
    if command.resume is None and not command.check:
        refuse_to_overwrite(command.folder, resuming=False)
    given: tuple[str, ...] = tuple(arguments)
    with StopSignal() as stop:
        for restarts_left in range(max_restarts, -1, -1):
            before = _read_end(command.folder)
            code = _run_once([*launcher, *given], stop)
            end = _read_end(command.folder)
            outcome = judge(code, end if end != before else None, stopped=stop.received is not None)
            if not outcome.again:
                break
            if not restarts_left:
                say(f"launch: {outcome.what}; no restart is left")
                break
            say(f"launch: {outcome.what}; starting again with --resume auto, {restarts_left - 1} restarts left")
            given = command.again()
            _wait_until_free(command.folder, stop)
            if stop.received is not None:
                say("launch: stopped by a signal before starting again; go on with --resume auto")
                return ExitCode.STOPPED
    return outcome.code


@final
@dataclass(frozen=True, slots=True)
class RecordedEnd:
    """What `exit.json` says."""

    code: ExitCode
    retry: bool
    time: float
    """Two ends differ in it: a file that an earlier attempt has left is no answer to this one."""


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """How one attempt ended."""

    code: ExitCode
    what: str
    again: bool = False


def judge(code: int, end: RecordedEnd | None, *, stopped: bool) -> Outcome:
    """What an attempt has come to.

    Args:
        code: how the launcher left; negative: killed by that signal.
        end: what the attempt has written to `exit.json`; None when nobody could write.
        stopped: whether this program was told to stop meanwhile.
    """
    if code == 0 or (end is not None and end.code is ExitCode.DONE):
        return Outcome(ExitCode.DONE, "done")
    if end is not None:
        # Processes stop with 75 when their launcher was killed, which nobody has asked for.
        asked_to_stop = end.code is ExitCode.STOPPED and code >= 0
        again = end.retry and not stopped and not asked_to_stop
        return Outcome(end.code, f"the run ended with {int(end.code)} ({end.code.name.lower()})", again)
    # Before the run began (a mistake, an import that fails), or where nothing could be written.
    if code in (ExitCode.ERROR, ExitCode.INPUT, ExitCode.DIVERGED, ExitCode.STOPPED):
        return Outcome(ExitCode(code), f"the launcher ended with {code}")
    return Outcome(ExitCode.ERROR, f"processes were killed (the launcher ended with {code})", again=not stopped)


def _run_once(command: Sequence[str], stop: StopSignal) -> int:
    """Run a command to its end; a signal is handed on once, because the launcher takes a second one for impatience."""
    # In a session of its own: Ctrl-C in a terminal would reach it a second time.
    process = subprocess.Popen(command, start_new_session=True)
    handed_on = False
    while True:
        if stop.received is not None and not handed_on:
            process.send_signal(signal.SIGTERM)
            handed_on = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=_SIGNAL_CHECK_SECONDS)


def _wait_until_free(folder: Path, stop: StopSignal) -> None:
    """Wait for processes that have outlived their launcher: they save and leave, and hold the run folder until then."""
    give_up = time.monotonic() + _OUTLIVED_SECONDS
    while is_held(folder) and stop.received is None and time.monotonic() < give_up:
        time.sleep(_SIGNAL_CHECK_SECONDS)


def _read_end(folder: Path) -> RecordedEnd | None:
    try:
        record = json.loads((folder / "exit.json").read_text(encoding="utf8"))
        return RecordedEnd(ExitCode(record["code"]), bool(record["retry"]), float(record["time"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _run_folder(recipe: str, overrides: Sequence[str], *, smoke: bool) -> Path:
    """`run.output_dir`, read without the task, so that nothing has to be imported."""
    problems: list[Problem] = []
    assignments = parse_overrides(overrides, problems)
    root = read_yaml_file(recipe, problems)
    if root is not None:
        for layer in (smoke_assignments(root, problems) if smoke else [], assignments):
            apply_layer(root, layer, problems)
        entry, path = root.nearest(("run", "output_dir"))
        if len(path) == 2 and isinstance(entry.value, str) and entry.value:
            return Path(entry.value)
        problems.append(Problem(recipe, 0, "run.output_dir: must be the path of the run folder"))
    raise InputError(f"{recipe}: the run folder cannot be found out:", problems)
