"""Text detection with DBNet: where in an image there is something to read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import cv2
import numpy as np
import paddle
from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from paddle_stable.data.dataset import Array, Batch, Dataset, NaiveAnswer, Splits
from paddle_stable.data.detection import DetectionData, DetectionDataset, load_detection
from paddle_stable.data.detection_transforms import MEAN, STD
from paddle_stable.data.images import Pixels, read_image
from paddle_stable.detection.boxes import BoxFinder, Floats, FoundTexts
from paddle_stable.detection.drawing import draw_matching, write_picture, write_sheet
from paddle_stable.detection.loss import DbLoss
from paddle_stable.detection.scoring import match_texts, total
from paddle_stable.errors import InputError
from paddle_stable.models.dbnet import DbNet
from paddle_stable.models.dbnet_backbones import MobileNetV3Backbone, PlainBackbone, ResNetBackbone
from paddle_stable.models.dbnet_weights import load_dbnet_weights
from paddle_stable.recipe import DataConfig, ModelKind, TaskConfig
from paddle_stable.task import Task

_log = logging.getLogger(__name__)
_SHOWN_PICTURES = 4


@final
class DbnetConfig(TaskConfig):
    """The network, its loss, and how outlines are made of its maps."""

    backbone: Literal["plain", "resnet18", "resnet50", "resnet18_vd", "resnet50_vd", "mobilenet_v3_large"] = "plain"
    """plain: 3x3 convolutions, for a CPU, where the depthwise ones of mobilenet_v3_large are slow. vd: ResNet-D, which
    PaddleOCR's published detectors have."""
    plain_channels: tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt] = (32, 64, 96, 128)
    """plain: channels at a quarter, an eighth, a 16th and a 32nd of the image."""
    plain_blocks: PositiveInt = 1
    """plain: residual blocks at each of these sizes."""
    mobilenet_scale: PositiveFloat = 0.5
    """mobilenet_v3_large: factor on all its channels."""
    neck_channels: PositiveInt = 256
    """Channels of the feature pyramid, a multiple of 4; both heads take a quarter. The paper's: 256."""
    steepness: PositiveFloat = 50.0
    """k in B = 1 / (1 + exp(-k (P - T)))."""
    init_from: str | None = None
    """Weights to start from: a .pdparams of PaddleOCR (whole detector) or PaddleClas (backbone), or a .safetensors of
    a checkpoint. Only arrays and names are read. null: random ones."""
    sync_bn: bool = False
    """Several GPUs: BatchNorm over the samples of all of them (there is no kernel for a CPU). Otherwise every process
    normalises by its own samples, and the running statistics are averaged."""
    shrink_loss: Literal["bce", "dice"] = "bce"
    """Of the probability map. bce: with hard negatives, as in the paper; dice: as in PaddleOCR's recipes."""
    negative_ratio: PositiveFloat = 3.0
    """bce: hard negatives for every positive pixel."""
    shrink_weight: PositiveFloat = 5.0
    """Factor on the loss of the probability map."""
    threshold_weight: PositiveFloat = 10.0
    """Factor on the L1 loss of the threshold map."""
    binary_weight: PositiveFloat = 1.0
    """Factor on the Dice loss of the binary map."""
    map_threshold: float = Field(default=0.3, gt=0.0, lt=1.0)
    """Probability above which a pixel belongs to a text."""
    box_threshold: float = Field(default=0.6, gt=0.0, lt=1.0)
    """Texts with a lower mean probability are dropped."""
    unclip_ratio: PositiveFloat = 1.5
    """Texts grow by area x ratio / perimeter, since the network has learned shrunk ones."""
    max_candidates: PositiveInt = 1000
    """Regions looked at in an image."""
    outline: Literal["quad", "polygon"] = "quad"
    """What is found: four corners, or up to 32 points for curved text."""

    @field_validator("neck_channels")
    @classmethod
    def _is_divided_among_four(cls, value: int) -> int:
        if value % 4:
            raise ValueError(f"must be a multiple of 4, got {value}")
        return value


