"""Pictures of detected texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from paddle_stable.data.dataset import Array
from paddle_stable.data.detection_labels import TextRegion
from paddle_stable.data.images import Pixels
from paddle_stable.detection.scoring import match_texts

RIGHT, WRONG, MISSED, IGNORED = (60, 170, 30), (40, 40, 220), (0, 150, 255), (150, 150, 150)
"""Colours, blue before green before red."""
_LEGEND = (("right", RIGHT), ("wrong", WRONG), ("missed", MISSED), ("ignored", IGNORED))
_TILE_WIDTH, _LEGEND_HEIGHT, _GAP = 640, 28, 8


def draw_outlines(image: Pixels, outlines: Sequence[Array], colour: tuple[int, int, int]) -> Pixels:
    """A copy of an image [height, width, 3] with outlines [n, 2] in its pixels."""
    drawn = image.copy()
    thickness = max(1, round(max(image.shape[:2]) / 400))
    for outline in outlines:
        # A pixel's middle is at its number in OpenCV and half a pixel further in ours.
        points = np.round(np.asarray(outline) - 0.5).astype(np.int32)
        cv2.polylines(drawn, [points[:, None]], isClosed=True, color=colour, thickness=thickness, lineType=cv2.LINE_AA)
    return drawn


def draw_matching(image: Pixels, detected: Sequence[Array], regions: Sequence[TextRegion]) -> Pixels:
    """An image with its detections, right or wrong, and the labelled texts that were missed or are ignored."""
    matching = match_texts(detected, regions)
    labels = [region.points for region in regions]
    groups = (
        (IGNORED, [points for points, ignored in zip(labels, matching.ignored, strict=True) if ignored]),
        (IGNORED, [points for points, covered in zip(detected, matching.covered, strict=True) if covered]),
        (MISSED, _where(labels, ~matching.read & ~matching.ignored)),
        (WRONG, _where(detected, ~matching.right & ~matching.covered)),
        (RIGHT, _where(detected, matching.right)),
    )
    for colour, outlines in groups:
        image = draw_outlines(image, outlines, colour)
    return image


def _where(outlines: Sequence[Array], chosen: Array) -> list[Array]:
    return [points for points, wanted in zip(outlines, chosen, strict=True) if wanted]


def write_sheet(path: Path, pictures: Sequence[Pixels], columns: int = 2) -> None:
    """Pictures side by side as one PNG, with a legend below."""
    tiles = [_tile(picture) for picture in pictures]
    height = max(tile.shape[0] for tile in tiles)
    rows = -(-len(tiles) // columns)
    width = min(columns, len(tiles)) * (_TILE_WIDTH + _GAP) + _GAP
    sheet = np.full((rows * (height + _GAP) + _GAP + _LEGEND_HEIGHT, width, 3), 255, np.uint8)
    for number, tile in enumerate(tiles):
        top, left = _GAP + number // columns * (height + _GAP), _GAP + number % columns * (_TILE_WIDTH + _GAP)
        sheet[top : top + tile.shape[0], left : left + _TILE_WIDTH] = tile
    for number, (word, colour) in enumerate(_LEGEND):
        place = (_GAP + number * 100, len(sheet) - 10)
        cv2.putText(sheet, word, place, cv2.FONT_HERSHEY_SIMPLEX, 0.6, colour, 2, cv2.LINE_AA)
    write_picture(path, sheet)


def _tile(picture: Pixels) -> Pixels:
    height = max(1, round(picture.shape[0] * _TILE_WIDTH / picture.shape[1]))
    return np.asarray(cv2.resize(picture, (_TILE_WIDTH, height), interpolation=cv2.INTER_AREA), np.uint8)


def write_picture(path: Path, picture: Pixels) -> None:
    """Write a PNG.

    Raises:
        OSError: when the file cannot be written.
    """
    path.write_bytes(cv2.imencode(".png", picture)[1].tobytes())
