"""Real series come out of the packages as they are."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from paddle_stable.data import market
from paddle_stable.data.market import WrittenSeries, write_market_series
from paddle_stable.data.series import load_series
from paddle_stable.data.series_config import SeriesConfig
from paddle_stable.errors import InputError


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WrittenSeries]:
    return {series.path.stem: series for series in write_market_series(tmp_path_factory.mktemp("series"))}


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("name", "rows", "first", "last"),
    [
        ("sp500", 5031, "1999-01-04", "2018-12-31"),
        ("nasdaq", 5031, "1999-01-04", "2018-12-31"),
        ("vix", 1305, "2014-01-03", "2019-01-03"),
        ("wti", 8611, "1986-01-02", "2019-01-03"),
        ("aapl", 3270, "2000-03-01", "2013-03-01"),
    ],
)
def test_every_series_is_whole(written: dict[str, WrittenSeries], name: str, rows: int, first: str, last: str) -> None:
    series = written[name]
    assert (series.rows, series.first, series.last) == (rows, first, last)
    assert len(rows_of(series.path)) == rows
    assert str(series).startswith(f"{series.path}: {rows} rows")


def test_numbers_are_those_of_the_package(written: dict[str, WrittenSeries]) -> None:
    first = rows_of(written["sp500"].path)[0]
    assert (first["Date"], first["Open"], first["Close"]) == ("1999-01-04", "1229.22998", "1228.099976")


@pytest.mark.parametrize(("name", "column", "missing"), [("vix", "VIX", 46), ("wti", "WTI", 290)])
def test_missing_values_stay_and_are_found(
    written: dict[str, WrittenSeries], name: str, column: str, missing: int
) -> None:
    path = written[name].path
    assert sum(row[column] == "." for row in rows_of(path)) == missing
    config = SeriesConfig(file=str(path), time_column="Date", target_column=column, test_from=None)
    problems = load_series(config).problems
    assert problems
    everywhere = SeriesConfig(
        file=str(path),
        time_column="Date",
        target_column=column,
        test_from=None,
        policy={"missing": "drop", "scope": "all"},
    )
    loaded = load_series(everywhere)
    assert loaded.problems == ()
    assert len(loaded.series.values) == written[name].rows - missing


def test_the_three_falls_of_about_half_are_named(written: dict[str, WrittenSeries]) -> None:
    path = written["aapl"].path
    config = SeriesConfig(
        file=str(path), time_column="Date", target_column="Close", features=[{"column": "Close"}], test_from=None
    )
    warnings = load_series(config).warnings
    lines = {number: row["Date"] for number, row in enumerate(rows_of(path), start=2)}
    named = [int(warning.split(" ", 1)[0].rsplit(":", 1)[1]) for warning in warnings]
    assert [lines[line] for line in named] == ["2000-06-21", "2000-09-29", "2005-02-28"]
    assert all("Close jumps x0." in warning and "share split" in warning for warning in warnings)


@pytest.mark.parametrize("name", ["sp500", "nasdaq"])
def test_ordinary_crashes_are_no_unit_errors(written: dict[str, WrittenSeries], name: str) -> None:
    config = SeriesConfig(file=str(written[name].path), time_column="Date", target_column="Close")
    assert load_series(config).warnings == ()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market, "_STOCKS_FILE", "bokeh_sampledata/_data/gone.csv.gz")
    with pytest.raises(InputError, match=r"bokeh-sampledata .* has no bokeh_sampledata/_data/gone"):
        write_market_series(tmp_path / "series")
    assert not (tmp_path / "series").exists()


def test_the_command_writes_every_series_and_says_so(tmp_path: Path) -> None:
    tool = Path(__file__).resolve().parents[2] / "tools" / "prepare_data.py"
    command = [sys.executable, str(tool), "series", "--output", str(tmp_path / "series")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    files = sorted(path.name for path in (tmp_path / "series").iterdir())
    assert files == [f"{n}.csv" for n in ("aapl", "fb", "goog", "ibm", "msft", "nasdaq", "sp500", "vix", "wti")]
    assert f"{tmp_path / 'series' / 'sp500.csv'}: 5031 rows, 1999-01-04 to 2018-12-31" in answer.stdout
