"""Scenes: labels fit the image, texts do not overlap, and what counts can be seen."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import pytest

from paddle_stable.data.detection_polygons import check_outline
from paddle_stable.data.images import ImageSize
from paddle_stable.data.text_images import build_studio, scenes
from paddle_stable.data.text_scenes import HEIGHT, WIDTH, Scene

SCENES = 60


@pytest.fixture(scope="module")
def rendered() -> Sequence[Scene]:
    return list(scenes(build_studio(None), "train", SCENES, seed=5))


def test_images_are_of_one_size_and_texts_of_many(rendered: Sequence[Scene]) -> None:
    assert {scene.image.shape for scene in rendered} == {(HEIGHT, WIDTH, 3)}
    counts = [len(scene.texts) for scene in rendered]
    assert 2.5 < np.mean(counts) < 6.0
    heights = [cv2.minAreaRect(text.outline)[1] for scene in rendered for text in scene.texts]
    smallest = [min(sides) for sides in heights]
    assert min(smallest) < 14
    assert max(smallest) > 40


def test_some_texts_are_bent_some_turned_and_some_not_readable(rendered: Sequence[Scene]) -> None:
    texts = [text for scene in rendered for text in scene.texts]
    assert 0.03 < np.mean([len(text.outline) > 4 for text in texts]) < 0.25
    angles = [np.degrees(np.arctan2(*(text.outline[1] - text.outline[0])[::-1])) for text in texts]
    assert 0.03 < np.mean(np.abs(angles) > 15) < 0.4
    assert 0.05 < np.mean([not text.readable for text in texts]) < 0.4


def test_every_label_is_a_right_outline(rendered: Sequence[Scene]) -> None:
    for scene in rendered:
        for text in scene.texts:
            checked = check_outline(np.round(text.outline, 1).tolist(), ImageSize(WIDTH, HEIGHT))
            assert (checked.problem, checked.repair) == ("", "")


def test_texts_do_not_overlap(rendered: Sequence[Scene]) -> None:
    for scene in rendered:
        drawn = np.zeros((HEIGHT, WIDTH), np.uint8)
        for text in scene.texts:
            one = cv2.fillPoly(np.zeros_like(drawn), [text.outline.astype(np.int32)], 1)
            assert not (drawn & one).any()
            drawn |= one


def test_readable_texts_can_be_seen(rendered: Sequence[Scene]) -> None:
    spreads = []
    for scene in rendered:
        grey = cv2.cvtColor(scene.image, cv2.COLOR_BGR2GRAY)
        for text in scene.texts:
            if text.readable:
                inside = cv2.fillPoly(np.zeros_like(grey), [text.outline.astype(np.int32)], 1)
                low, high = np.percentile(grey[inside > 0], (2, 98))
                spreads.append(high - low)
    assert np.quantile(spreads, 0.05) > 20
