"""A training run from the command line to its exit code."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from paddle_stable.agreement import refuse_disagreement
from paddle_stable.build import Prepared, build_trainer, prepare, use_device
from paddle_stable.checkpoint import CheckpointError, CheckpointStore, NonFiniteState
from paddle_stable.data.workers import SampleError, WorkerDied
from paddle_stable.distributed import PeerLost, World, is_one_of_several, let_first_process_leave
from paddle_stable.dry_run import describe
from paddle_stable.errors import Diverged, ExitCode, InputError, StepFailed, Stopped
from paddle_stable.recipe_io import LoadedRecipe, load_recipe, sound_task
from paddle_stable.results import conclude, final_advice
from paddle_stable.resume import ResumePoint, find_resume_point, is_of_another_run, restore
from paddle_stable.run_folder import RunFolder, folder_remarks, has_mark, refuse_to_overwrite, write_exit
from paddle_stable.stop_signal import StoppedEarly, StopSignal
from paddle_stable.terminal import complain, say
from paddle_stable.trainer import Trainer
from paddle_stable.watchdog import LINGER_SECONDS, Heartbeat, Watchdog
from paddle_stable.writers import RunRecord, Writers

_MISTAKEN_TIMEOUT = 60.0
"""Seconds in which a process that cannot read its recipe waits for the others, to tell them."""
_NOT_REMOVED = (
    "Not by removing it: that would be another order of samples, with which no run can go on. An image is left out "
    "with -o data.bad_samples=skip."
)


@final
@dataclass(frozen=True, slots=True)
class TrainingRequest:
    """What was asked for on the command line of `tools/train.py`."""

    config: str
    overrides: tuple[str, ...] = ()
    resume: str | None = None
    smoke: bool = False
    trust: bool = False
    check: bool = False


def run_training(request: TrainingRequest) -> ExitCode:
    """Train, or only check, and say with the exit code what happened. Mistakes are printed, not raised."""
    # From here on, because reading the data can take long: several processes then stop together after a first step.
    with StopSignal() as stop:
        code = _run(request, stop)
        if code in (ExitCode.INPUT, ExitCode.DIVERGED):  # the others have come to the same
            let_first_process_leave(stop)
        return code


def _run(request: TrainingRequest, stop: StopSignal) -> ExitCode:
    loaded: LoadedRecipe | None = None
    try:
        loaded, world = _join(request)
        stop.leave_at_once(world.size == 1)
        say = _speaker(world)
        for line in loaded.advice:
            say(f"advice: {line}")
        prepared = _prepare(loaded, world)
        stop.install_again()
        for line in prepared.splits.warnings:
            say(f"data: {line}")
        if request.check:
            for line in prepared.splits.full_check() if prepared.splits.full_check else ():
                say(f"data: {line}")
            say(describe(prepared, world))
            for line in folder_remarks(Path(loaded.recipe.run.output_dir)):
                say(line)
            return ExitCode.DONE
        return _train(request, prepared, world, stop)
    except InputError as error:
        complain(str(error))
        if loaded is None:
            _complain_of_data(request, stop)
        return ExitCode.INPUT
    except PeerLost as error:
        complain(str(error))
        return ExitCode.ERROR
    except StoppedEarly as error:
        complain(str(error))
        return ExitCode.STOPPED


def _complain_of_data(request: TrainingRequest, stop: StopSignal) -> None:
    """Read the data of a recipe with mistakes all the same, where they allow it: who mends both needs one run only.

    The recipe's mistakes have been said: whoever does not want to wait may stop it.
    """
    if is_one_of_several():
        return  # the others are leaving
    stop.leave_at_once(True)
    try:
        task = sound_task(request.config, request.overrides, smoke=request.smoke, trust=request.trust)
        if task is not None:
            task.load_splits()
    except (InputError, StoppedEarly) as error:
        complain(str(error))


def _join(request: TrainingRequest) -> tuple[LoadedRecipe, World]:
    """The recipe, and the other processes. A mistake on one machine is told to the others, which would wait for it."""
    failure, loaded = None, None
    try:
        loaded = load_recipe(request.config, request.overrides, smoke=request.smoke, trust=request.trust)
        use_device(loaded.recipe)
    except InputError as error:
        failure = error
    world = World.from_environment(_MISTAKEN_TIMEOUT if loaded is None else loaded.recipe.run.hang_timeout)
    failed_elsewhere = world.agree_max(int(failure is not None))
    if loaded is None or failure is not None or failed_elsewhere:
        raise failure or InputError("Another process of this run has found a mistake in the recipe; it says which.", [])
    return loaded, world


def _prepare(loaded: LoadedRecipe, world: World) -> Prepared:
    """Task and data, on all processes or on none: a file may be missing on one machine only."""
    failure, prepared = None, None
    try:
        prepared = prepare(loaded, world)
    except InputError as error:
        failure = error
    failed_elsewhere = world.agree_max(int(failure is not None))
    if prepared is None or failed_elsewhere:
        raise failure or InputError("Another process of this run has found a mistake; it says which.", [])
    refuse_disagreement(prepared, world)
    return prepared


def _train(request: TrainingRequest, prepared: Prepared, world: World, stop: StopSignal) -> ExitCode:
    """Everything between taking the run folder and leaving it. `exit.json` is written whatever happens."""
    folder = Path(prepared.recipe.run.output_dir)
    heartbeat = Heartbeat()
    with Watchdog(heartbeat, folder, world.rank, prepared.recipe.run.hang_timeout), ExitStack() as stack:
        start = _claim(folder, request.resume, prepared, world, stack)
        trainer = build_trainer(prepared, world, folder=folder)
        trainer.heartbeat = heartbeat
        try:
            _begin(trainer, prepared.loaded, start, request, folder, stack)
            stop.leave_at_once(False)
            end = _fit(trainer, folder, stop, smoke=request.smoke)
        except InputError as error:
            _say_end(folder, End(ExitCode.INPUT, str(error)), trainer)
            raise
        except StoppedEarly as error:
            _say_end(folder, End(ExitCode.STOPPED, str(error), retry=True), trainer)
            raise
        except OSError as error:
            reason = f"The run folder cannot be written: {error}. Checkpoints are as they were. Is the disk full?"
            end = End(ExitCode.ERROR, _with_save(reason, trainer), is_ours=True)
        except CheckpointError as error:
            end = End(ExitCode.ERROR, str(error), is_ours=True)
        except Exception as error:
            reason = _with_save(f"{type(error).__name__}: {error}", trainer)
            _say_end(folder, End(ExitCode.ERROR, reason), trainer)
            raise
        if end.code is not ExitCode.DONE:
            with suppress(OSError):  # on a full disk
                trainer.writers.keep(end.reason)
        if world.is_main or end.is_ours:
            _say_end(folder, end, trainer)
        if stop.received or end.code is ExitCode.STOPPED:  # this process's own signal may be on its way
            stop.stay_deaf()
    if end.code is not ExitCode.DONE:
        complain(end.reason)
    return end.code


def _say_end(folder: Path, end: End, trainer: Trainer) -> None:
    """Write `exit.json`, and stay until the others have read there why this process will not answer them any more."""
    write_exit(folder, end.code, end.reason, step=trainer.progress.step, retry=end.retry)
    if trainer.world.size > 1 and end.code in (ExitCode.ERROR, ExitCode.INPUT):
        time.sleep(LINGER_SECONDS)


def _close(writers: Writers) -> None:
    """A full disk shows up again when the last lines are flushed: the run's own end has been said already."""
    try:
        writers.close()
    except OSError as error:
        complain(f"The last records could not be written: {error}")


