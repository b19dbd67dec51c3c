"""Decoding every image once, and remembering the result as long as a file keeps its size and time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from paddle_stable.data.images import UnreadableImage, decode

_CACHE_NAME = "decoded_images.jsonl"


def cache_file() -> Path:
    """Where results are kept: `$XDG_CACHE_HOME/paddle_stable` (`~/.cache/paddle_stable`), which may be deleted."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "paddle_stable" / _CACHE_NAME


def check_images(images: Iterable[Path], cache: Path) -> dict[Path, str]:
    """Decode every image in full, apart from those that were before and have not changed since.

    Args:
        images: files; one named twice is decoded once.
        cache: file with a line for every image that was decoded, added to at once, so that nothing is lost when the
            check is interrupted. One that cannot be written costs time, not the check.

    Returns:
        Why an image cannot be used, for those that cannot.
    """
    known = _read(cache)
    findings = {}
    stream = _open(cache)
    try:
        for image in tqdm(list(dict.fromkeys(images)), desc="decoding images", unit="image", disable=None):
            finding = _finding(image, known, stream)
            if finding:
                findings[image] = finding
    finally:
        if stream is not None:
            stream.close()
    return findings


def _finding(image: Path, known: Mapping[str, str], stream: TextIO | None) -> str:
    try:
        status = image.stat()
        key = json.dumps([str(image.resolve()), status.st_size, status.st_mtime_ns])
        if key in known:
            return known[key]
        content = image.read_bytes()
    except OSError as error:
        return f"{error.strerror or error}"
    finding = _decoded(content)
    if stream is not None:
        stream.write(json.dumps({"key": key, "finding": finding}) + "\n")
        stream.flush()
    return finding


def _decoded(content: bytes) -> str:
    """Why no image can be made of it; empty when one can."""
    try:
        decode(content)
    except UnreadableImage as error:
        return f"{error}"
    return ""


def _read(cache: Path) -> dict[str, str]:
    """Findings by key; a line that cannot be read is as good as none."""
    try:
        lines = cache.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    known = {}
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and isinstance(entry.get("key"), str) and isinstance(entry.get("finding"), str):
            known[entry["key"]] = entry["finding"]
    return known


def _open(cache: Path) -> TextIO | None:
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        return cache.open("a", encoding="utf-8")
    except OSError:
        return None
