"""VisualDL's file: what VisualDL itself would have written, read back by VisualDL itself, and made again exactly."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Picture

from paddle_stable.errors import InputError
from paddle_stable.metrics_log import Histogram, HyperParameters, Image, Record, Scalars, Text
from paddle_stable.visualdl_writer import FILE_NAME, VisualDLFile, load_visualdl

ROOT = Path(__file__).resolve().parent.parent
COLOURS = np.array([[[255, 0, 0], [0, 255, 0]], [[0, 0, 255], [9, 8, 7]]], np.uint8)


def records() -> list[Record]:
    return [
        Text(step=0, tag="recipe", text="run:\n  steps: 3  # 步", time=1_700_000_000_000),
        Scalars(step=1, scalars={"train/loss": 0.1, "stability/clip_rate": 0.0}, time=1_700_000_000_001),
        Histogram.of(1, "parameters/fc.weight", np.arange(10.0)).model_copy(update={"time": 1_700_000_000_002}),
        Image(step=1, tag="forecast", path="pictures/a.png", time=1_700_000_000_003),
        Scalars(step=2, scalars={"train/loss": 1e-30, "eval/accuracy": -2.5}, time=1_700_000_000_004),
        HyperParameters.of(2, {"lr": 0.1, "seed": 1, "amp": "none"}, {"test/f1": 0.5}).model_copy(
            update={"time": 1_700_000_000_005}
        ),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures").mkdir()
    Picture.fromarray(COLOURS).save(tmp_path / "pictures" / "a.png")
    return tmp_path


def write(folder: Path, first: list[Record], later: list[Record]) -> bytes:
    """Make the file from the first records, append the later ones, and return what it holds."""
    file = VisualDLFile(folder, first)
    for record in later:
        file.add(record)
    file.close()
    file.close()
    return (folder / FILE_NAME).read_bytes()


def messages(path: Path) -> list[Any]:
    """VisualDL's messages in a file, in order, each with one value."""
    from visualdl.proto import record_pb2
    from visualdl.reader.record_reader import RecordReader

    return [record_pb2.Record.FromString(raw).values[0] for raw in RecordReader(str(path)).get_all()]


@pytest.mark.parametrize("split", range(7))
def test_a_file_made_again_and_continued_equals_an_uninterrupted_one(folder: Path, split: int) -> None:
    uninterrupted = write(folder, [], records())
    assert write(folder, records()[:split], records()[split:]) == uninterrupted


def test_visualdl_reads_back_what_was_written(folder: Path) -> None:
    from visualdl import LogReader

    write(folder, [], records())
    reader = LogReader(file_path=str(folder / FILE_NAME))
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for tag in reader.get_tags()["scalar"]:
        curves[tag] = [(item.id, item.value) for item in reader.get_data("scalar", tag)]
    assert curves == {
        "train/loss": [(1, float(np.float32(0.1))), (2, float(np.float32(1e-30)))],
        "stability/clip_rate": [(1, 0.0)],
        "eval/accuracy": [(2, -2.5)],
        "final/test/f1": [(2, 0.5)],
    }
    (histogram,) = reader.get_data("histogram", "parameters/fc.weight")
    assert sum(histogram.histogram.hist) == 10
    assert (histogram.histogram.bin_edges[0], histogram.histogram.bin_edges[-1]) == (0.0, 9.0)
    (text,) = reader.get_data("text", "recipe")
    assert text.text.encoded_text_string == "run:\n  steps: 3  # 步"


def test_a_picture_keeps_its_colours(folder: Path, tmp_path: Path) -> None:
    write(folder, [], records())
    (message,) = [m for m in messages(folder / FILE_NAME) if m.tag == "forecast"]
    shown = tmp_path / "shown.png"
    shown.write_bytes(message.image.encoded_image_string)
    assert np.array_equal(np.array(Picture.open(shown)), COLOURS)


