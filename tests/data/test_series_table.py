"""Reading a file: every cell is looked at, what is odd is noted with its line, and a damaged file is refused."""

from __future__ import annotations

import gzip
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.series import load_series
from paddle_stable.data.series_table import Table, read_table, show_time
from paddle_stable.errors import InputError

from .series_sample import ROWS, config, spoil, table_lines, write


def read(folder: Path, lines: list[str], **changes: Any) -> Table:
    return read_table(config(write(folder, lines), **changes))


def test_a_wrong_byte_behind_a_byte_order_mark_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_bytes(b"\xef\xbb\xbfday,a,b\n2020-01-01,1,2\n\xff")
    with pytest.raises(InputError, match=r"series\.csv:3  is not UTF-8: byte 0xff"):
        read_table(config(path))


def test_a_compressed_file_with_a_wrong_byte_is_refused(tmp_path: Path) -> None:
    raw = bytearray(gzip.compress("\n".join(table_lines()).encode()))
    raw[12] ^= 0xFF
    (tmp_path / "series.csv.gz").write_bytes(raw)
    with pytest.raises(InputError, match=r"series\.csv\.gz  cannot be read: .* \(data\.file\)"):
        read_table(config(tmp_path / "series.csv.gz"))


@pytest.mark.parametrize("cell", ["-nan", "+NaN", "-NAN"])
def test_nan_with_a_sign_is_missing_and_not_a_large_number(tmp_path: Path, cell: str) -> None:
    """C prints it so."""
    [finding] = read(tmp_path, spoil(9, f"{{day}},{cell},50")).findings
    assert (finding.kind, finding.line) == ("missing", 9)


def test_a_cut_with_an_offset_from_utc_is_compared_in_utc(tmp_path: Path) -> None:
    lines = [line.replace(",", " 22:00:00,", 1) if number else line for number, line in enumerate(table_lines())]
    path = write(tmp_path, lines)
    series = load_series(config(path, dev_from="2020-01-30T00:00:00+02:00", test_from=None)).series
    assert series.when(28) == "2020-01-29 22:00:00"
    assert np.bincount(series.parts).tolist() == [28, 12]


def test_a_wrong_time_format_is_named_before_a_cut_that_it_makes_impossible(tmp_path: Path) -> None:
    said = r"series\.csv:2  no row has a time that can be read: the first is not a time like %d\.%m\.%Y: '2020-01-01'"
    with pytest.raises(InputError, match=said):
        load_series(config(write(tmp_path, table_lines()), time_format="%d.%m.%Y", dev_from="2020-01-29"))


def test_a_time_that_has_no_utc_is_not_a_time(tmp_path: Path) -> None:
    [finding] = read(tmp_path, spoil(5, "0001-01-01T00:00:00+02:00,100,50")).findings
    assert (finding.kind, finding.line) == ("ragged", 5)


