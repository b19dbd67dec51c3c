"""Windows over a series, cut so that nothing leaks from one split into another.

A window that ends in row t sees rows t-lookback+1 ... t and forecasts rows t+1 ... t+horizon. It belongs to a split
when **all its target rows** lie in that split; a window whose target reaches over a cut belongs to none. What it sees
may lie before the cut: those rows are in the past of every target, and known when the forecast is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.dataset import Array, Dataset, Sample, SampleOrigin
from paddle_stable.data.series import PARTS, Series, load_series
from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.data.series_features import Derived, Scaling, derive
from paddle_stable.data.series_table import Floats
from paddle_stable.digest import digest
from paddle_stable.errors import InputError, Problem

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """A series with all that is computed of its rows, before windows are chosen."""

    series: Series
    config: SeriesConfig
    derived: Derived

    @property
    def before(self) -> int:
        """Rows before a window's last seen row that its numbers are computed from."""
        return max(self.config.lookback - 1 + self.derived.input_before, self.derived.target_before)

    @property
    def train(self) -> Bools:
        """[rows]."""
        return np.asarray(self.series.parts == 0)

    def candidates(self, part: int) -> Rows:
        """Last seen rows of the windows whose target rows all lie in a split, and that have enough rows before."""
        ends = np.arange(self.before, len(self.series.values) - self.config.horizon)
        parts = self.series.parts
        return np.asarray(ends[(parts[ends + 1] == part) & (parts[ends + self.config.horizon] == part)])

    def problem(self, row: int, message: str) -> Problem:
        """Something wrong in a row."""
        return Problem(self.series.file, int(self.series.lines[row]), message)


@final
@dataclass(frozen=True, slots=True)
class Fitted:
    """What training rows alone determine."""

    features: tuple[str, ...]
    """Names of the inputs, in the order of the columns of `input_scaling`."""
    input_scaling: Scaling
    target_scaling: Scaling
    constant: Floats
    """[outputs] Mean training target: one of the two naive forecasts."""


@final
class SeriesWindows(Dataset):
    """All windows of one split."""

    def __init__(self, name: str, frame: Frame, fitted: Fitted, ends: Rows) -> None:
        """`ends` [windows] is the last seen row of every window."""
        series, derived, config = frame.series, frame.derived, frame.config
        self.name = name
        """train, dev or test."""
        self.fitted = fitted
        self.targets = derived.targets[ends]
        """[windows, outputs] in original units."""
        self.last_values = derived.last_values[ends]
        """[windows, outputs] last-value forecasts in original units."""
        self.times = None if series.times is None else series.times[ends + config.horizon]
        """[windows] time of the last target row."""
        self.lines = series.lines[ends + config.horizon]
        """[windows] line of the last target row."""
        self._frame = frame
        self._ends = ends
        with np.errstate(over="ignore"):  # a value kept although it is beyond float32
            self._inputs = fitted.input_scaling.apply(derived.inputs).astype(np.float32)
            self._scaled_targets = fitted.target_scaling.apply(derived.targets).astype(np.float32)

    def __len__(self) -> int:
        return len(self._ends)

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        """`inputs` [lookback, features] and `target` [outputs], float32, both scaled. Nothing in it is random."""
        end = int(self._ends[index])
        first = end - self._frame.config.lookback + 1
        return {"inputs": self._inputs[first : end + 1], "target": self._scaled_targets[end]}

    def origin(self, index: int) -> SampleOrigin:
        """All rows that the window's numbers are computed from, by line of the file; the first bad cell is named."""
        series = self._frame.series
        end = int(self._ends[index])
        first, last = end - self._frame.before, end + self._frame.config.horizon
        excerpt = f"rows {series.lines[first]}–{series.lines[last]}"
        if series.times is not None:
            excerpt += f", {series.when(first)}…{series.when(last)}"
        bad = np.argwhere(~np.isfinite(series.values[first : last + 1]))
        if len(bad):
            row, column = first + int(bad[0][0]), int(bad[0][1])
            excerpt += f", {series.columns[column]} is {series.values[row, column]} in row {series.lines[row]}"
        return SampleOrigin(series.file, int(series.lines[first]), excerpt)

    def lengths(self) -> None:
        """All windows are alike."""
        return None

    def digest(self) -> str:
        """Of the scaled inputs and targets up to the split's last row, and of which rows are in its windows."""
        rows = int(self._ends.max(initial=-1)) + 1
        return digest({"inputs": self._inputs[:rows], "targets": self._scaled_targets[:rows], "ends": self._ends})

    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        """`inputs` [windows, lookback, features] and `target` [windows, outputs]."""
        return {name: np.stack([sample[name] for sample in samples]) for name in ("inputs", "target")}


