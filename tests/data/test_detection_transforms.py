"""Augmentation: outlines follow the pixels exactly, crops keep words whole, the generator decides everything."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from paddle_stable.data.detection_polygons import Points
from paddle_stable.data.detection_transforms import (
    MEAN,
    STD,
    AugmentConfig,
    Placement,
    Window,
    cut_out,
    draw_crop,
    draw_flip,
    draw_placement,
    draw_resize,
    draw_rotation,
    jitter_colours,
    moved,
    normalised,
    resized,
)

WIDTH, HEIGHT = 200, 120
STILL = AugmentConfig(flip=0.0, rotate=0.0, resize=(1.0, 1.0), brightness=0.0, contrast=0.0, saturation=0.0)


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def box(left: float, top: float, right: float, bottom: float) -> Points:
    return np.array([[left, top], [right, top], [right, bottom], [left, bottom]], np.float32)


def centre_of_light(image: np.ndarray) -> tuple[float, float]:
    """In continuous coordinates."""
    moments = cv2.moments(image[:, :, 0].astype(np.float32))
    return moments["m10"] / moments["m00"] + 0.5, moments["m01"] / moments["m00"] + 0.5


@pytest.mark.parametrize("seed", range(25))
def test_an_outline_follows_its_pixels(seed: int) -> None:
    rng = generator(seed)
    left, top = rng.integers(20, 130), rng.integers(20, 70)
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    image[top : top + 20, left : left + 30] = 255
    outline = box(left, top, left + 30, top + 20)
    placement = draw_placement(WIDTH, HEIGHT, AugmentConfig(), rng)
    (on_canvas,) = moved([outline], placement.matrix)
    window = draw_crop([on_canvas], placement.width, placement.height, STILL, rng)
    crop = cut_out(image, placement, window, 256)
    (outline,) = moved([outline], crop.matrix)
    size = np.ptp(outline, axis=0).max()
    assert centre_of_light(crop.pixels) == pytest.approx(outline.mean(axis=0).tolist(), abs=0.2 + 0.003 * size)
    area = cv2.contourArea(outline)
    assert crop.pixels[:, :, 0].sum() / 255.0 == pytest.approx(area, rel=0.05)


def test_a_flip_exchanges_left_and_right() -> None:
    flip = draw_flip(WIDTH, AugmentConfig(flip=1.0), generator())
    (flipped,) = moved([box(0, 0, 10, 20)], flip)
    assert flipped.min(axis=0).tolist() == [190, 0]
    assert flipped.max(axis=0).tolist() == [200, 20]
    assert np.array_equal(draw_flip(WIDTH, STILL, generator()), np.eye(3))


def test_half_of_the_images_are_flipped() -> None:
    flips = [draw_flip(WIDTH, AugmentConfig(), generator(seed))[0, 0] < 0 for seed in range(400)]
    assert 0.42 < np.mean(flips) < 0.58


@pytest.mark.parametrize("seed", range(10))
def test_a_turned_image_is_all_on_its_canvas(seed: int) -> None:
    turned = draw_rotation(WIDTH, HEIGHT, AugmentConfig(rotate=30.0), generator(seed))
    (corners,) = moved([box(0, 0, WIDTH, HEIGHT)], turned.matrix)
    assert corners.min() >= -1e-3
    assert (corners <= np.array([turned.width, turned.height]) + 1e-3).all()
    assert np.ptp(corners, axis=0) == pytest.approx([turned.width, turned.height], abs=1.0)


def test_angles_and_factors_fill_their_range() -> None:
    matrices = [draw_rotation(WIDTH, HEIGHT, AugmentConfig(), generator(seed)).matrix for seed in range(300)]
    angles = [np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0])) for matrix in matrices]
    factors = [draw_resize(AugmentConfig(), generator(seed)) for seed in range(300)]
    assert (min(angles), max(angles)) == pytest.approx((-10.0, 10.0), abs=0.3)
    assert (min(factors), max(factors)) == pytest.approx((0.5, 3.0), abs=0.05)


@pytest.mark.parametrize("seed", range(60))
def test_a_crop_cuts_no_word_and_has_one(seed: int) -> None:
    rng = generator(seed)
    corners = rng.uniform(0, (WIDTH - 40, HEIGHT - 15), size=(5, 2))
    words = [box(x, y, x + rng.uniform(5, 40), y + rng.uniform(4, 15)) for x, y in corners]
    window = draw_crop(words, WIDTH, HEIGHT, STILL, rng)
    right, bottom = window.left + window.width, window.top + window.height
    assert 0 <= window.left < right <= WIDTH
    assert 0 <= window.top < bottom <= HEIGHT
    inside = 0
    for word in words:
        (x1, y1), (x2, y2) = word.min(axis=0), word.max(axis=0)
        whole = x1 >= window.left and x2 <= right and y1 >= window.top and y2 <= bottom
        apart = x2 <= window.left or x1 >= right or y2 <= window.top or y1 >= bottom
        assert whole or apart
        inside += whole
    assert inside


def test_crops_differ_and_are_not_always_everything() -> None:
    words = [box(20, 20, 60, 30), box(120, 80, 160, 95)]
    windows = {draw_crop(words, WIDTH, HEIGHT, STILL, generator(seed)) for seed in range(40)}
    assert len(windows) > 20


@pytest.mark.parametrize("words", [[box(0, 0, WIDTH, HEIGHT)], [box(-50, -50, 500, 500)]])
def test_where_nothing_can_be_cut_the_whole_image_is_taken(words: list[Points]) -> None:
    assert draw_crop(words, WIDTH, HEIGHT, STILL, generator()) == Window(0, 0, WIDTH, HEIGHT)


def test_an_image_without_text_is_cropped_too() -> None:
    windows = {draw_crop([], WIDTH, HEIGHT, STILL, generator(seed)) for seed in range(20)}
    assert len(windows) > 10


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (3, 2)])
def test_tiny_images_can_be_cropped(size: tuple[int, int]) -> None:
    for seed in range(20):
        window = draw_crop([], *size, STILL, generator(seed))
        assert window.width >= 1
        assert window.height >= 1


def test_the_squarest_of_several_crops_is_taken() -> None:
    def parts(choices: int) -> list[float]:
        config = AugmentConfig(crop_choices=choices)
        windows = [draw_crop([], WIDTH, HEIGHT, config, generator(seed)) for seed in range(50)]
        return [min(window.width, window.height) / max(window.width, window.height) for window in windows]

    one, six = parts(1), parts(6)
    assert all(many >= single for many, single in zip(six, one, strict=True))  # the first drawn is among the six
    assert np.mean(six) > 1.3 * np.mean(one)


def test_a_crop_keeps_its_proportions_and_is_black_beyond() -> None:
    image = np.full((HEIGHT, WIDTH, 3), 200, np.uint8)
    crop = cut_out(image, Placement(np.eye(3), WIDTH, HEIGHT), Window(20, 10, 100, 50), 64)
    assert (crop.width, crop.height) == (64, 32)
    assert (crop.pixels[:32] == 200).all()
    assert not crop.pixels[32:].any()


def test_only_what_reaches_into_the_crop_is_shown() -> None:
    crop = cut_out(np.zeros((64, 64, 3), np.uint8), Placement(np.eye(3), 64, 64), Window(0, 0, 64, 32), 64)
    assert crop.shows(box(-10, 5, 5, 20))
    assert not crop.shows(box(5, 31.9, 20, 50))
    assert not crop.shows(box(-10, 5, 0.2, 20))


def test_thin_strokes_survive_strong_shrinking() -> None:
    image = np.zeros((800, 800, 3), np.uint8)
    image[::8] = 255
    crop = cut_out(image, Placement(np.eye(3), 800, 800), Window(0, 0, 800, 800), 64)
    assert crop.pixels[4:-4].std() < 15.0  # 80 without averaging
    assert crop.pixels.mean() == pytest.approx(255 / 8, abs=3.0)


def test_colours_change_within_their_range_and_geometry_does_not() -> None:
    image = generator().integers(60, 140, (50, 60, 3), dtype=np.uint8)
    assert np.array_equal(jitter_colours(image, STILL, generator()), image)
    bright = AugmentConfig(brightness=0.2, contrast=0.0, saturation=0.0)
    factors = [jitter_colours(image, bright, generator(seed)).mean() / image.mean() for seed in range(60)]
    assert 0.79 < min(factors) < 0.83
    assert 1.17 < max(factors) < 1.21
    grey = np.repeat(image[:, :, :1], 3, axis=2)
    only_saturation = AugmentConfig(brightness=0.0, contrast=0.0, saturation=0.9)
    assert np.abs(jitter_colours(grey, only_saturation, generator()).astype(int) - grey).max() <= 1


def test_the_network_gets_normalised_channels_first() -> None:
    image = generator().integers(0, 256, (4, 5, 3), dtype=np.uint8)
    expected = ((image / 255.0 - MEAN) / STD).transpose(2, 0, 1)
    assert normalised(image).dtype == np.float32
    assert np.allclose(normalised(image), expected, atol=1e-5)


def test_a_resized_image_has_the_size_asked_for() -> None:
    assert resized(np.zeros((10, 20, 3), np.uint8), 7, 33).shape == (33, 7, 3)


@pytest.mark.parametrize("resize", [(2.0, 1.0), (0.0, 1.0), (1.0, 100.0)])
def test_a_range_is_a_range(resize: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="resize: expected two factors"):
        AugmentConfig(resize=resize)
