"""From a probability map to outlines of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import cv2
import numpy as np
import numpy.typing as npt
import pyclipper

from paddle_stable.data.dataset import Array

Floats = npt.NDArray[np.float32]
QUAD_POINTS, POLYGON_POINTS = 4, 32
_SUBPIXELS = 64
"""pyclipper computes with whole numbers: outlines are enlarged before and reduced after."""
_GROWN_BY = 2
"""An outline that was unclipped has to be that much larger than the smallest region, as in PaddleOCR."""


@final
@dataclass(frozen=True)
class FoundTexts:
    """What was found in one image."""

    points: Floats
    """Outlines, [texts, points, 2], x before y, the upper left pixel reaching from (0, 0) to (1, 1). Quads begin at the
    upper left and go clockwise; polygons with fewer points repeat their last one."""
    scores: Floats
    """Mean probability inside, [texts]."""


@final
@dataclass(frozen=True, slots=True)
class BoxFinder:
    """Post-processing of DBNet (Liao et al. 2020, section 3.5), by PaddleOCR's rules."""

    map_threshold: float = 0.3
    """Probability above which a pixel belongs to a region."""
    box_threshold: float = 0.7
    """Regions with a lower mean probability are dropped."""
    unclip_ratio: float = 1.5
    """A region grows by area x ratio / perimeter, to undo the shrinking of the labels."""
    max_candidates: int = 1000
    """Regions looked at in an image."""
    min_side: float = 3.0
    """Pixels of the map: regions with a shorter side are dropped."""
    shape: Literal["quad", "polygon"] = "quad"

    @property
    def point_count(self) -> int:
        """Points of every outline."""
        return QUAD_POINTS if self.shape == "quad" else POLYGON_POINTS

    def find(self, probability: Floats) -> FoundTexts:
        """Outlines in a map [height, width], in its pixels. A map that is not finite has none where it is not."""
        above = (probability > self.map_threshold).view(np.uint8)
        contours, _ = cv2.findContours(above, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
        contours = contours[: self.max_candidates]
        return self._quads(probability, contours) if self.shape == "quad" else self._polygons(probability, contours)

    def _quads(self, probability: Floats, contours: Sequence[Array]) -> FoundTexts:
        """A rectangle with round corners grown around it has the rectangle grown by the same distance as its own
        smallest rectangle: no outline has to be computed."""
        boxes, scores = [], []
        for contour in contours:
            centre, (width, height), angle = cv2.minAreaRect(contour)
            if min(width, height) < self.min_side:
                continue
            score = _mean_inside(probability, cv2.boxPoints((centre, (width, height), angle)))
            growth = width * height * self.unclip_ratio / (width + height)  # on both sides together
            if score < self.box_threshold or min(width, height) + growth < self.min_side + _GROWN_BY:
                continue
            boxes.append(cv2.boxPoints((centre, (width + growth, height + growth), angle)))
            scores.append(score)
        points = np.array(boxes, np.float32).reshape(-1, QUAD_POINTS, 2)
        return FoundTexts(_clockwise(points) + np.float32(0.5), np.array(scores, np.float32))

    def _polygons(self, probability: Floats, contours: Sequence[Array]) -> FoundTexts:
        outlines, scores = [], []
        for contour in contours:
            outline = cv2.approxPolyDP(contour, 0.002 * cv2.arcLength(contour, True), True)[:, 0]
            if len(outline) < 4:
                continue
            score = _mean_inside(probability, outline)
            if score < self.box_threshold:
                continue
            grown = self._grown(outline)
            if grown is None or min(cv2.minAreaRect(grown)[1]) < self.min_side + _GROWN_BY:
                continue
            outlines.append(_with_points(grown, POLYGON_POINTS))
            scores.append(score)
        points = np.array(outlines, np.float32).reshape(-1, POLYGON_POINTS, 2)
        return FoundTexts(points + np.float32(0.5), np.array(scores, np.float32))

    def _grown(self, outline: Array) -> Floats | None:
        """The outline grown on all sides, [n, 2]; None where that is not one outline."""
        distance = cv2.contourArea(outline) * self.unclip_ratio / cv2.arcLength(outline, True)
        offset = pyclipper.PyclipperOffset()
        # pyclipper's default tolerance would give an arc hundreds of points at this scale.
        offset.ArcTolerance = 0.25 * _SUBPIXELS
        offset.AddPath(outline * _SUBPIXELS, pyclipper.JT_ROUND, pyclipper.ET_CLOSEDPOLYGON)
        grown = offset.Execute(distance * _SUBPIXELS)
        return np.array(grown[0], np.float32) / _SUBPIXELS if len(grown) == 1 else None


def _mean_inside(probability: Floats, outline: Array) -> float:
    """Mean over the pixels inside an outline [n, 2] and on its border."""
    height, width = probability.shape
    xs, ys = outline[:, 0], outline[:, 1]
    left, top = (min(max(int(np.floor(side.min())), 0), limit - 1) for side, limit in ((xs, width), (ys, height)))
    right, bottom = (min(max(int(np.ceil(side.max())), 0), limit - 1) for side, limit in ((xs, width), (ys, height)))
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [(outline - (left, top)).astype(np.int32)], (1,))
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def _clockwise(boxes: Floats) -> Floats:
    """Corners [n, 4, 2] as upper left, upper right, lower right, lower left: the two left ones, the two right ones,
    each pair from the top."""
    order = np.argsort(boxes[:, :, 0], axis=1, kind="stable")
    by_x = np.take_along_axis(boxes, order[:, :, None], axis=1).reshape(-1, 2, 2, 2)
    pairs = np.take_along_axis(by_x, np.argsort(by_x[..., 1], axis=2, kind="stable")[..., None], axis=2)
    left, right = pairs[:, 0], pairs[:, 1]
    return np.stack([left[:, 0], right[:, 0], right[:, 1], left[:, 1]], axis=1)


def _with_points(outline: Floats, count: int) -> Floats:
    """An outline of exactly `count` points: made coarser until it has no more, its last point repeated for the rest."""
    tolerance = 0.5
    while len(outline) > count:
        outline = cv2.approxPolyDP(outline[:, None], tolerance, True)[:, 0].astype(np.float32)
        tolerance *= 1.5
    return np.concatenate([outline, np.repeat(outline[-1:], count - len(outline), axis=0)])
