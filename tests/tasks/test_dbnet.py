"""Text detection as a task: what its numbers mean, in source pixels, whatever the batch and the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import paddle
import pytest

from paddle_stable.build import Prepared, build_trainer, prepare
from paddle_stable.data.dataset import Array, Batch
from paddle_stable.data.detection import DetectionDataset
from paddle_stable.data.images import read_image
from paddle_stable.data.loader import evaluation_batches
from paddle_stable.distributed import World
from paddle_stable.errors import InputError
from paddle_stable.recipe_io import load_recipe
from paddle_stable.seeding import seed_step
from paddle_stable.stability.running_statistics import RunningStatistics
from paddle_stable.tasks.dbnet import DbnetDetection

RECIPE = Path(__file__).parents[2] / "configs" / "dbnet_det.yaml"


def prepared(folder: Path, **values: Any) -> Prepared:
    dotted = {key.replace("__", "."): value for key, value in values.items()}
    sample = DbnetDetection.write_sample_data(folder / "data")
    loaded = load_recipe(
        str(RECIPE), smoke=True, set_values={**sample, "run.output_dir": str(folder / "run"), **dotted}
    )
    return prepare(loaded, World.single())


class Drawn(paddle.nn.Layer):
    """A network that has the right map for one image."""

    def __init__(self, probability: Array) -> None:
        super().__init__()
        self._probability = paddle.to_tensor(probability[None, None].astype(np.float32))

    def forward(self, image: paddle.Tensor) -> paddle.Tensor:
        return self._probability.expand([image.shape[0], 1, -1, -1])


def test_outlines_are_in_pixels_of_the_source_and_stay_inside_it(tmp_path: Path) -> None:
    """An image of 60 x 120 in a map of 96 x 96 is enlarged by .8."""
    task = prepared(tmp_path).task
    probability = np.zeros((96, 96), np.float32)
    probability[10:21, 20:61] = 1.0
    probability[20:47, 70:96] = 1.0
    tensors = {
        "image": paddle.zeros([2, 3, 96, 96]),
        "scale": paddle.to_tensor(np.array([[1.25, 1.25], [1.0, 1.0]], np.float32)),
        "source_size": paddle.to_tensor(np.array([[120, 60], [96, 96]], np.float32)),
    }
    outputs = task.outputs(Drawn(probability), Batch(tensors, (0, 1)))
    assert outputs["count"].tolist() == [2, 2]
    assert outputs["points"].shape == (2, 50, 4, 2)
    growth = 40 * 10 * 1.5 / (2 * (40 + 10))
    upper_left = np.array([20.5 - growth, 10.5 - growth])
    by_height = sorted(range(2), key=lambda row: outputs["points"][0, row, 0, 1])
    np.testing.assert_allclose(outputs["points"][0, by_height[0], 0], 1.25 * upper_left, atol=1e-3)
    np.testing.assert_allclose(outputs["points"][1, by_height[0], 0], upper_left, atol=1e-3)
    assert outputs["points"][0, :2].max(axis=(0, 1)).tolist() == [120.0, 60.0]


def test_a_perfect_map_scores_one_and_an_empty_one_nothing(tmp_path: Path) -> None:
    """What the labels say, shrunk by the data and grown again by the post-processing, is found again."""
    run = prepared(tmp_path)
    dataset = run.splits.dev
    assert isinstance(dataset, DetectionDataset)
    found = {"points": np.zeros((len(dataset), 50, 4, 2), np.float32), "count": np.zeros(len(dataset), np.int64)}
    found["scores"] = np.ones((len(dataset), 50), np.float32)
    assert run.task.metrics(found, dataset) == {"precision": 0.0, "recall": 0.0, "hmean": 0.0}
    for row in range(len(dataset)):
        regions = dataset.regions(row)
        found["count"][row] = len(regions)
        found["points"][row, : len(regions)] = [region.points for region in regions]
    assert run.task.metrics(found, dataset) == {"precision": 1.0, "recall": 1.0, "hmean": 1.0}


def test_outputs_of_all_batches_have_the_same_shape(tmp_path: Path) -> None:
    """Whatever was found, and in a short last batch too: those of several processes are put together row by row."""
    run = prepared(tmp_path)
    run.model.eval()
    batches = list(evaluation_batches(run.splits.dev, 4, World.single()))
    assert [batch.size for batch in batches] == [4, 2]
    for batch in batches:
        outputs = run.task.outputs(run.model, batch)
        assert {name: (array.dtype, array.shape) for name, array in outputs.items()} == {
            "points": (np.float32, (batch.size, 50, 4, 2)),
            "scores": (np.float32, (batch.size, 50)),
            "count": (np.int64, (batch.size,)),
        }


@pytest.mark.parametrize("outline", ["quad", "polygon"])
@pytest.mark.parametrize("shrink_loss", ["bce", "dice"])
def test_batchnorm_statistics_exist_and_move(tmp_path: Path, outline: str, shrink_loss: str) -> None:
    """The guard's promise to put them back is empty where there are none."""
    run = prepared(tmp_path, task__outline=outline, task__shrink_loss=shrink_loss)
    statistics = RunningStatistics(run.model)
    assert len(statistics.names) > 20
    before = {name: value.numpy().copy() for name, value in run.model.state_dict().items() if name in statistics.names}
    run.model.train()
    rng = np.random.default_rng(1)
    arrays = run.splits.train.collate([run.splits.train.sample(index, rng) for index in range(4)])
    batch = Batch({name: paddle.to_tensor(array) for name, array in arrays.items()}, (0, 1, 2, 3))
    seed_step(1, 0, 1)
    assert np.isfinite(float(run.task.loss(run.model, batch)))
    after = run.model.state_dict()
    assert all((after[name].numpy() != value).any() for name, value in before.items())
    outputs = run.task.outputs(run.model, batch)
    assert outputs["points"].shape[2] == (4 if outline == "quad" else 32)
    assert run.model.training, "as it was before"


