"""Going on where a run was: finding the checkpoint, and putting every part of the trainer back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import yaml

from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.checkpoint_folder import read_manifest
from paddle_stable.data.loader import Position
from paddle_stable.errors import InputError
from paddle_stable.progress import Best, Progress
from paddle_stable.recipe_differences import recipe_differences
from paddle_stable.run_folder import RunFolder
from paddle_stable.stability.monitor import Monitor
from paddle_stable.trainer import Trainer
from paddle_stable.training_state import (
    StateMismatch,
    current_environment,
    environment_changes,
    load_model_arrays,
    load_optimizer_arrays,
)


@final
@dataclass(frozen=True)
class ResumePoint:
    """Where to go on, and what was found on the way to it."""

    path: Path | None
    """Checkpoint folder; None to start from the beginning."""
    step: int | None = None
    """Attempted steps that the checkpoint holds, as its manifest says: a copy may have any name."""
    remarks: tuple[str, ...] = ()


def find_resume_point(resume: str | None, store: CheckpointStore) -> ResumePoint:
    """What `--resume` means: nothing, `auto` (the newest checkpoint that verifies), or a checkpoint's folder.

    Raises:
        InputError: when the named folder is no valid checkpoint, or `auto` finds only damaged ones.
    """
    if resume is None:
        return ResumePoint(None)
    if resume == "auto":
        path, passed_over = store.newest_valid()
        if path is None and passed_over:
            raise InputError.single(
                str(store.folder),
                "none of the checkpoints can be used. Put good ones back, or start afresh in another folder "
                "(-o run.output_dir=…). " + " ".join(passed_over),
            )
        return ResumePoint(path, read_manifest(path).step if path is not None else None, tuple(passed_over))
    if not Path(resume).is_dir():
        raise InputError.single(resume, "there is no such checkpoint folder; --resume auto finds the newest one")
    faults = store.verify(Path(resume))
    if faults:
        raise InputError.single(resume, "is not a usable checkpoint: " + " ".join(faults))
    return ResumePoint(Path(resume), read_manifest(Path(resume)).step)


def is_of_another_run(checkpoint: Path, folder: RunFolder) -> bool:
    """Whether a checkpoint is another run's than the one whose checkpoints are in the folder; never where none are."""
    if checkpoint.resolve().parent == folder.checkpoints.resolve() or not any(folder.checkpoints.glob("step-*")):
        return False
    saved = yaml.safe_load((checkpoint / "recipe.yaml").read_text(encoding="utf8"))["run"]["output_dir"]
    return Path(saved).resolve() != folder.path.resolve()


def restore(trainer: Trainer, path: Path) -> list[str]:
    """Put the whole state of a checkpoint, which `find_resume_point` has verified on rank 0, into a new trainer.

    Returns:
        What has changed since, when the run can go on but will not be the uninterrupted one; sentences.

    Raises:
        InputError: when the recipe has changed in a way that the state does not fit.
    """
    parts = trainer.store.load(path, verify=not trainer.world.is_main)
    state = parts.state
    _refuse_other_task(parts.assets["recipe.yaml"], trainer.recipe.task.target, path)
    _refuse_other_precision(state, trainer, path)
    _refuse_other_metric(state["best"], trainer.best, path)
    _refuse_other_order(state["plan"], trainer.loader.plan_facts(), path)
    refuse_other_assets(parts.assets, trainer.task.assets(), path)
    try:
        load_model_arrays(trainer.model, parts.model)
        load_optimizer_arrays(trainer.optimizer, trainer.model, parts.optimizer)
    except StateMismatch as error:
        raise InputError.single(
            str(path), f"{error} The recipe's model is not the one that was saved; start afresh in another folder."
        ) from error
    trainer.precision.scaling.load_state(state["amp"])
    trainer.guard.clip.load_state(state["clip"])
    trainer.guard.spikes.load_state(state["spikes"])
    trainer.progress = Progress.from_state(state["progress"])
    trainer.best = Best.from_state(state["best"])
    trainer.monitor = Monitor.from_state(trainer.recipe.stability.window, state["monitor"])
    trainer.forensics.load_state(state["forensics"])
    trainer.recovery.load_state(state["recovery"], parts.snapshot)
    trainer.dev_metrics = state["dev_metrics"]
    trainer.quarantine.load_state(state["quarantine"])
    trainer.loader.leave_out(trainer.quarantine.left_out)
    trainer.loader.skip_to(Position.from_state(state["position"]))
    return [*_changed_keys(parts.assets["recipe.yaml"], trainer.recipe_text), *_changes(state, trainer, path)]


