"""Rendered data sets: the same bytes for the same seed, in a format that the label reader takes as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paddle_stable.data import text_images
from paddle_stable.data.detection_labels import read_labels
from paddle_stable.data.images import read_image
from paddle_stable.data.text_images import build_studio, find_chinese_font, write_text_images
from paddle_stable.errors import InputError

SIZES = {"train": 3, "dev": 2, "test": 1}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_same_seed_gives_the_same_bytes_whatever_the_sizes(tmp_path: Path) -> None:
    for name, sizes, seed in (("a", SIZES, 1), ("b", SIZES, 1), ("c", {"train": 2}, 1), ("d", SIZES, 2)):
        write_text_images(tmp_path / name, sizes, seed=seed)
    first = content(tmp_path / "a")
    assert len(first) == 6 + 3
    assert content(tmp_path / "b") == first
    assert content(tmp_path / "c")["train/000002.jpg"] == first["train/000002.jpg"]
    images = [value for name, value in first.items() if name.endswith(".jpg")]
    assert len(set(images)) == len(images)
    assert not set(images) & set(content(tmp_path / "d").values())


def test_the_labels_are_read_without_a_finding(tmp_path: Path) -> None:
    report = write_text_images(tmp_path, {"train": 20})
    labels = read_labels(tmp_path / "train.txt", None)
    assert (labels.broken, labels.problems, labels.repairs) == ((), (), ())
    assert len(labels.images) == 20
    texts = [region for image in labels.images for region in image.regions]
    ignored = sum(region.ignore for region in texts)
    assert (
        report[-1] == f"{tmp_path / 'train'}.txt: 20 images, {len(texts)} texts, {ignored} of them not readable (###)"
    )
    assert read_image(labels.images[0].image).shape == (320, 384, 3)


def test_all_fonts_and_photographs_come_with_packages() -> None:
    studio = build_studio(None)
    assert len(studio.photographs) == 11
    assert len(studio.writings[0].fonts) == 14
    assert all(photograph.std() > 5 for photograph in studio.photographs)


def test_what_a_package_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_images, "PHOTOGRAPHS", ("none.png",))
    with pytest.raises(InputError, match=r"none.png  the installed version has no such file"):
        build_studio(None)


def test_chinese_is_written_when_a_font_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_images, "_FONT_FOLDERS", (str(tmp_path),))
    assert find_chinese_font() is None
    font = build_studio(None).writings[0].fonts[0]  # has no Chinese, but is a font
    (tmp_path / "deep").mkdir()
    installed = tmp_path / "deep" / "wqy-microhei.ttc"
    installed.write_bytes(font.read_bytes())
    assert find_chinese_font() == installed
    write_text_images(tmp_path / "images", {"train": 8}, chinese_font=installed)
    texts = [r.text for image in read_labels(tmp_path / "images/train.txt", None).images for r in image.regions]
    assert any("\u4e00" <= text[0] <= "\u9fff" for text in texts)
    assert any(text.isascii() and text != "###" for text in texts)


def test_an_image_is_a_function_of_seed_split_and_number() -> None:
    studio = build_studio(None)
    one, two = ([scene.image for scene in text_images.scenes(studio, "dev", count, 1)] for count in (1, 2))
    assert np.array_equal(one[0], two[0])
