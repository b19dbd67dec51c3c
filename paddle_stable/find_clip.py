"""Choosing `clip.max_norm`: train for a while without a clip, in memory, and look at the gradient norms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import final

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from paddle_stable.build import build_trainer, prepare, use_device
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.recipe import ClipConfig, ModelKind, SpikeConfig
from paddle_stable.recipe_checks import CLIP_RANGES
from paddle_stable.recipe_io import LoadedRecipe
from paddle_stable.stability.advice import ENOUGH_STEPS, HIGH_CLIP_RATE, StartingBound
from paddle_stable.stability.step_report import StepReport

PERCENTILES = (5, 25, 50, 75, 90, 95, 99, 100)
RECOMMENDED = 95


@final
@dataclass(frozen=True, slots=True)
class ObservedNorms:
    """What a run without a clip has shown."""

    recipe: str
    """File of the recipe."""
    model_kind: ModelKind
    norms: tuple[float, ...]
    """Global gradient norm of every applied step, in order."""
    losses: tuple[float, ...]
    """Loss of the same steps."""
    skipped: int
    """Steps that could not be used; their norms are not among `norms`."""

    def percentile(self, percent: float) -> float:
        """Norm that this part of the steps stays below."""
        return float(np.percentile(self.norms, percent))

    @property
    def p95(self) -> float:
        """The 95th percentile to three digits."""
        return float(f"{self.percentile(RECOMMENDED):.3g}")

    @property
    def start(self) -> StartingBound:
        """The recommendation."""
        return StartingBound.of(self.p95, self.model_kind, self.clip_rate)

    def clip_rate(self, bound: float) -> float:
        """Part of these steps that the bound would have limited."""
        return float(np.mean(np.array(self.norms) > bound))


def open_folder(folder: Path) -> None:
    """Create the folder that the report will go to: nobody should train first and hear of it afterwards.

    Raises:
        InputError: when nothing can be written there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError.single(str(folder), f"--output cannot be written: {error.strerror}") from error


def observe(loaded: LoadedRecipe, steps: int) -> ObservedNorms:
    """Train in this process without clip and without spike detection. Nothing is evaluated, saved or recorded.

    The learning rate follows the recipe's own schedule. Stops early where the run would be given up.

    Raises:
        InputError: when the data cannot be used, or too few steps could be applied.
    """
    if steps < ENOUGH_STEPS:
        raise InputError.single("command line", f"--steps: must be at least {ENOUGH_STEPS}, got {steps}")
    recipe = loaded.recipe
    # Nobody is put into quarantine: the list in the run folder is the run's.
    observing = {"guard": True, "spike": SpikeConfig(action="none")}
    quarantine = recipe.stability.quarantine.model_copy(update={"after": None})
    stability = recipe.stability.model_copy(update={**observing, "quarantine": quarantine})
    forensics = recipe.forensics.model_copy(update={"enabled": False})
    # Without the recipe's faults: a bound that follows from their norms would be one for nothing else.
    free = recipe.model_copy(
        update={"clip": ClipConfig(kind="none"), "stability": stability, "forensics": forensics, "faults": ()}
    )
    use_device(free)
    world = World.single()
    trainer = build_trainer(prepare(replace(loaded, recipe=free), world), world, folder=Path(recipe.run.output_dir))
    windows = trainer.loader.steps()
    reports: list[StepReport] = []
    while len(reports) < min(steps, trainer.schedule.total):
        reports.append(trainer.train_step(windows))
        trainer.monitor.update(reports[-1])
        if trainer.progress.unusable_in_a_row >= stability.max_consecutive_skips:
            break
    windows.close()
    applied = [report.verdict for report in reports if report.verdict.applied]
    if len(applied) < ENOUGH_STEPS:
        raise InputError.single(
            loaded.path,
            f"only {len(applied)} of {len(reports)} steps could be applied, and a bound from fewer than {ENOUGH_STEPS} "
            "norms means nothing. More steps, or, where they were skipped, a lower optim.lr or a bound from "
            f"docs/clip.md. {trainer.monitor.explain_skips()}",
        )
    if float(np.percentile([verdict.grad_norm for verdict in applied], RECOMMENDED)) <= 0.0:
        raise InputError.single(
            loaded.path,
            f"nearly all gradient norms of {len(applied)} steps are 0, so that no bound follows from them: is "
            "everything frozen, the loss constant, or does half precision underflow (amp.init_scale)?",
        )
    return ObservedNorms(
        recipe=loaded.path,
        model_kind=loaded.task_class.model_kind,
        norms=tuple(verdict.grad_norm for verdict in applied),
        losses=tuple(verdict.loss for verdict in applied),
        skipped=len(reports) - len(applied),
    )


