"""Augmentation of text images in PaddleOCR's order: flip, rotate, resize, crop around whole words, colour.

The geometry is drawn first, as one matrix, and applied once, to the crop only: the turned and resized image as a whole,
up to nine times as large as the source, never exists. Coordinates are continuous, the upper left pixel reaching from
(0, 0) to (1, 1), so that outlines follow the pixels exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import cv2
import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from paddle_stable.data.detection_polygons import Points
from paddle_stable.data.images import Pixels
from paddle_stable.recipe import Section

Matrix = npt.NDArray[np.float64]
"""Maps (x, y, 1) of one image to that of another, [3, 3]."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet, applied to the channels as PaddleOCR does: in the order blue, green, red."""
_CROP_TRIES = 50
_MIN_CROP_SIDE = 0.1
"""Shortest side of a crop as a part of the image's."""
_VISIBLE = 0.5
"""Pixels that an outline has to reach into a crop: those of a word beside it end at the border, up to rounding."""
_GREY = np.array([0.114, 0.587, 0.299])
"""Weights of blue, green and red in brightness (ITU-R BT.601)."""

Part = Annotated[float, Field(ge=0.0, lt=1.0)]


@final
class AugmentConfig(Section):
    """What training images go through, in this order. The defaults are PaddleOCR's."""

    flip: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of mirroring left and right."""
    rotate: float = Field(default=10.0, ge=0.0, le=45.0)
    """Degrees: turned by up to this either way."""
    resize: tuple[float, float] = (0.5, 3.0)
    """Smallest and largest factor on the image's size before the crop."""
    crop_choices: int = Field(default=1, ge=1, le=100)
    """Crops that are drawn for each sample; the squarest is taken. A crop is fitted into a square, and one around a
    line of text would leave most of it black."""
    brightness: Part = 0.125
    """Brightness is multiplied by 1 plus or minus up to this."""
    contrast: Part = 0.2
    """Likewise the distance from the mean brightness."""
    saturation: Part = 0.5
    """Likewise the distance from grey."""

    @model_validator(mode="after")
    def _resize_is_a_range(self) -> AugmentConfig:
        low, high = self.resize
        if not 0.05 <= low <= high <= 20.0:
            raise ValueError(f"resize: expected two factors, 0.05 <= smallest <= largest <= 20, got {low}, {high}")
        return self


@final
@dataclass(frozen=True, slots=True)
class Window:
    """A part of a canvas, in its pixels."""

    left: int
    top: int
    width: int
    height: int


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """Where the source image goes: a matrix, and the canvas that holds all of it afterwards."""

    matrix: Matrix
    width: int
    height: int


@final
@dataclass(frozen=True, slots=True)
class Crop:
    """What is cut out for training."""

    pixels: Pixels
    """A square, black where the image does not reach."""
    matrix: Matrix
    """From the source to the square."""
    width: int
    """What the crop fills of the square, from its left."""
    height: int
    """Likewise from above."""

    def shows(self, outline: Points) -> bool:
        """Whether any of an outline that was moved by `matrix` is in the crop."""
        (left, top), (right, bottom) = outline.min(axis=0), outline.max(axis=0)
        return bool(
            right > _VISIBLE and bottom > _VISIBLE and left < self.width - _VISIBLE and top < self.height - _VISIBLE
        )