@pytest.mark.parametrize(
    ("cell", "value", "kind"),
    [
        ("1", 1.0, None),
        (" -2.5e3 ", -2500.0, None),
        ("+0", 0.0, None),
        (".5", 0.5, None),
        ("1e308", 1e308, None),
        ("1e309", np.inf, "infinite"),
        ("-1e309", -np.inf, "infinite"),
        ("+Infinity", np.inf, "infinite"),
        ("-inf", -np.inf, "infinite"),
        ("", np.nan, "missing"),
        (" . ", np.nan, "missing"),
        ("#N/A", np.nan, "missing"),
        ("None", np.nan, "missing"),
        ("1_000", np.nan, "text"),
        ("1 000", np.nan, "text"),
        ("0x10", np.nan, "text"),
        ("--1", np.nan, "text"),
        ("5%", np.nan, "text"),
    ],
)
def test_a_cell_is_a_number_or_odd_in_one_way(tmp_path: Path, cell: str, value: float, kind: str | None) -> None:
    table = read(tmp_path, spoil(7, f"{{day}},{cell},50"))
    np.testing.assert_array_equal(table.values[5], [value, 50.0])
    expected = [] if kind is None else [(kind, 5, 7, "a")]
    assert [(found.kind, found.row, found.line, found.column) for found in table.findings] == expected


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("{day},100", ["ragged"]),
        ("{day}", ["ragged"]),
        ("{day},1,2,3", ["ragged"]),
        (",1,2", ["ragged"]),
        ("2020-13-01,1,2", ["ragged"]),
        ("{day},x,", ["text", "missing"]),
        ("2020-01-05,1,2", ["repeated_time"]),
        ("2020-01-04,1,2", ["unordered_time"]),
        ("2020-01-04,1,x", ["text", "unordered_time"]),
    ],
)
def test_a_row_can_be_odd_in_several_ways(tmp_path: Path, line: str, kinds: list[str]) -> None:
    table = read(tmp_path, spoil(7, line))
    assert [(finding.kind, finding.line) for finding in table.findings] == [(kind, 7) for kind in kinds]
    assert len(table.values) == ROWS
    if kinds == ["ragged"] and not line.startswith(("2020", ",")):
        assert np.isnan(table.values[5]).all()


def test_one_time_too_late_is_wrong_itself_and_not_the_rows_behind_it(tmp_path: Path) -> None:
    [finding] = read(tmp_path, spoil(7, "2031-01-06,1,2")).findings
    assert (finding.kind, finding.line) == ("unordered_time", 7)
    assert finding.message == "2031-01-06 comes before 2020-01-07 of line 8"


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        pytest.param("", [], id="none"),
        pytest.param("1", [], id="one"),
        pytest.param("12", [], id="two"),
        pytest.param("11", ["3 2020-01-01 stands a second time, as in line 2"], id="two alike"),
        pytest.param("21", ["3 2020-01-01 comes after 2020-01-02 of line 2"], id="two out of order"),
        pytest.param("912", ["2 2020-01-09 comes before 2020-01-01 of line 3"], id="the first of three"),
        pytest.param("192", ["4 2020-01-02 comes after 2020-01-09 of line 3"], id="the middle of three"),
        pytest.param("129", [], id="the last"),
        pytest.param("91234", ["2 2020-01-09 comes before 2020-01-01 of line 3"], id="the first"),
        pytest.param("12934", ["4 2020-01-09 comes before 2020-01-03 of line 5"], id="in the middle"),
        pytest.param("12435", ["5 2020-01-03 comes after 2020-01-04 of line 4"], id="one too early"),
        pytest.param(
            "129834",
            [f"{line} 2020-01-0{day} comes after 2020-01-09 of line 4" for line, day in ((5, 8), (6, 3), (7, 4))],
            id="two in succession",
        ),
        pytest.param(
            "128934",
            [f"{line} 2020-01-0{day} comes after 2020-01-09 of line 5" for line, day in ((6, 3), (7, 4))],
            id="two in succession and in order",
        ),
        pytest.param(
            "1293456785",
            ["11 2020-01-05 comes after 2020-01-08 of line 10", "4 2020-01-09 comes before 2020-01-03 of line 5"],
            id="one too late and one too early",
        ),
        pytest.param(
            "129334",
            ["4 2020-01-09 comes before 2020-01-03 of line 5", "6 2020-01-03 stands a second time, as in line 5"],
            id="before two alike",
        ),
        pytest.param(
            "12923",
            ["4 2020-01-09 comes before 2020-01-02 of line 5", "5 2020-01-02 stands a second time, as in line 3"],
            id="between two alike",
        ),
        pytest.param(
            "12399345",
            [
                "6 2020-01-09 stands a second time, as in line 5",
                *(f"{line} 2020-01-0{day} comes after 2020-01-09 of line 5" for line, day in ((7, 3), (8, 4), (9, 5))),
            ],
            id="twice the same",
        ),
        pytest.param(
            "12345234",
            [f"{line} 2020-01-0{day} comes after 2020-01-05 of line 6" for line, day in ((7, 2), (8, 3), (9, 4))],
            id="an earlier part again",
        ),
    ],
)
def test_a_time_out_of_order_is_named_with_the_line_of_the_one_that_it_is_held_against(
    tmp_path: Path, days: str, expected: list[str]
) -> None:
    lines = ["day,a,b", *(f"2020-01-0{day},1,2" for day in days)]
    if not days:
        with pytest.raises(InputError, match="no row of data"):
            read(tmp_path, lines)
        return
    assert sorted(f"{found.line} {found.message}" for found in read(tmp_path, lines).findings) == expected


