r"""Label files of text detection, PaddleOCR's and ICDAR-2015's: read as they are, checked before the first step.

PaddleOCR: UTF-8, one image a line, `path<TAB>[{"transcription": "TEXT", "points": [[x, y], …]}, …]`.
ICDAR-2015: a folder of `gt_<image>.txt`, one text a line, `x1,y1,x2,y2,x3,y3,x4,y4,TEXT`, TEXT may contain commas.
A text `###` or `*` is not to be read: it counts neither for nor against a detector.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from paddle_stable.data.detection_polygons import Points, check_outline
from paddle_stable.data.images import ImageSize, UnreadableImage, read_size
from paddle_stable.errors import Problem

DO_NOT_CARE = ("###", "*")
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".gif")
_SHOWN_EXAMPLES = 3
_GT_NUMBERS = 8
_EXPECTED = "expected path<TAB>JSON list of texts"


@final
@dataclass(frozen=True, slots=True, eq=False)
class TextRegion:
    """One labelled text."""

    points: Points
    """Outline in pixels of the source image, float32 [n, 2], n >= 3, clockwise on the screen, simple."""
    ignore: bool
    """Neither for nor against a detector: unreadable text, or an outline that was wrong."""
    text: str


@final
@dataclass(frozen=True, slots=True, eq=False)
class LabelledImage:
    """One image that can be used."""

    image: Path
    regions: tuple[TextRegion, ...]
    """None at all for a background image."""
    file: str
    """Label file, as the recipe names it."""
    line: int
    """1-based; 0 for a file that labels one image."""
    size: ImageSize
    """From the image's header."""


@final
@dataclass(frozen=True)
class DetectionLabels:
    """What one source of labels holds: the images that can be used, and what is wrong with the others."""

    path: str
    images: tuple[LabelledImage, ...]
    """Without those that cannot be used; outlines that cannot be used are in `regions`, to be ignored."""
    broken: tuple[Problem, ...] = ()
    """Why there is no use in the whole file."""
    problems: tuple[Problem, ...] = ()
    """Bad images and outlines, which a training set may go without."""
    repairs: tuple[str, ...] = ()
    """What was put right, a sentence for every kind."""


@final
@dataclass(frozen=True, slots=True)
class _ReadText:
    """A text as it stands in the file, not checked."""

    corners: object
    text: str
    line: int
    name: str
    """Which of the line's texts it is; empty when the line has one only."""


@final
class _Findings:
    """What is found while a file is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images: list[LabelledImage] = []
        self.problems: list[Problem] = []
        self.repairs: dict[str, list[str]] = defaultdict(list)

    def add(self, image: Path, texts: Sequence[_ReadText], file: str, line: int) -> None:
        """Check one image's header and outlines."""
        try:
            size = read_size(image)
        except OSError as error:
            self.problems.append(Problem(file, line, f"image {image}: {error.strerror or error}."))
            return
        except (UnreadableImage, ValueError) as error:  # ValueError: a NUL byte in the name
            self.problems.append(Problem(file, line, f"image {image}: {error}."))
            return
        regions = [region for text in texts if (region := self._region(text, file, size)) is not None]
        self.images.append(LabelledImage(image, tuple(regions), file, line, size))

    def _region(self, text: _ReadText, file: str, size: ImageSize) -> TextRegion | None:
        outline = check_outline(text.corners, size)
        if outline.problem:
            self.problems.append(Problem(file, text.line, f"{text.name}{outline.problem}"))
        if outline.repair:
            self.repairs[outline.repair].append(f"{file}:{text.line} {text.name}".rstrip(": "))
        if len(outline.points) < 3:
            return None
        return TextRegion(outline.points, bool(outline.problem) or text.text in DO_NOT_CARE, text.text)

    def result(self) -> DetectionLabels:
        """All that was found."""
        sentences = []
        for what, places in self.repairs.items():
            dots = "; …" if len(places) > _SHOWN_EXAMPLES else ""
            shown = "; ".join(places[:_SHOWN_EXAMPLES])
            sentences.append(f"{self.path}: {len(places)} outlines had {what}, put right: {shown}{dots}")
        broken = []
        if not self.images and not self.problems:
            broken.append(Problem(str(self.path), 0, "there is no image in it."))
        return DetectionLabels(
            str(self.path), tuple(self.images), tuple(broken), tuple(self.problems), tuple(sentences)
        )


