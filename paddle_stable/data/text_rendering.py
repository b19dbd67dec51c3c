"""One text drawn into an image: letters, then a straight, slanted or curved place for them, then colour."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import final

import cv2
import numpy as np
import numpy.typing as npt
from PIL import ImageFont

from paddle_stable.data.images import Pixels

Letters = npt.NDArray[np.uint8]
"""How much ink a pixel has, 0 to 255, [height, width]."""
Corners = npt.NDArray[np.float32]
"""[n, 2] in pixels, continuous, clockwise on the screen."""

_CURVE_POINTS = 6
"""Corners on each long side of a curved text."""
_MARGIN = 0.08
"""What the outline leaves around the ink, as a part of its height."""


@final
@dataclass(frozen=True, slots=True)
class Shape:
    """How a text lies in the image."""

    angle: float
    """Radians, clockwise on the screen."""
    slant: Corners
    """What is added to each corner before turning, as a part of the height, [4, 2]."""
    bend: float
    """Radians of the arc that the text runs along, upwards in the middle when positive; 0 for a straight one."""


@final
@dataclass(frozen=True, slots=True)
class PlacedText:
    """Ink in a part of the image."""

    left: int
    top: int
    ink: Letters
    """[height, width] from (left, top) on; all of it lies in the image."""
    outline: Corners
    """What is labelled."""


@lru_cache(maxsize=1024)  # all sizes of all fonts: opening one takes longer than writing with it
def _font(path: Path, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)


def letters(text: str, font: Path, height: int) -> Letters:
    """Ink of a line of text, cut to what is drawn and a margin; about `height` pixels from ascender to descender."""
    mask = _font(font, height).getmask(text, mode="L")
    width, rows = mask.size
    ink = np.frombuffer(bytes(mask), np.uint8).reshape(rows, width)
    used_rows, used_columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    if not len(used_rows):
        return np.zeros((0, 0), np.uint8)
    ink = ink[used_rows[0] : used_rows[-1] + 1, used_columns[0] : used_columns[-1] + 1]
    return np.pad(ink, max(1, round(_MARGIN * len(ink))))


def place(ink: Letters, shape: Shape, middle: tuple[float, float], size: tuple[int, int]) -> PlacedText | None:
    """The text with its middle at a point of an image of (width, height) pixels; None where it does not fit in."""
    bent = abs(shape.bend) > 0.0
    outline = (_bent_outline if bent else _straight_outline)(ink, shape) + np.array(middle, np.float32)
    (left, top), (right, bottom) = np.floor(outline.min(axis=0)) - 1, np.ceil(outline.max(axis=0)) + 1
    if left < 0 or top < 0 or right > size[0] or bottom > size[1]:
        return None
    box = (int(left), int(top), int(right - left), int(bottom - top))
    drawn = _bend(ink, shape, middle, box) if bent else _warp(ink, outline, box)
    return PlacedText(box[0], box[1], drawn, outline.astype(np.float32))


def _straight_outline(ink: Letters, shape: Shape) -> Corners:
    """The four corners around the origin."""
    height, width = ink.shape
    corners = np.array([[-width, -height], [width, -height], [width, height], [-width, height]], np.float32) / 2.0
    return np.asarray((corners + shape.slant * height) @ _turn(shape.angle), np.float32)


def _warp(ink: Letters, outline: Corners, box: tuple[int, int, int, int]) -> Letters:
    height, width = ink.shape
    source = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    target = (outline - np.array(box[:2], np.float32)).astype(np.float32)
    # OpenCV counts from the middle of the upper left pixel.
    matrix = cv2.getPerspectiveTransform(source - np.float32(0.5), target - np.float32(0.5))
    return np.asarray(cv2.warpPerspective(ink, matrix, box[2:], flags=cv2.INTER_LINEAR), np.uint8)


def _bent_outline(ink: Letters, shape: Shape) -> Corners:
    height, width = ink.shape
    radius = width / shape.bend
    along = np.linspace(-shape.bend / 2, shape.bend / 2, _CURVE_POINTS)
    upper, lower = radius + height / 2, radius - height / 2
    points = [(upper * math.sin(a), radius - upper * math.cos(a)) for a in along]
    points += [(lower * math.sin(a), radius - lower * math.cos(a)) for a in along[::-1]]
    return np.asarray(np.array(points, np.float32) @ _turn(shape.angle), np.float32)


def _bend(ink: Letters, shape: Shape, middle: tuple[float, float], box: tuple[int, int, int, int]) -> Letters:
    """Every pixel of the box asks where on the straight text it comes from."""
    height, width = ink.shape
    left, top, box_width, box_height = box
    radius = width / shape.bend
    x = np.arange(box_width, dtype=np.float32)[None, :] + np.float32(left + 0.5 - middle[0])
    y = np.arange(box_height, dtype=np.float32)[:, None] + np.float32(top + 0.5 - middle[1])
    cos, sin = math.cos(shape.angle), math.sin(shape.angle)
    turned_x, turned_y = x * cos + y * sin, y * cos - x * sin
    sign = math.copysign(1.0, radius)
    from_centre = np.hypot(turned_x, radius - turned_y)
    angle = np.arctan2(sign * turned_x, sign * (radius - turned_y))
    source_x = (width / 2 + radius * angle - 0.5).astype(np.float32)
    source_y = (height / 2 + sign * (abs(radius) - from_centre) - 0.5).astype(np.float32)
    return np.asarray(cv2.remap(ink, source_x, source_y, cv2.INTER_LINEAR), np.uint8)


def _turn(angle: float) -> Corners:
    """To be multiplied from the right with rows of (x, y)."""
    return np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]], np.float32)


@final
@dataclass(frozen=True, slots=True)
class Paint:
    """How a text is coloured. Colours are blue, green, red."""

    colour: Corners
    """[3]."""
    opacity: float
    edge: Corners | None
    """Colour of a rim around the letters, [3]; None: no rim."""
    shadow: int
    """Pixels by which a dark copy lies below and to the right; 0: none."""


def paint(image: Pixels, text: PlacedText, how: Paint) -> None:
    """Put the ink onto the image, in place."""
    if how.shadow:
        down, right = text.top + how.shadow, text.left + how.shadow
        room = text.ink[: max(0, image.shape[0] - down), : max(0, image.shape[1] - right)]
        _blend(image, room, right, down, np.zeros(3, np.float32), 0.6 * how.opacity)
    if how.edge is not None:
        rim = np.asarray(cv2.dilate(text.ink, np.ones((3, 3), np.uint8)), np.uint8)
        _blend(image, rim, text.left, text.top, how.edge, how.opacity)
    _blend(image, text.ink, text.left, text.top, how.colour, how.opacity)


def _blend(image: Pixels, ink: Letters, left: int, top: int, colour: Corners, opacity: float) -> None:
    rows, columns = ink.shape
    under = image[top : top + rows, left : left + columns]
    part = ink[:, :, None] * np.float32(opacity / 255.0)
    under[:] = under + part * (colour - under)