@final
class DbnetDetection(Task):
    """An image in, outlines of its texts out."""

    Config: ClassVar[type[TaskConfig]] = DbnetConfig
    Data: ClassVar[type[DataConfig]] = DetectionData
    model_kind: ClassVar[ModelKind] = "detection"
    metric_names: ClassVar[Mapping[str, bool]] = {"precision": True, "recall": True, "hmean": True}

    def __init__(self, config: DbnetConfig, data: DetectionData, *, seed: int) -> None:
        """Keep the two sections. What is random in the data comes from the loader, so `seed` is not needed."""
        self._config = config
        self._data = data
        self._loss = DbLoss(
            shrink=config.shrink_loss,
            negative_ratio=config.negative_ratio,
            shrink_weight=config.shrink_weight,
            threshold_weight=config.threshold_weight,
            binary_weight=config.binary_weight,
        )
        self._finder = BoxFinder(
            map_threshold=config.map_threshold,
            box_threshold=config.box_threshold,
            unclip_ratio=config.unclip_ratio,
            max_candidates=config.max_candidates,
            shape=config.outline,
        )

    def load_splits(self) -> Splits:
        """Read and check labels and the headers of all images."""
        splits = load_detection(self._data)
        return replace(splits, naive=NaiveAnswer("hmean", 0.0, "no text anywhere"))

    def build_model(self) -> paddle.nn.Layer:
        """A fresh detector, with the weights that the recipe starts from.

        Raises:
            InputError: when they cannot be used, or for `sync_bn` on a CPU.
        """
        config = self._config
        if config.sync_bn and paddle.get_device() == "cpu":
            message = (
                "task.sync_bn: true, but BatchNorm over several processes has no kernel for a CPU. Set it to false."
            )
            raise InputError.single("the recipe", message)
        backbone = self._backbone()
        model: paddle.nn.Layer = DbNet(
            backbone, backbone.out_channels, neck_channels=config.neck_channels, steepness=config.steepness
        )
        if config.init_from is not None:
            report = load_dbnet_weights(model, Path(config.init_from), config.backbone)
            _log.log(logging.WARNING if report.missing or report.misshapen else logging.INFO, "%s", report)
        if config.sync_bn:
            model = paddle.nn.SyncBatchNorm.convert_sync_batchnorm(model)
        return model

    def _backbone(self) -> PlainBackbone | ResNetBackbone | MobileNetV3Backbone:
        config = self._config
        match config.backbone:
            case "plain":
                return PlainBackbone(config.plain_channels, config.plain_blocks)
            case "mobilenet_v3_large":
                return MobileNetV3Backbone(config.mobilenet_scale)
            case "resnet18" | "resnet18_vd":
                return ResNetBackbone(18, vd=config.backbone.endswith("_vd"))
            case "resnet50" | "resnet50_vd":
                return ResNetBackbone(50, vd=config.backbone.endswith("_vd"))

    def loss(self, model: paddle.nn.Layer, batch: Batch) -> paddle.Tensor:
        """Loss of the whole batch, float32 []. Not a mean over its samples: see `paddle_stable.detection.loss`."""
        labels = {name: batch[name] for name in ("shrink_map", "shrink_mask", "threshold_map", "threshold_mask")}
        maps = model(batch["image"])
        with paddle.amp.auto_cast(enable=False):  # sums over millions of pixels are beyond half precision
            return self._loss(maps, **labels)

    def outputs(self, model: paddle.nn.Layer, batch: Batch) -> dict[str, Array]:
        """What was found in every image, in pixels of the source image.

        `points` float32 [samples, max_candidates, points, 2], `scores` float32 [samples, max_candidates] and `count`
        int64 [samples]: the first `count` rows hold texts. A batch without `scale` and `source_size`, such as one for
        training, keeps the pixels of the map.
        """
        was_training = model.training
        model.eval()  # in training mode the network returns other maps
        probability = model(batch["image"]).squeeze(1).numpy()
        if was_training:
            model.train()
        shape = (batch.size, self._config.max_candidates, self._finder.point_count, 2)
        points, scores = np.zeros(shape, np.float32), np.zeros(shape[:2], np.float32)
        count = np.zeros(batch.size, np.int64)
        for row, one in enumerate(probability):
            found = self._finder.find(one)
            count[row] = len(found.scores)
            points[row, : count[row]], scores[row, : count[row]] = found.points, found.scores
        if "scale" in batch.tensors:
            scale, size = (batch[name].numpy()[:, None, None] for name in ("scale", "source_size"))
            points = np.clip(points * scale, 0.0, size)
        return {"points": points, "scores": scores, "count": count}

    def metrics(self, outputs: Mapping[str, Array], dataset: Dataset) -> dict[str, float]:
        """Precision, recall and hmean over all texts of a split, by ICDAR-2015's rules."""
        assert isinstance(dataset, DetectionDataset)
        return total(
            match_texts(list(texts_of(outputs, row).points), dataset.regions(row)).counts()
            for row in range(len(dataset))
        ).scores()

    def pictures(self, outputs: Mapping[str, Array], dataset: Dataset, folder: Path) -> dict[str, Path]:
        """`detection`: the first images with what was found in them, right or wrong, and what was missed."""
        assert isinstance(dataset, DetectionDataset)
        drawn = [
            draw_matching(read_image(dataset.image(row)), list(texts_of(outputs, row).points), dataset.regions(row))
            for row in range(min(_SHOWN_PICTURES, len(dataset)))
        ]
        path = folder / "detection.png"
        write_sheet(path, drawn)
        return {"detection": path}

    def assets(self) -> Mapping[str, str]:
        """`detection.json`: what the weights have learned from. Thresholds and sizes may differ when they are used."""
        content = {"channels": "BGR", "mean": MEAN, "std": STD, "shrink_ratio": self._data.shrink_ratio}
        return {"detection.json": json.dumps(content, indent=2) + "\n"}

    @staticmethod
    def write_sample_data(folder: Path) -> dict[str, Any]:
        """36 small images with one to three words each."""
        overrides: dict[str, Any] = {}
        rng = np.random.default_rng(5)
        for split, count in {"train": 24, "dev": 6, "test": 6}.items():
            images = folder / split
            images.mkdir(parents=True, exist_ok=True)
            lines = []
            for number in range(count):
                image, texts = sample_image(rng)
                write_picture(images / f"{number}.png", image)
                lines.append(f"{split}/{number}.png\t{json.dumps(texts)}\n")
            (folder / f"{split}.txt").write_text("".join(lines), encoding="utf-8")
            overrides |= {f"data.{split}.labels": str(folder / f"{split}.txt"), f"data.{split}.images": None}
        return overrides


