"""Shrink and threshold maps: known geometry by hand, PaddleOCR's numbers, and no outline that raises."""

from __future__ import annotations

import numpy as np
import pytest

from paddle_stable.data.detection_maps import DetectionMaps, draw_maps, empty_maps, shrink_distance

RECTANGLE = np.array([[20, 20], [120, 20], [120, 60], [20, 60]], np.float32)
# A(1 - r²) / L = 4000 * 0.84 / 280
DISTANCE = 12.0


def maps(*outlines: np.ndarray, ignored: bool = False, height: int = 90, width: int = 160) -> DetectionMaps:
    return draw_maps(list(outlines), [ignored] * len(outlines), height=height, width=width)


def test_shapes_and_types_are_those_of_the_image() -> None:
    for array in maps(RECTANGLE).arrays().values():
        assert array.shape == (90, 160)
        assert array.dtype == np.float32


def test_a_rectangle_is_shrunk_by_its_distance() -> None:
    assert shrink_distance(RECTANGLE, 0.4) == pytest.approx(DISTANCE)
    expected = np.zeros((90, 160), np.float32)
    expected[32:49, 32:109] = 1.0  # both borders belong to it
    drawn = maps(RECTANGLE)
    assert np.array_equal(drawn.shrink_map, expected)
    assert np.array_equal(drawn.shrink_mask, np.ones((90, 160)))


def test_the_threshold_falls_from_the_outline_to_both_sides() -> None:
    drawn = maps(RECTANGLE)
    across = drawn.threshold_map[:, 70]
    assert across[20] == pytest.approx(0.7)
    assert across[60] == pytest.approx(0.7)
    for step in range(13):
        expected = 0.7 - 0.4 * step / DISTANCE
        for row in (20 - step, 20 + step, 60 - step, 60 + step):
            assert across[row] == pytest.approx(expected, abs=1e-5)
    assert across[40] == pytest.approx(0.3)
    assert across[:8] == pytest.approx(0.3)
    # Around a corner the distance is that to the corner.
    assert drawn.threshold_map[17, 16] == pytest.approx(0.7 - 0.4 * 5 / DISTANCE, abs=1e-5)


def test_the_threshold_counts_in_the_dilated_text_only() -> None:
    mask = maps(RECTANGLE).threshold_mask
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    assert (rows[0], rows[-1], columns[0], columns[-1]) == (8, 72, 8, 132)
    assert mask[9, 9] == 0.0  # its corners are round


@pytest.mark.parametrize("part", [0.5, 0.05])
def test_ignored_texts_count_neither_way(part: float) -> None:
    drawn = maps(RECTANGLE, ignored=True)
    assert not drawn.shrink_map.any()
    assert not drawn.threshold_mask.any()
    assert not drawn.shrink_mask[20:61, 20:121].any()
    assert drawn.shrink_mask.sum() == 90 * 160 - 41 * 101


def test_tiny_texts_are_ignored() -> None:
    low = np.array([[20, 20], [120, 20], [120, 27.5], [20, 27.5]], np.float32)
    drawn = maps(low)
    assert not drawn.shrink_map.any()
    assert not drawn.shrink_mask[20:27, 20:120].any()
    assert draw_maps([low], [False], height=90, width=160, min_text_size=7).shrink_map.any()


def test_a_text_that_falls_apart_is_shrunk_less() -> None:
    # Two blocks and a narrow bridge: shrunk by the first ratio, the bridge is gone.
    dumbbell = np.array(
        [[10, 10], [50, 10], [50, 26], [100, 26], [100, 10], [140, 10],
         [140, 50], [100, 50], [100, 34], [50, 34], [50, 50], [10, 50]], np.float32)  # fmt: skip
    drawn = maps(dumbbell)
    assert drawn.shrink_map[30, 75] == 1.0
    assert drawn.shrink_map[12, 12] == 0.0


def test_larger_values_win_where_texts_are_close() -> None:
    other = RECTANGLE + np.float32([0, 44])
    both, one, two = maps(RECTANGLE, other, height=140), maps(RECTANGLE, height=140), maps(other, height=140)
    assert np.array_equal(both.threshold_map, np.maximum(one.threshold_map, two.threshold_map))
    assert np.array_equal(both.threshold_mask, np.maximum(one.threshold_mask, two.threshold_mask))


DEGENERATE = {
    "nothing": [[5, 5], [5, 5], [5, 5], [5, 5]],
    "a line": [[5, 5], [50, 5], [50, 5], [5, 5]],
    "a slanted line": [[5, 5], [50, 50], [70, 70]],
    "crossing": [[10, 10], [60, 50], [60, 10], [10, 50]],
    "outside": [[500, 500], [600, 500], [600, 550], [500, 550]],
    "before the origin": [[-600, -500], [-500, -500], [-500, -450], [-600, -450]],
    "around everything": [[-500, -500], [900, -500], [900, 900], [-500, 900]],
    "a hair": [[10, 10], [100, 10], [100, 10.5], [10, 10.5]],
    "huge": [[-1e5, 0], [1e5, 0], [1e5, 50], [-1e5, 50]],
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("ignored", [False, True])
def test_no_outline_raises_or_gives_a_number_that_is_none(name: str, ignored: bool) -> None:
    drawn = maps(np.array(DEGENERATE[name], np.float32), RECTANGLE, ignored=ignored)
    for array in drawn.arrays().values():
        assert np.isfinite(array).all()
    assert drawn.threshold_map.min() == pytest.approx(0.3)
    assert 0.29 < drawn.threshold_map.max() < 0.7001


def test_the_outlines_that_were_given_are_left_alone() -> None:
    outline = RECTANGLE - np.float32(30)
    before = outline.copy()
    maps(outline)
    assert np.array_equal(outline, before)


def test_an_image_without_text() -> None:
    drawn, left_out = maps(), empty_maps(90, 160, counts=False)
    assert drawn.shrink_mask.all()
    assert not drawn.shrink_map.any()
    assert not drawn.threshold_mask.any()
    assert not left_out.shrink_mask.any()
