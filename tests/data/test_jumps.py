"""Jumps: found where they are, measured by training rows alone, and never where there are no log changes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paddle_stable.data.jumps import COMES_BACK_WITHIN, MIN_FACTOR, Jump, find_jumps
from paddle_stable.data.series import load_series
from paddle_stable.data.series_table import Floats

from .series_sample import TRAIN, config, table_lines, write


def moving(rows: int = 60, step: float = 0.01) -> Floats:
    """[rows] up and down by the same log change, so that the usual change is 1.4826 x `step`."""
    return np.asarray(100.0 * np.exp(step * (np.arange(rows) % 2)))


@pytest.mark.parametrize("gap", [1, 2])
@pytest.mark.parametrize("policy", ["drop", "forward_fill"])
def test_all_rows_of_a_wrong_unit_are_found_around_rows_without_a_value(tmp_path: Path, gap: int, policy: str) -> None:
    values = moving()
    values[20 : 22 + gap] *= 1e4
    values[21 : 21 + gap] = np.nan
    [jump] = find_jumps(values, 60)
    assert (jump.row, jump.rows) == (20, (20, 21 + gap))
    lines = table_lines()
    for line in range(TRAIN, TRAIN + 2 + gap):
        day, a, b = lines[line - 1].split(",")
        lines[line - 1] = f"{day},{'' if TRAIN < line <= TRAIN + gap else float(a) * 1e4},{b}"
    series = load_series(config(write(tmp_path, lines), policy={"missing": policy, "jump": policy})).series
    assert series.values[:, 0].max() < 1e3


@pytest.mark.parametrize("factor", [1e4, 0.5])
@pytest.mark.parametrize("away", range(1, COMES_BACK_WITHIN + 3))
def test_what_comes_back_within_five_rows_is_a_wrong_unit_and_later_a_new_level(factor: float, away: int) -> None:
    values = moving()
    values[20 : 20 + away] *= factor
    first, *others = find_jumps(values, 60)
    change = math.log(values[20] / values[19])
    assert first.row == 20
    assert first.factor == pytest.approx(math.exp(change), rel=1e-9)
    assert first.z == pytest.approx(abs(change) / (1.4826 * 0.01), rel=1e-6)
    if away <= COMES_BACK_WITHIN:
        assert first.rows == tuple(range(20, 20 + away))
        assert others == []
    else:
        assert first.rows == ()
        assert [(jump.row, jump.rows) for jump in others] == [(20 + away, ())]  # the way back is a level of its own


def test_two_wrong_units_side_by_side_are_two() -> None:
    values = moving()
    values[[20, 22]] *= 1e3
    assert [jump.rows for jump in find_jumps(values, 60)] == [(20,), (22,)]


def test_a_jump_in_the_last_row_stays_as_far_as_is_known() -> None:
    values = moving()
    values[-1] *= 50.0
    assert [(jump.row, jump.rows) for jump in find_jumps(values, 60)] == [(59, ())]


@pytest.mark.parametrize(("factor", "found"), [(0.99 * MIN_FACTOR, 0), (1.01 * MIN_FACTOR, 1)])
def test_a_quiet_series_still_needs_half_as_much_again(factor: float, found: int) -> None:
    values = moving(step=1e-5)
    values[30:] *= factor
    assert len(find_jumps(values, 60)) == found


@pytest.mark.parametrize(("z", "found"), [(14.5, 0), (15.5, 1)])
def test_a_restless_series_needs_fifteen_deviations(z: float, found: int) -> None:
    values = moving(step=0.1)
    values[30:] *= math.exp(1.4826 * 0.1 * z + 0.1)  # the step into row 30 goes down by 0.1
    assert len(find_jumps(values, 60)) == found


@pytest.mark.parametrize("unit", [1e-6, 1e9])
def test_the_unit_of_the_column_does_not_matter(unit: float) -> None:
    values = moving()
    values[20:22] *= 1e4
    [plain], [scaled] = find_jumps(values, 60), find_jumps(values * unit, 60)
    assert scaled.rows == plain.rows
    assert (scaled.factor, scaled.z) == pytest.approx((plain.factor, plain.z), rel=1e-9)


def test_days_without_a_change_do_not_make_ordinary_ones_unusual() -> None:
    values = np.repeat(moving(40, step=0.05), 5)  # four days in five stand still
    assert find_jumps(values, 200) == []
    values[100:] *= 50.0
    assert [jump.row for jump in find_jumps(values, 200)] == [100]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((7,), "x1e+04 in one step, 620 times the usual, back after 1 row: like a wrong unit"),
        ((7, 9), "x1e+04 in one step, 620 times the usual, back after 2 rows: like a wrong unit"),
        ((), "x1e+04 in one step, 620 times the usual, and stays there: like a share split"),
    ],
)
def test_a_jump_in_words(rows: tuple[int, ...], said: str) -> None:
    assert str(Jump(7, 1e4, 620.4, rows)).startswith(said)


def test_what_is_usual_comes_from_training_rows_alone() -> None:
    values = np.exp(np.cumsum(np.random.default_rng(3).normal(0, 0.01, 400)))
    values[350:] *= 2.0
    [alone] = find_jumps(values, train_rows=200)
    other_future = values.copy()
    other_future[360:] = np.exp(np.random.default_rng(4).normal(0, 0.3, 40)) * values[359]
    assert find_jumps(other_future, train_rows=200)[0] == alone


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_values_without_a_logarithm_behind_the_training_rows_hide_no_jump_in_them(bad: float) -> None:
    values = moving()
    values[20:22] *= 1e4
    expected = find_jumps(values, 40)
    assert [jump.rows for jump in expected] == [(20, 21)]
    values[45:] = bad
    assert find_jumps(values, 40) == expected


def test_what_jumps_in_training_rows_and_comes_back_behind_them_has_stayed_away() -> None:
    values = moving()
    values[38:] *= 1e4
    [alone] = find_jumps(values, 40)
    values[42:] /= 1e4
    first, way_back = find_jumps(values, 40)
    assert first == alone
    assert (first.row, first.rows) == (38, ())
    assert (way_back.row, way_back.rows) == (42, ())


@pytest.mark.parametrize(
    "values",
    [
        np.zeros(50),
        np.ones(50),
        np.full(50, np.nan),
        np.arange(-25.0, 25.0),
        np.array([1.0, 9e9]),
        np.ones(1),
        np.ones(0),
    ],
)
def test_columns_without_log_changes_have_no_jumps(values: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    assert find_jumps(values, 30) == []