def draw_flip(width: int, config: AugmentConfig, rng: np.random.Generator) -> Matrix:
    """Left and right exchanged, or nothing."""
    if rng.random() >= config.flip:
        return np.eye(3)
    return np.array([[-1.0, 0.0, width], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def draw_rotation(width: int, height: int, config: AugmentConfig, rng: np.random.Generator) -> Placement:
    """Turned around the middle, on a canvas that holds all of it, since a cut word would be a wrong label."""
    angle = math.radians(rng.uniform(-config.rotate, config.rotate))
    cos, sin = math.cos(angle), math.sin(angle)
    new_width = math.ceil(width * cos + height * abs(sin) - 1e-9)
    new_height = math.ceil(height * cos + width * abs(sin) - 1e-9)
    turn = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
    matrix = shift(new_width / 2, new_height / 2) @ turn @ shift(-width / 2, -height / 2)
    return Placement(matrix, new_width, new_height)


def draw_resize(config: AugmentConfig, rng: np.random.Generator) -> float:
    """Factor on the size."""
    return float(rng.uniform(*config.resize))


def draw_placement(width: int, height: int, config: AugmentConfig, rng: np.random.Generator) -> Placement:
    """Flip, rotation and resize together."""
    flip = draw_flip(width, config, rng)
    turned = draw_rotation(width, height, config, rng)
    factor = draw_resize(config, rng)
    matrix = scaling(factor, factor) @ turned.matrix @ flip
    return Placement(matrix, max(1, round(turned.width * factor)), max(1, round(turned.height * factor)))


def draw_crop(
    outlines: Sequence[Points], width: int, height: int, config: AugmentConfig, rng: np.random.Generator
) -> Window:
    """A part of the canvas whose borders cut no outline, with at least one in it if there are any.

    Args:
        outlines: of the texts that count, on the canvas.
        width: of the canvas.
        height: of the canvas.
        config: how many crops there are to choose from.
        rng: draws the four borders.

    Returns:
        The squarest of `crop_choices` ones.
    """
    crops = [_draw_one_crop(outlines, width, height, rng) for _ in range(config.crop_choices)]
    return max(crops, key=lambda crop: min(crop.width, crop.height) / max(crop.width, crop.height))


def _draw_one_crop(outlines: Sequence[Points], width: int, height: int, rng: np.random.Generator) -> Window:
    """The whole canvas when nothing else is found."""
    whole = Window(0, 0, width, height)
    lowest = np.array([outline.min(axis=0) for outline in outlines]).reshape(-1, 2)
    highest = np.array([outline.max(axis=0) for outline in outlines]).reshape(-1, 2)
    gaps = [_gaps(lowest[:, axis], highest[:, axis], size) for axis, size in enumerate((width, height))]
    if not gaps[0] or not gaps[1]:
        return whole
    for _ in range(_CROP_TRIES):
        left, right = _two_cuts(gaps[0], rng)
        top, bottom = _two_cuts(gaps[1], rng)
        if right - left < max(1.0, _MIN_CROP_SIDE * width) or bottom - top < max(1.0, _MIN_CROP_SIDE * height):
            continue
        inside = (lowest >= (left, top)).all(axis=1) & (highest <= (right, bottom)).all(axis=1)
        if inside.any() or not len(outlines):
            return Window(left, top, right - left, bottom - top)
    return whole


def _gaps(lowest: npt.NDArray[Any], highest: npt.NDArray[Any], size: int) -> list[npt.NDArray[np.int64]]:
    """Runs of whole positions 0…size on an axis at which a cut goes through no outline."""
    free = np.ones(size + 1, np.bool_)
    begins = np.clip(np.floor(lowest).astype(np.int64) + 1, 0, None)
    for begin, end in zip(begins, np.ceil(highest).astype(np.int64), strict=True):
        free[begin : max(end, 0)] = False
    positions = np.flatnonzero(free)
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    return [run for run in runs if len(run)]


def _two_cuts(gaps: Sequence[npt.NDArray[np.int64]], rng: np.random.Generator) -> tuple[int, int]:
    """Two positions in order: of any two gaps, so that crops with few and with many words are alike frequent."""
    chosen = rng.integers(len(gaps), size=2)
    first, second = (int(gaps[gap][rng.integers(len(gaps[gap]))]) for gap in chosen)
    return min(first, second), max(first, second)


def warp_into(target: Pixels, image: Pixels, matrix: Matrix) -> None:
    """Draw the image, moved by a matrix, all over a target, [height, width, 3]; black where it does not reach."""
    factor = math.sqrt(abs(matrix[0, 0] * matrix[1, 1] - matrix[0, 1] * matrix[1, 0]))
    if factor < 0.5:
        # Linear interpolation looks at four pixels only; more than halved, thin strokes would break up.
        small = resized(image, max(1, round(image.shape[1] * factor)), max(1, round(image.shape[0] * factor)))
        matrix = matrix @ scaling(image.shape[1] / small.shape[1], image.shape[0] / small.shape[0])
        image = small
    # OpenCV counts from the middle of the upper left pixel.
    on_middles = shift(-0.5, -0.5) @ matrix @ shift(0.5, 0.5)
    cv2.warpAffine(image, on_middles[:2], target.shape[1::-1], dst=target, flags=cv2.INTER_LINEAR)


def cut_out(image: Pixels, placement: Placement, window: Window, size: int) -> Crop:
    """The window as a square of `size` pixels, which it fills from the upper left, in its proportions."""
    factor = size / max(window.width, window.height)
    matrix = scaling(factor, factor) @ shift(-window.left, -window.top) @ placement.matrix
    width, height = (min(size, max(1, round(side * factor))) for side in (window.width, window.height))
    square = np.zeros((size, size, 3), np.uint8)
    warp_into(square[:height, :width], image, matrix)
    return Crop(square, matrix, width, height)


def moved(outlines: Sequence[Points], matrix: Matrix) -> list[Points]:
    """Outlines after a matrix."""
    if not outlines:
        return []
    points = np.concatenate(outlines).astype(np.float64) @ matrix[:2, :2].T + matrix[:2, 2]
    return np.split(points.astype(np.float32), np.cumsum([len(outline) for outline in outlines])[:-1])


def jitter_colours(image: Pixels, config: AugmentConfig, rng: np.random.Generator) -> Pixels:
    """Saturation, contrast and brightness changed together, in one pass."""
    brightness, contrast, saturation = (
        1.0 + rng.uniform(-part, part) for part in (config.brightness, config.contrast, config.saturation)
    )
    if config.brightness == config.contrast == config.saturation == 0.0:
        return image
    mean = float(np.dot(cv2.mean(image)[:3], _GREY))
    mix = saturation * np.eye(3) + (1.0 - saturation) * np.tile(_GREY, (3, 1))
    offset = np.full((3, 1), brightness * (1.0 - contrast) * mean)
    return np.asarray(cv2.transform(image, np.hstack([brightness * contrast * mix, offset])), np.uint8)


def resized(image: Pixels, width: int, height: int) -> Pixels:
    """Another size: averaged when smaller, interpolated when larger."""
    smaller = width * height < image.shape[0] * image.shape[1]
    interpolation = cv2.INTER_AREA if smaller else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(image, (width, height), interpolation=interpolation), np.uint8)


def normalised(image: Pixels) -> npt.NDArray[np.float32]:
    """What the network gets: float32 [3, height, width], each channel less its mean and over its deviation."""
    result = np.empty((3, *image.shape[:2]), np.float32)
    for channel, (mean, std) in enumerate(zip(MEAN, STD, strict=True)):
        np.multiply(image[:, :, channel], np.float32(1.0 / (255.0 * std)), out=result[channel])
        result[channel] -= np.float32(mean / std)
    return result


def shift(x: float, y: float) -> Matrix:
    """Moves by so many pixels."""
    return np.array([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])


def scaling(x: float, y: float) -> Matrix:
    """Stretches from the upper left corner."""
    return np.diag([x, y, 1.0])