def test_a_time_that_cannot_be_read_does_not_hide_one_too_late(tmp_path: Path) -> None:
    lines = spoil(7, "2031-01-06,1,2")
    lines[7] = "someday,1,2"
    findings = read(tmp_path, lines).findings
    assert [(found.kind, found.line) for found in findings] == [("ragged", 8), ("unordered_time", 7)]
    assert findings[1].message == "2031-01-06 comes before 2020-01-08 of line 9"


def test_a_single_row_is_a_series(tmp_path: Path) -> None:
    table = read(tmp_path, table_lines()[:2])
    assert (table.values.tolist(), table.lines.tolist(), table.findings) == ([[100.0, 50.0]], [2], ())


@pytest.mark.parametrize(
    ("features", "target", "expected"),
    [
        (None, "a", ("a", "b")),
        ([{"column": "b"}], "a", ("a", "b")),
        ([{"column": "b"}, {"column": "b", "transform": "log"}], "b", ("b",)),
    ],
)
def test_columns_are_those_of_features_and_target_in_the_order_of_the_file(
    tmp_path: Path, features: Any, target: str, expected: tuple[str, ...]
) -> None:
    table = read(tmp_path, table_lines(), features=features, target_column=target)
    assert table.columns == expected
    assert table.values[0].tolist() == [{"a": 100.0, "b": 50.0}[name] for name in expected]


def test_all_columns_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    features = [{"column": "a"}, {"column": "c"}, {"column": "d"}]
    with pytest.raises(InputError) as raised:
        read(tmp_path, table_lines(), features=features, time_column="date", target_column="e")
    assert [(problem.line, problem.message.split(":")[0]) for problem in raised.value.problems] == [
        (1, "data.target_column"),
        (1, "data.time_column"),
        (1, "data.features[1].column"),
        (1, "data.features[2].column"),
    ]
    assert all("the file has day, a, b." in problem.message for problem in raised.value.problems)


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2020-01-01", "2020-01-01"),
        ("2020-01-01T00:00:00.000000", "2020-01-01"),
        ("2020-01-01T16:00:00", "2020-01-01 16:00:00"),
    ],
)
def test_a_time_is_shown_as_short_as_possible(moment: str, shown: str) -> None:
    assert show_time(np.datetime64(moment)) == shown


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n", "\r\n\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("compressed", [False, True])
def test_line_endings_bom_blank_lines_and_compression_change_nothing(
    tmp_path: Path, ending: str, bom: bytes, compressed: bool
) -> None:
    expected = read(tmp_path, table_lines())
    raw = bom + ending.join([*table_lines(), ""]).encode()
    path = tmp_path / ("other.csv.gz" if compressed else "other.csv")
    path.write_bytes(gzip.compress(raw) if compressed else raw)
    table = read_table(config(path))
    assert table.findings == ()
    np.testing.assert_array_equal(table.values, expected.values)
    step = ending.count("\n")
    assert table.lines.tolist() == [1 + step * row for row in range(1, ROWS + 1)]


