"""The one place where objects meet: from a checked recipe to a Trainer."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

import paddle

from paddle_stable.checkpoint import CheckpointStore
from paddle_stable.data.dataset import Splits
from paddle_stable.data.loader import Loader
from paddle_stable.data.windows import WindowPlan
from paddle_stable.distributed import World
from paddle_stable.errors import InputError, Problem
from paddle_stable.optim import apply_groups, build_optimizer
from paddle_stable.progress import Best
from paddle_stable.recipe import Recipe
from paddle_stable.recipe_io import LoadedRecipe, locate
from paddle_stable.schedule import Schedule
from paddle_stable.seeding import seed_build
from paddle_stable.stability.amp import build_precision, decorate_for_o2
from paddle_stable.stability.clip import PlannedClip, build_clip, clip_group
from paddle_stable.stability.faults import Faults
from paddle_stable.stability.forensics import Forensics
from paddle_stable.stability.gradients import Gradients
from paddle_stable.stability.guard import StepGuard
from paddle_stable.stability.monitor import Monitor
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
    plan = WindowPlan(
        lengths=splits.train.lengths(),
        count=len(splits.train),
        batch_size=recipe.data.batch_size,
        accumulate=recipe.run.accumulate,
        world_size=world.size,
        seed=recipe.run.seed,
    )
    total = recipe.run.steps or (recipe.run.epochs or 0) * plan.steps_per_epoch
    _check_against_data(loaded, splits, total, world)
    seed_build(recipe.run.seed)
    # Names that Paddle makes up start from zero, whatever was built in this process before.
    with paddle.utils.unique_name.guard():
        model = task.build_model()
    statistics = RunningStatistics(model)
    apply_groups(model, recipe.optim.groups, loaded.path)
    _check_clip_groups(loaded, model)
    _check_names(loaded, model, world)
    return Prepared(loaded, task, splits, plan, total, model, statistics)


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
        forensics=Forensics(
            recipe.forensics,
            replay,
            prepared.splits.train,
            folder=folder,
            recipe_text=prepared.loaded.text,
            world_size=world.size,
        ),
        store=CheckpointStore(folder / "checkpoints", keep_last=recipe.run.keep_last),
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


def _check_names(loaded: LoadedRecipe, model: paddle.nn.Layer, world: World) -> None:
    """A fault that hits nothing must not pass for one that was survived, nor rounding of no layer for a rehearsal."""
    recipe = loaded.recipe
    parameters = [name for name, parameter in model.named_parameters() if not parameter.stop_gradient]
    layers = [name for name, layer in model.named_sublayers() if not list(layer.children())]
    problems = [
        Problem(*locate(loaded, f"faults.{number}.parameter"), f"faults.{number}.parameter: {fault.parameter!r} "
                f"matches no trained parameter; the first names are {', '.join(parameters[:6])} …")
        for number, fault in enumerate(recipe.faults)
        if not any(fnmatchcase(name, fault.parameter) for name in parameters)
    ]  # fmt: skip
    problems += [
        Problem(*locate(loaded, f"faults.{number}.rank"), f"faults.{number}.rank: must be below the number of "
                f"processes ({world.size}), got {fault.rank}")
        for number, fault in enumerate(recipe.faults)
        if fault.rank >= world.size
    ]  # fmt: skip
    rounded = any(fnmatchcase(name, pattern) for name in layers for pattern in recipe.amp.emulate_layers)
    if recipe.amp.emulate and not rounded:
        problems.append(
            Problem(*locate(loaded, "amp.emulate_layers"), "amp.emulate_layers: no pattern matches a layer; the first "
                    f"names are {', '.join(layers[:6])} …")
        )  # fmt: skip
    if problems:
        raise InputError(f"{loaded.path} does not fit its model:", problems)


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