def read_labels(labels: Path, images: Path | None) -> DetectionLabels:
    """Read PaddleOCR's label file, or ICDAR-2015's `gt_*.txt` when `labels` is a folder. Nothing is raised.

    Args:
        labels: file or folder.
        images: folder that holds the images; None: the label file's own folder, or the folder of the `gt_*.txt`.
    """
    if labels.is_dir():
        return _read_gt_folder(labels, images or labels)
    return _read_label_file(labels, images or labels.parent)


def _read_label_file(path: Path, images: Path) -> DetectionLabels:
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        message = f"cannot be read: {error.strerror}. Give PaddleOCR's label file or a folder with gt_*.txt."
        return DetectionLabels(str(path), (), (Problem(str(path), 0, message),))
    findings = _Findings(path)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parsed = _parse_line(line.removesuffix(b"\r"), number)
        if isinstance(parsed, str):
            findings.problems.append(Problem(str(path), number, parsed))
        else:
            name, texts = parsed
            findings.add(images / name, texts, str(path), number)
    return findings.result()


def _parse_line(line: bytes, number: int) -> tuple[str, list[_ReadText]] | str:
    """Image and texts of a line, or what is wrong with it."""
    try:
        fields = line.decode("utf-8").split("\t")
    except UnicodeDecodeError as error:
        return f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start + 1}. Save the file as UTF-8."
    if len(fields) != 2:
        return f"{_EXPECTED}, found {len(fields) - 1} tabs instead of 1."
    name = fields[0].strip()
    if not name or name.startswith("["):
        return f"{_EXPECTED}, found {name or 'nothing'!r} for the path: one image a line."
    texts = _parse_texts(fields[1], number)
    return texts if isinstance(texts, str) else (name, texts)


def _parse_texts(after_the_tab: str, number: int) -> list[_ReadText] | str:
    """Texts of a line, or what is wrong with them."""
    try:
        entries = json.loads(after_the_tab)
    except (ValueError, RecursionError) as error:
        return f"broken JSON after the tab: {error}."
    if not isinstance(entries, list):
        return f"{_EXPECTED}, found {type(entries).__name__} after the tab. A background image has []."
    texts = []
    for position, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict) or "points" not in entry or not isinstance(entry.get("transcription"), str):
            return f'text {position}: expected {{"transcription": "…", "points": [[x, y], …]}}, found {entry!s:.80}.'
        texts.append(_ReadText(entry["points"], entry["transcription"], number, f"text {position}: "))
    return texts


def _read_gt_folder(folder: Path, images: Path) -> DetectionLabels:
    findings = _Findings(folder)
    files = sorted(folder.glob("gt_*.txt"), key=_natural)
    if not files:
        return DetectionLabels(str(folder), (), (Problem(str(folder), 0, "there is no gt_*.txt in this folder."),))
    by_stem = {path.stem: path for path in sorted(images.glob("*")) if path.suffix.lower() in IMAGE_ENDINGS}
    for file in files:
        stem = file.stem.removeprefix("gt_")
        texts = _parse_gt_file(file, findings)
        if stem not in by_stem:
            endings = ", ".join(IMAGE_ENDINGS)
            findings.problems.append(Problem(str(file), 0, f"there is no image {images / stem} ({endings})."))
        elif texts is not None:
            findings.add(by_stem[stem], texts, str(file), 0)
    return findings.result()


def _parse_gt_file(file: Path, findings: _Findings) -> list[_ReadText] | None:
    """Texts of one image; None when it cannot be used, with what is wrong added to the findings."""
    try:
        lines = file.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        findings.problems.append(Problem(str(file), 0, f"cannot be read: {error.strerror}."))
        return None
    except UnicodeDecodeError as error:
        findings.problems.append(Problem(str(file), 0, f"not UTF-8 at byte {error.start}. Save the file as UTF-8."))
        return None
    texts, usable = [], True
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fields = line.removesuffix("\r").split(",", _GT_NUMBERS)
        numbers = [_number(field) for field in fields[:_GT_NUMBERS]]
        if len(fields) <= _GT_NUMBERS or None in numbers:
            message = f"expected x1,y1,x2,y2,x3,y3,x4,y4,TEXT, found {line:.80}."
            findings.problems.append(Problem(str(file), number, message))
            usable = False
            continue
        corners = [numbers[place : place + 2] for place in range(0, _GT_NUMBERS, 2)]
        texts.append(_ReadText(corners, fields[_GT_NUMBERS].strip(), number, ""))
    return texts if usable else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _natural(path: Path) -> list[tuple[int, str]]:
    """Numbers in a name count as numbers: gt_img_2 before gt_img_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name) if part]
