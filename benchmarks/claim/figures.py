"""What the cells add up to: the check of the clean runs, success, steps to a fixed dev loss, tables and the picture.

A run has succeeded when it attempted all steps and kept at least 70 % of the gain that clean runs have over the better
naive forecast (median over the seeds, series by series), on the clean test rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.claim.arms import CLIP_NORM, SERIES, Arm, Condition

LEAST_ADVANTAGE = 0.15
"""Part of the better naive forecast's MSE by which clean runs have to beat it."""
KEPT = 0.70
CLEAN_SUCCESS = 0.98
FEWER_STEPS = 0.40
EXPECTED_SUCCESS = 0.99
NEVER = math.inf

Line = Mapping[str, Any]
"""One line of the file of results."""

ARMS: Mapping[Arm, str] = {
    "a": "(a) AdamW",
    "b": f"(b) AdamW, clip {CLIP_NORM:g}",
    "c": "(c) b in emulated fp16, stock loss scaling",
    "d": "(d) the recipe",
}
CONDITIONS: Mapping[Condition, str] = {
    "keep": "five faults, kept in the data",
    "policy": "five faults, repaired by the recipe's policy",
    "lr": "clean data, learning rate x10",
    "finite": "without the missing price, kept",
}
TABLES: Mapping[str, tuple[Condition, ...]] = {
    "Table A: data policy `keep` in all arms": ("keep", "lr"),
    "Table B: the recipe's data policy in all arms": ("policy", "lr"),
    "Besides: policy `keep`, three unit errors and a shock, no missing price": ("finite",),
}


class NotWorthATable(Exception):
    """The clean runs do not show what the faults could take away."""


@final
@dataclass(frozen=True, slots=True)
class Yardstick:
    """What clean runs reach, by series."""

    gain: Mapping[str, float]
    """Median over the seeds of naive MSE - MSE on test."""
    dev_loss: Mapping[str, float]
    """The fixed dev loss: 70 % of the clean runs' median gain on dev."""

    @staticmethod
    def of(lines: Iterable[Line]) -> Yardstick:
        """From all lines; those of clean runs of the recipe count.

        Raises:
            NotWorthATable: when clean runs are missing, or do not beat both naive forecasts by 15 % of their MSE, or
                do not pass by their own rule.
        """
        clean = [line for line in lines if line["condition"] == "clean" and line["arm"] == "d"]
        gain, dev_loss = {}, {}
        for series in SERIES:
            mine = [line for line in clean if line["series"] == series]
            if not mine:
                raise NotWorthATable(f"there is no clean run on {series} yet")
            gain[series] = float(np.median([_gain(line) for line in mine]))
            naive = mine[0]["naive"]
            if not gain[series] >= LEAST_ADVANTAGE * naive["test"]:
                raise NotWorthATable(
                    f"clean runs on {series} beat the better naive forecast by {gain[series] / naive['test']:.1%} of "
                    f"its MSE, less than {LEAST_ADVANTAGE:.0%}: there is too little that faults could take away"
                )
            last = [_mse(list(line["dev_mse"].values())[-1]) for line in mine]
            dev_loss[series] = naive["dev"] - KEPT * (naive["dev"] - float(np.median(last)))
        found = Yardstick(gain, dev_loss)
        rate = float(np.mean([found.success(line) for line in clean]))
        if rate < CLEAN_SUCCESS:
            raise NotWorthATable(f"{rate:.1%} of the clean runs pass, less than {CLEAN_SUCCESS:.0%}: the rule is noise")
        return found

    def success(self, line: Line) -> bool:
        """Whether a run has kept what it should."""
        return attempted_all(line) and _gain(line) >= KEPT * self.gain[line["series"]]

    def steps(self, line: Line) -> float:
        """Attempted steps at the first reading that is not above the fixed dev loss; `NEVER` when there is none."""
        bound = self.dev_loss[line["series"]]
        return next((float(step) for step, mse in line["dev_mse"].items() if _mse(mse) <= bound), NEVER)


def attempted_all(line: Line) -> bool:
    """Whether the run came to its last step."""
    return bool(line["end"] == "done" and line["steps"] == line["total_steps"])