@final
@dataclass(frozen=True, slots=True)
class WindowSplits:
    """The splits that the recipe asks for, by name, and what was found on the way."""

    datasets: Mapping[str, SeriesWindows]
    warnings: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class _Checked:
    """Problems and warnings of one stage, beside its result."""

    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def load_windows(config: SeriesConfig) -> WindowSplits:
    """Read, check, repair, derive, cut and scale.

    Raises:
        InputError: with everything that is wrong, by file and line.
    """
    loaded = load_series(config)
    frame, constants = _moving(Frame(loaded.series, config, derive(loaded.series, config)))
    stages = [constants]
    bad = _bad_numbers(frame)
    ends: dict[str, Rows] = {}
    for part, name in enumerate(PARTS[: 2 if config.test_from is None else 3]):
        rows, checked = _usable(frame, bad, part)
        ends[name] = rows[:: config.stride if part == 0 else 1]
        stages.append(checked)
    problems = [*loaded.problems, *(problem for stage in stages for problem in stage.problems)]
    if problems:
        raise InputError(f"The series in {config.file} cannot be used as it is:", problems)
    warnings = [*loaded.warnings, *(warning for stage in stages for warning in stage.warnings)]
    fitted = _fit(frame)
    return WindowSplits(
        {name: SeriesWindows(name, frame, fitted, rows) for name, rows in ends.items()}, tuple(warnings)
    )


def _moving(frame: Frame) -> tuple[Frame, _Checked]:
    """Apply the policy for features that never move in the training rows; a target must move."""
    policy = frame.config.policy.constant
    derived, train = frame.derived, frame.train
    problems, warnings, moving = [], [], []
    for number, feature in enumerate(derived.features):
        found = _stillness(derived.inputs[train, number])
        where = f"in the {int(train.sum())} training rows"
        if found is None or (policy == "keep" and found != _EMPTY):
            moving.append(number)
        elif policy == "drop":
            warnings.append(f"Feature {feature.name} is left out: it {found} {where}.")
        else:
            message = f"feature {feature.name} {found} {where}. Leave it out, or see data.policy.constant."
            problems.append(frame.problem(0, message))
    ends = frame.candidates(0)  # without any, that is the problem, and is reported as such
    outputs = range(derived.targets.shape[1]) if len(ends) else ()
    still = [_stillness(derived.targets[ends, output]) for output in outputs]
    for found in [found for found in still if found is not None and (policy != "keep" or found == _EMPTY)][:1]:
        name = f"{frame.config.target_transform} of {frame.config.target_column}"
        problems.append(frame.problem(0, f"the target, {name}, {found} in the training rows: nothing to learn from."))
    if not moving:
        if policy == "drop":
            problems.append(frame.problem(0, "no feature is left that moves in the training rows."))
        return frame, _Checked(tuple(problems), tuple(warnings))
    features = tuple(derived.features[number] for number in moving)
    derived = replace(derived, features=features, inputs=derived.inputs[:, moving])
    return replace(frame, derived=derived), _Checked(tuple(problems), tuple(warnings))


_EMPTY = "has no value"


def _stillness(values: Floats) -> str | None:
    """Why a column teaches nothing, or None when it moves."""
    known = values[np.isfinite(values)]
    if not len(known):
        return _EMPTY
    return f"is always {known[0]:g}" if known.max() == known.min() else None


@final
@dataclass(frozen=True, slots=True)
class _BadNumbers:
    """Features and targets that are not finite, by why: [rows, features + 1], the last column for the target."""

    undefined: Bools
    """A logarithm that does not exist, of values that do."""
    poisoned: Bools
    """A value of the file that is NaN or inf, because the policy keeps it."""


def _bad_numbers(frame: Frame) -> _BadNumbers:
    series, derived = frame.series, frame.derived
    spans = [(feature.column, feature.reach, 0) for feature in derived.features]
    spans.append((frame.config.target_column, derived.target_before, frame.config.horizon))
    target_is_bad = ~np.isfinite(derived.targets + derived.last_values).all(axis=1, keepdims=True)
    bad = np.concatenate([~np.isfinite(derived.inputs), target_is_bad], axis=1)
    reached, poisoned = np.zeros_like(bad), np.zeros_like(bad)
    for number, (column, before, after) in enumerate(spans):
        rows = np.arange(before, len(bad) - after)
        reached[rows, number] = True
        source_is_bad = ~np.isfinite(series.column(column))
        poisoned[rows, number] = _any_between(source_is_bad, rows - before, rows + after)
    return _BadNumbers(bad & reached & ~poisoned, bad & poisoned)


