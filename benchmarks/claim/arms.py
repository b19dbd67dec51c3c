"""One cell of the benchmark: a condition, an arm and a seed, trained in this process.

All arms of a seed begin with the same weights and see the same batches with the same dropout. They are judged by their
last parameters, on the clean test rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, final

import numpy as np
import numpy.typing as npt
import paddle

from benchmarks.claim.faults import Fault, draw_faults, write_spoilt_copy
from paddle_stable.build import Prepared, build_trainer, prepare
from paddle_stable.data.dataset import Dataset
from paddle_stable.data.loader import Loader, evaluation_batches
from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_windows import SeriesWindows
from paddle_stable.distributed import World
from paddle_stable.errors import Diverged
from paddle_stable.recipe import AmpConfig
from paddle_stable.recipe_io import load_recipe
from paddle_stable.schedule import Schedule
from paddle_stable.seeding import seed_step
from paddle_stable.stability.amp import Precision, build_precision
from paddle_stable.stability.step_report import StepReport
from paddle_stable.stop_signal import StopSignal
from paddle_stable.tasks.lstm import naive_errors
from paddle_stable.writers import Writers

ROOT = Path(__file__).resolve().parents[2]
RECIPE = ROOT / "configs" / "lstm_forecast.yaml"
SERIES = ("sp500", "nasdaq")
"""Odd seeds train on the first, even ones on the second."""
COLUMN = "Close"
EVAL_EVERY = 5
"""Steps between two looks at the dev loss."""
LR_FACTOR = 10.0
CLIP_NORM = 5.0
"""Of arms b and c, as the user reported it."""
SIZES: Mapping[str, Any] = {
    # A quarter of the recipe's epochs and half of its lookback: the clean runs have learned all they will by then.
    "run.epochs": 3,
    "data.lookback": 15,
    # Explanations change nothing that learns, and would take longer than the training.
    "forensics.enabled": False,
}
"""What differs from the recipe in all arms and conditions."""
STOCK_SCALING = AmpConfig(
    dtype="float16", emulate=True, init_scale=65536.0, growth_interval=2000, hysteresis=1, min_scale=1e-300
)
"""paddle.amp.GradScaler's defaults: halved by every overflow, without a floor."""

