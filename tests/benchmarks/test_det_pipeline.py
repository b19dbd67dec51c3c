"""The comparison of maps can tell equal maps from others; the figures are printed by benchmarks/det_pipeline.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks.det_pipeline import Peer, compare_maps
from paddle_stable.data.detection_labels import LabelledImage, TextRegion
from paddle_stable.data.detection_maps import DetectionMaps, draw_maps
from paddle_stable.data.images import ImageSize

OUTLINE = np.array([[20, 20], [120, 20], [120, 60], [20, 60]], np.float32)
IMAGES = [LabelledImage(Path("x"), (TextRegion(OUTLINE, False, "abc"),), "x", 1, ImageSize(160, 90))]


def peer(shift: float) -> Peer:
    """Draws our maps, moved."""

    class Moved:
        def maps(self, count: int) -> list[DetectionMaps]:
            return [draw_maps([OUTLINE + np.float32(shift)], [False], height=90, width=160)]

    return cast(Any, Moved())


def test_equal_maps_are_equal() -> None:
    report = compare_maps(peer(0.0), IMAGES)
    assert "IoU 1.0000" in report
    assert "mean difference 0.00000, 99th percentile 0.00000, largest 0.0000" in report
    assert "masks: 0.000000%" in report


def test_moved_maps_are_not() -> None:
    report = compare_maps(peer(4.0), IMAGES)
    assert "IoU 1.0000" not in report
    assert "mean difference 0.00" not in report
    assert "masks: 0.000000%" not in report
