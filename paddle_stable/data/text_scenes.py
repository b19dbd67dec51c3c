"""One rendered scene: a photograph or plain colours, clutter, texts, and what a camera does to them.

The constants are the renderer's settings: they were fixed before anything was trained on its images, with
benchmarks/det_gauge.py as the measure of difficulty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import cv2
import numpy as np
import numpy.typing as npt

from paddle_stable.data.images import Pixels
from paddle_stable.data.text_rendering import Corners, Letters, Paint, PlacedText, Shape, letters, paint, place
from paddle_stable.data.text_words import Words

WIDTH, HEIGHT = 384, 320
TEXTS = (2, 9)
"""Fewest and one more than the most texts that are tried in an image."""
BACKGROUND_SHARE = 0.03
"""Part of the images without any text."""
TEXT_HEIGHT = (12.0, 64.0)
"""Pixels from ascender to descender; small ones are more frequent (log-uniform)."""
UNREADABLE_HEIGHT = 12
"""Letters drawn in fewer rows count neither way: `###`."""
UNREADABLE_CONTRAST = 36.0
"""Likewise with less difference in brightness from what is behind."""
CONTRAST = (26.0, 160.0)
"""Smallest and largest difference in brightness between a text and what is behind it (log-uniform), to which the
deviation of the brightness behind it is added."""
PLACE_TRIES = 6
GAP = 4
"""Pixels between two texts."""


@final
@dataclass(frozen=True, slots=True)
class SceneText:
    """One text of a scene."""

    outline: Corners
    """[n, 2] in pixels."""
    text: str
    readable: bool


@final
@dataclass(frozen=True)
class Scene:
    """A rendered image with its labels."""

    image: Pixels
    """BGR, uint8 [HEIGHT, WIDTH, 3]."""
    texts: tuple[SceneText, ...]


@final
@dataclass(frozen=True)
class Writing:
    """One kind of script: what is written, and the fonts that have its characters."""

    words: Words
    fonts: tuple[Path, ...]
    share: float
    """Part of the texts."""


@final
@dataclass(frozen=True)
class Studio:
    """What scenes are made of."""

    photographs: tuple[Pixels, ...]
    writings: tuple[Writing, ...]
    noise: npt.NDArray[np.float32]
    """Normal noise, larger than a scene, [rows, columns, 3]."""


def render_scene(studio: Studio, rng: np.random.Generator) -> Scene:
    """A scene as a function of the generator."""
    image = _background(studio, rng)
    _clutter(image, rng)
    taken: list[tuple[int, int, int, int]] = []
    texts: list[SceneText] = []
    count = 0 if rng.random() < BACKGROUND_SHARE else int(rng.integers(*TEXTS))
    for _ in range(count):
        text = _add_text(image, studio.writings, taken, rng)
        if text is not None:
            texts.append(text)
    return Scene(_through_a_camera(image, studio, rng), tuple(texts))


def _background(studio: Studio, rng: np.random.Generator) -> Pixels:
    if rng.random() < 0.3:
        return _plain(rng)
    photograph = studio.photographs[rng.integers(len(studio.photographs))]
    rows, columns = photograph.shape[:2]
    part = rng.uniform(0.35, 1.0) * min(rows / HEIGHT, columns / WIDTH)
    height, width = int(part * HEIGHT), int(part * WIDTH)
    top, left = rng.integers(rows - height + 1), rng.integers(columns - width + 1)
    piece = photograph[top : top + height, left : left + width]
    if rng.random() < 0.5:
        piece = piece[:, ::-1]
    image = cv2.resize(piece, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR)
    return np.asarray(cv2.convertScaleAbs(image, alpha=rng.uniform(0.6, 1.1), beta=rng.uniform(0, 40)), np.uint8)


def _plain(rng: np.random.Generator) -> Pixels:
    """A wall: a colour that changes slowly over the image."""
    base = rng.uniform(30, 225, size=3)
    corners = np.clip(base + rng.uniform(-40, 40, size=(2, 2, 3)), 0, 255).astype(np.uint8)
    return np.asarray(cv2.resize(corners, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR), np.uint8)


def _clutter(image: Pixels, rng: np.random.Generator) -> None:
    """Things with edges that are no text: panels, lines, bars, rings, rows of blobs."""
    for _ in range(rng.integers(1, 7)):
        colour = rng.integers(0, 256, size=3).tolist()
        x, y = (int(v) for v in rng.integers(0, (WIDTH, HEIGHT)))
        size = int(rng.integers(6, 90))
        thickness = int(rng.integers(1, 4))
        kind = rng.integers(6)
        if kind == 0:
            cv2.rectangle(image, (x, y), (x + size, y + int(size * rng.uniform(0.3, 1.2))), colour, -1)
        elif kind == 1:
            end = (x + int(rng.integers(-150, 150)), y + int(rng.integers(-150, 150)))
            cv2.line(image, (x, y), end, colour, thickness, cv2.LINE_AA)
        elif kind == 2:
            axes = (size + 10, size // 2 + 10)  # a small one is a letter O
            cv2.ellipse(image, (x, y), axes, float(rng.uniform(0, 180)), 0.0, 360.0, colour, thickness, cv2.LINE_AA)
        elif kind == 3:
            cv2.rectangle(image, (x, y), (x + size, y + size // 2), colour, thickness)
        elif kind == 4:
            _bars(image, x, y, size, colour, rng)
        else:
            _blobs(image, x, y, size, colour, rng)


def _bars(image: Pixels, x: int, y: int, size: int, colour: list[int], rng: np.random.Generator) -> None:
    """A fence or a bar code."""
    step = int(rng.integers(4, 12))
    for place_x in range(x, x + size, step):
        cv2.rectangle(image, (place_x, y), (place_x + max(1, step // 3), y + size // 2), colour, -1)


def _blobs(image: Pixels, x: int, y: int, size: int, colour: list[int], rng: np.random.Generator) -> None:
    """Spots in a row: from far away like letters."""
    radius = int(rng.integers(2, 6))
    for place_x in range(x, x + size, 3 * radius):
        cv2.circle(image, (place_x, y + int(rng.integers(-1, 2))), radius, colour, -1, cv2.LINE_AA)


def _add_text(
    image: Pixels, writings: Sequence[Writing], taken: list[tuple[int, int, int, int]], rng: np.random.Generator
) -> SceneText | None:
    """Write one text where there is room; None when none was found."""
    writing = writings[rng.choice(len(writings), p=[one.share for one in writings])]
    text = writing.words(rng)
    height = round(math.exp(rng.uniform(*np.log(TEXT_HEIGHT))))
    ink = letters(text, writing.fonts[rng.integers(len(writing.fonts))], height)
    if not ink.size:
        return None
    shape = _shape(ink, rng)
    for _ in range(PLACE_TRIES):
        middle = (float(rng.uniform(0, WIDTH)), float(rng.uniform(0, HEIGHT)))
        placed = place(ink, shape, middle, (WIDTH, HEIGHT))
        if placed is None:
            continue
        rows, columns = placed.ink.shape
        box = (placed.left, placed.top, placed.left + columns, placed.top + rows)
        if any(_touch(box, other) for other in taken):
            continue
        taken.append(box)
        contrast = _paint(image, placed, rng)
        readable = min(ink.shape) >= UNREADABLE_HEIGHT and contrast >= UNREADABLE_CONTRAST
        return SceneText(placed.outline, text, readable)
    return None


def _shape(ink: Letters, rng: np.random.Generator) -> Shape:
    """Mostly level, sometimes clearly turned; some in perspective, some on an arc."""
    angle = math.radians(rng.normal(0.0, 4.0) if rng.random() < 0.8 else rng.uniform(-45.0, 45.0))
    spread = 0.25 if rng.random() < 0.4 else 0.03
    slant = rng.uniform(-spread, spread, size=(4, 2)).astype(np.float32)
    height, width = ink.shape
    if width > 3 * height and rng.random() < 0.15:
        bend = rng.uniform(0.3, 1.1) * (1.0 if rng.random() < 0.7 else -1.0)
        # The inner side of the arc must not shrink to a point.
        bend = float(np.clip(bend, -width / height, width / height))
        return Shape(angle, slant, bend)
    return Shape(angle, slant, 0.0)


def _paint(image: Pixels, placed: PlacedText, rng: np.random.Generator) -> float:
    """Colour the text against what is behind it; returns the difference in brightness beyond the usual one there."""
    rows, columns = placed.ink.shape
    behind = image[placed.top : placed.top + rows, placed.left : placed.left + columns]
    if rng.random() < 0.3:  # a sign of its own
        colour = rng.integers(0, 256, size=3).tolist()
        hull = cv2.convexHull(placed.outline.astype(np.int32))
        cv2.fillPoly(image, [np.asarray(hull)], colour, cv2.LINE_AA)
    mean, deviation = (values.ravel() @ (0.114, 0.587, 0.299) for values in cv2.meanStdDev(behind))
    brightness = float(mean)
    visible = math.exp(rng.uniform(*np.log(CONTRAST)))
    contrast = visible + float(deviation)
    brighter = rng.random() < 0.5
    if brightness + contrast > 255 or (not brighter and brightness - contrast >= 0):
        contrast = -contrast
    target = float(np.clip(brightness + contrast, 0, 255))
    tint = rng.uniform(-60, 60, size=3)
    tint -= tint @ (0.114, 0.587, 0.299)
    colour = np.clip(target + tint, 0, 255).astype(np.float32)
    edge = np.full(3, 255.0 if target < 128 else 0.0, np.float32) if rng.random() < 0.12 else None
    shadow = int(rng.integers(1, 3)) if rng.random() < 0.15 else 0
    paint(image, placed, Paint(colour, float(rng.uniform(0.75, 1.0)), edge, shadow))
    return 255.0 if edge is not None else abs(target - brightness) - float(deviation)


def _through_a_camera(image: Pixels, studio: Studio, rng: np.random.Generator) -> Pixels:
    """Uneven light, blur or motion, noise."""
    light = rng.uniform(0.55, 1.15, size=(2, 2)).astype(np.float32)
    field = np.asarray(cv2.resize(light, (WIDTH, HEIGHT), interpolation=cv2.INTER_LINEAR))
    kind = rng.random()
    if kind < 0.35:
        image = np.asarray(cv2.GaussianBlur(image, (0, 0), float(rng.uniform(0.3, 1.1))), np.uint8)
    elif kind < 0.5:
        image = np.asarray(cv2.filter2D(image, -1, _motion(rng)), np.uint8)
    top, left = (
        int(rng.integers(room + 1)) for room in (studio.noise.shape[0] - HEIGHT, studio.noise.shape[1] - WIDTH)
    )
    noise = studio.noise[top : top + HEIGHT, left : left + WIDTH]
    result = image * field[:, :, None]
    result += noise * np.float32(rng.uniform(0.0, 14.0))
    return np.clip(result, 0, 255, out=result).astype(np.uint8)


def _motion(rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """A short line as a blur kernel, [5, 5] or [7, 7]."""
    size = int(rng.choice((5, 7)))
    kernel = np.zeros((size, size), np.float32)
    angle = rng.uniform(0, math.pi)
    reach = size // 2
    dx, dy = round(reach * math.cos(angle)), round(reach * math.sin(angle))
    cv2.line(kernel, (reach - dx, reach - dy), (reach + dx, reach + dy), [1.0], 1)
    return np.asarray(kernel / kernel.sum(), np.float32)


def _touch(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> bool:
    return one[0] < other[2] + GAP and other[0] < one[2] + GAP and one[1] < other[3] + GAP and other[1] < one[3] + GAP