@pytest.mark.parametrize(
    ("lines", "rows", "missing"),
    [
        pytest.param(["a", "1", "", "3"], [2, 3, 4], [(3, "a")], id="one column"),
        pytest.param(["a", "1", '""', " ", "3"], [2, 3, 4, 5], [(3, "a"), (4, "a")], id="quoted or blank"),
        pytest.param(["a,b", "1,2", " ,", "3,4"], [2, 3, 4], [(3, "a"), (3, "b")], id="several columns"),
        pytest.param(["a,b", "1,2", "", "  ", "3,4"], [2, 5], [], id="blank lines of several columns"),
        pytest.param(["", "a", "1", "3", "", " "], [3, 4], [], id="first and last of one column"),
        pytest.param([",", "a,b", "1,2", ",", ","], [3], [], id="first and last of several columns"),
    ],
)
def test_a_row_of_empty_cells_is_missing_values_where_rows_come_before_and_after(
    tmp_path: Path, lines: list[str], rows: list[int], missing: list[tuple[int, str]]
) -> None:
    table = read(tmp_path, lines, time_column=None)
    assert table.lines.tolist() == rows
    assert {finding.kind for finding in table.findings} <= {"missing"}
    assert sorted((finding.line, finding.column) for finding in table.findings) == missing


def test_a_quoted_cell_over_two_lines_does_not_shift_the_line_numbers(tmp_path: Path) -> None:
    lines = ["day,note,a,b", *(line.replace(",", ',"x",', 1) for line in table_lines()[1:])]
    lines[3] = lines[3].replace('"x"', '"x\ny"')
    lines[10] = lines[10].replace(",10", ",z")
    table = read(tmp_path, lines, features=[{"column": "a"}, {"column": "b"}])
    assert [(finding.kind, finding.line) for finding in table.findings] == [("text", 12)]


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
        read_table(config(path, features=[{"column": "a"}, {"column": "b"}]))
    assert expected in str(raised.value)


def test_absent_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_table(config(tmp_path / "absent.csv"))
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress("\n".join(table_lines()).encode())[:-20])
    with pytest.raises(InputError, match="cannot be read"):
        read_table(config(tmp_path / "cut.csv.gz"))


def test_a_file_without_header_and_times_gets_numbered_columns(tmp_path: Path) -> None:
    lines = [line.split(",", 1)[1] for line in table_lines()[1:]]
    table = read(tmp_path, lines, header=False, time_column=None, target_column="column_2")
    assert table.columns == ("column_1", "column_2")
    assert table.lines.tolist() == list(range(1, ROWS + 1))
    assert table.times is None


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
    times = read(tmp_path, lines, time_format=pattern).times
    assert times is not None
    assert (show_time(times[0]), show_time(times[39])) == ("2020-01-01", "2020-02-09")


@pytest.mark.parametrize(("pattern", "last"), [("%Y-%m", "2023-04-01"), ("%b %Y", "2023-04-01"), ("%Y", "2059-01-01")])
def test_rows_may_be_months_or_years(tmp_path: Path, pattern: str, last: str) -> None:
    lines = table_lines()
    for number, line in enumerate(lines[1:41]):
        moment = datetime(2020 + number, 1, 1) if pattern == "%Y" else datetime(2020 + number // 12, number % 12 + 1, 1)
        lines[number + 1] = f"{moment.strftime(pattern)},{line.split(',', 1)[1]}"
    times = read(tmp_path, lines[:41], time_format=pattern).times
    assert times is not None
    assert (show_time(times[0]), show_time(times[39])) == ("2020-01-01", last)


def test_a_quote_that_is_never_closed_does_not_swallow_the_rest_of_the_file(tmp_path: Path) -> None:
    lines = ["day,wave,slow", *(f"2020-01-{day:02d},1.{day},2.0" for day in range(1, 29))]
    lines[5] = '2020-01-05,"1.5,2.0'
    with pytest.raises(InputError, match=r"series\.csv:6  is not CSV"):
        read(tmp_path, lines, target_column="wave")
