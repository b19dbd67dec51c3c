"""Every image is decoded once, and again only when its file has changed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddle_stable.data import image_check
from paddle_stable.data.image_check import cache_file, check_images


def picture(path: Path, seed: int = 0) -> Path:
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)
    return path


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:-500])
    return path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the files that were decoded."""
    sizes: list[int] = []

    def counting(content: bytes) -> None:
        sizes.append(len(content))
        genuine(content)

    genuine = image_check.decode
    monkeypatch.setattr(image_check, "decode", counting)
    return sizes


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    good, bad = picture(tmp_path / "a.jpg"), truncate(picture(tmp_path / "b.jpg"))
    findings = check_images([good, bad, tmp_path / "c.jpg"], tmp_path / "cache")
    assert findings.keys() == {bad, tmp_path / "c.jpg"}
    assert "truncated" in findings[bad]
    assert findings[tmp_path / "c.jpg"] == "No such file or directory"


def test_the_second_check_decodes_nothing_and_finds_the_same(tmp_path: Path, decoded: list[int]) -> None:
    images = [picture(tmp_path / "a.jpg"), truncate(picture(tmp_path / "b.jpg"))]
    first = check_images(images * 2, tmp_path / "cache")
    assert len(decoded) == 2
    assert check_images(images, tmp_path / "cache") == first
    assert len(decoded) == 2


@pytest.mark.parametrize("change", ["size", "time"])
def test_a_changed_file_is_decoded_again(tmp_path: Path, decoded: list[int], change: str) -> None:
    image = picture(tmp_path / "a.jpg")
    assert check_images([image], tmp_path / "cache") == {}
    before = image.stat()
    if change == "size":
        truncate(image)
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    else:
        os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000))
    assert bool(check_images([image], tmp_path / "cache")) == (change == "size")
    assert len(decoded) == 2


def test_an_interrupted_check_keeps_what_it_has_done(
    tmp_path: Path, decoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = [picture(tmp_path / f"{seed}.jpg", seed) for seed in range(3)]
    counting = image_check.decode

    def interrupted(content: bytes) -> None:
        if len(decoded) == 2:
            raise KeyboardInterrupt
        counting(content)

    monkeypatch.setattr(image_check, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_images(images, tmp_path / "cache")
    monkeypatch.setattr(image_check, "decode", counting)
    check_images(images, tmp_path / "cache")
    assert len(decoded) == 3


@pytest.mark.parametrize("content", [b"\xff\xfe", b'{"key": 1}\n[]\nnull\n{"key": "a"', b""])
def test_a_spoilt_cache_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    cache = tmp_path / "cache"
    cache.write_bytes(content)
    bad = truncate(picture(tmp_path / "a.jpg"))
    assert check_images([bad], cache).keys() == {bad}


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    assert check_images([picture(tmp_path / "a.jpg")], tmp_path / "a.jpg" / "cache") == {}


def test_the_cache_is_where_caches_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_file().parent == tmp_path / "paddle_stable"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_file().parent == Path.home() / ".cache" / "paddle_stable"
