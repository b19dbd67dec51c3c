"""The detection dataset: what a recipe may say, what is refused before step 0, and what a sample is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paddle_stable.data.dataset import Splits
from paddle_stable.data.detection import (
    DetectionData,
    DetectionDataset,
    EvaluationView,
    TrainingView,
    load_detection,
)
from paddle_stable.data.detection_labels import TextRegion
from paddle_stable.data.loader import Loader, evaluation_batches
from paddle_stable.data.windows import WindowPlan
from paddle_stable.data.workers import SampleError
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.seeding import sample_generator

QUAD = [[20, 20], [80, 20], [80, 50], [20, 50]]
MAPS = ("shrink_map", "shrink_mask", "threshold_map", "threshold_mask")


def write(folder: Path, name: str, count: int = 4, points: object = QUAD) -> Path:
    """A label file with `count` noisy images."""
    lines = []
    for number in range(count):
        image = f"{name}_{number}.jpg"
        pixels = np.random.default_rng(number).integers(0, 256, (90, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / image)
        lines.append(f"{image}\t{json.dumps([{'transcription': 'abc', 'points': points}])}\n")
    path = folder / f"{name}.txt"
    path.write_text("".join(lines))
    return path


def section(folder: Path, **changes: Any) -> DetectionData:
    for name in ("train", "dev"):
        if not (folder / f"{name}.txt").exists():
            write(folder, name)
    files = {name: {"labels": str(folder / f"{name}.txt")} for name in ("train", "dev")}
    return DetectionData.model_validate({**files, "crop_size": 64, "eval_size": (96, 128), **changes})


@pytest.fixture
def splits(tmp_path: Path) -> Splits:
    return load_detection(section(tmp_path))


def detection(dataset: object) -> DetectionDataset:
    assert isinstance(dataset, DetectionDataset)
    return dataset


def spoil(image: Path) -> Path:
    image.write_bytes(image.read_bytes()[:-2000])
    return image


def test_a_training_sample_is_a_crop_with_its_maps(splits: Splits) -> None:
    sample = splits.train.sample(0, np.random.default_rng(0))
    assert {name: array.shape for name, array in sample.items()} == {
        "image": (3, 64, 64), **dict.fromkeys(MAPS, (64, 64))}  # fmt: skip
    assert {array.dtype for array in sample.values()} == {np.dtype(np.float32)}
    assert any(splits.train.sample(0, np.random.default_rng(seed))["shrink_map"].any() for seed in range(3))


def test_the_digest_tells_other_outlines_and_other_images_but_not_another_place(tmp_path: Path) -> None:
    def digest(name: str, points: object = QUAD) -> str:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        write(folder, "train", points=points)
        return load_detection(section(folder)).train.digest()

    first = digest("here")
    assert digest("there") == first != digest("outline", [[20, 20], [81, 20], [80, 50], [20, 50]])
    image = tmp_path / "here" / "train_0.jpg"
    image.write_bytes(image.read_bytes() + b" ")
    assert load_detection(section(tmp_path / "here")).train.digest() != first


def test_an_evaluation_sample_is_the_whole_image_and_the_way_back(splits: Splits) -> None:
    sample = splits.dev.sample(0, np.random.default_rng(0))
    assert sample["image"].shape == (3, 96, 128)
    assert sample["scale"].tolist() == pytest.approx([160 / 128, 90 / 72])
    assert sample["source_size"].tolist() == [160, 90]
    black = (0.0 - np.array((0.485, 0.456, 0.406))) / (0.229, 0.224, 0.225)
    assert np.allclose(sample["image"][:, 72:], black[:, None, None], atol=1e-5)
    assert not np.allclose(sample["image"][:, 71], black[:, None], atol=1e-2)


def test_the_way_back_is_exact_where_the_size_is_rounded() -> None:
    sample = EvaluationView(96, 128).fitted(np.zeros((37, 1001, 3), np.uint8))
    assert sample["scale"].tolist() == pytest.approx([1001 / 128, 37 / 5])


def test_a_text_beyond_the_crop_leaves_no_trace(tmp_path: Path) -> None:
    view, image = TrainingView(section(tmp_path)), np.zeros((90, 160, 3), np.uint8)
    word = TextRegion(np.array(QUAD, np.float32), False, "abc")
    beyond = TextRegion(word.points + np.array([200, 0], np.float32), True, "###")
    for seed in range(5):
        alone, both = (
            view.augmented(image, regions, np.random.default_rng(seed)) for regions in ([word], [word, beyond])
        )
        assert all(np.array_equal(both[name], alone[name]) for name in MAPS)


def test_a_sample_depends_on_seed_epoch_and_index_only(splits: Splits) -> None:
    def digest(seed: int, epoch: int, index: int) -> str:
        sample = splits.train.sample(index, sample_generator(seed, epoch, index))
        return hashlib.sha256(b"".join(sample[name].tobytes() for name in sorted(sample))).hexdigest()

    first = [digest(1, epoch, index) for epoch in range(2) for index in range(4)]
    assert len(set(first)) == 8
    assert [digest(1, epoch, index) for epoch in range(2) for index in range(4)] == first
    assert digest(2, 0, 0) not in first


def test_worker_processes_change_no_bit(splits: Splits) -> None:
    plan = WindowPlan(lengths=None, count=4, batch_size=2, accumulate=1, world_size=1, seed=3)

    def batches(workers: int) -> list[Mapping[str, bytes]]:
        loader = Loader(splits.train, plan, world=World.single(), seed=3, workers=workers)
        steps = loader.steps()
        parts = [next(steps).parts[0] for _ in range(3)]
        steps.close()
        return [{name: part[name].numpy().tobytes() for name in part} for part in parts]

    assert batches(2) == batches(0)


def test_evaluation_batches_stack(splits: Splits) -> None:
    (batch,) = evaluation_batches(splits.dev, 4, World.single())
    assert batch["image"].shape == [4, 3, 96, 128]
    assert batch["scale"].shape == [4, 2]


def test_a_sample_can_be_found_again(tmp_path: Path, splits: Splits) -> None:
    assert str(splits.train.origin(2)) == f"{tmp_path / 'train.txt'}:3 ({tmp_path / 'train_2.jpg'}, 160 x 90)"
    assert splits.train.lengths() is None
    assert detection(splits.dev).regions(1)[0].points.tolist() == QUAD
    assert detection(splits.dev).image(1) == tmp_path / "dev_1.jpg"


def test_facts_count_images_and_texts(splits: Splits) -> None:
    assert splits.facts is not None
    assert splits.facts["train_images"] == 4.0
    assert splits.facts["dev_texts"] == 4.0
    assert splits.facts["dev_ignored_texts"] == 0.0


def test_everything_wrong_in_all_splits_comes_at_once(tmp_path: Path) -> None:
    write(tmp_path, "train", points=QUAD[:2])
    write(tmp_path, "dev")
    (tmp_path / "dev_1.jpg").unlink()
    with pytest.raises(InputError) as raised:
        load_detection(section(tmp_path, test={"labels": str(tmp_path / "none.txt")}))
    places = sorted((Path(p.file).name, p.line) for p in raised.value.problems)
    assert places == [("dev.txt", 2), ("none.txt", 0), *(("train.txt", line) for line in range(1, 5))]


def test_bad_training_samples_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    train = write(tmp_path, "train")
    (tmp_path / "train_1.jpg").unlink()
    train.write_text(train.read_text() + train.read_text().splitlines()[0].replace("[80, 50]", "[500]") + "\n")
    splits = load_detection(section(tmp_path, bad_samples="skip"))
    assert len(splits.train) == 4
    assert detection(splits.train).regions(3) == ()
    assert any("2 bad images or texts left out (data.bad_samples: skip)" in line for line in splits.warnings)
    with pytest.raises(InputError, match=r"more than data.max_bad_samples \(1\)"):
        load_detection(section(tmp_path, bad_samples="skip", max_bad_samples=1))


def test_bad_evaluation_samples_are_never_left_out(tmp_path: Path) -> None:
    write(tmp_path, "dev")
    (tmp_path / "dev_1.jpg").unlink()
    with pytest.raises(InputError, match=r"dev.txt:2  image .*dev_1.jpg: No such file or directory"):
        load_detection(section(tmp_path, bad_samples="skip"))


def test_a_training_set_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "train")
    for image in tmp_path.glob("train_*.jpg"):
        image.unlink()
    with pytest.raises(InputError, match="no image of it can be used"):
        load_detection(section(tmp_path, bad_samples="skip"))


def test_an_image_in_two_splits_is_worth_a_warning(tmp_path: Path) -> None:
    train = write(tmp_path, "train")
    splits = load_detection(section(tmp_path, dev={"labels": str(train)}))
    assert any("4 of 4 dev images also stand in train" in line for line in splits.warnings)


def test_an_image_that_fails_in_training_stops_the_run_and_is_named(tmp_path: Path, splits: Splits) -> None:
    spoil(tmp_path / "train_1.jpg")
    plan = WindowPlan(lengths=None, count=4, batch_size=4, accumulate=1, world_size=1, seed=3)
    with pytest.raises(SampleError, match=r"truncated[\s\S]*train.txt:2 \(.*train_1.jpg, 160 x 90\)"):
        next(Loader(splits.train, plan, world=World.single(), seed=3).steps())


def test_with_skip_it_is_left_out_of_the_loss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    splits = load_detection(section(tmp_path, bad_samples="skip"))
    spoil(tmp_path / "train_1.jpg")
    spoil(tmp_path / "dev_1.jpg")
    samples = [splits.train.sample(1, np.random.default_rng(seed)) for seed in range(2)]
    assert "train_1.jpg: image file is truncated" in caplog.text
    for sample in samples:
        assert not sample["shrink_mask"].any()
        assert not sample["threshold_mask"].any()
        assert np.isfinite(sample["image"]).all()
        assert np.array_equal(sample["image"], samples[0]["image"])
    assert splits.train.collate([samples[0], splits.train.sample(0, np.random.default_rng(0))])["image"].shape[0] == 2
    with pytest.raises(SampleError):
        list(evaluation_batches(splits.dev, 4, World.single()))


def test_a_file_that_is_gone_stops_the_run_also_with_skip(tmp_path: Path) -> None:
    splits = load_detection(section(tmp_path, bad_samples="skip"))
    (tmp_path / "train_1.jpg").unlink()
    with pytest.raises(FileNotFoundError):
        splits.train.sample(1, np.random.default_rng(0))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "paddle_stable" / "decoded_images.jsonl"


def full_check(splits: Splits) -> str:
    assert splits.full_check is not None
    return "\n".join(splits.full_check())


def test_the_full_check_decodes_every_image_once(splits: Splits, cache: Path) -> None:
    assert full_check(splits) == "all 8 images were decoded, or had been before"
    assert len(cache.read_text().splitlines()) == 8
    full_check(splits)
    assert len(cache.read_text().splitlines()) == 8


def test_the_full_check_names_truncated_images_of_all_splits(tmp_path: Path, cache: Path) -> None:
    config = section(tmp_path)
    spoil(tmp_path / "train_1.jpg")
    spoil(tmp_path / "dev_3.jpg")
    with pytest.raises(InputError) as raised:
        full_check(load_detection(config))
    assert [(Path(p.file).name, p.line) for p in raised.value.problems] == [("train.txt", 2), ("dev.txt", 4)]


def test_the_full_check_lets_a_few_training_images_pass_with_skip(tmp_path: Path, cache: Path) -> None:
    config = section(tmp_path, bad_samples="skip", max_bad_samples=1)
    spoil(tmp_path / "train_1.jpg")
    assert "1 training images cannot be decoded: black and left out of the loss" in full_check(load_detection(config))
    spoil(tmp_path / "train_2.jpg")
    with pytest.raises(InputError, match=r"more than data.max_bad_samples \(1\)"):
        full_check(load_detection(config))


@pytest.mark.parametrize("changes", [{"crop_size": 100}, {"eval_size": (96, 100)}, {"crop_size": 0}])
def test_sizes_are_multiples_of_the_stride(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be a multiple of 32|greater than 0"):
        section(tmp_path, **changes)


@pytest.mark.parametrize("seed", range(5))
def test_the_real_images_make_samples(data_folder: Path, seed: int) -> None:
    source = {"labels": str(data_folder / "icdar2015/gt"), "images": str(data_folder / "icdar2015/imgs")}
    config = DetectionData.model_validate({"train": source, "dev": source, "crop_size": 320, "eval_size": (384, 640)})
    splits = load_detection(config)
    sample = splits.train.sample(seed, np.random.default_rng(seed))
    assert np.isfinite(sample["image"]).all()
    assert sample["shrink_map"].any() == (seed < 3)  # two of the five have nothing to read
    assert splits.dev.sample(seed, np.random.default_rng(0))["scale"].tolist() == pytest.approx([2.0, 2.0])
