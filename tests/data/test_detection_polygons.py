"""Outlines of texts: the right ones stay, certain mistakes are put right, the others are named."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paddle_stable.data.detection_polygons import check_outline, signed_area
from paddle_stable.data.images import ImageSize

SIZE = ImageSize(100, 60)
SQUARE = [[10, 10], [50, 10], [50, 30], [10, 30]]
ARROW = [[10, 10], [50, 10], [30, 20], [50, 40], [10, 40]]


@pytest.mark.parametrize("corners", [SQUARE, SQUARE[:3], ARROW, [[0, 0], [100, 0], [100, 60], [0, 60]]])
def test_a_right_outline_stays_as_it_is(corners: list[list[float]]) -> None:
    checked = check_outline(corners, SIZE)
    assert (checked.problem, checked.repair) == ("", "")
    assert checked.points.dtype == np.float32
    assert checked.points.tolist() == corners


def test_repeated_corners_add_nothing() -> None:
    checked = check_outline([*SQUARE, SQUARE[-1], SQUARE[-1]], SIZE)
    assert checked.points.tolist() == SQUARE
    assert checked.repair == ""


@pytest.mark.parametrize(
    ("corners", "repair"),
    [
        (SQUARE[::-1], "corners counter-clockwise"),
        (ARROW[::-1], "corners counter-clockwise"),
        ([SQUARE[0], SQUARE[1], SQUARE[3], SQUARE[2]], "corners in crossing order"),
        ([[-3, 10], [50, 10], [50, 30], [-3, 30]], "corners outside the image"),
        ([[-3, 30], [50, 30], [50, 10], [-3, 10]], "corners counter-clockwise and corners outside the image"),
    ],
)
def test_what_is_certain_is_put_right(corners: list[list[float]], repair: str) -> None:
    checked = check_outline(corners, SIZE)
    assert (checked.problem, checked.repair) == ("", repair)
    assert signed_area(checked.points) > 0
    assert checked.points.min() >= 0


@pytest.mark.parametrize(
    ("corners", "problem", "left"),
    [
        (SQUARE[:2], "expected at least 3 corners, found 2.", 0),
        ([], "expected at least 3 corners, found 0.", 0),
        ("abc", "expected a list of corners, found abc.", 0),
        (None, "expected a list of corners, found None.", 0),
        ([10, 10, 50, 10, 50, 30], "expected pairs of numbers", 0),
        ([[1, 2], [3, "x"], [5, 6]], "expected pairs of numbers", 0),
        ([[1, 2], [3], [5, 6]], "expected pairs of numbers", 0),
        ([[1, 2], [3, math.nan], [5, 6]], "corners must be numbers of pixels", 0),
        ([[1, 2], [3, 1e300], [5, 6]], "corners must be numbers of pixels", 0),
        ([[10, 10], [20, 20], [30, 30]], "encloses no area: [[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]].", 0),
        ([[10, 10]] * 4, "encloses no area", 0),
        ([[10, 10], [50, 10], [50, 10], [10, 10]], "encloses no area", 0),
        ([[0, 0], [50, 40], [0, 40], [50, 0], [25, 50]], "the outline crosses itself", 5),
        ([[110, 10], [150, 10], [150, 30], [110, 30]], "lies outside the image (100 x 60)", 0),
        ([[90, 10], [150, 10], [150, 30], [90, 30]], "lies outside the image (100 x 60)", 4),
    ],
)
def test_what_cannot_be_used_is_named_and_what_it_covers_kept(corners: object, problem: str, left: int) -> None:
    checked = check_outline(corners, SIZE)
    assert problem in checked.problem
    assert checked.repair == ""
    assert len(checked.points) >= left if left else len(checked.points) < 3
