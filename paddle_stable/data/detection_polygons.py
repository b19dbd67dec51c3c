"""Outlines of text as they stand in label files: which are right, which can be put right, and which cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import cv2
import numpy as np
import numpy.typing as npt
from shapely.geometry import Polygon

from paddle_stable.data.images import ImageSize

Points = npt.NDArray[np.float32]
"""Corners of an outline, [n, 2], x before y, in pixels: the upper left pixel reaches from (0, 0) to (1, 1)."""

MIN_AREA = 1.0
"""Square pixels below which an outline encloses nothing."""
_MIN_INSIDE = 0.5
"""Part of the area that has to lie in the image. With less, the label is of another image or of one turned."""


@final
@dataclass(frozen=True, slots=True)
class CheckedOutline:
    """What can be used of an outline, and what was wrong with it."""

    points: Points
    """Clockwise on the screen, simple, inside the image. With a problem: what is to be left out of the loss, which may
    be nothing, [0, 2]."""
    problem: str = ""
    """Why it cannot be used; empty when it can."""
    repair: str = ""
    """What was put right without doubt; empty when nothing had to be."""


def check_outline(corners: object, size: ImageSize) -> CheckedOutline:
    """Check one outline as it was read.

    Args:
        corners: what the label file has for them: a list of at least three pairs of numbers, if it is right.
        size: of the image.
    """
    points = _as_points(corners)
    if isinstance(points, str):
        return CheckedOutline(np.zeros((0, 2), np.float32), points)
    points, repairs = _without_repeats(points), []
    if len(points) >= 3 and not _is_simple(points):
        hull = np.asarray(cv2.convexHull(points), np.float32).reshape(-1, 2)
        if abs(signed_area(hull)) >= MIN_AREA:
            if len(points) != 4 or len(hull) != 4:
                return CheckedOutline(_clamped(hull, size), f"the outline crosses itself: {_shown(points)}.")
            # Four corners of a convex quadrangle can be joined without a crossing in one way only.
            points, repairs = hull, ["corners in crossing order"]
    area = signed_area(points)
    if abs(area) < MIN_AREA:
        return CheckedOutline(np.zeros((0, 2), np.float32), f"encloses no area: {_shown(points)}.")
    if area < 0:
        points = np.ascontiguousarray(points[::-1])
        repairs = repairs or ["corners counter-clockwise"]
    return _inside(points, size, repairs)


def signed_area(points: Points) -> float:
    """Area by the shoelace formula in square pixels; positive when clockwise on the screen, where y points down."""
    x, y = points[:, 0].astype(np.float64), points[:, 1].astype(np.float64)
    return float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2.0


def _inside(points: Points, size: ImageSize, repairs: Sequence[str]) -> CheckedOutline:
    """Corners outside are moved to the border, if most of the outline is inside."""
    clamped = _clamped(points, size)
    if not np.array_equal(clamped, points):
        if abs(signed_area(clamped)) < _MIN_INSIDE * abs(signed_area(points)):
            problem = f"lies outside the image ({size}): {_shown(points)}."
            return CheckedOutline(_without_repeats(clamped), problem)
        points, repairs = _without_repeats(clamped), [*repairs, "corners outside the image"]
    return CheckedOutline(points, "", " and ".join(repairs))


def _as_points(corners: object) -> Points | str:
    """Corners as an array, or what is wrong with them."""
    if not isinstance(corners, Sequence) or isinstance(corners, str):
        return f"expected a list of corners, found {_short(corners)}."
    try:
        points = np.array(corners, dtype=np.float64)
    except (TypeError, ValueError):
        return f"expected pairs of numbers, found {_short(corners)}."
    if len(corners) < 3:
        return f"expected at least 3 corners, found {len(corners)}."
    if points.ndim != 2 or points.shape[1] != 2:
        return f"expected pairs of numbers, found {_short(corners)}."
    if not np.isfinite(points).all() or np.abs(points).max() > 1e6:
        return f"corners must be numbers of pixels, found {_short(corners)}."
    return points.astype(np.float32)


def _without_repeats(points: Points) -> Points:
    """Corners equal to the one before them add nothing: some tools repeat the last to get equal numbers."""
    return np.asarray(points[np.any(points != np.roll(points, 1, axis=0), axis=1)], np.float32)


def _is_simple(points: Points) -> bool:
    if len(points) == 4:  # nearly all are convex quadrangles, and this is ten times as fast as shapely
        edges = np.roll(points, -1, axis=0) - points
        following = np.roll(edges, -1, axis=0)
        turns = edges[:, 0] * following[:, 1] - edges[:, 1] * following[:, 0]
        if (turns > 0).all() or (turns < 0).all():
            return True
    return bool(Polygon(points).is_valid)


def _clamped(points: Points, size: ImageSize) -> Points:
    return np.clip(points, 0.0, np.array([size.width, size.height], np.float32)).astype(np.float32)


def _shown(points: Points) -> str:
    return _short([[round(float(x), 1), round(float(y), 1)] for x, y in points])


def _short(value: object) -> str:
    text = f"{value}"
    return text if len(text) <= 80 else text[:79] + "…"
