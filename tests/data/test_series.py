"""What is read from a series' file, what is refused, and what a policy may change."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from paddle_stable.data.jumps import find_jumps
from paddle_stable.data.series import Loaded, load_series
from paddle_stable.data.series_config import Policy, SeriesConfig
from paddle_stable.data.series_table import read_table
from paddle_stable.errors import InputError

ROWS = 40
TRAIN, DEV, TEST = 12, 30, 36
"""Lines of the file that lie in train, dev and test: dev begins at line 30 (row 28), test at line 36 (row 34)."""


def table_lines() -> list[str]:
    """A header and 40 days of two columns that move gently."""
    days = np.datetime64("2020-01-01") + np.arange(ROWS)
    return ["day,a,b", *(f"{day},{100 + row % 7},{50 + row % 5}" for row, day in enumerate(days))]


def write(folder: Path, lines: list[str]) -> Path:
    path = folder / "series.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def config(path: Path, **changes: Any) -> SeriesConfig:
    settings: dict[str, Any] = {
        "file": str(path),
        "time_column": "day",
        "target_column": "a",
        "lookback": 4,
        "dev_from": 28,
        "test_from": 34,
    }
    return SeriesConfig(**{**settings, **changes})


def load(folder: Path, lines: list[str], **changes: Any) -> Loaded:
    return load_series(config(write(folder, lines), **changes))


def spoil(line: int, text: str) -> list[str]:
    """The table with another text in one line (1-based)."""
    lines = table_lines()
    lines[line - 1] = text.format(day=lines[line - 1].split(",")[0])
    return lines


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


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("compressed", [False, True])
def test_line_endings_bom_blank_lines_and_compression_change_nothing(
    tmp_path: Path, ending: str, bom: bytes, compressed: bool
) -> None:
    expected = load(tmp_path, table_lines()).series
    raw = bom + ending.join([*table_lines(), ""]).encode()
    path = tmp_path / ("other.csv.gz" if compressed else "other.csv")
    path.write_bytes(gzip.compress(raw) if compressed else raw)
    loaded = load_series(config(path))
    assert loaded.problems == ()
    np.testing.assert_array_equal(loaded.series.values, expected.values)
    step = ending.count("\n")
    assert loaded.series.lines.tolist() == [1 + step * row for row in range(1, ROWS + 1)]


def test_a_quoted_cell_over_two_lines_does_not_shift_the_line_numbers(tmp_path: Path) -> None:
    lines = ["day,note,a,b", *(line.replace(",", ',"x",', 1) for line in table_lines()[1:])]
    lines[3] = lines[3].replace('"x"', '"x\ny"')
    lines[10] = lines[10].replace(",10", ",z")
    loaded = load(tmp_path, lines, features=[{"column": "a"}, {"column": "b"}])
    assert [problem.line for problem in loaded.problems] == [12]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "no row of data"),
        (b"day,a,b\n", "no row of data"),
        (b"day,a\n2020-01-01,1\n", "data.features[1].column: no column 'b'"),
        (b"day,b\n2020-01-01,1\n", "data.target_column: no column 'a'"),
        (b"a,b\n1,2\n", "data.time_column: no column 'day'"),
        (b"day,a,a,b\n2020-01-01,1,2,3\n", "two columns are called 'a'"),
        (b"1,2,3\n4,5,6\n", "data.header: false"),
        (b"day,a,b\n2020-01-01,\xff,3\n", "series.csv:2  is not UTF-8: byte 0xff"),
        (b"day,a,b\n" + b"2021-01-02,1,1\n2021-01-01,2,1\n2020-12-31,3,1\n2020-12-30,1,1\n", "sorted from new to old"),
    ],
)
def test_a_file_that_cannot_be_used_as_a_whole_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as raised:
        load_series(config(path, features=[{"column": "a"}, {"column": "b"}]))
    assert expected in str(raised.value)


def test_absent_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_series(config(tmp_path / "absent.csv"))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress("\n".join(table_lines()).encode())[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        load_series(config(tmp_path / "cut.csv.gz"))


def test_columns_that_are_not_used_may_hold_anything(tmp_path: Path) -> None:
    lines = [f"{line},{'note' if row == 0 else 'some text'}" for row, line in enumerate(table_lines())]
    features = [{"column": "a"}, {"column": "b"}]
    assert load(tmp_path, lines, features=features).problems == ()
    assert "note is not a number ('some text')" in str(load(tmp_path, lines).problems[0])


def test_a_file_without_header_and_times_gets_numbered_columns(tmp_path: Path) -> None:
    lines = [line.split(",", 1)[1] for line in table_lines()[1:]]
    series = load(tmp_path, lines, header=False, time_column=None, target_column="column_2").series
    assert series.columns == ("column_1", "column_2")
    assert series.lines.tolist() == list(range(1, ROWS + 1))
    assert series.times is None


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (None, "{0}"),
        (None, "{0} 00:00:00"),
        (None, "{0}T02:00:00+02:00"),
        (None, "{0}T00:00:00Z"),
        ("%Y/%m/%d", "{1}"),
    ],
)
def test_times_are_read_in_their_format(tmp_path: Path, pattern: str | None, text: str) -> None:
    lines = table_lines()
    for number, line in enumerate(lines[1:], start=1):
        day, rest = line.split(",", 1)
        lines[number] = f"{text.format(day, day.replace('-', '/'))},{rest}"
    series = load(tmp_path, lines, time_format=pattern).series
    assert (series.when(0), series.when(39)) == ("2020-01-01", "2020-02-09")


@pytest.mark.parametrize("pattern", ["%Q", "", "YYYY-MM-DD", "%H:%M", "%Y", "%d %d"])
def test_a_format_that_cannot_name_a_day_is_a_mistake_in_the_recipe(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValueError, match=r"time_format(.|\n)*expected a format"):
        load(tmp_path, table_lines(), time_format=pattern)


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


@pytest.mark.parametrize(
    "changes",
    [
        {"dev_from": 1.5},
        {"dev_from": 0.0},
        {"dev_from": 0},
        {"dev_from": "next year"},
        {"time_column": None, "dev_from": "2020-01-29"},
        {"bad_samples": "skip"},
        {"features": []},
        {"policy": {"ragged": "keep"}},
        {"policy": {"unordered_time": "keep"}},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        config(Path("series.csv"), **changes)


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


@pytest.mark.parametrize("policy", ["drop", "forward_fill"])
def test_a_jump_in_the_evaluation_stays_unless_asked(tmp_path: Path, policy: Policy) -> None:
    lines = unit_error(1e4, 1, line=DEV)
    loaded = load(tmp_path, lines, policy={"jump": policy})
    assert loaded.problems == ()
    assert loaded.series.values.max() > 1e5
    assert "kept as they are: 1 in dev" in loaded.warnings[0]
    assert load(tmp_path, lines, policy={"jump": policy, "scope": "all"}).series.values.max() < 1e3


def test_what_is_usual_comes_from_training_rows_alone() -> None:
    values = np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 400)))
    values[350:] *= 2.0
    [alone] = find_jumps(values, train_rows=200)
    other_future = values.copy()
    other_future[360:] = np.exp(np.random.default_rng(4).normal(0, 0.3, 40)) * values[359]
    assert find_jumps(other_future, train_rows=200)[0] == alone


@pytest.mark.parametrize("values", [np.zeros(50), np.ones(50), np.full(50, np.nan), np.arange(-25.0, 25.0), np.ones(2)])
def test_columns_without_log_changes_have_no_jumps(values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    assert find_jumps(values, 30) == []


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest_of_the_file(tmp_path: Path) -> None:
    lines = ["day,wave,slow", *(f"2020-01-{day:02d},1.{day},2.0" for day in range(1, 29))]
    lines[5] = '2020-01-05,"1.5,2.0'
    path = tmp_path / "quote.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf8")
    config = SeriesConfig(file=str(path), time_column="day", target_column="wave", dev_from=0.6, test_from=0.8)
    with pytest.raises(InputError, match=r"quote\.csv:6  is not CSV"):
        read_table(config)
