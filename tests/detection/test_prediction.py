"""Images in, drawings and texts.json out; one bad image does not stop the others."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from paddle_stable.build import build_trainer, prepare
from paddle_stable.data.images import read_image
from paddle_stable.detection.prediction import PredictionRequest, predict
from paddle_stable.distributed import World
from paddle_stable.errors import ExitCode
from paddle_stable.recipe_io import load_recipe
from paddle_stable.stop_signal import StopSignal
from paddle_stable.tasks.dbnet import DbnetDetection

RECIPE = Path(__file__).parents[2] / "configs" / "dbnet_det.yaml"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run whose detector finds something; its training data is gone."""
    folder = tmp_path_factory.mktemp("run")
    sample = DbnetDetection.write_sample_data(folder / "data")
    values = {**sample, "run.output_dir": str(folder), "task.box_threshold": 0.1, "task.map_threshold": 0.2}
    loaded = load_recipe(str(RECIPE), smoke=True, set_values=values)
    trainer = build_trainer(prepare(loaded, World.single()), World.single(), folder=folder)
    with StopSignal() as stop:
        trainer.fit(stop)
    (folder / "data" / "train.txt").unlink()
    return folder


def test_every_image_is_drawn_and_written_down(run: Path, tmp_path: Path) -> None:
    images = run / "data" / "test"
    assert predict(PredictionRequest(run, (images, images / "3.png"), tmp_path / "out")) is ExitCode.DONE
    found = json.loads((tmp_path / "out" / "texts.json").read_text(encoding="utf-8"))
    assert [Path(one["image"]).name for one in found["images"]] == [f"{n}.png" for n in (0, 1, 2, 3, 4, 5, 3)]
    assert sum(len(one["texts"]) for one in found["images"]) > 0
    assert found["images"][3]["texts"] == found["images"][6]["texts"]
    for one in found["images"]:
        assert (one["width"], one["height"]) == (96, 96)
        assert read_image(tmp_path / "out" / one["drawing"]).shape == (96, 96, 3)
        for text in one["texts"]:
            assert np.array(text["points"]).shape == (4, 2)
            assert 0.1 <= text["score"] <= 1.0
    assert len({one["drawing"] for one in found["images"]}) == 7


def test_images_that_are_seen_much_smaller_are_pointed_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = read_image(run / "data" / "test" / "0.png")
    cv2.imwrite(str(tmp_path / "large.png"), np.tile(image, (2, 3, 1)))
    small = run / "data" / "test" / "1.png"
    assert predict(PredictionRequest(run, (small, tmp_path / "large.png"), tmp_path / "out")) is ExitCode.DONE
    assert "note: 1 of 2 images seen at less than half their size" in (said := capsys.readouterr().out)
    assert "-o data.eval_size=[192,288]" in said
    larger = PredictionRequest(
        run, (tmp_path / "large.png",), tmp_path / "out", overrides=("data.eval_size=[192,288]",)
    )
    assert predict(larger) is ExitCode.DONE
    assert "note:" not in capsys.readouterr().out


def test_a_bad_image_is_named_and_the_others_are_done(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = (run / "data" / "test" / "0.png").read_bytes()
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(good[: len(good) // 2])
    (folder / "b.png").write_bytes(b"no image")
    (folder / "c.png").write_bytes(good)
    assert predict(PredictionRequest(run, (folder,), tmp_path / "out")) is ExitCode.INPUT
    found = json.loads((tmp_path / "out" / "texts.json").read_text(encoding="utf-8"))
    assert [Path(one["image"]).name for one in found["images"]] == ["c.png"]
    said = capsys.readouterr().err
    assert "2 of 3 images could not be used" in said
    assert "a.png" in said
    assert "b.png" in said


def test_an_image_that_was_given_is_never_drawn_over(run: Path, tmp_path: Path) -> None:
    image = read_image(run / "data" / "test" / "0.png")
    for name in ("other.png", "photo.jpg", "photo.png"):
        cv2.imwrite(str(tmp_path / name), image)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert predict(PredictionRequest(run, (tmp_path,), tmp_path)) is ExitCode.DONE
    assert {path: path.read_bytes() for path in before} == before
    found = json.loads((tmp_path / "texts.json").read_text(encoding="utf-8"))
    drawings = {tmp_path / one["drawing"] for one in found["images"]}
    assert len(drawings - before.keys()) == 3
    assert all(read_image(drawing).shape == image.shape for drawing in drawings)


@pytest.mark.parametrize(
    ("images", "message"), [("nothing.png", "no such file or folder"), ("empty", "no image in it")]
)
def test_nothing_to_look_at_is_an_error(
    run: Path, tmp_path: Path, images: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert predict(PredictionRequest(run, (tmp_path / images,), tmp_path / "out")) is ExitCode.INPUT
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_task_is_refused(tmp_path: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = run / "data" / "test" / "0.png"
    assert predict(PredictionRequest(run, (image,), tmp_path / "out", overrides=("task.target=x",))) is ExitCode.INPUT
    assert predict(PredictionRequest(tmp_path, (image,), tmp_path / "out")) is ExitCode.INPUT
    assert "must be a run's folder" in capsys.readouterr().err