def _refuse_other_task(saved: str, now: str, path: Path) -> None:
    target = yaml.safe_load(saved)["task"]["target"]
    if target != now:
        raise InputError.single(str(path), f"is a checkpoint of {target}, this recipe trains {now}. Name another one.")


def _refuse_other_precision(state: Mapping[str, Any], trainer: Trainer, path: Path) -> None:
    saved, asked = state["amp"]["dtype"], trainer.precision.scaling.state()["dtype"]
    if saved != asked:
        raise InputError.single(
            str(path),
            f"was saved with amp.dtype={saved}, this recipe asks for {asked}. Pass -o amp.dtype={saved}, "
            "or start afresh in another folder.",
        )


def _refuse_other_metric(saved: Mapping[str, Any], now: Best, path: Path) -> None:
    """The best value so far means nothing to another metric."""
    if saved["metric"] != now.metric:
        raise InputError.single(
            str(path),
            f"was chosen by run.best_metric={saved['metric']}, this recipe asks for {now.metric}. "
            f"Pass -o run.best_metric={saved['metric']}, or start afresh in another folder.",
        )


def _refuse_other_order(saved: Mapping[str, int], now: Mapping[str, int], path: Path) -> None:
    """With another window or seed the saved position would repeat some samples of the epoch and leave out others."""
    changes = [f"{name} {saved[name]} → {now[name]}" for name in saved if saved[name] != now[name]]
    if changes:
        raise InputError.single(
            str(path),
            f"was saved with another order of samples ({', '.join(changes)}), so the place in the epoch would be "
            "wrong. Use the same data and seed, and the same data.batch_size x run.accumulate x processes; or start "
            "afresh in another folder.",
        )


def refuse_other_assets(saved: Mapping[str, str], now: Mapping[str, str], path: Path) -> None:
    """Raise InputError when vocabulary, labels or scaling are not those that the weights were trained with.

    They are made from the training data, so that an edited file changes them, and with them what every input means.
    """
    changed = [name for name, text in now.items() if saved.get(name) != text]
    if changed:
        raise InputError.single(
            str(path),
            f"was trained with another {', '.join(changed)} than the data give now: have the training files changed? "
            "Put them back, or name the saved ones in the recipe where it has a key for them "
            f"(task.vocab={path}/vocab.txt, data.labels={path}/label.txt); or train afresh in another folder.",
        )


def _changed_keys(saved: str, now: str) -> list[str]:
    """Allowed, and often meant; what a forgotten `-o` changes is to be seen all the same."""
    differences = recipe_differences(saved, now)
    differences.pop("run.output_dir", None)
    if not differences:
        return []
    shown = ", ".join(f"{key} {before} → {after}" for key, (before, after) in differences.items())
    return [f"the recipe is not the checkpoint's: {shown}"]


def _changes(state: Mapping[str, Any], trainer: Trainer, path: Path) -> list[str]:
    """In the data: allowed, since a bad sample may have been mended. In the machine: that changes the last bits."""
    remarks = []
    if state["training_data"] != trainer.loader.data_digest:
        remarks.append(
            "the training data are not those of the checkpoint (edited files, or another policy for bad values): from "
            "here on the run is not the uninterrupted one"
        )
    if state["quarantine"]["known"] != trainer.quarantine.state()["known"]:
        remarks.append("stability.quarantine.file names other samples than it did: the steps are not those of the run")
    changes = environment_changes(trainer.store.environment(path), current_environment())
    if changes:
        remarks.append(f"results will not be bit-identical to the uninterrupted run's: {', '.join(changes)}")
    return remarks