def test_messages_are_those_of_visualdls_own_writer(folder: Path, tmp_path: Path) -> None:
    from visualdl import LogWriter

    write(folder, [], records())
    when = 1_700_000_000_000
    with LogWriter(str(tmp_path / "theirs"), file_name="vdlrecords.run.log") as writer:
        writer.add_text("recipe", "run:\n  steps: 3  # 步", 0, when)
        writer.add_scalar("train/loss", 0.1, 1, when + 1)
        writer.add_scalar("stability/clip_rate", 0.0, 1, when + 1)
        writer.add_histogram("parameters/fc.weight", np.arange(10.0), 1, when + 2, buckets=64)
        writer.add_image("forecast", COLOURS.copy(), 1, when + 3)
        writer.add_scalar("train/loss", 1e-30, 2, when + 4)
        writer.add_scalar("eval/accuracy", -2.5, 2, when + 4)
        writer.add_hparams({"lr": 0.1, "seed": 1, "amp": "none"}, ["final/test/f1"], when + 5)
        writer.add_scalar("final/test/f1", 0.5, 2, when + 5)
    ours, theirs = messages(folder / FILE_NAME), messages(tmp_path / "theirs" / "vdlrecords.run.log")
    theirs[0].timestamp = 0  # the header's time is theirs to choose
    for message in ours, theirs:
        message[-2].hparam.name = ""  # so is the name they make up of the file's path
    assert ours == theirs


@pytest.mark.parametrize("others", ["vdlrecords.1700000000.log", "vdlrecords.9999999999.log"])
def test_visualdl_shows_this_file_of_the_folder(folder: Path, others: str) -> None:
    from visualdl import LogReader

    write(folder, [], records())
    (folder / others).write_bytes(b"")
    assert LogReader(str(folder)).logs()[str(folder)] == FILE_NAME


def test_a_kill_while_the_file_is_made_again_leaves_the_older_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from visualdl import LogReader

    before = write(folder, [], records())

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            VisualDLFile(folder, records()[:2])
    assert (folder / FILE_NAME).read_bytes() == before
    assert LogReader(str(folder)).logs()[str(folder)] == FILE_NAME
    assert write(folder, records(), []) == before


def test_every_record_is_in_the_file_before_add_returns(folder: Path) -> None:
    file = VisualDLFile(folder, [])
    for count, record in enumerate([r for r in records() if isinstance(r, Scalars)], start=1):
        file.add(record)
        assert len(messages(folder / FILE_NAME)) == 1 + 2 * count
    file.close()


def test_a_tensor_without_finite_values_is_not_shown(folder: Path) -> None:
    header = write(folder, [], [])
    assert write(folder, [], [Histogram.of(1, "h", np.array([np.nan, np.inf]))]) == header


@pytest.mark.parametrize("damage", ["missing", "no picture"])
def test_a_picture_that_is_gone_does_not_cost_the_curves(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    picture = folder / "pictures" / "a.png"
    if damage == "missing":
        picture.unlink()
    else:
        picture.write_bytes(b"something else")
    with caplog.at_level(logging.WARNING):
        write(folder, records(), [])
    assert "a.png cannot be shown in VisualDL" in caplog.text
    assert [m.tag for m in messages(folder / FILE_NAME)][-1] == "final/test/f1"


def test_importing_the_package_does_not_import_visualdl(tmp_path: Path) -> None:
    program = "import sys, paddle_stable.writers, paddle_stable.visualdl_writer; print('visualdl' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]


def test_a_home_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # VisualDL makes its settings folder while it is imported; as the tests may run as root, the refusal is staged.
    monkeypatch.delitem(sys.modules, "visualdl.component.base_component", raising=False)

    class Refusal:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "visualdl.component.base_component":
                raise PermissionError(13, "Permission denied", "/nowhere/.visualdl/conf")

    monkeypatch.setattr(sys, "meta_path", [Refusal(), *sys.meta_path])
    with pytest.raises(InputError, match=r"/nowhere/.visualdl/conf.*Permission denied.*Set HOME"):
        load_visualdl()
