"""A level is new after exactly so many values beyond the limit, nearly in a row; spikes never add up to one."""

from __future__ import annotations

import json

import pytest

from paddle_stable.stability.new_level import SPAN, NewLevel


def completed_at(after: int, beyond: list[bool]) -> int | None:
    """Number of the value, from 1, with which the level is new."""
    level = NewLevel(after)
    for number, is_beyond in enumerate(beyond, start=1):
        if is_beyond and level.completed_by_another():
            return number
        level.note(float(number), beyond=is_beyond)
    return None


@pytest.mark.parametrize("after", [1, 2, 3, 4, 20, 50])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_values_in_a_row_make_a_level_after_exactly_so_many(after: int, before: int) -> None:
    assert completed_at(after, [False] * before + [True] * (after + 5)) == before + after


@pytest.mark.parametrize("after", [4, 20, 50])
def test_so_many_may_lie_below_the_limit_between_them_and_not_one_more(after: int) -> None:
    allowed = int(after * SPAN) + 1 - after
    for below in range(allowed + 3):
        values = [True, *[False] * below, *[True] * (after - 1)]
        assert (completed_at(after, values) == len(values)) is (below <= allowed)


@pytest.mark.parametrize("after", [2, 4, 20])
def test_every_second_value_never_makes_a_level(after: int) -> None:
    expected = 3 if after == 2 else None  # of two, one may lie between them
    assert completed_at(after, [True, False] * 500) == expected


def test_the_values_are_those_beyond_the_limit_oldest_first() -> None:
    level = NewLevel(4)
    assert level.values == []
    for value, beyond in [(9.0, True), (1.0, False), (8.0, True), (2.0, False), (7.0, True)]:
        level.note(value, beyond=beyond)
    assert level.values == [9.0, 8.0, 7.0]
    level.note(3.0, beyond=False)
    assert level.values == [8.0, 7.0]
    level.clear()
    assert (level.values, level.completed_by_another(), level.state()) == ([], False, [])


@pytest.mark.parametrize("after", [1, 4, 20])
def test_a_restored_memory_goes_on_where_it_was_and_a_shorter_one_keeps_the_newest(after: int) -> None:
    level, again = NewLevel(20), NewLevel(after)
    for number in range(30):
        level.note(number / 7, beyond=number % 3 == 0)
    again.note(99.0, beyond=True)
    again.load_state(json.loads(json.dumps(level.state())))
    assert again.state() == level.state()[-int(after * SPAN) :]
    assert all(type(value) is float and type(beyond) is bool for value, beyond in again.state())
