"""A series ready for windows: read, split by time, and repaired as the recipe says, or refused with every reason.

Where a policy may act: on train rows always; on dev and test rows only with `policy.scope: all`. Otherwise bad values
there stop the run, so that two runs are always evaluated on the same rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import final

import numpy as np
import numpy.typing as npt

from paddle_stable.data.jumps import find_jumps
from paddle_stable.data.series_config import Cut, Policy, PolicyConfig, SeriesConfig
from paddle_stable.data.series_table import Finding, Floats, Table, Times, in_utc, read_table, show_time
from paddle_stable.errors import InputError, Problem

PARTS = ("train", "dev", "test")
_SHOWN = 5
"""Findings of one kind in one column that are listed one by one; the rest is counted."""


@final
@dataclass(frozen=True, slots=True)
class Series:
    """Rows in the order of time."""

    file: str
    columns: tuple[str, ...]
    values: Floats
    """[rows, columns]; NaN or inf only where the policy is `keep`."""
    times: Times | None
    """[rows]."""
    lines: npt.NDArray[np.int64]
    """[rows] 1-based line in the file."""
    parts: npt.NDArray[np.int64]
    """[rows] 0 train, 1 dev, 2 test; never decreases."""
    broken: npt.NDArray[np.bool_]
    """[rows] The step from the row before is a change of level that the recipe asks to leave out."""

    def when(self, row: int) -> str:
        """The time of a row, or "" without times."""
        return "" if self.times is None else show_time(self.times[row])

    def column(self, name: str) -> Floats:
        """[rows] Values of one column."""
        return self.values[:, self.columns.index(name)]


@final
@dataclass(frozen=True, slots=True)
class Loaded:
    """A series with what was found in it; not to be used while there are problems."""

    series: Series
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class _Decision:
    """What happens to one finding."""

    finding: Finding
    action: Policy
    reason: str = ""
    """Why the action is not the one of the recipe."""


def load_series(config: SeriesConfig) -> Loaded:
    """Read a file and apply the recipe's policies.

    Raises:
        InputError: when the file as a whole cannot be used, or a cut lies outside it. Bad rows come as `problems`,
            so that they can be reported together with what the windows find.
    """
    table = read_table(config)
    ends = _resolve_cuts(table, config)
    rows = ends[-1]
    parts = np.repeat(np.arange(len(ends)), np.diff([0, *ends]))
    findings = [finding for finding in table.findings if finding.row < rows]
    jumps, broken, level_problems, warnings = _jumps(table, parts, config.policy)
    decisions = [_decide(finding, int(parts[finding.row]), config.policy) for finding in [*findings, *jumps]]
    problems = [*_stops(table.file, decisions), *level_problems]
    keep_row = np.ones(rows, dtype=np.bool_)
    keep_row[[decision.finding.row for decision in decisions if decision.action == "drop"]] = False
    if not keep_row.any():
        first = min((d.finding for d in decisions if d.action == "drop"), key=lambda finding: finding.row)
        message = f"data.policy leaves out all {rows} rows; the first: {_sentence(first)}."
        raise InputError.single(table.file, message, line=first.line)
    values = table.values[:rows].copy()
    problems += _fill(values, keep_row, table, decisions)
    series = Series(
        table.file,
        table.columns,
        values[keep_row],
        None if table.times is None else table.times[:rows][keep_row],
        table.lines[:rows][keep_row],
        parts[keep_row],
        _moved_on(broken, keep_row)[keep_row],
    )
    return Loaded(series, tuple(problems), (*_changes(table.file, decisions, parts), *warnings))


def _moved_on(broken: npt.NDArray[np.bool_], keep_row: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """A change of level whose row is left out happens at the next row that stays."""
    kept = np.flatnonzero(keep_row)
    moved = np.zeros_like(broken)
    places = np.searchsorted(kept, np.flatnonzero(broken))
    moved[kept[places[places < len(kept)]]] = True
    return moved


def _resolve_cuts(table: Table, config: SeriesConfig) -> list[int]:
    """Row after the last one of train, dev and (if asked for) test, counted over all rows of the file."""
    total = len(table.values)
    asked = {"data.dev_from": config.dev_from, "data.test_from": config.test_from, "data.until": config.until}
    times = _times_in_order(table)
    ends: list[int] = []
    problems = []
    for key, cut in asked.items():
        if cut is None:
            continue
        row = _row_of(cut, times, total)
        if row >= total and (key != "data.until" or row > total):
            last = "" if times is None else f", the last one of {show_time(np.fmax.reduce(times))}"
            message = f"{key}: {cut} leaves no row after it; the file has {total} rows{last}."
            problems.append(Problem(table.file, 0, message))
        elif row == 0:
            problems.append(Problem(table.file, 0, f"{key}: {cut} leaves no row before it."))
        elif ends and row <= ends[-1]:
            message = f"{key}: {cut} is row {row}, which is not after the cut before it (row {ends[-1]})."
            problems.append(Problem(table.file, 0, message))
        else:
            ends.append(row)
    if problems:
        raise InputError("The series cannot be cut into train, dev and test:", problems)
    return ends if config.until is not None else [*ends, total]


def _times_in_order(table: Table) -> Times | None:
    """NaT also where a time is out of order: one that is far too late is not where a split begins."""
    if table.times is None:
        return None
    times = table.times.copy()
    times[[finding.row for finding in table.findings if finding.kind == "unordered_time"]] = np.datetime64("NaT")
    return times


def _row_of(cut: Cut, times: Times | None, total: int) -> int:
    """The first row at or after a cut; one more than there are when a date is never reached."""
    if isinstance(cut, int):
        return cut
    if isinstance(cut, float):
        return round(cut * total)
    assert times is not None  # the configuration was checked for it
    after = times >= in_utc(datetime.fromisoformat(cut))
    return int(np.argmax(after)) if after.any() else total + 1


def _decide(finding: Finding, part: int, policy: PolicyConfig) -> _Decision:
    """The recipe's policy, except where it would change the evaluation without being asked to."""
    action = policy.of(finding.kind)
    if part == 0 or action == "stop":
        return _Decision(finding, action)
    where = f"in {PARTS[part]}"
    if action == "keep" and finding.kind in ("missing", "infinite", "text"):
        return _Decision(finding, "stop", f"{where}, where `keep` never applies: a metric would be NaN")
    if action in ("drop", "forward_fill") and policy.scope == "train":
        if finding.kind == "jump":
            return _Decision(finding, "keep")
        reason = f"{where}, where `{action}` applies only with data.policy.scope: all, since it changes the evaluation"
        return _Decision(finding, "stop", reason)
    return _Decision(finding, action)


