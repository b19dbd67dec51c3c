"""The ink of a rendered text lies inside its label, straight, slanted or bent."""

from __future__ import annotations

import math
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddle_stable.data.text_rendering import Paint, Shape, letters, paint, place

FONT = Path(str(files("matplotlib").joinpath("mpl-data/fonts/ttf/DejaVuSans.ttf")))
LEVEL = np.zeros((4, 2), np.float32)
SLANTED = np.array([[0.2, -0.2], [0.1, 0.2], [-0.2, 0.1], [-0.1, -0.1]], np.float32)
SHAPES = [
    Shape(0.0, LEVEL, 0.0),
    Shape(math.radians(40), SLANTED, 0.0),
    Shape(math.radians(-30), SLANTED, 0.0),
    Shape(0.0, LEVEL, 1.0),
    Shape(0.0, LEVEL, -1.0),
    Shape(math.radians(25), LEVEL, 1.3),
    Shape(math.radians(-25), LEVEL, -0.3),
]


def test_letters_are_cut_to_their_ink_and_a_margin() -> None:
    ink = letters("Hxg", FONT, 40)
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    margin = rows[0]
    assert margin == columns[0] == len(ink) - 1 - rows[-1] == ink.shape[1] - 1 - columns[-1] >= 2
    assert 30 < len(ink) < 50


def test_a_text_without_ink_is_empty() -> None:
    assert letters(" ", FONT, 40).size == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_all_ink_is_inside_the_outline_and_none_is_lost(shape: Shape) -> None:
    ink = letters("Hamburg", FONT, 24)
    placed = place(ink, shape, (150.0, 100.0), (300, 200))
    assert placed is not None
    full = np.zeros((200, 300), np.uint8)
    rows, columns = placed.ink.shape
    full[placed.top : placed.top + rows, placed.left : placed.left + columns] = placed.ink
    inside = np.zeros_like(full)
    cv2.fillPoly(inside, [np.round(placed.outline - 0.5).astype(np.int32)], 1)
    assert int(full[inside == 0].sum()) < 0.01 * int(full.sum())
    # Slanting and bending keep the area up to a part.
    assert int(full.sum()) == pytest.approx(int(ink.sum()), rel=0.25)


@pytest.mark.parametrize("shape", SHAPES)
def test_outlines_are_clockwise_and_as_large_as_the_text(shape: Shape) -> None:
    ink = letters("Hamburg", FONT, 24)
    placed = place(ink, shape, (150.0, 100.0), (300, 200))
    assert placed is not None
    assert cv2.contourArea(placed.outline, oriented=True) == pytest.approx(ink.size, rel=0.25)


def test_a_text_that_does_not_fit_is_not_placed() -> None:
    ink = letters("Hamburg", FONT, 24)
    assert place(ink, SHAPES[0], (20.0, 100.0), (300, 200)) is None
    assert place(ink, SHAPES[0], (150.0, 195.0), (300, 200)) is None


def test_paint_colours_the_ink_and_nothing_else() -> None:
    image = np.full((60, 200, 3), 100, np.uint8)
    placed = place(letters("III", FONT, 30), SHAPES[0], (100.0, 30.0), (200, 60))
    assert placed is not None
    paint(image, placed, Paint(np.array([0, 0, 255], np.float32), 1.0, None, 0))
    assert (image == (0, 0, 255)).all(axis=2).sum() > 50
    assert (image == 100).all(axis=2).sum() > 0.8 * 60 * 200


def test_rim_and_shadow_stay_in_the_image() -> None:
    image = np.full((40, 120, 3), 100, np.uint8)
    placed = place(letters("III", FONT, 30), SHAPES[0], (60.0, 20.0), (120, 40))
    assert placed is not None
    paint(image, placed, Paint(np.array([0, 0, 255], np.float32), 1.0, np.full(3, 255, np.float32), 30))
    assert (image < 100).any()