def _any_between(mask: Bools, first: Rows, last: Rows) -> Bools:
    """Whether any of rows first ... last (inclusive) is set, for every pair."""
    running = np.concatenate([[0], np.cumsum(mask)])
    return np.asarray(running[last + 1] > running[first])


def _usable(frame: Frame, bad: _BadNumbers, part: int) -> tuple[Rows, _Checked]:
    """The windows of one split that can be used, what was left out, and what must not be left out."""
    config, ends, name = frame.config, frame.candidates(part), PARTS[part]
    first = ends - config.lookback + 1
    undefined, poisoned = (
        _any_between(mask[:, :-1].any(axis=1), first, ends) | mask[ends, -1] for mask in (bad.undefined, bad.poisoned)
    )
    policy = config.policy.undefined
    if part and (policy == "keep" or config.policy.scope == "train"):
        policy = "stop"  # a metric must stay a number, and the evaluation never changes silently
    problems = []
    if policy == "stop" and undefined.any():
        problems.append(_undefined_problem(frame, bad.undefined, ends[undefined], part))
    reasons = {
        "reach across a change of level": _any_between(
            frame.series.broken, ends - frame.before + 1, ends + config.horizon
        ),
        "need a logarithm that does not exist": undefined & (policy == "drop"),
        # A training window lets it through to the model: that is what `keep` is for.
        "see a value that `keep` left as NaN or inf in the training rows": poisoned & (part > 0),
    }
    warnings = [
        f"{int(lost.sum())} of {len(ends)} {name} windows are left out: they {reason}."
        for reason, lost in reasons.items()
        if lost.any()
    ]
    usable = ends[~np.logical_or.reduce(list(reasons.values()))]
    if not len(usable):
        problems.append(_no_window(frame, part))
    return usable, _Checked(tuple(problems), tuple(warnings))


def _undefined_problem(frame: Frame, undefined: Bools, ends: Rows, part: int) -> Problem:
    """Name the first number that does not exist, and how many windows need such numbers."""
    config, end = frame.config, int(ends[0])
    first = end - config.lookback + 1
    in_inputs = np.argwhere(undefined[first : end + 1, :-1])
    if len(in_inputs):
        row = first + int(in_inputs[0][0])
        what = f"feature {frame.derived.features[int(in_inputs[0][1])].name}"
    else:
        row, what = end + 1, f"the target, {config.target_transform} of {config.target_column},"
    scope = " (and data.policy.scope)" if part else ""
    return frame.problem(
        row,
        f"{what} would be the logarithm of a value that is not positive, or of the volatility of rows that do not "
        f"move; {len(ends)} {PARTS[part]} windows need such a number. Choose another transform, or see "
        f"data.policy.undefined{scope}.",
    )


def _no_window(frame: Frame, part: int) -> Problem:
    """Say what a window needs and what there is."""
    rows = np.flatnonzero(frame.series.parts == part)
    message = (
        f"no {PARTS[part]} window is left: the split has {len(rows)} rows, and a window needs {frame.before + 1} rows "
        f"before its target and {frame.config.horizon} target rows inside. Move the cuts (data.dev_from, "
        "data.test_from), or lower data.lookback or data.horizon."
    )
    return frame.problem(int(rows[0]), message) if len(rows) else Problem(frame.series.file, 0, message)


def _fit(frame: Frame) -> Fitted:
    """Everything that is learnt from the data before training: from train rows, and targets inside train, alone."""
    config, derived = frame.config, frame.derived
    targets = derived.targets[frame.candidates(0)]
    known = targets[np.isfinite(targets).all(axis=1)]
    if config.target_transform == "value":  # one scale for all outputs: that of the column's training rows
        values = np.repeat(frame.series.column(config.target_column)[frame.train, None], known.shape[1], axis=1)
    else:
        values = known
    return Fitted(
        tuple(feature.name for feature in derived.features),
        Scaling.fit(derived.inputs[frame.train], config.scaling),
        Scaling.fit(values, config.scaling),
        known.mean(axis=0),
    )