Condition = Literal["clean", "keep", "policy", "lr", "finite"]
Arm = Literal["a", "b", "c", "d", "z"]


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """One run."""

    condition: Condition
    """clean; faults in the data that the policy keeps, or that the recipe's policy repairs; a learning rate ten times
    too high on clean data; finite: `keep` without the missing price, which no loop without a guard survives."""
    arm: Arm
    """a: AdamW. b: a with a clip at 5.0. c: b in emulated float16, stock loss scaling. d: the recipe. z: nothing."""
    seed: int

    @property
    def name(self) -> str:
        """Its key in the file of results."""
        return f"{self.condition}/{self.arm}/{self.seed}"

    @property
    def series(self) -> str:
        """The series it trains on."""
        return SERIES[(self.seed + 1) % len(SERIES)]


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to."""

    steps: int
    """Attempted."""
    end: str
    """"done", or why it ended before the last step, or could have."""
    precision: Precision
    """The arithmetic that it was trained in, and is judged in."""
    dev: dict[int, float] = field(default_factory=dict)
    """MSE on the dev rows by attempted steps, in units of the target."""


KEEP = {"data.policy.missing": "keep", "data.policy.jump": "keep"}
POLICIES: Mapping[Condition, Mapping[str, Any]] = {
    "keep": KEEP,
    "finite": KEEP,
    # The recipe repairs jumps by itself. A missing price it stops at, naming the line, until it is told what to do.
    "policy": {"data.policy.missing": "forward_fill"},
}


@final
class Setting:
    """What all cells share: the clean series, the recipe at the campaign's sizes, the naive forecasts."""

    def __init__(self, data: Path, sizes: Mapping[str, Any]) -> None:
        """`data`: folder with the clean series; `sizes`: recipe overrides in all arms and conditions."""
        self.data, self.sizes = data, sizes
        loaded = load_recipe(str(RECIPE), set_values={**sizes, "data.file": f"{SERIES[0]}.csv"})
        self.lr = loaded.recipe.optim.lr
        self._recipe = loaded.recipe
        assert isinstance(loaded.recipe.data, SeriesConfig)
        self._dev_from = str(loaded.recipe.data.dev_from)
        self._naive: dict[str, dict[str, float]] = {}

    def digest(self, arm: Arm) -> str:
        """Of the part of the recipe that an arm obeys: runs are comparable only where it is the same."""
        sections = {"task", "data", "optim", "schedule"} | ({"clip", "amp", "stability"} if arm == "d" else set())
        obeyed = self._recipe.model_dump_json(include={**dict.fromkeys(sections, True), "run": {"epochs", "steps"}})
        return sha256(obeyed.encode()).hexdigest()[:12]

    def file(self, series: str) -> Path:
        """The clean file."""
        return self.data / f"{series}.csv"

    def naive(self, series: str) -> dict[str, float]:
        """MSE of the better naive forecast on dev and test, from clean rows alone."""
        if series not in self._naive:
            values = {**self.sizes, "data.file": str(self.file(series))}
            loaded = load_recipe(str(RECIPE), set_values=values)
            splits = loaded.task_class(loaded.recipe.task, loaded.recipe.data, seed=1).load_splits()
            errors = {}
            for split in (splits.dev, splits.test):
                assert isinstance(split, SeriesWindows)
                found = naive_errors(split)
                errors[split.name] = min(found["last_value_mse"], found["constant_mse"])
            self._naive[series] = errors
        return self._naive[series]

    def faults(self, cell: Cell) -> list[Fault]:
        """The faults in a cell's series: those of its seed, whatever the arm."""
        if cell.condition not in POLICIES:
            return []
        lines = self.file(cell.series).read_text(encoding="utf-8").splitlines()[1:]
        train_rows = sum(line.split(",", 1)[0] < self._dev_from for line in lines)  # ISO dates: in the order of time
        faults = draw_faults(cell.seed, train_rows)
        return [fault for fault in faults if cell.condition != "finite" or fault.kind != "missing price"]

    def values(self, cell: Cell, folder: Path) -> dict[str, Any]:
        """The recipe's overrides for one cell. A spoilt copy of its series is written into `folder`."""
        source, faults = self.file(cell.series), self.faults(cell)
        file = folder / source.name if faults else source
        if faults:
            write_spoilt_copy(source, file, COLUMN, faults)
        values = {**self.sizes, **POLICIES.get(cell.condition, {}), "data.file": str(file), "run.seed": cell.seed}
        if cell.condition == "lr":
            values["optim.lr"] = self.lr * LR_FACTOR
        return {**values, "run.output_dir": str(folder / "run")}