def describe(observed: ObservedNorms, kind: str = "global_norm") -> str:
    """Percentiles, the recommendation beside the range for this kind of model, and the line to paste.

    Args:
        observed: the norms.
        kind: `clip.kind` of the recipe; the line sets another one where that is needed.
    """
    skipped = f", {observed.skipped} skipped" if observed.skipped else ""
    shown = [f"{f'{percent} %':>6}  {observed.percentile(percent):10.4g}" for percent in PERCENTILES]
    needed = "" if kind == "global_norm" else " -o clip.kind=global_norm"
    lines = [
        f"{len(observed.norms)} steps without a clip{skipped}. That part of the gradient norms is below:",
        *shown,
        "",
        f"Recommended: clip.max_norm {observed.start.max_norm:g}, {observed.start.source}.",
        *_beside_the_range(observed),
        *_change(observed.norms),
        f"-o clip.max_norm={observed.start.max_norm:g}{needed}",
    ]
    return "\n".join(lines)


def _beside_the_range(observed: ObservedNorms) -> Iterator[str]:
    low, high, models = CLIP_RANGES[observed.model_kind]
    bound = observed.p95
    if low <= bound <= high:
        yield f"It lies in {low:g}–{high:g}, where {models} usually train well."
        return
    end = low if bound < low else high
    rate = observed.clip_rate(end)
    yield (
        f"The 95th percentile, {bound:g}, lies outside {low:g}–{high:g}, where {models} usually train well; the "
        f"nearest end of that range, {end:g}, would have limited {rate:.0%} of these steps."
    )
    if rate > HIGH_CLIP_RATE:
        yield (
            f"With more than {HIGH_CLIP_RATE:.0%} limited, a bound acts as a lower learning rate: keep the percentile, "
            "and look at optim.lr, the warm-up and the scale of the inputs."
        )


def _change(norms: Sequence[float]) -> Iterator[str]:
    """Norms of a run's beginning are often not those of its later course."""
    third = len(norms) // 3
    first, last = (float(np.median(part)) for part in (norms[:third], norms[-third:]))
    if max(first, last) > 2.0 * min(first, last):
        yield (
            f"The norms are changing: their median is {first:.3g} in the first third and {last:.3g} in the last. "
            "Observe more steps, or let the bound follow (clip.schedule, clip.kind adaptive)."
        )


def write_report(observed: ObservedNorms, folder: Path) -> tuple[Path, Path]:
    """Write the picture and, for other tools, the norms themselves, into a folder that is there.

    Returns:
        norms.png and norms.json.
    """
    picture, values = folder / "norms.png", folder / "norms.json"
    FigureCanvasAgg(norms_figure(observed)).print_figure(picture, format="png", dpi=100)
    content = {"recipe": observed.recipe, "norms": observed.norms, "losses": observed.losses}
    values.write_text(json.dumps(content) + "\n", encoding="utf-8")
    return picture, values


def norms_figure(observed: ObservedNorms) -> Figure:
    """How often which norm occurs, and the norm step by step, with the bound and the usual range."""
    norms = np.array(observed.norms)
    norms = np.maximum(norms, norms.min(where=norms > 0.0, initial=1.0))  # 0 has no place on a logarithmic axis
    low, high, models = CLIP_RANGES[observed.model_kind]
    figure = Figure(figsize=(11, 5), layout="constrained")
    figure.suptitle(f"Gradient norms of {len(norms)} steps without a clip: {observed.recipe}", x=0.01, ha="left")
    counts, course = figure.subplots(1, 2, width_ratios=(1, 1.4))
    spread = 0.5 if math.isclose(norms.min(), norms.max()) else 0.0  # equal norms still need a bin to stand in
    edges = np.geomspace(norms.min() * (1 - spread), norms.max() * (1 + spread), 41)
    counts.hist(norms, bins=edges, color="#0b6fc2", alpha=0.85)
    counts.set(xscale="log", xlabel="gradient norm", ylabel="steps")
    course.plot(np.arange(1, len(norms) + 1), norms, color="#0b6fc2", linewidth=1.0, label="gradient norm")
    course.set(yscale="log", xlabel="applied step")
    style = {"color": "#c23b0b", "linewidth": 1.6, "label": f"95th percentile: {observed.p95:g}"}
    band = {"color": "#3c9a4b", "alpha": 0.14, "linewidth": 0, "label": f"{models}: {low:g}–{high:g}"}
    counts.axvline(observed.p95, **style)
    counts.axvspan(low, high, **band)
    course.axhline(observed.p95, **style)
    course.axhspan(low, high, **band)
    counts.yaxis.set_major_locator(MaxNLocator(integer=True))
    for axis in (counts.xaxis, course.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=8))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    for axes in (counts, course):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    course.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=3, frameon=False, borderaxespad=0.1)
    return figure
