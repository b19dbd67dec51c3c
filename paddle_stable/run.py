"""A training run from the command line to its exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.build import Prepared, build_trainer, prepare, use_device
from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.checkpoint_folder import NonFiniteState
from paddle_stable.distributed import World
from paddle_stable.dry_run import describe
from paddle_stable.errors import ExitCode, InputError
from paddle_stable.recipe_io import LoadedRecipe, load_recipe
from paddle_stable.results import conclude, final_advice
from paddle_stable.resume import ResumePoint, find_resume_point, restore
from paddle_stable.run_folder import RunFolder, write_exit
from paddle_stable.trainer import Diverged, StepFailed, Stopped, Trainer
from paddle_stable.writers import RunRecord


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
    try:
        loaded = load_recipe(request.config, request.overrides, smoke=request.smoke, trust=request.trust)
        use_device(loaded.recipe)
        world = World.from_environment()
        say = _speaker(world)
        for line in loaded.advice:
            say(f"advice: {line}")
        prepared = prepare(loaded, world)
        for line in prepared.splits.warnings:
            say(f"data: {line}")
        if request.check:
            say(describe(prepared, world))
            return ExitCode.DONE
        return _train(request, prepared, world)
    except InputError as error:
        print(error, file=sys.stderr, flush=True)
        return ExitCode.INPUT


def _train(request: TrainingRequest, prepared: Prepared, world: World) -> ExitCode:
    folder = Path(prepared.recipe.run.output_dir)
    with ExitStack() as stack:
        start = _claim(folder, request.resume, prepared, world, stack)
        trainer = build_trainer(prepared, world, folder=folder)
        if start.path is not None:
            restore(trainer, start.path)
        if world.is_main:
            # Only now: opening the records cuts them back to the checkpoint, which must not happen for a mistake.
            trainer.writers = RunRecord.open(folder, prepared.total_steps, _recorded_until(start, request.resume))
            stack.callback(trainer.writers.close)
        _introduce(trainer, prepared.loaded, start)
        code, reason = _fit(trainer, folder)
        if world.is_main or code is ExitCode.ERROR:
            write_exit(folder, code, reason, step=trainer.progress.step)
    if code is not ExitCode.DONE:
        print(reason, file=sys.stderr, flush=True)
    return code


def _claim(folder: Path, resume: str | None, prepared: Prepared, world: World, stack: ExitStack) -> ResumePoint:
    """Rank 0 takes the run folder and looks for the checkpoint; all processes learn how that went."""
    failure: InputError | None = None
    start = ResumePoint(None)
    if world.is_main:
        try:
            held = RunFolder(folder)
            stack.callback(held.close)
            start = find_resume_point(resume, CheckpointStore(held.checkpoints, keep_last=prepared.recipe.run.keep_last))
            if start.path is None:
                held.refuse_to_overwrite(resuming=resume is not None)
        except InputError as error:
            failure = error
    if world.agree_max(int(failure is not None)):
        raise failure or InputError("Rank 0 could not take the run folder; it says why.", [])
    step = world.agree_max(start.step or 0)
    if not world.is_main and step:
        start = ResumePoint(folder / "checkpoints" / f"step-{step:06d}" if resume == "auto" else Path(str(resume)))
    return start


def _recorded_until(start: ResumePoint, resume: str | None) -> int | None:
    """Step behind which records are cut off; None where there must not be any."""
    if start.path is not None:
        return start.step
    return None if resume is None else 0


def _introduce(trainer: Trainer, loaded: LoadedRecipe, start: ResumePoint) -> None:
    if start.path is None:
        trainer.writers.text("recipe", f"```yaml\n{loaded.text}```")
    for remark in start.remarks:
        trainer.writers.note(f"resume: {remark}")
    if start.path is not None:
        trainer.writers.note(f"resume: going on from {start.path}, step {trainer.progress.step}")


def _fit(trainer: Trainer, folder: Path) -> tuple[ExitCode, str]:
    """Train to the end; every way in which that can end has its code."""
    try:
        trainer.fit()
        conclude(trainer, folder)
    except Stopped as stopped:
        return ExitCode.STOPPED, f"{stopped}. Go on with --resume auto."
    except (Diverged, NonFiniteState) as diverged:
        best = trainer.store.best() if trainer.world.is_main else None
        kept = f"The best checkpoint is {best}." if best else "There is no checkpoint yet."
        return ExitCode.DIVERGED, f"Training has diverged: {diverged} {kept}"
    except StepFailed as failed:
        traceback.print_exception(failed.__cause__)
        return ExitCode.ERROR, str(failed)
    for line in final_advice(trainer):
        trainer.writers.note(f"advice: {line}")
    return ExitCode.DONE, f"done after step {trainer.progress.step}"


def _speaker(world: World) -> Callable[[str], None]:
    return lambda line: print(line, flush=True) if world.is_main else None
