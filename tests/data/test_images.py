"""Images of every common kind are read as a person sees them; the others are refused by name."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddle_stable.data.images import UnreadableImage, decode, read_image, read_size

RED = (200, 40, 10)


def content(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(width: int = 12, height: int = 8) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste((0, 0, 255), (width // 2, 0, width, height))
    return image


def test_channels_are_blue_green_red() -> None:
    pixels = decode(content(picture()))
    assert pixels.shape == (8, 12, 3)
    assert pixels.dtype == np.uint8
    assert pixels[0, 0].tolist() == [10, 40, 200]
    assert pixels[0, -1].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        pytest.param(Image.new("L", (3, 2), 77), [77, 77, 77], id="grey"),
        pytest.param(Image.new("1", (3, 2), 1), [255, 255, 255], id="one bit"),
        pytest.param(Image.fromarray(np.full((2, 3), 0x4D21, np.uint16)), [0x4D] * 3, id="16 bits"),
        pytest.param(Image.new("RGBA", (3, 2), (200, 40, 10, 255)), [10, 40, 200], id="opaque"),
        pytest.param(Image.new("RGBA", (3, 2), (200, 40, 10, 0)), [255, 255, 255], id="transparent"),
        pytest.param(Image.new("LA", (3, 2), (0, 0)), [255, 255, 255], id="transparent grey"),
        pytest.param(Image.new("RGB", (3, 2), RED).convert("P"), None, id="palette"),
    ],
)
def test_other_kinds_become_three_channels(image: Image.Image, expected: list[int] | None) -> None:
    pixels = decode(content(image))
    assert pixels.shape == (2, 3, 3)
    assert np.allclose(pixels[0, 0], expected or [10, 40, 200], atol=30 if expected is None else 0)


def test_cmyk_becomes_colours() -> None:
    pixels = decode(content(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG", quality=95))
    assert pixels[8, 8].tolist() == pytest.approx([0, 0, 255], abs=8)


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_obeyed(tmp_path: Path, orientation: int, kind: str) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's operation that stores the picture turned like that
    stored = picture(48, 32)
    if orientation > 1:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "x"
    path.write_bytes(content(stored, kind, quality=95, exif=exif))
    pixels = read_image(path)
    assert f"{read_size(path)}" == "48 x 32"
    assert pixels.shape == (32, 48, 3)
    assert pixels[16, 8].tolist() == pytest.approx([10, 40, 200], abs=12)
    assert pixels[16, 40].tolist() == pytest.approx([255, 0, 0], abs=12)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_truncated_image_is_refused_when_decoded_but_has_a_size(tmp_path: Path, kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    path = tmp_path / "x"
    path.write_bytes(content(noise, kind)[:-600])
    assert f"{read_size(path)}" == "64 x 64"
    with pytest.raises(UnreadableImage, match="truncated"):
        read_image(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"", "not an image"),
        (b"<html>not found</html>", "not an image"),
        (content(picture())[:20], "(?i)truncated"),
        (content(Image.fromarray(np.zeros((2, 2), np.float32)), "TIFF"), "TIFF of mode F is not supported"),
        (content(Image.fromarray(np.full((2, 2), 70_000, np.int32)), "TIFF"), "32 bits a pixel"),
    ],
)
def test_what_is_refused_is_named(bad: bytes, message: str) -> None:
    with pytest.raises(UnreadableImage, match=message):
        decode(bad)


def test_a_picture_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with pytest.raises(UnreadableImage, match="more than 20 pixels"):
        decode(content(picture()))


def test_a_missing_file_is_an_operating_system_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "x.jpg")
    with pytest.raises(FileNotFoundError):
        read_size(tmp_path / "x.jpg")