def survived(line: Line) -> bool:
    """Whether it did so with a network that still gives numbers."""
    return attempted_all(line) and line["test_mse"] is not None


def _mse(value: float | None) -> float:
    return NEVER if value is None else value


def _gain(line: Line) -> float:
    return float(line["naive"]["test"]) - _mse(line["test_mse"])


def wilson(successes: int, runs: int) -> tuple[float, float]:
    """95 % score interval of a rate (Wilson, J. Am. Stat. Assoc. 22, 1927)."""
    z, rate = 1.959964, successes / runs
    middle = rate + z * z / (2 * runs)
    half = z * math.sqrt(rate * (1 - rate) / runs + z * z / (4 * runs * runs))
    scale = 1 + z * z / runs
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


@final
@dataclass(frozen=True, slots=True)
class Row:
    """One arm in one condition."""

    runs: int
    successes: int
    survivors: int
    steps: float
    """Median over the survivors of the steps to the fixed dev loss; NaN without survivors."""

    @property
    def rate(self) -> float:
        return self.successes / self.runs

    @staticmethod
    def of(lines: Sequence[Line], yardstick: Yardstick) -> Row:
        steps = [yardstick.steps(line) for line in lines if survived(line)]
        # The lower of two middle values: between a number and never there is nothing.
        middle = sorted(steps)[(len(steps) - 1) // 2] if steps else math.nan
        return Row(len(lines), sum(map(yardstick.success, lines)), len(steps), middle)


def rows(lines: Sequence[Line], yardstick: Yardstick) -> dict[tuple[Condition, Arm], Row]:
    """All pairs of condition and arm that have cells."""
    found: dict[tuple[Condition, Arm], list[Line]] = {}
    for line in lines:
        found.setdefault((line["condition"], line["arm"]), []).append(line)
    return {pair: Row.of(mine, yardstick) for pair, mine in found.items()}


def report(lines: Sequence[Line], planned: int) -> str:
    """Both tables as Markdown, what was expected of them, and the check of the clean runs.

    Raises:
        NotWorthATable: see `Yardstick.of`.
    """
    yardstick = Yardstick.of(lines)
    table = rows(lines, yardstick)
    parts = [f"From {len(lines)} of {planned} cells.", *_clean(lines, yardstick, table)]
    for title, conditions in TABLES.items():
        present = [(c, arm) for c in conditions for arm in ARMS if (c, arm) in table]
        if present:
            head = "| faults | arm | runs | success, 95 % interval | to the last step, finite | steps to the dev loss |"
            parts += ["", f"**{title}**", "", head, "|---|---|---|---|---|---|"]
            parts += [_row(table[pair], *pair) for pair in present]
    return "\n".join([*parts, "", *_expectations(table)])


def _clean(lines: Sequence[Line], yardstick: Yardstick, table: Mapping[tuple[Condition, Arm], Row]) -> Iterator[str]:
    naive = {line["series"]: line["naive"]["test"] for line in lines}
    shares = ", ".join(f"{yardstick.gain[series] / naive[series]:.0%} ({series})" for series in SERIES)
    clean = table["clean", "d"]
    yield f"Clean runs beat the better naive forecast by {shares} of its MSE; {_rate(clean)} of {clean.runs} pass."
    if ("clean", "z") in table:
        nothing = table["clean", "z"]
        yield f"Without any update {_rate(nothing)} of {nothing.runs} pass."


def _row(row: Row, condition: Condition, arm: Arm) -> str:
    cells = (CONDITIONS[condition], ARMS[arm], row.runs, _rate(row), f"{row.survivors / row.runs:.1%}", _steps(row))
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _rate(row: Row) -> str:
    low, high = wilson(row.successes, row.runs)
    return f"{row.rate:.1%} ({100 * low:.1f}–{100 * high:.1f})"


def _steps(row: Row) -> str:
    if math.isnan(row.steps):
        return "no survivor"
    return f"{row.steps:g}" if row.steps < NEVER else "not reached"


def _expectations(table: Mapping[tuple[Condition, Arm], Row]) -> Iterator[str]:
    """What was expected before the first run, beside what came out."""
    for condition, words in CONDITIONS.items():
        ours, plain = table.get((condition, "d")), table.get((condition, "a"))
        if ours is None or plain is None:
            continue
        met = "yes" if ours.rate >= EXPECTED_SUCCESS else "no"
        rates = f"{ours.rate:.1%}; (a) {plain.rate:.1%}"
        yield f"- {words}: success of (d) at least {EXPECTED_SUCCESS:.0%}: **{met}** ({rates})."
        fewer = 1.0 - ours.steps / plain.steps if plain.steps < NEVER and ours.steps < NEVER else math.nan
        if math.isnan(plain.steps):
            found = "**nothing to compare with**, (a) has no survivor"
        elif math.isnan(fewer):
            found = f"**no** ({_steps(ours)} and {_steps(plain)})"
        else:
            found = (
                f"**{'yes' if fewer >= FEWER_STEPS else 'no'}** ({_steps(ours)} and {_steps(plain)}, {fewer:.0%} fewer)"
            )
        yield f"- {words}: at least {FEWER_STEPS:.0%} fewer steps than the survivors of (a): {found}."


COLOURS: Mapping[Arm, str] = {"a": "#c23b0b", "b": "#d98a1f", "c": "#7d8894", "d": "#0b6fc2"}


def draw(lines: Sequence[Line], path: Path) -> None:
    """Success rates with their intervals, and the steps to the fixed dev loss, as a PNG.

    Raises:
        NotWorthATable: see `Yardstick.of`.
    """
    yardstick = Yardstick.of(lines)
    table = rows(lines, yardstick)
    conditions = [condition for condition in CONDITIONS if any((condition, arm) in table for arm in ARMS)]
    figure = Figure(figsize=(10.5, 1.2 + 1.15 * len(conditions)), layout="constrained")
    success, steps = figure.subplots(1, 2, sharey=True)
    for place, condition in enumerate(conditions):
        for offset, arm in enumerate(ARMS):
            if (condition, arm) in table:
                height = place + 0.19 * (offset - 1.5)
                _dot(success, table[condition, arm], height, arm)
                reached = [yardstick.steps(ln) for ln in lines if (ln["condition"], ln["arm"]) == (condition, arm)]
                _strip(steps, [step for step in reached if step < NEVER], table[condition, arm].steps, height, arm)
    success.set_yticks(range(len(conditions)), [CONDITIONS[condition] for condition in conditions])
    success.set_ylim(max(len(conditions), 1) - 0.5, -0.5)
    success.set(xlim=(-3, 103), xlabel="successful runs, %, with 95 % interval")
    steps.set(xlabel="steps to the fixed dev loss: runs, median")
    steps.set_xlim(left=0)
    for axes in (success, steps):
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        for border in range(1, len(conditions)):
            axes.axhline(border - 0.5, color="black", linewidth=0.5, alpha=0.25)
    handles, labels = success.get_legend_handles_labels()
    shown = dict(zip(labels, handles, strict=True))
    figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=4, frameon=False, fontsize=9)
    FigureCanvasAgg(figure).print_figure(path, format="png", dpi=110)


def _dot(axes: Axes, row: Row, height: float, arm: Arm) -> None:
    low, high = (100 * end for end in wilson(row.successes, row.runs))
    axes.plot([low, high], [height, height], color=COLOURS[arm], linewidth=2, alpha=0.5)
    axes.plot(100 * row.rate, height, "o", color=COLOURS[arm], markersize=6, label=ARMS[arm], clip_on=False)


def _strip(axes: Axes, steps: Sequence[float], median: float, height: float, arm: Arm) -> None:
    if not steps:
        axes.text(1, height, "no run reaches it", color=COLOURS[arm], va="center", fontsize=8)
        return
    spread = np.random.default_rng(0).uniform(-0.06, 0.06, size=len(steps))
    axes.plot(steps, height + spread, "o", color=COLOURS[arm], markersize=2.5, alpha=0.3, markeredgewidth=0)
    axes.plot(median, height, "|", color=COLOURS[arm], markersize=14, markeredgewidth=2.5)
