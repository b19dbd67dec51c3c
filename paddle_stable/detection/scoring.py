"""Precision and recall of detected texts by ICDAR-2015's rules (Karatzas et al. 2015, "Incidental Scene Text")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import shapely

from paddle_stable.data.dataset import Array
from paddle_stable.data.detection_labels import TextRegion

MIN_IOU = 0.5
"""A detection is a labelled text when their intersection is more than that part of their union."""
MIN_IGNORED = 0.5
"""A detection does not count when more than that part of it lies in a text that is to be ignored."""


@final
@dataclass(frozen=True, slots=True)
class TextCounts:
    """Texts that count, in one image or in many."""

    labelled: int = 0
    detected: int = 0
    matched: int = 0

    def scores(self) -> dict[str, float]:
        """`precision`, `recall` and their harmonic mean `hmean`; 0 where there is nothing to divide by."""
        precision = self.matched / self.detected if self.detected else 0.0
        recall = self.matched / self.labelled if self.labelled else 0.0
        hmean = 2.0 * precision * recall / (precision + recall) if self.matched else 0.0
        return {"precision": precision, "recall": recall, "hmean": hmean}


def total(counts: Iterable[TextCounts]) -> TextCounts:
    """Counts over a whole set, whose scores are those of all its texts and not means over images."""
    found = list(counts)
    return TextCounts(
        sum(count.labelled for count in found),
        sum(count.detected for count in found),
        sum(count.matched for count in found),
    )


@final
@dataclass(frozen=True)
class Matching:
    """Which detections of an image are which labelled texts; every array is bool."""

    ignored: Array
    """[labels] Texts that count neither for nor against."""
    read: Array
    """[labels] Texts that a detection was matched with."""
    covered: Array
    """[detections] Those that do not count because they lie in an ignored text."""
    right: Array
    """[detections] Those that were matched with a text."""

    def counts(self) -> TextCounts:
        """What they come to."""
        return TextCounts(int((~self.ignored).sum()), int((~self.covered).sum()), int(self.right.sum()))


def match_texts(detected: Sequence[Array], regions: Sequence[TextRegion]) -> Matching:
    """Match detections with the labelled texts of an image, one to one, in the order of labels and detections.

    Args:
        detected: outlines [n, 2] in pixels. One that crosses itself counts with the area that it encloses.
        regions: labelled texts in the same pixels.
    """
    found = _polygons(detected)
    labels = _polygons([region.points for region in regions])
    ignored = np.array([region.ignore for region in regions], dtype=bool)
    overlaps = _overlaps(labels, found)
    label_areas, found_areas = shapely.area(labels), shapely.area(found)
    covered = (overlaps[ignored] > MIN_IGNORED * found_areas).any(axis=0)
    unions = label_areas[:, None] + found_areas - overlaps
    same = (overlaps > MIN_IOU * unions) & ~ignored[:, None] & ~covered
    read, right = np.zeros(len(labels), dtype=bool), np.zeros(len(found), dtype=bool)
    for number, row in enumerate(same):
        candidates = np.flatnonzero(row & ~right)
        if candidates.size:
            read[number] = right[candidates[0]] = True
    return Matching(ignored, read, covered, right)


def _polygons(outlines: Sequence[Array]) -> Any:
    """shapely's polygons as an array [outlines]."""
    polygons = np.empty(len(outlines), dtype=object)
    polygons[:] = [shapely.Polygon(np.asarray(outline, np.float64)) for outline in outlines]
    return shapely.make_valid(polygons) if len(outlines) else polygons


def _overlaps(labels: Any, found: Any) -> Array:
    """Area of the intersection of every labelled text with every detection, [labels, found]."""
    areas = np.zeros((len(labels), len(found)))
    if areas.size:
        boxes, others = shapely.bounds(labels)[:, None], shapely.bounds(found)[None]
        near = ((boxes[..., :2] < others[..., 2:]) & (others[..., :2] < boxes[..., 2:])).all(axis=-1)
        rows, columns = np.nonzero(near)  # most pairs are far apart, and the exact way is the dear one
        areas[rows, columns] = shapely.area(shapely.intersection(labels[rows], found[columns]))
    return areas
