"""Rendered images of texts for configs/dbnet_det.yaml, in PaddleOCR's label format; nothing is downloaded.

Fonts come with matplotlib (DejaVu, STIX), photographs with scikit-image; Chinese is written when a font for it is
installed, such as Debian's fonts-wqy-microhei.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from PIL import ImageFont
from tqdm import tqdm

from paddle_stable.data.images import Pixels, read_image
from paddle_stable.data.text_scenes import Scene, Studio, Writing, render_scene
from paddle_stable.data.text_words import chinese_text, latin_text
from paddle_stable.errors import InputError

_STREAMS = {"train": 0, "dev": 1, "test": 2}

LATIN_FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique", "DejaVuSansMono",
    "DejaVuSansMono-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic",
    "STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta",
)  # fmt: skip
PHOTOGRAPHS = (
    "brick.png", "camera.png", "chelsea.png", "coffee.png", "grass.png", "gravel.png", "hubble_deep_field.jpg",
    "ihc.png", "moon.png", "retina.jpg", "rocket.jpg",
)  # fmt: skip
"""Those in the package without writing in them: a text without a label would be a wrong label."""
CHINESE_FONTS = ("wqy-microhei.ttc", "wqy-zenhei.ttc", "NotoSansCJK-Regular.ttc", "NotoSansSC-Regular.otf")
CHINESE_SHARE = 0.4
_FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.local/share/fonts", "~/.fonts")
_LONGEST_SIDE = 800
_JPEG_QUALITY = (60, 96)


def find_chinese_font() -> Path | None:
    """An installed font with Chinese characters; None when there is none."""
    for name in CHINESE_FONTS:
        for folder in _FONT_FOLDERS:
            found = sorted(Path(folder).expanduser().rglob(name))
            if found:
                return found[0]
    return None


def build_studio(chinese_font: Path | None) -> Studio:
    """Load photographs and fonts.

    Raises:
        InputError: when a package has none of them.
    """
    fonts = tuple(_inside("matplotlib", "mpl-data", "fonts", "ttf", f"{name}.ttf") for name in LATIN_FONTS)
    writings = [Writing(latin_text, fonts, 1.0 if chinese_font is None else 1.0 - CHINESE_SHARE)]
    if chinese_font is not None:
        _check_font(chinese_font)
        writings.append(Writing(chinese_text, (chinese_font,), CHINESE_SHARE))
    photographs = tuple(_smaller(read_image(_inside("skimage", "data", name))) for name in PHOTOGRAPHS)
    noise = np.random.default_rng(0).standard_normal((512, 512, 3), dtype=np.float32)
    return Studio(photographs, tuple(writings), noise)


def write_text_images(
    folder: Path, sizes: Mapping[str, int], *, seed: int = 1, chinese_font: Path | None = None
) -> list[str]:
    """Render all splits: `<folder>/<split>/000001.jpg` … and `<folder>/<split>.txt`.

    The same seed, packages and fonts give the same bytes, whatever the sizes: image n of a split is a function of
    (seed, split, n).

    Returns:
        Sentences about what was written.

    Raises:
        InputError: when fonts or photographs are missing.
    """
    studio = build_studio(chinese_font)
    report = [f"Chinese: {chinese_font or 'no font found, Latin only (Debian: fonts-wqy-microhei)'}"]
    for split, count in sizes.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        lines, texts, unreadable = [], 0, 0
        for number, scene in enumerate(tqdm(scenes(studio, split, count, seed), split, count, disable=None), start=1):
            name = f"{split}/{number:06d}.jpg"
            (folder / name).write_bytes(_jpeg(scene.image, seed, number))
            lines.append(f"{name}\t{label(scene)}\n")
            texts += len(scene.texts)
            unreadable += sum(not text.readable for text in scene.texts)
        (folder / f"{split}.txt").write_bytes("".join(lines).encode("utf-8"))
        report.append(f"{folder / split}.txt: {count} images, {texts} texts, {unreadable} of them not readable (###)")
    return report


def scenes(studio: Studio, split: str, count: int, seed: int) -> Iterator[Scene]:
    """The first images of a split."""
    for number in range(1, count + 1):
        yield render_scene(studio, np.random.default_rng((seed, _STREAMS[split], number)))


def label(scene: Scene) -> str:
    """JSON as in PaddleOCR's label files."""
    return json.dumps(
        [
            {"transcription": text.text if text.readable else "###", "points": _rounded(text.outline.tolist())}
            for text in scene.texts
        ],
        ensure_ascii=False,
    )


def _rounded(points: Sequence[Sequence[float]]) -> list[list[float]]:
    return [[round(x, 1), round(y, 1)] for x, y in points]


def _jpeg(image: Pixels, seed: int, number: int) -> bytes:
    quality = int(np.random.default_rng((seed, 3, number)).integers(*_JPEG_QUALITY))
    _, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])
    return content.tobytes()


def _smaller(photograph: Pixels) -> Pixels:
    factor = _LONGEST_SIDE / max(photograph.shape[:2])
    if factor >= 1.0:
        return photograph
    return np.asarray(cv2.resize(photograph, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA), np.uint8)


def _check_font(font: Path) -> None:
    try:
        ImageFont.truetype(str(font), 20)
    except OSError as error:
        raise InputError.single(str(font), f"is not a font that can be read: {error}.") from error


def _inside(package: str, *parts: str) -> Path:
    """A file that comes with an installed package; the package itself is not imported beyond its folder."""
    path = Path(str(files(package).joinpath(*parts)))
    if not path.is_file():
        message = "the installed version has no such file. Install what requirements.txt lists."
        raise InputError.single(str(path), message)
    return path
