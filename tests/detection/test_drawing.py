"""Pictures show what was right, wrong, missed and ignored, each in its colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from paddle_stable.data.detection_labels import TextRegion
from paddle_stable.data.images import read_image
from paddle_stable.detection.drawing import IGNORED, MISSED, RIGHT, WRONG, draw_matching, draw_outlines, write_sheet


def box(left: int, top: int) -> np.ndarray:
    corners = [[left, top], [left + 40, top], [left + 40, top + 20], [left, top + 20]]
    return np.array(corners, np.float32) + np.float32(0.5)


def test_every_kind_has_its_colour_and_the_image_itself_stays_as_it_was() -> None:
    image = np.full((200, 200, 3), 255, np.uint8)
    regions = [
        TextRegion(box(10, 10), False, "right"),
        TextRegion(box(10, 60), False, "missed"),
        TextRegion(box(10, 110), True, "ignored"),
    ]
    drawn = draw_matching(image, [box(10, 10), box(100, 60)], regions)
    for colour, place in ((RIGHT, (10, 30)), (MISSED, (60, 30)), (IGNORED, (110, 30)), (WRONG, (60, 120))):
        np.testing.assert_allclose(drawn[place], colour, atol=30)  # lines are smooth
    assert (image == 255).all()


def test_no_text_at_all_draws_nothing() -> None:
    image = np.full((50, 50, 3), 200, np.uint8)
    np.testing.assert_array_equal(draw_matching(image, [], []), image)
    np.testing.assert_array_equal(draw_outlines(image, [], RIGHT), image)


def test_a_sheet_takes_images_of_any_size(tmp_path: Path) -> None:
    images = [np.zeros(shape, np.uint8) for shape in ((50, 100, 3), (100, 50, 3), (10, 10, 3), (2, 3000, 3))]
    write_sheet(tmp_path / "sheet.png", images)
    height, width, _ = read_image(tmp_path / "sheet.png").shape
    assert width > 2 * 640
    assert height > 2 * 1280
