"""Reading images for text detection: any common kind in, the pixels that a person sees out, or a reason by name.

Pixels are BGR, because the weights that PaddleOCR publishes were trained on BGR images normalised with the ImageNet
means in the order .485 .456 .406; ours then fit as they are.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = npt.NDArray[np.uint8]

_ORIENTATION_TAG = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
"""EXIF orientations that exchange width and height."""
_EIGHT_BIT = ("1", "L", "P", "RGB", "YCbCr", "CMYK", "HSV", "LAB")
_TRANSPARENT = ("LA", "PA", "RGBA", "La", "RGBa")
_SIXTEEN_BIT = ("I;16", "I;16L", "I;16B", "I;16N", "I")


@final
class UnreadableImage(Exception):
    """A file is there but no image can be made of it. The message says why, without the file's name."""


@final
@dataclass(frozen=True, slots=True)
class ImageSize:
    """Pixels of an image as a person sees it: EXIF orientation obeyed."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"


def read_size(path: Path) -> ImageSize:
    """Width and height from the file's header; pixels are not decoded.

    Raises:
        OSError: when the file cannot be read.
        UnreadableImage: when the header is of no image, or of one that `read_image` refuses.
    """
    with path.open("rb") as stream, _opened(stream) as image:
        width, height = image.size
        if _orientation(image) in _SIDEWAYS:
            width, height = height, width
        return ImageSize(width, height)


def read_image(path: Path) -> Pixels:
    """The image as a person sees it: BGR, uint8 [height, width, 3], EXIF orientation obeyed.

    Grey becomes three equal channels, 16 bits become the upper 8, CMYK is converted without a profile, what is
    transparent shows white, and of several frames the first is taken.

    Raises:
        OSError: when the file cannot be read.
        UnreadableImage: when it is truncated, damaged, not an image, or of a kind that is refused (float, 32 bits).
    """
    return decode(path.read_bytes())


def decode(content: bytes) -> Pixels:
    """The same for the content of a file.

    Raises:
        UnreadableImage: as for `read_image`.
    """
    with _opened(io.BytesIO(content)) as image:
        upright = image if _orientation(image) == 1 else ImageOps.exif_transpose(image)
        rgb = np.asarray(_as_rgb(upright))
        return np.ascontiguousarray(rgb[:, :, ::-1])


def _orientation(image: Image.Image) -> int:
    """EXIF orientation of an image that was opened only, 1 for an upright one."""
    if image.format == "PNG" and "exif" not in image.info:
        # Pillow would decode everything to look for it behind the pixels.
        return 1
    if image.format == "TIFF":
        # Pillow turns these by itself: `size` and the pixels are upright already, while the tag still says otherwise.
        return 1
    return int(image.getexif().get(_ORIENTATION_TAG, 1))


@contextmanager
def _opened(stream: IO[bytes]) -> Generator[Image.Image, None, None]:
    """The image behind a stream; whatever goes wrong with it is an `UnreadableImage`."""
    try:
        with warnings.catch_warnings():
            # Pillow warns of images of 90 megapixels or more, and refuses them from 180 on.
            warnings.simplefilter("ignore")
            with Image.open(stream) as image:
                if image.mode not in (*_EIGHT_BIT, *_TRANSPARENT, *_SIXTEEN_BIT):
                    raise UnreadableImage(f"{image.format} of mode {image.mode} is not supported: save it with 8 bits")
                yield image
    except UnreadableImage:
        raise
    except Exception as error:
        # Pillow's plug-ins raise OSError, SyntaxError, ValueError, struct.error and more for a damaged file.
        raise UnreadableImage(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return "not an image, or its header is damaged"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels"
    return f"{error}" or type(error).__name__


def _as_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _SIXTEEN_BIT:
        values = np.asarray(image)
        if values.max(initial=0) > 0xFFFF or values.min(initial=0) < 0:
            raise UnreadableImage("32 bits a pixel are not supported: save it with 8 or 16 bits")
        return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in _TRANSPARENT or "transparency" in image.info:
        with_alpha = image.convert("RGBA")
        white = Image.new("RGBA", with_alpha.size, "white")
        return Image.alpha_composite(white, with_alpha).convert("RGB")
    return image.convert("RGB")