def texts_of(outputs: Mapping[str, Array], row: int) -> FoundTexts:
    """What `DbnetDetection.outputs` holds of one image."""
    count = int(outputs["count"][row])
    points: Floats = outputs["points"][row, :count]
    return FoundTexts(points, outputs["scores"][row, :count])


def sample_image(rng: np.random.Generator) -> tuple[Pixels, list[dict[str, Any]]]:
    """An image of 96 x 96 with words on it, and their labels in PaddleOCR's format."""
    image = np.full((96, 96, 3), rng.integers(170, 256, size=3), np.uint8)
    image += rng.integers(0, 20, size=image.shape, dtype=np.uint8) % (256 - image.max())
    texts = []
    for row in range(int(rng.integers(1, 4))):
        word = "".join(rng.choice(list("ABEHKMNRSTX"), size=3))
        (width, height), _ = cv2.getTextSize(word, cv2.FONT_HERSHEY_SIMPLEX, 0.7, 2)
        left, base = int(rng.integers(4, 92 - width)), 30 * row + 24
        cv2.putText(image, word, (left, base), cv2.FONT_HERSHEY_SIMPLEX, 0.7, (40, 30, 20), 2)
        right, top, bottom = left + width, base - height - 2, base + 3
        corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
        texts.append({"transcription": word, "points": corners})
    return image, texts
