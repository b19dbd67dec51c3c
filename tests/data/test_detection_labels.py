"""Both label formats: what is right is read as it stands, all that is wrong is named by file and line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddle_stable.data.detection_labels import read_labels

QUAD = [[10, 10], [50, 10], [50, 30], [10, 30]]
PENTAGON = [[10, 10], [30, 5], [50, 10], [50, 30], [10, 30]]


def picture(path: Path, width: int = 100, height: int = 60) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return path


def entry(text: str = "abc", points: object = QUAD) -> dict[str, object]:
    return {"transcription": text, "points": points}


def label_file(folder: Path, *lines: str | bytes) -> Path:
    picture(folder / "a.png")
    path = folder / "labels.txt"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else line.encode() for line in lines))
    return path


def line(*entries: dict[str, object], name: str = "a.png") -> str:
    return f"{name}\t{json.dumps(list(entries))}"


def test_a_label_file_is_read_as_it_stands(tmp_path: Path) -> None:
    entries = [entry(), entry("###"), entry("*"), entry('a, "b"\t中', PENTAGON), {**entry(), "difficult": False}]
    path = label_file(tmp_path, b"\xef\xbb\xbf" + line(*entries).encode(), "", line() + "\r")
    labels = read_labels(path, None)
    assert (labels.broken, labels.problems, labels.repairs) == ((), (), ())
    first, background = labels.images
    assert (first.image, first.file, first.line, f"{first.size}") == (tmp_path / "a.png", str(path), 1, "100 x 60")
    assert [(region.text, region.ignore) for region in first.regions] == [
        ("abc", False), ("###", True), ("*", True), ('a, "b"\t中', False), ("abc", False)]  # fmt: skip
    assert first.regions[3].points.tolist() == PENTAGON
    assert (background.line, background.regions) == (3, ())


def test_images_may_be_in_another_folder(tmp_path: Path) -> None:
    picture(tmp_path / "elsewhere" / "b" / "c.png")
    path = label_file(tmp_path, line(entry(), name="b/c.png"))
    assert read_labels(path, tmp_path / "elsewhere").images[0].image == tmp_path / "elsewhere" / "b" / "c.png"


BAD_LINES = {
    "a.png": "expected path<TAB>JSON list of texts, found 0 tabs instead of 1.",
    "a.png [] ": "expected path<TAB>JSON list of texts, found 0 tabs instead of 1.",
    "a.png\t[]\t[]": "expected path<TAB>JSON list of texts, found 2 tabs instead of 1.",
    "\t[]": "found 'nothing' for the path: one image a line.",
    '["a.png", "b.png"]\t[]': "for the path: one image a line.",
    "a.png\t[{": "broken JSON after the tab:",
    "a.png\t" + "[" * 100_000: "broken JSON after the tab:",
    "a.png\t{}": "found dict after the tab. A background image has [].",
    'a.png\t[{"transcription": "x"}]': 'text 1: expected {"transcription":',
    'a.png\t[{"transcription": 7, "points": []}]': 'text 1: expected {"transcription":',
    "missing.png\t[]": "missing.png: No such file or directory.",
    "labels.txt\t[]": "labels.txt: not an image, or its header is damaged.",
    "a\0b.png\t[]": "embedded null byte.",
    "a\xff.png\t[]": "",
}


@pytest.mark.parametrize("bad", BAD_LINES)
def test_a_bad_line_is_named_and_the_others_are_read(tmp_path: Path, bad: str) -> None:
    content = bad.encode("latin-1") if "\xff" in bad else bad
    path = label_file(tmp_path, line(entry()), content, line(entry()))
    labels = read_labels(path, None)
    (problem,) = labels.problems
    assert (problem.file, problem.line) == (str(path), 2)
    assert (BAD_LINES[bad] or "not UTF-8: byte 0xff at position 2") in problem.message
    assert [image.line for image in labels.images] == [1, 3]


def test_a_bad_outline_is_named_and_ignored_and_the_image_kept(tmp_path: Path) -> None:
    crossing = [[0, 0], [50, 40], [0, 40], [50, 0], [25, 50]]
    path = label_file(tmp_path, line(entry(), entry("x", crossing), entry("y", QUAD[:2])))
    labels = read_labels(path, None)
    assert [problem.message.split(":")[:2] for problem in labels.problems] == [
        ["text 2", " the outline crosses itself"], ["text 3", " expected at least 3 corners, found 2."]]  # fmt: skip
    assert [(region.text, region.ignore) for region in labels.images[0].regions] == [("abc", False), ("x", True)]


def test_repairs_are_counted_by_kind(tmp_path: Path) -> None:
    path = label_file(tmp_path, *(line(entry("abc", QUAD[::-1])) for _ in range(5)))
    labels = read_labels(path, None)
    (sentence,) = labels.repairs
    assert sentence.startswith(f"{path}: 5 outlines had corners counter-clockwise, put right: {path}:1 text 1; ")
    assert labels.problems == ()


def test_everything_wrong_comes_at_once(tmp_path: Path) -> None:
    labels = read_labels(label_file(tmp_path, *BAD_LINES), None)
    assert [problem.line for problem in labels.problems if problem.line] == list(range(1, len(BAD_LINES) + 1))


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_images_is_broken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(content)
    assert "there is no image in it." in str(read_labels(path, None).broken[0])


def test_a_missing_file_and_an_empty_folder_are_broken(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in str(read_labels(tmp_path / "x.txt", None).broken[0])
    assert "there is no gt_*.txt in this folder." in str(read_labels(tmp_path, None).broken[0])


def gt(folder: Path, name: str, content: str) -> Path:
    path = folder / f"gt_{name}.txt"
    path.write_bytes(content.encode())
    return path


def test_an_icdar_folder_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for number, ending in ((10, "JPG"), (2, "png")):
        picture(tmp_path / f"img_{number}.{ending}")
    gt(tmp_path, "img_2", "\ufeff10,10,50,10,50,30,10,30,a, b,c\r\n10,10,50,10,50,30,10,30,###\r\n")
    gt(tmp_path, "img_10", "")
    labels = read_labels(tmp_path, None)
    assert (labels.broken, labels.problems) == ((), ())
    assert [(image.image.name, image.line) for image in labels.images] == [("img_2.png", 0), ("img_10.JPG", 0)]
    assert [(region.text, region.ignore) for region in labels.images[0].regions] == [("a, b,c", False), ("###", True)]
    assert labels.images[0].regions[0].points.tolist() == QUAD


def test_bad_gt_files_are_named_by_line(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"{name}.png")
    short = gt(tmp_path, "a", "10,10,50,10,50,30,10,30,fine\n10,10,50,10,50,30,10,30\n10,x,50,10,50,30,10,30,t\n")
    outside = gt(tmp_path, "b", "210,10,250,10,250,30,210,30,t\n")
    alone = gt(tmp_path, "c", "")
    labels = read_labels(tmp_path, None)
    assert [(p.file, p.line, p.message[:24]) for p in labels.problems] == [
        (str(short), 2, "expected x1,y1,x2,y2,x3,"),
        (str(short), 3, "expected x1,y1,x2,y2,x3,"),
        (str(outside), 1, "lies outside the image ("),
        (str(alone), 0, "there is no image " + str(tmp_path / "c")[:6]),
    ]
    assert [image.image.name for image in labels.images] == ["b.png"]


def test_the_real_images_are_read(data_folder: Path) -> None:
    labels = read_labels(data_folder / "icdar2015" / "gt", data_folder / "icdar2015" / "imgs")
    assert (labels.broken, labels.problems, labels.repairs) == ((), (), ())
    assert [image.image.name for image in labels.images] == [f"img_{number}.jpg" for number in range(1, 6)]
    assert {f"{image.size}" for image in labels.images} == {"1280 x 720"}
    readable = [[r.text for r in image.regions if not r.ignore] for image in labels.images]
    assert readable == [
        ["Genaxis Theatre", "[06]", "62-03", "Carpark"],
        ["EXIT", "I2R"],
        ["fusionopolis", "fusionopolis"],
        [],
        [],
    ]
    first = labels.images[0].regions[0].points
    assert np.array_equal(first, [[377, 117], [463, 117], [465, 130], [378, 130]])
