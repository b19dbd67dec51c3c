"""Outlines of texts from probability maps: by hand, and beside PaddleOCR's (README.md here says how its were made)."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
import shapely

from paddle_stable.detection.boxes import POLYGON_POINTS, BoxFinder

ENLARGED = 4
"""PaddleOCR's coordinates are in an image that many times as large."""


def blank(height: int = 64, width: int = 96) -> npt.NDArray[np.float32]:
    return np.zeros((height, width), np.float32)


def iou(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    a, b = shapely.Polygon(one).buffer(0), shapely.Polygon(other).buffer(0)
    return float(a.intersection(b).area / a.union(b).area)


def test_a_rectangle_grows_by_area_times_ratio_over_perimeter() -> None:
    probability = blank()
    probability[20:31, 30:71] = 0.9  # pixels 30 to 70 and 20 to 30: 40 x 10 between their middles
    found = BoxFinder(unclip_ratio=1.5).find(probability)
    growth = 40 * 10 * 1.5 / (2 * (40 + 10))
    left, top, right, bottom = 30.5 - growth, 20.5 - growth, 70.5 + growth, 30.5 + growth
    np.testing.assert_allclose(found.points, [[[left, top], [right, top], [right, bottom], [left, bottom]]], atol=1e-4)
    np.testing.assert_allclose(found.scores, [0.9], rtol=1e-6)


def test_thresholds_and_sizes_decide() -> None:
    probability = blank()
    probability[5:16, 5:46] = 0.65
    probability[30:41, 5:46] = 0.29
    probability[50:53, 5:46] = 0.9  # 2 between the middles: below the smallest side
    assert len(BoxFinder(box_threshold=0.6).find(probability).scores) == 1
    assert len(BoxFinder(box_threshold=0.7).find(probability).scores) == 0
    assert len(BoxFinder(box_threshold=0.2, map_threshold=0.2).find(probability).scores) == 2
    assert len(BoxFinder(box_threshold=0.6, min_side=2.0).find(probability).scores) == 2
    # OpenCV begins below: the second candidate is the one of 0.29.
    assert len(BoxFinder(box_threshold=0.2, map_threshold=0.2, max_candidates=2).find(probability).scores) == 1


@pytest.mark.parametrize("angle", [-60.0, -30.0, 20.0, 44.0, 75.0])
def test_corners_begin_at_the_upper_left_and_go_clockwise(angle: float) -> None:
    probability = blank(128, 128)
    cv2.fillPoly(probability, [cv2.boxPoints(((64, 64), (60, 14), angle)).astype(np.int32)], (1.0,))
    (quad,) = BoxFinder().find(probability).points
    x, y = quad[:, 0], quad[:, 1]
    assert np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y) > 0  # clockwise on a screen
    assert quad[0, 0] < quad[1, 0]
    assert quad[0, 1] < quad[3, 1]


def test_a_curved_text_keeps_its_shape_as_a_polygon() -> None:
    probability = blank(128, 128)
    cv2.ellipse(probability, (64, 90), (50, 50), 0, 190, 350, 1.0, 9)
    (polygon,) = BoxFinder(shape="polygon").find(probability).points
    assert polygon.shape == (POLYGON_POINTS, 2)
    drawn = np.zeros_like(probability)
    cv2.fillPoly(drawn, [np.round(polygon - 0.5).astype(np.int32)], (1.0,))
    assert drawn[probability > 0].mean() > 0.99, "all of the text is inside"
    (quad,) = BoxFinder(box_threshold=0.1).find(probability).points
    assert shapely.Polygon(polygon).area < 0.6 * shapely.Polygon(quad).area


def test_a_polygon_lies_around_the_middle_of_its_pixels() -> None:
    probability = blank()
    probability[20:31, 30:71] = 0.9
    (polygon,) = BoxFinder(shape="polygon").find(probability).points
    middle = (polygon.min(axis=0) + polygon.max(axis=0)) / 2
    np.testing.assert_allclose(middle, [50.5, 25.5], atol=0.1)


@pytest.mark.parametrize("shape", ["quad", "polygon"])
@pytest.mark.parametrize("value", [0.0, 1.0, np.nan])
def test_maps_of_one_value_are_no_failure(shape: str, value: float) -> None:
    finder = BoxFinder(shape="quad" if shape == "quad" else "polygon")
    found = finder.find(np.full((64, 64), value, np.float32))
    assert found.points.shape == (len(found.scores), finder.point_count, 2)
    assert len(found.scores) == int(value == 1.0)


@pytest.fixture(scope="module")
def paddleocr() -> dict[str, npt.NDArray[np.int64]]:
    with np.load(Path(__file__).parent / "paddleocr_boxes.npz") as numbers:
        return dict(numbers)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("threshold", [0.6, 0.7])
def test_quads_are_those_of_paddleocr(
    paddleocr: dict[str, npt.NDArray[np.float32]], number: int, threshold: float
) -> None:
    """Up to two pixels: PaddleOCR cuts the corners to whole pixels before it grows them."""
    probability = paddleocr["maps"][number].astype(np.float32) / 255
    expected = paddleocr[f"quad{round(threshold * 10)}_{number}"] / ENLARGED + 0.5
    found = BoxFinder(box_threshold=threshold).find(probability)
    assert len(found.points) == len(expected) > 0
    for mine, theirs in zip(found.points, expected, strict=True):
        inside = np.clip(mine, 0.5, np.array([224, 160]) + 0.5)  # as PaddleOCR does
        np.testing.assert_allclose(inside, theirs, atol=2.0)
        assert iou(inside, theirs) > 0.85


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("threshold", [0.6, 0.7])
def test_polygons_are_those_of_paddleocr(
    paddleocr: dict[str, npt.NDArray[np.float32]], number: int, threshold: float
) -> None:
    probability = paddleocr["maps"][number].astype(np.float32) / 255
    key = f"poly{round(threshold * 10)}_{number}"
    ends = np.cumsum(paddleocr[f"{key}_lengths"])
    expected = np.split(paddleocr[key] / ENLARGED + 0.5, ends[:-1])
    found = BoxFinder(box_threshold=threshold, shape="polygon").find(probability)
    assert len(found.points) == len(expected) > 0
    for mine, theirs in zip(found.points, expected, strict=True):
        assert iou(np.clip(mine, 0.5, np.array([224, 160]) + 0.5), theirs) > 0.85