def _claim(folder: Path, resume: str | None, prepared: Prepared, world: World, stack: ExitStack) -> ResumePoint:
    """Rank 0 takes the run folder and looks for the checkpoint; all processes learn how that went."""
    failure: InputError | None = None
    start, mark = ResumePoint(None), ""
    if world.is_main:
        try:
            held = RunFolder(folder)
            stack.callback(held.close)
            start = find_resume_point(
                resume, CheckpointStore(held.checkpoints, keep_last=prepared.recipe.run.keep_last)
            )
            if start.path is None:
                refuse_to_overwrite(folder, resuming=resume is not None)
            elif is_of_another_run(start.path, held):
                refuse_to_overwrite(folder, resuming=False)
            held.begin()
            mark = held.mark()
        except InputError as error:
            failure = error
        except CheckpointError as error:
            failure = InputError.single(str(folder), str(error))
    if world.agree_max(int(failure is not None)):
        raise failure or InputError("Rank 0 could not take the run folder; it says why.", [])
    _refuse_folders_of_ones_own(folder, mark, world)
    step = world.agree_max(start.step or 0)
    if not world.is_main and step:
        path = folder / "checkpoints" / f"step-{step:06d}" if resume == "auto" else Path(str(resume))
        start = ResumePoint(path, step)
    return start


def _refuse_folders_of_ones_own(folder: Path, mark: str, world: World) -> None:
    """All processes read checkpoints, and the ends of the others, in the folder that rank 0 writes."""
    mark = str(world.gather_arrays([np.array(mark)])[0][0])
    # Not rank 0: closing a file gives up all locks that a process has on it.
    has_it = world.is_main or has_mark(folder, mark)
    if world.agree_max(int(not has_it)):
        where = f"rank {world.rank}" if not has_it else "another process"
        message = (
            f"run.output_dir: {where} does not see the folder of rank 0. All machines have to share it, under the same "
            "path: put it on a file system that they share"
        )
        raise InputError.single(str(folder.absolute()), message)


