"""The one place where objects meet: from a checked recipe to a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

import paddle

from paddle_stable.background_saving import BackgroundSaving
from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.data.dataset import Dataset, Splits
from paddle_stable.data.loader import Loader
from paddle_stable.data.windows import WindowPlan
from paddle_stable.data.workers import prepare as prepare_batch
from paddle_stable.distributed import World
from paddle_stable.errors import InputError, Problem
from paddle_stable.optim import apply_groups, build_optimizer
from paddle_stable.progress import Best
from paddle_stable.recipe import Recipe
from paddle_stable.recipe_io import LoadedRecipe, locate
from paddle_stable.schedule import Schedule
from paddle_stable.seeding import seed_build
from paddle_stable.stability.amp import build_precision, decorate_for_o2, rounded_layers
from paddle_stable.stability.bad_samples import BadSamples
from paddle_stable.stability.clip import PlannedClip, build_clip, clip_group
from paddle_stable.stability.faults import Faults
from paddle_stable.stability.forensics import Forensics
from paddle_stable.stability.gradients import Gradients
from paddle_stable.stability.guard import StepGuard
from paddle_stable.stability.monitor import Monitor
from paddle_stable.stability.quarantine import Quarantine, read_quarantine
from paddle_stable.stability.recovery import Recovery
from paddle_stable.stability.replay import Replay
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.stability.spikes import SpikeWatch
from paddle_stable.task import Task
from paddle_stable.trainer import Trainer


@final
@dataclass(frozen=True)
class Prepared:
    """Task, data and plan of a run, checked against each other, and a fresh model."""

    loaded: LoadedRecipe
    task: Task
    splits: Splits
    plan: WindowPlan
    total_steps: int
    model: paddle.nn.Layer
    statistics: RunningStatistics
    left_out: frozenset[int] = frozenset()
    """Training samples that an earlier run has put into quarantine."""

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return self.loaded.recipe


def prepare(loaded: LoadedRecipe, world: World) -> Prepared:
    """Load the data, plan the steps and build the model.

    Raises:
        InputError: with everything that is wrong with the data, or between data and recipe.
    """
    recipe = loaded.recipe
    task = loaded.task_class(recipe.task, recipe.data, seed=recipe.run.seed)
    splits = task.load_splits()
    left_out: frozenset[int] = frozenset()
    if recipe.stability.quarantine.file is not None:
        left_out, said = read_quarantine(Path(recipe.stability.quarantine.file), splits.train)
        splits = replace(splits, warnings=(*splits.warnings, said))
    plan = WindowPlan(
        lengths=splits.train.lengths(),
        count=len(splits.train),
        batch_size=recipe.data.batch_size,
        accumulate=recipe.run.accumulate,
        world_size=world.size,
        seed=recipe.run.seed,
        left_out=left_out,
    )
    total = recipe.run.steps or (recipe.run.epochs or 0) * plan.steps_per_epoch
    _check_against_data(loaded, splits, total, world)
    seed_build(recipe.run.seed)
    # Names that Paddle makes up start from zero, whatever was built in this process before.
    with paddle.utils.unique_name.guard():
        try:
            model = task.build_model()
        except MemoryError as error:
            file, line = locate(loaded, "task")
            words = f"task: the model does not fit into memory ({error}). Make its sizes smaller"
            raise InputError(f"{loaded.path} does not fit this machine:", [Problem(file, line, words)]) from error
    statistics = RunningStatistics(model)
    apply_groups(model, recipe.optim.groups, loaded.path)
    _check_clip_groups(loaded, model)
    _check_names(loaded, model, splits.train, world)
    return Prepared(loaded, task, splits, plan, total, model, statistics, left_out)


def build_trainer(prepared: Prepared, world: World, *, folder: Path) -> Trainer:
    """Put a run together that records nothing yet: `Trainer.writers` is set when it is certain to begin."""
    recipe, model = prepared.recipe, prepared.model
    gradients = Gradients(model, world)
    planned_clip = PlannedClip(gradients, recipe.clip.max_norm)
    optimizer = build_optimizer(model, recipe.optim, planned_clip)
    model, optimizer = decorate_for_o2(recipe.amp, model, optimizer)
    model.train()
    precision = build_precision(recipe.amp, model)
    replay = Replay(
        model, prepared.task, precision, prepared.statistics, recipe.run.seed, world.rank, world.gradient_scale
    )
    guard = StepGuard(
        recipe.stability,
        gradients=gradients,
        clip=build_clip(recipe.clip, gradients.names),
        planned_clip=planned_clip,
        spikes=SpikeWatch(recipe.stability.spike),
        precision=precision,
        statistics=prepared.statistics,
        world=world,
    )
    store = CheckpointStore(folder / "checkpoints", keep_last=recipe.run.keep_last)
    return Trainer(
        recipe=recipe,
        recipe_text=prepared.loaded.text,
        task=prepared.task,
        splits=prepared.splits,
        world=world,
        model=model,
        network=world.wrap(model),
        optimizer=optimizer,
        precision=precision,
        guard=guard,
        schedule=Schedule.of(recipe.schedule, peak=recipe.optim.lr, total=prepared.total_steps),
        loader=Loader(
            prepared.splits.train, prepared.plan, world=world, seed=recipe.run.seed, workers=recipe.data.workers
        ),
        faults=Faults(recipe.faults, world.rank),
        monitor=Monitor(recipe.stability.window),
        recovery=Recovery(recipe.stability.recovery),
        bad_samples=BadSamples(replay, world),
        quarantine=Quarantine(recipe.stability.quarantine.after, prepared.left_out),
        forensics=Forensics(
            recipe.forensics,
            replay,
            prepared.splits.train,
            folder=folder,
            recipe_text=prepared.loaded.text,
            world_size=world.size,
        ),
        store=store,
        saving=BackgroundSaving(store),
        best=Best(recipe.run.best_metric, prepared.task.metric_names[recipe.run.best_metric]),
    )


def use_device(recipe: Recipe) -> None:
    """Make the recipe's device Paddle's default one, and its kernels repeatable where the recipe asks for it."""
    device = recipe.run.device
    if device == "auto":
        device = "gpu" if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() else "cpu"
    paddle.set_device(device)
    if recipe.run.deterministic and device == "gpu":
        paddle.set_flags({"FLAGS_cudnn_deterministic": True, "FLAGS_embedding_deterministic": 1})


def _check_clip_groups(loaded: LoadedRecipe, model: paddle.nn.Layer) -> None:
    """A group without parameters is a mistyped name."""
    names = [name for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    groups = loaded.recipe.clip.groups
    used = {clip_group(name, groups) for name in names}
    problems = [
        Problem(*locate(loaded, f"clip.groups.{number}.match"), f"clip.groups.{number}.match: {group.match!r} is the "
                f"first match of no trained parameter; the first names are {', '.join(names[:6])} …")
        for number, group in enumerate(groups)
        if group.match not in used
    ]  # fmt: skip
    if problems:
        raise InputError("The groups of the clip do not fit the model:", problems)


def _check_names(loaded: LoadedRecipe, model: paddle.nn.Layer, train: Dataset, world: World) -> None:
    """A fault that hits nothing must not pass for one that was survived, nor rounding of no layer for a rehearsal."""
    problems = list(_names_of_faults(loaded, model, train, world))
    amp = loaded.recipe.amp
    layers = list(rounded_layers(model))
    rounded = any(fnmatchcase(name, pattern) for name in layers for pattern in amp.emulate_layers)
    if amp.emulate and not rounded:
        message = f"amp.emulate_layers: no pattern matches a layer; the first names are {', '.join(layers[:6])} …"
        problems.append(Problem(*locate(loaded, "amp.emulate_layers"), message))
    if problems:
        raise InputError(f"{loaded.path} does not fit its model:", problems)


def _names_of_faults(loaded: LoadedRecipe, model: paddle.nn.Layer, train: Dataset, world: World) -> Iterator[Problem]:
    """What the faults ask for and is not there: parameters, rows, tensors of a batch, processes."""
    faults = loaded.recipe.faults
    parameters = {name: p for name, p in model.named_parameters() if not p.stop_gradient}
    tensors: list[str] = []
    if any(fault.kind == "corrupt_label" for fault in faults):
        tensors = list(prepare_batch(train, (0,), seed=loaded.recipe.run.seed, epoch=0))
    for number, fault in enumerate(faults):
        hit = next((p for name, p in parameters.items() if fnmatchcase(name, fault.parameter)), None)
        wrong = {}
        if hit is None:
            wrong["parameter"] = (
                f"{fault.parameter!r} matches no trained parameter; the first names are "
                f"{', '.join(list(parameters)[:6])} …"
            )
        elif fault.kind == "nan_embedding" and fault.row >= hit.shape[0]:
            wrong["row"] = f"must be below the parameter's {hit.shape[0]} rows, got {fault.row}"
        if fault.kind == "corrupt_label" and not any(fnmatchcase(name, fault.tensor) for name in tensors):
            wrong["tensor"] = f"{fault.tensor!r} matches no tensor of a batch; there are {', '.join(tensors)}"
        if fault.rank >= world.size:
            wrong["rank"] = f"must be below the number of processes ({world.size}), got {fault.rank}"
        for key, message in wrong.items():
            yield Problem(*locate(loaded, f"faults.{number}.{key}"), f"faults.{number}.{key}: {message}")


def _check_against_data(loaded: LoadedRecipe, splits: Splits, total: int, world: World) -> None:
    """What can only be checked once the number of samples is known."""
    recipe, problems = loaded.recipe, []
    window = recipe.data.batch_size * recipe.run.accumulate * world.size
    if len(splits.train) < window:
        file, line = locate(loaded, "run.accumulate" if recipe.run.accumulate > 1 else "data.batch_size")
        problems.append(
            Problem(file, line, f"one step takes {window} samples (data.batch_size {recipe.data.batch_size} x "
                    f"run.accumulate {recipe.run.accumulate} x {world.size} processes), but there are only "
                    f"{len(splits.train)} training samples. Lower one of them.")
        )  # fmt: skip
    warmup = recipe.schedule.warmup_steps
    if warmup is not None and warmup > total:
        file, line = locate(loaded, "schedule.warmup_steps")
        problems.append(
            Problem(file, line, f"schedule.warmup_steps: {warmup} is more than the {total} steps of the run.")
        )
    if problems:
        raise InputError(f"{loaded.path} does not fit its data:", problems)
