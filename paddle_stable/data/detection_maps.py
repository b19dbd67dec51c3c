"""What DBNet learns from: shrink map and threshold map of the texts in an image.

Liao et al., "Real-time Scene Text Detection with Differentiable Binarization", AAAI 2020, section 3.4, drawn as
PaddleOCR 2.9.1 draws them, so that its weights go on learning the same thing (benchmarks/det_pipeline.py compares):
corners are cut to whole pixels before they are moved, and the small side is that of the upright bounding box. One
thing differs: the distance to an edge is that to the segment. There, a pixel from which the edge is seen under less
than 90 degrees gets the distance to the nearer corner, even beside the edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from paddle_stable.data.detection_polygons import MIN_AREA, Points, signed_area

Map = npt.NDArray[np.float32]
THRESHOLD_RANGE = (0.3, 0.7)
"""Threshold away from any text, and on its outline."""


@final
@dataclass(frozen=True, slots=True)
class DetectionMaps:
    """Targets of one image, all float32 [height, width]."""

    shrink_map: Map
    """1 in the shrunk texts, 0 elsewhere: the target of the probability map."""
    shrink_mask: Map
    """0 where the probability counts neither way: ignored and tiny texts."""
    threshold_map: Map
    """0.7 on the outlines, falling to 0.3 at the shrink distance on both sides."""
    threshold_mask: Map
    """1 in the dilated texts, where the threshold counts."""

    def arrays(self) -> dict[str, Map]:
        """By name, for a sample."""
        return {
            "shrink_map": self.shrink_map,
            "shrink_mask": self.shrink_mask,
            "threshold_map": self.threshold_map,
            "threshold_mask": self.threshold_mask,
        }


def empty_maps(height: int, width: int, *, counts: bool = True) -> DetectionMaps:
    """Maps of an image without text; with `counts` false, of one that is left out of the loss."""
    shape = (height, width)
    threshold = np.full(shape, THRESHOLD_RANGE[0], np.float32)
    mask = np.full(shape, 1.0 if counts else 0.0, np.float32)
    return DetectionMaps(np.zeros(shape, np.float32), mask, threshold, np.zeros(shape, np.float32))


def draw_maps(
    outlines: Sequence[Points],
    ignored: Sequence[bool],
    *,
    height: int,
    width: int,
    shrink_ratio: float = 0.4,
    min_text_size: float = 8.0,
) -> DetectionMaps:
    """Draw the maps of one image. No outline, however degenerate, raises.

    Args:
        outlines: corners of each text, [n, 2] in pixels of the maps; they may reach beyond the border.
        ignored: whether the text counts neither way.
        height: of the maps.
        width: of the maps.
        shrink_ratio: r in the shrink distance A(1 - r²) / L of a text with area A and perimeter L.
        min_text_size: texts whose bounding box has a shorter side are ignored in the shrink map.
    """
    maps = empty_maps(height, width)
    for outline, ignore in zip(outlines, ignored, strict=True):
        if not ignore:
            _draw_threshold(outline, shrink_ratio, maps)
        inside = np.clip(outline, 0, np.array([width - 1, height - 1], np.float32))
        sides = inside.max(axis=0) - inside.min(axis=0)
        shrunk = [] if ignore or sides.min() < min_text_size else _shrunk(inside, shrink_ratio)
        if shrunk:
            for part in shrunk:
                cv2.fillPoly(maps.shrink_map, [part], [1.0])
        else:
            cv2.fillPoly(maps.shrink_mask, [inside.astype(np.int32)], [0.0])
    return maps


def shrink_distance(outline: Points, ratio: float) -> float:
    """A(1 - r²) / L in pixels; 0 for an outline without area."""
    perimeter = cv2.arcLength(outline, True)
    return abs(signed_area(outline)) * (1.0 - ratio * ratio) / perimeter if perimeter > 0 else 0.0


def _shrunk(outline: Points, ratio: float) -> list[npt.NDArray[np.int32]]:
    """The text drawn inwards; with larger ratios, which move less, where the first gives not exactly one part."""
    if abs(signed_area(outline)) < MIN_AREA:
        return []
    parts: list[npt.NDArray[np.int32]] = []
    for attempt in np.arange(ratio, 1.0, ratio).tolist():
        parts = _offset(outline, -shrink_distance(outline, attempt))
        if len(parts) == 1:
            break
    return parts


def _offset(outline: Points, distance: float) -> list[npt.NDArray[np.int32]]:
    """Outlines at a distance, negative inwards; none when nothing is left or the outline is degenerate."""
    clipper = pyclipper.PyclipperOffset()
    # Clipper counts in whole numbers, and takes outward from the sense of rotation.
    corners = outline.astype(np.int32).tolist()
    try:
        clipper.AddPath(corners, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
    except pyclipper.ClipperException:
        return []
    return [np.array(part, np.int32) for part in clipper.Execute(distance)]


def _draw_threshold(outline: Points, ratio: float, maps: DetectionMaps) -> None:
    """Add one text to the threshold map: highest on its outline, lowest from the shrink distance on; and to the mask,
    dilated."""
    distance = shrink_distance(outline, ratio)
    dilated = _offset(outline, distance) if distance > 0.0 else []
    if not dilated:
        return
    cv2.fillPoly(maps.threshold_mask, [dilated[0]], [1.0])
    height, width = maps.threshold_map.shape
    left, top = np.maximum(dilated[0].min(axis=0), 0)
    right, bottom = np.minimum(dilated[0].max(axis=0) + 1, (width, height))
    if left >= right or top >= bottom:
        return
    low, high = THRESHOLD_RANGE
    threshold = _squared_distance(outline, np.arange(left, right), np.arange(top, bottom))
    np.sqrt(threshold, out=threshold)
    threshold *= np.float32((low - high) / distance)
    threshold += np.float32(high)
    # What falls below the lowest, beyond the distance, loses against what is there.
    window = maps.threshold_map[top:bottom, left:right]
    np.maximum(window, threshold, out=window)


def _squared_distance(outline: Points, columns: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Map:
    """Squared distance of every pixel to the nearest edge, [rows, columns]."""
    # In coordinates along and across an edge, both a sum of a part by column and one by row, a pixel takes eight
    # cheap operations an edge and one square root at the end.
    x, y = columns.astype(np.float32), rows.astype(np.float32)[:, None]
    shape = (len(rows), len(columns))
    across, beyond = np.empty(shape, np.float32), np.empty(shape, np.float32)
    nearest: Map | None = None
    for (x1, y1), (x2, y2) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        length = np.hypot(x2 - x1, y2 - y1)
        if length == 0.0:
            continue
        ux, uy = (x2 - x1) / length, (y2 - y1) / length
        along = np.add((x - x1) * ux, (y - y1) * uy)
        np.subtract((x - x1) * uy, (y - y1) * ux, out=across)
        np.clip(along, 0.0, length, out=beyond)
        along -= beyond
        np.multiply(along, along, out=along)
        np.multiply(across, across, out=across)
        along += across
        nearest = along if nearest is None else np.minimum(nearest, along, out=nearest)
    return np.full(shape, np.inf, np.float32) if nearest is None else nearest