def _begin(
    trainer: Trainer, loaded: LoadedRecipe, start: ResumePoint, request: TrainingRequest, folder: Path, stack: ExitStack
) -> None:
    """Put the saved state back, and open the records on rank 0."""
    remarks = list(start.remarks)
    if start.path is not None:
        remarks += restore(trainer, start.path)
    if not trainer.world.is_main:
        return
    # Before the records are cut: should it fail, or the process be killed in between, none of them is lost.
    set_aside = trainer.store.set_aside_newer(trainer.progress.step) if start.path is not None else []
    # Only now: opening the records cuts them back to the checkpoint, which must not happen for a mistake.
    trainer.writers = RunRecord.open(folder, trainer.schedule.total, _recorded_until(start, request.resume))
    stack.callback(_close, trainer.writers)
    trainer.writers.text("recipe", f"```yaml\n{loaded.text}```", trainer.progress.step)
    if request.resume is not None and start.path is None:
        trainer.writers.note("resume: there is no checkpoint yet: this is the beginning")
    for remark in remarks:
        trainer.writers.note(f"resume: {remark}")
    if start.path is not None:
        trainer.writers.note(f"resume: going on from {start.path}, step {trainer.progress.step}")
        for path in set_aside:
            trainer.writers.note(f"resume: a later checkpoint was set aside as {path}")


def _recorded_until(start: ResumePoint, resume: str | None) -> int | None:
    """Step behind which records are cut off; None where there must not be any."""
    if start.path is not None:
        return start.step
    return None if resume is None else 0


@final
@dataclass(frozen=True, slots=True)
class End:
    """How a run ended."""

    code: ExitCode
    reason: str
    is_ours: bool = False
    """This process met the cause, whatever its rank, and not only what the cause did to the others."""
    retry: bool = False
    """Recipe and data are not at fault: with `--resume auto` the run may well end."""


def _fit(trainer: Trainer, folder: Path, stop: StopSignal, *, smoke: bool) -> End:
    """Train to the end; every way in which that can end has its code."""
    try:
        trainer.fit(stop)
        if trainer.progress.applied == 0:
            raise Diverged(_nothing_learned(trainer))
        conclude(trainer, folder)
    except (Stopped, Diverged, NonFiniteState, StepFailed, SampleError, WorkerDied, PeerLost, CheckpointError) as error:
        end = _end_of(error, trainer)
        return replace(end, reason=_with_save(end.reason, trainer))
    if smoke:
        trainer.writers.note("smoke: with sizes as tiny as these the figures say nothing about the recipe")
    for line in [] if smoke else final_advice(trainer):
        trainer.writers.note(f"advice: {line}")
    why = trainer.recovery.diverging_at_the_end()
    if why is not None:
        kept = "The results above say which checkpoint they are of."
        return End(ExitCode.DIVERGED, f"All steps are done, but training has diverged: {why}. {kept}")
    reason = _done(trainer)
    if trainer.progress.step < trainer.schedule.total:
        trainer.writers.note(reason)
    return End(ExitCode.DONE, reason)


def _nothing_learned(trainer: Trainer) -> str:
    steps, undone = trainer.progress.step, trainer.progress.undone
    if undone:
        return f"none of {steps} steps has lasted: {undone} were applied, and undone by rollbacks (see the log)."
    return f"none of {steps} steps could be used. {trainer.monitor.explain_skips()}"


def _done(trainer: Trainer) -> str:
    if trainer.progress.step >= trainer.schedule.total:  # beyond: resumed with fewer `run.steps`
        return f"done after step {trainer.progress.step}"
    best, patience = trainer.best, trainer.recipe.run.early_stop
    return (
        f"done early, after step {trainer.progress.step} of {trainer.schedule.total}: no better {best.metric} than "
        f"that of step {best.step} in {patience} evaluations (run.early_stop)"
    )


def _with_save(reason: str, trainer: Trainer) -> str:
    """The reason, and the failure of the last save where there was one besides."""
    return f"{reason} Besides: {trainer.not_saved}" if trainer.not_saved else reason


def _end_of(error: Exception, trainer: Trainer) -> End:
    """The code and the last words for an end before the last step."""
    match error:
        case Stopped():
            end = End(ExitCode.STOPPED, f"{error}. Go on with --resume auto.", retry=True)
        case Diverged() | NonFiniteState():
            best = trainer.store.best() if trainer.world.is_main else None
            kept = f"The best checkpoint is {best}." if best else "There is no checkpoint yet."
            end = End(ExitCode.DIVERGED, f"Training has diverged: {error} {kept}")
        case SampleError():
            end = End(ExitCode.INPUT, f"{error}\nMend it, then go on with --resume auto. {_NOT_REMOVED}", is_ours=True)
        case WorkerDied():
            end = End(ExitCode.ERROR, f"{error}\nGo on with --resume auto.", is_ours=True, retry=True)
        case PeerLost():
            end = End(ExitCode.ERROR, f"{error}\nGo on with --resume auto.", is_ours=True, retry=True)
        case StepFailed():
            traceback.print_exception(error.__cause__)
            end = End(ExitCode.ERROR, str(error), is_ours=True)
        case _:
            end = End(ExitCode.ERROR, str(error))
    return end


def _speaker(world: World) -> Callable[[str], None]:
    return lambda line: say(line) if world.is_main else None