@pytest.mark.parametrize("shrink_loss", ["bce", "dice"])
def test_training_rehearsed_in_half_precision_applies_its_steps(tmp_path: Path, shrink_loss: str) -> None:
    half = {"amp__dtype": "float16", "amp__emulate": True, "amp__init_scale": 256.0}
    run = prepared(tmp_path, task__shrink_loss=shrink_loss, **half)
    trainer = build_trainer(run, World.single(), folder=tmp_path / "run")
    windows = trainer.loader.steps()
    verdicts = [trainer.train_step(windows).verdict for _ in range(4)]
    assert [verdict.skipped for verdict in verdicts] == [None] * 4
    assert all(np.isfinite(verdict.loss) and verdict.grad_norm > 0 for verdict in verdicts)


def test_sync_bn_on_a_cpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"task\.sync_bn: true.*no kernel for a CPU"):
        prepared(tmp_path, task__sync_bn=True)


def test_a_detector_starts_from_a_file_and_says_what_it_found(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = prepared(tmp_path, run__seed=1)
    path = tmp_path / "start.pdparams"
    state = {name: value for name, value in first.model.state_dict().items() if name.startswith("backbone.")}
    paddle.save(state, str(path))
    second = prepared(tmp_path, run__seed=2, task__init_from=str(path))
    for name, value in state.items():
        np.testing.assert_array_equal(second.model.state_dict()[name].numpy(), value.numpy())
    assert f"{len(state)} parameters matched" in caplog.text
    assert "missing, left as initialised: neck.in2_conv.weight" in caplog.text


def test_neck_channels_are_divided_among_four() -> None:
    with pytest.raises(InputError, match=r"task\.neck_channels: must be a multiple of 4, got 30"):
        load_recipe(str(RECIPE), ["task.neck_channels=30"])


def test_a_checkpoint_may_be_used_with_other_thresholds_but_not_for_texts_shrunk_otherwise(tmp_path: Path) -> None:
    """What is in `assets` has to be the same for a checkpoint to be used."""
    assets = prepared(tmp_path).task.assets()
    assert prepared(tmp_path, task__box_threshold=0.3, data__eval_size=[128, 160]).task.assets() == assets
    assert prepared(tmp_path, data__shrink_ratio=0.5).task.assets() != assets


def test_pictures_show_the_split(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    dataset = run.splits.dev
    outputs = {
        "points": np.zeros((len(dataset), 1, 4, 2), np.float32),
        "scores": np.zeros((len(dataset), 1), np.float32),
        "count": np.zeros(len(dataset), np.int64),
    }
    (path,) = run.task.pictures(outputs, dataset, tmp_path).values()
    assert read_image(path).shape[1] > 1280
