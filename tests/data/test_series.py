"""What is read from a series' file, what is refused, and what a policy may change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.series import Loaded, load_series
from paddle_stable.data.series_config import Policy
from paddle_stable.errors import InputError

from .series_sample import DEV, ROWS, TEST, TRAIN, config, spoil, table_lines, write


def load(folder: Path, lines: list[str], **changes: Any) -> Loaded:
    return load_series(config(write(folder, lines), **changes))


BAD_ROWS = {
    "missing": ["{day},,50", "{day},.,50", "{day},NA,50", "{day},NaN,50", "{day}, null ,50"],
    "infinite": ["{day},inf,50", "{day},-Infinity,50", "{day},1e999,50"],
    "text": ["{day},abc,50", '{day},"1,234.5",50', "{day},1_000,50", "{day},12 EUR,50"],
    "ragged": ["{day},100", "{day},100,50,7", "yesterday,100,50"],
    "repeated_time": ["2020-01-10,100,50"],
    "unordered_time": ["2019-12-31,100,50"],
}
EVERY_BAD_ROW = [(kind, text) for kind, texts in BAD_ROWS.items() for text in texts]


@pytest.mark.parametrize(("kind", "text"), EVERY_BAD_ROW)
@pytest.mark.parametrize("line", [TRAIN, DEV, TEST])
def test_a_bad_row_is_reported_by_file_and_line(tmp_path: Path, kind: str, text: str, line: int) -> None:
    if kind == "repeated_time":
        text = text.replace("2020-01-10", str(np.datetime64("2020-01-01") + line - 3))
    loaded = load(tmp_path, spoil(line, text))
    assert [(problem.file, problem.line) for problem in loaded.problems] == [(str(tmp_path / "series.csv"), line)]
    assert f"data.policy.{kind}" in loaded.problems[0].message


def test_everything_that_is_wrong_is_reported_at_once(tmp_path: Path) -> None:
    lines = table_lines()
    for line, text in {
        5: "2020-01-04,,50",
        9: "2020-01-08,100",
        14: "2020-01-13,x,inf",
        33: "2020-01-01,100,50",
    }.items():
        lines[line - 1] = text
    problems = load(tmp_path, lines).problems
    assert sorted(problem.line for problem in problems) == [5, 9, 14, 14, 33]


def test_many_findings_of_one_kind_are_counted_after_the_first_five(tmp_path: Path) -> None:
    lines = [line if number == 0 else line.rsplit(",", 1)[0] + "," for number, line in enumerate(table_lines())]
    problems = load(tmp_path, lines, dev_from=38, until=40, test_from=None).problems
    assert [problem.line for problem in problems] == [2, 3, 4, 5, 6, 7]
    assert "b: 35 more like this, up to line 41" in problems[-1].message


@pytest.mark.parametrize("kind", ["missing", "infinite", "text", "ragged", "repeated_time", "unordered_time"])
def test_drop_leaves_the_row_out_and_says_so(tmp_path: Path, kind: str) -> None:
    lines = spoil(TRAIN, BAD_ROWS[kind][0])
    loaded = load(tmp_path, lines, policy={kind: "drop"})
    assert loaded.problems == ()
    assert TRAIN not in loaded.series.lines
    assert len(loaded.series.values) == ROWS - 1
    assert f"series.csv:{TRAIN}" in loaded.warnings[0]
    assert "left out: 1 in train" in loaded.warnings[0]


def test_of_rows_with_one_time_too_late_that_one_is_left_out_and_the_splits_stay(tmp_path: Path) -> None:
    cuts = {"dev_from": "2020-01-29", "test_from": "2020-02-04"}
    clean = load(tmp_path, table_lines(), **cuts).series
    lines = spoil(TRAIN, "2031-01-11,100,50")
    [problem] = load(tmp_path, lines, **cuts).problems
    assert problem.line == TRAIN
    dropped = load(tmp_path, lines, **cuts, policy={"unordered_time": "drop"})
    assert dropped.problems == ()
    kept = clean.lines != TRAIN
    assert dropped.series.lines.tolist() == clean.lines[kept].tolist()
    assert dropped.series.parts.tolist() == clean.parts[kept].tolist()


def test_a_policy_that_leaves_nothing_is_refused_with_the_first_reason(tmp_path: Path) -> None:
    lines = [line if number == 0 else f"{line}," for number, line in enumerate(table_lines())]
    said = r"series\.csv:2  data\.policy leaves out all 40 rows; the first: has 4 cells, expected 3\."
    with pytest.raises(InputError, match=said):
        load(tmp_path, lines, policy={"ragged": "drop", "scope": "all"}, time_column=None)


@pytest.mark.parametrize("kind", ["missing", "infinite", "text"])
def test_forward_fill_repeats_the_last_value_of_the_column_alone(tmp_path: Path, kind: str) -> None:
    lines = spoil(TRAIN, BAD_ROWS[kind][0])
    lines[TRAIN] = lines[TRAIN].split(",")[0] + ",,77"  # the next row lacks it too
    loaded = load(tmp_path, lines, policy={kind: "forward_fill", "missing": "forward_fill"})
    assert loaded.problems == ()
    row = TRAIN - 2
    before = loaded.series.values[row - 1, 0]
    assert loaded.series.values[row : row + 2].tolist() == [[before, 50.0], [before, 77.0]]


def test_forward_fill_takes_the_value_of_a_row_that_is_there(tmp_path: Path) -> None:
    lines = spoil(TRAIN, "{day},123,x")
    lines[TRAIN] = lines[TRAIN].split(",")[0] + ",,77"
    loaded = load(tmp_path, lines, policy={"text": "drop", "missing": "forward_fill"})
    assert loaded.series.values[TRAIN - 2, 0] == float(lines[TRAIN - 2].split(",")[1])  # not the dropped row's 123


def test_forward_fill_needs_a_row_before(tmp_path: Path) -> None:
    loaded = load(tmp_path, spoil(2, "{day},,50"), policy={"missing": "forward_fill"})
    assert [problem.line for problem in loaded.problems] == [2]
    assert "no earlier row" in loaded.problems[0].message


def test_a_row_that_is_left_out_need_not_be_filled(tmp_path: Path) -> None:
    loaded = load(tmp_path, spoil(2, "{day},,x"), policy={"missing": "forward_fill", "text": "drop"})
    assert loaded.problems == ()
    assert loaded.series.lines[0] == 3


@pytest.mark.parametrize(("kind", "value"), [("missing", np.nan), ("infinite", np.inf), ("text", np.nan)])
def test_keep_lets_it_through(tmp_path: Path, kind: str, value: float) -> None:
    loaded = load(tmp_path, spoil(TRAIN, BAD_ROWS[kind][0]), policy={kind: "keep"})
    assert loaded.problems == ()
    np.testing.assert_array_equal(loaded.series.values[TRAIN - 2, 0], value)
    assert len(loaded.series.values) == ROWS


CHANGES = [
    *((kind, policy) for kind in ("missing", "infinite", "text") for policy in ("drop", "forward_fill", "keep")),
    *((kind, "drop") for kind in ("ragged", "repeated_time", "unordered_time")),
]


@pytest.mark.parametrize("line", [DEV, TEST])
@pytest.mark.parametrize(("kind", "policy"), CHANGES)
def test_the_evaluation_never_changes_silently(tmp_path: Path, kind: str, policy: str, line: int) -> None:
    text = BAD_ROWS[kind][0].replace("2020-01-10", str(np.datetime64("2020-01-01") + line - 3))
    stopped = load(tmp_path, spoil(line, text), policy={kind: policy})
    assert [problem.line for problem in stopped.problems] == [line]
    assert "never applies" in str(stopped.problems) or "policy.scope" in str(stopped.problems)
    asked = load(tmp_path, spoil(line, text), policy={kind: policy, "scope": "all"})
    if policy == "keep":
        assert [problem.line for problem in asked.problems] == [line]
    else:
        assert asked.problems == ()
        assert f"1 in {'dev' if line == DEV else 'test'}" in asked.warnings[0]


def test_rows_after_the_last_split_do_not_matter(tmp_path: Path) -> None:
    assert load(tmp_path, spoil(41, "{day},nonsense"), until=39).problems == ()


def test_splits_lie_where_the_file_says_whatever_is_dropped(tmp_path: Path) -> None:
    clean = load(tmp_path, table_lines(), dev_from=0.7, test_from=0.85).series
    lines = spoil(TRAIN, "{day},,50")
    dropped = load(tmp_path, lines, dev_from=0.7, test_from=0.85, policy={"missing": "drop"}).series
    for part in (1, 2):
        assert clean.lines[clean.parts == part].tolist() == dropped.lines[dropped.parts == part].tolist()


def test_columns_that_are_not_used_may_hold_anything(tmp_path: Path) -> None:
    lines = [f"{line},{'note' if row == 0 else 'some text'}" for row, line in enumerate(table_lines())]
    features = [{"column": "a"}, {"column": "b"}]
    assert load(tmp_path, lines, features=features).problems == ()
    assert "note is not a number ('some text')" in str(load(tmp_path, lines).problems[0])


@pytest.mark.parametrize("cuts", [(28, 34), (0.7, 0.85), ("2020-01-29", "2020-02-04")])
def test_cuts_are_fractions_rows_or_dates(tmp_path: Path, cuts: tuple[Any, Any]) -> None:
    series = load(tmp_path, table_lines(), dev_from=cuts[0], test_from=cuts[1]).series
    assert np.bincount(series.parts).tolist() == [28, 6, 6]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dev_from": 34, "test_from": 28}, "data.test_from: 28 is row 28, which is not after"),
        (
            {"dev_from": 28, "test_from": 41},
            "data.test_from: 41 leaves no row after it; the file has 40 rows, the last one of 2020-02-09.",
        ),
        ({"dev_from": "2030-01-01", "test_from": None}, "data.dev_from: 2030-01-01 leaves no row after it"),
        ({"dev_from": "2000-01-01"}, "data.dev_from: 2000-01-01 leaves no row"),
        ({"dev_from": 28, "test_from": 40}, "data.test_from: 40 leaves no row after it"),
        ({"until": 41}, "data.until: 41 leaves no row after it"),
        ({"until": 34}, "data.until: 34 is row 34, which is not after"),
    ],
)
def test_cuts_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as raised:
        load(tmp_path, table_lines(), **changes)
    assert expected in str(raised.value)


def unit_error(factor: float, rows: int, line: int = TRAIN) -> list[str]:
    """The table with column a multiplied for a few rows; `rows` of 0 stands for: up to the end."""
    lines = table_lines()
    for number in range(line - 1, line - 1 + rows if rows else len(lines)):
        day, a, b = lines[number].split(",")
        lines[number] = f"{day},{float(a) * factor},{b}"
    return lines


@pytest.mark.parametrize("factor", [1e4, 1e-3, 3.0, 0.5])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_wrong_unit_for_a_few_rows_is_named_and_can_be_left_out(tmp_path: Path, factor: float, rows: int) -> None:
    lines = unit_error(factor, rows)
    kept = load(tmp_path, lines)
    assert kept.problems == ()
    assert f"series.csv:{TRAIN} a jumps x" in kept.warnings[0]
    assert "like a wrong unit" in kept.warnings[0]
    assert [problem.line for problem in load(tmp_path, lines, policy={"jump": "stop"}).problems] == [
        *range(TRAIN, TRAIN + rows)
    ]
    dropped = load(tmp_path, lines, policy={"jump": "drop"}).series
    assert set(range(2, ROWS + 2)) - set(dropped.lines) == set(range(TRAIN, TRAIN + rows))
    filled = load(tmp_path, lines, policy={"jump": "forward_fill"}).series
    assert filled.values[TRAIN - 2 : TRAIN - 2 + rows, 0].tolist() == [filled.values[TRAIN - 3, 0]] * rows


@pytest.mark.parametrize("factor", [0.5, 2.0, 100.0])
def test_a_change_of_level_is_named_and_its_step_can_be_left_out(tmp_path: Path, factor: float) -> None:
    lines = unit_error(factor, 0)
    kept = load(tmp_path, lines)
    assert kept.problems == ()
    assert [f"series.csv:{TRAIN}" in warning and "share split" in warning for warning in kept.warnings] == [True]
    assert not kept.series.broken.any()
    left_out = load(tmp_path, lines, policy={"jump": "drop"}).series
    assert np.flatnonzero(left_out.broken).tolist() == [TRAIN - 2]
    assert len(left_out.values) == ROWS


def test_a_change_of_level_whose_row_is_left_out_still_parts_the_rows_around_it(tmp_path: Path) -> None:
    lines = unit_error(0.5, 0)
    for line in (TRAIN, TRAIN + 1):
        lines[line - 1] = lines[line - 1].rsplit(",", 1)[0] + ","
    series = load(tmp_path, lines, policy={"jump": "drop", "missing": "drop"}).series
    assert series.lines[series.broken].tolist() == [TRAIN + 2]


def test_a_change_of_level_in_the_last_row_parts_nothing_once_that_is_left_out(tmp_path: Path) -> None:
    lines = unit_error(0.5, 0, line=ROWS + 1)
    lines[-1] = lines[-1].rsplit(",", 1)[0] + ","
    series = load(tmp_path, lines, policy={"jump": "drop", "missing": "drop", "scope": "all"}).series
    assert len(series.lines) == ROWS - 1
    assert not series.broken.any()


@pytest.mark.parametrize("policy", ["drop", "forward_fill"])
def test_a_jump_in_the_evaluation_stays_unless_asked(tmp_path: Path, policy: Policy) -> None:
    lines = unit_error(1e4, 1, line=DEV)
    loaded = load(tmp_path, lines, policy={"jump": policy})
    assert loaded.problems == ()
    assert loaded.series.values.max() > 1e5
    assert "kept as they are: 1 in dev" in loaded.warnings[0]
    assert load(tmp_path, lines, policy={"jump": policy, "scope": "all"}).series.values.max() < 1e3