def run_cell(cell: Cell, setting: Setting) -> dict[str, Any]:
    """Train one cell; its line in the file of results."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        loaded = load_recipe(str(RECIPE), set_values=setting.values(cell, folder))
        prepared = prepare(loaded, World.single())
        outcome = train(cell.arm, prepared, folder / "run")
        assert prepared.splits.test is not None
        test_mse = Reading(prepared, prepared.splits.test, outcome.precision).mse()
    return {
        "cell": cell.name,
        "recipe": setting.digest(cell.arm),
        "condition": cell.condition,
        "arm": cell.arm,
        "seed": cell.seed,
        "series": cell.series,
        "steps": outcome.steps,
        "total_steps": prepared.total_steps,
        "end": outcome.end,
        "test_mse": _number(test_mse),
        "dev_mse": {str(step): _number(mse) for step, mse in outcome.dev.items()},
        "naive": setting.naive(cell.series),
    }


def train(arm: Arm, prepared: Prepared, folder: Path) -> Outcome:
    """Train the prepared model as one arm does."""
    match arm:
        case "a":
            return _plain_loop(prepared, AmpConfig(), clip=None)
        case "b":
            return _plain_loop(prepared, AmpConfig(), clip=paddle.nn.ClipGradByGlobalNorm(CLIP_NORM))
        case "c":
            return _plain_loop(prepared, STOCK_SCALING, clip=paddle.nn.ClipGradByGlobalNorm(CLIP_NORM))
        case "d":
            return _the_recipe(prepared, folder)
        case "z":
            return Outcome(prepared.total_steps, "done", build_precision(AmpConfig(), prepared.model))


def _plain_loop(prepared: Prepared, amp: AmpConfig, clip: paddle.nn.ClipGradByGlobalNorm | None) -> Outcome:
    """What is usually written by hand: forward, backward, step. Loss scaling skips what is not finite, nothing else."""
    recipe, model, task = prepared.recipe, prepared.model, prepared.task
    weights = {parameter.name for name, parameter in model.named_parameters() if "bias" not in name}
    optimizer = paddle.optimizer.AdamW(
        learning_rate=recipe.optim.lr,
        parameters=model.parameters(),
        weight_decay=recipe.optim.weight_decay,
        apply_decay_param_fun=lambda name: name in weights,
        grad_clip=clip,
    )
    precision = build_precision(amp, model)
    scaled = amp.dtype == "float16"
    schedule = Schedule.of(recipe.schedule, peak=recipe.optim.lr, total=prepared.total_steps)
    world = World.single()
    windows = Loader(prepared.splits.train, prepared.plan, world=world, seed=recipe.run.seed).steps()
    reading = Reading(prepared, prepared.splits.dev, precision)
    model.train()
    dev: dict[int, float] = {}
    for step in range(1, prepared.total_steps + 1):
        (batch,) = next(windows).parts
        optimizer.set_lr(schedule.lr(step - 1))
        seed_step(recipe.run.seed, 0, step)
        precision.backward(task.loss(model, batch))
        precision.unscale(optimizer, model.parameters())
        overflow = scaled and not _finite(parameter.grad for parameter in model.parameters())
        if not overflow:
            optimizer.step()
        optimizer.clear_grad(set_to_zero=False)
        precision.scaling.update(overflow=overflow)
        if step % EVAL_EVERY == 0 or step == prepared.total_steps:
            dev[step] = reading.mse()
            if not _finite(model.parameters()):  # AdamW's moments hold the NaN: it would stay for all other steps
                return Outcome(step, "parameters are not finite", precision, dev)
    return Outcome(prepared.total_steps, "done", precision, dev)


def _the_recipe(prepared: Prepared, folder: Path) -> Outcome:
    """`Trainer.fit`, as tools/train.py runs it, without records."""
    folder.mkdir()
    trainer = build_trainer(prepared, World.single(), folder=folder)
    curve = DevCurve(Reading(prepared, prepared.splits.dev, trainer.precision), prepared.total_steps)
    trainer.writers = curve
    end = "done"
    try:
        trainer.fit(StopSignal())
    except Diverged as error:
        end = f"diverged: {error}"
    return Outcome(trainer.progress.step, end, trainer.precision, curve.mse)


def _finite(tensors: Iterable[paddle.Tensor | None]) -> bool:
    return all(bool(paddle.isfinite(tensor).all()) for tensor in tensors if tensor is not None)


def _number(value: float) -> float | None:
    """Five digits; None for what JSON has no number for."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


@final
class Reading:
    """Reads the error on one split again and again. Making its batch takes longer than the forward pass: once."""

    def __init__(self, prepared: Prepared, split: Dataset, precision: Precision) -> None:
        self._task, self._model, self._split, self._precision = prepared.task, prepared.model, split, precision
        self._batches = list(evaluation_batches(split, len(split), World.single()))

    def mse(self) -> float:
        """Of the present parameters, in units of the target."""
        self._model.eval()
        try:
            with paddle.no_grad(), self._precision.autocast():
                outputs = [self._task.outputs(self._model, batch) for batch in self._batches]
        finally:
            self._model.train()
        return self._task.metrics(
            {name: np.concatenate([o[name] for o in outputs]) for name in outputs[0]}, self._split
        )["mse"]


@final
class DevCurve(Writers):
    """Reads the dev loss as steps go by, and forgets all else that it is told."""

    def __init__(self, reading: Reading, total_steps: int) -> None:
        self.mse: dict[int, float] = {}
        self._reading = reading
        self._total_steps = total_steps

    def step(self, report: StepReport, scalars: Mapping[str, float] | None) -> None:
        if report.step % EVAL_EVERY == 0 or report.step == self._total_steps:
            self.mse[report.step] = self._reading.mse()

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def histograms(self, step: int, values: Mapping[str, npt.NDArray[Any]]) -> None: ...

    def text(self, tag: str, text: str, step: int = 0) -> None: ...

    def hyper_parameters(self, values: Mapping[str, Any], metrics: Mapping[str, float]) -> None: ...

    def image(self, tag: str, step: int, path: Path) -> None: ...

    def note(self, message: str) -> None: ...

    def keep(self, message: str) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...