def _jumps(
    table: Table, parts: npt.NDArray[np.int64], policy: PolicyConfig
) -> tuple[list[Finding], npt.NDArray[np.bool_], list[Problem], list[str]]:
    """Jumps that come back (as findings), and changes of level: rows marked broken, problems and warnings."""
    rows = len(parts)
    train_rows = int((parts == 0).sum())
    excursions: list[Finding] = []
    broken = np.zeros(rows, dtype=np.bool_)
    problems: list[Problem] = []
    warnings: list[str] = []
    for column, name in enumerate(table.columns):
        levels = []
        for jump in find_jumps(table.values[:rows, column], train_rows):
            for row in jump.rows:
                excursions.append(Finding("jump", row, int(table.lines[row]), name, f"jumps {jump}"))
            if not jump.rows:
                levels.append(Finding("jump", jump.row, int(table.lines[jump.row]), name, f"jumps {jump}"))
        decisions = [_decide(finding, int(parts[finding.row]), policy) for finding in levels]
        problems += _stops(table.file, decisions)
        broken[[d.finding.row for d in decisions if d.action in ("drop", "forward_fill")]] = True
        kept = [decision.finding for decision in decisions if decision.action != "stop"]
        warnings += [f"{problem}" for problem in _listed(table.file, kept, "")]
    return excursions, broken, problems, warnings


def _stops(file: str, decisions: Iterable[_Decision]) -> list[Problem]:
    """The findings that stop the run, by kind and column, a few of each in full."""
    groups: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for decision in decisions:
        if decision.action == "stop":
            groups[decision.finding.kind, decision.finding.column, decision.reason].append(decision.finding)
    problems: list[Problem] = []
    for (kind, _, reason), findings in groups.items():
        problems += _listed(file, findings, reason or f"correct it or choose data.policy.{kind}")
    return problems


def _listed(file: str, findings: Sequence[Finding], advice: str) -> list[Problem]:
    """The first few one by one, the rest as a count."""
    ending = f" ({advice})." if advice else "."
    shown = [Problem(file, finding.line, f"{_sentence(finding)}{ending}") for finding in findings[:_SHOWN]]
    more = findings[_SHOWN:]
    if more:
        subject = f"{more[0].column}: " if more[0].column else ""
        message = f"{subject}{len(more)} more like this, up to line {more[-1].line}{ending}"
        shown.append(Problem(file, more[0].line, message))
    return shown


def _sentence(finding: Finding) -> str:
    return f"{finding.column} {finding.message}".lstrip()


def _fill(
    values: Floats, keep_row: npt.NDArray[np.bool_], table: Table, decisions: Iterable[_Decision]
) -> list[Problem]:
    """Repeat the last value where asked to, in place; what has no value before it is a problem."""
    cells = sorted(
        {
            (decision.finding.row, table.columns.index(decision.finding.column))
            for decision in decisions
            if decision.action == "forward_fill" and keep_row[decision.finding.row]
        }
    )
    problems = []
    for row, column in cells:
        before = np.flatnonzero(keep_row[:row])
        if not len(before):
            message = f"{table.columns[column]} has no earlier row to be filled from. Use drop instead."
            problems.append(Problem(table.file, int(table.lines[row]), message))
        else:
            values[row, column] = values[before[-1], column]
    return problems


def _changes(file: str, decisions: Iterable[_Decision], parts: npt.NDArray[np.int64]) -> list[str]:
    """One sentence for each kind of repair: how many, in which split, where the first ones are."""
    groups: dict[tuple[str, Policy], list[Finding]] = defaultdict(list)
    for decision in decisions:
        if decision.action != "stop":
            groups[decision.finding.kind, decision.action].append(decision.finding)
    verbs = {"drop": "left out", "forward_fill": "filled from the row before", "keep": "kept as they are"}
    sentences = []
    for (kind, action), findings in groups.items():
        rows = sorted({finding.row: finding for finding in findings}.items())
        of_part = np.bincount([parts[row] for row, _ in rows], minlength=len(PARTS))
        where = ", ".join(f"{count} in {name}" for name, count in zip(PARTS, of_part, strict=True) if count)
        first = "; ".join(f"{file}:{finding.line} {_sentence(finding)}" for _, finding in rows[:_SHOWN])
        dots = f"; {len(rows) - _SHOWN} more" if len(rows) > _SHOWN else ""
        sentences.append(f"{kind.replace('_', ' ')}: rows {verbs[action]}: {where} ({first}{dots}).")
    return sentences
