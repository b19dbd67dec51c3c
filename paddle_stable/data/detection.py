"""Images with labelled texts as a dataset: what a recipe says of them, and what training and evaluation get."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import cv2
import numpy as np
from pydantic import Field, PositiveInt, field_validator

from paddle_stable.data.dataset import Array, Dataset, Sample, SampleOrigin, Splits
from paddle_stable.data.detection_labels import DetectionLabels, LabelledImage, TextRegion, read_labels
from paddle_stable.data.detection_maps import draw_maps, empty_maps
from paddle_stable.data.detection_transforms import (
    AugmentConfig,
    cut_out,
    draw_crop,
    draw_placement,
    jitter_colours,
    moved,
    normalised,
    resized,
)
from paddle_stable.data.image_check import cache_file, check_images
from paddle_stable.data.images import Pixels, UnreadableImage, read_image
from paddle_stable.data.text import SHOWN_EXAMPLES
from paddle_stable.digest import digest
from paddle_stable.errors import InputError, Problem, capped
from paddle_stable.recipe import DataConfig, Section

_log = logging.getLogger(__name__)

STRIDE = 32
"""Sides of what goes through the network are multiples of this: it halves them five times."""


@final
class LabelSource(Section):
    """One split."""

    labels: str
    """PaddleOCR's label file (`path<TAB>JSON` a line), or a folder with ICDAR-2015's gt_*.txt."""
    images: str | None = None
    """Folder of the images, to which the paths in a label file are relative; null: where the labels are."""


@final
class DetectionData(DataConfig):
    """Images with labelled texts.

    `bad_samples: skip` leaves out training images that are missing or unreadable, and ignores training texts whose
    outline is wrong; together they count as `max_bad_samples`. An image that turns out damaged when training comes to
    it becomes, with `skip`, a black one that is left out of the loss, with a warning; one that cannot be read at all
    any more always stops the run.
    """

    train: LabelSource
    """What is trained on."""
    dev: LabelSource
    """What every evaluation is made on."""
    test: LabelSource | None = None
    """What the best checkpoint is evaluated on in the end."""
    crop_size: PositiveInt = 640
    """Pixels, both sides of a training crop; a multiple of 32."""
    eval_size: tuple[PositiveInt, PositiveInt] = (736, 1280)
    """Height and width into which evaluation images are fitted, in their proportions; multiples of 32."""
    augment: AugmentConfig = AugmentConfig()
    """Random changes of training images."""
    shrink_ratio: float = Field(default=0.4, gt=0.0, lt=1.0)
    """How far texts are shrunk for the probability map, r in A(1 - r²) / L."""
    min_text_size: PositiveInt = 8
    """Pixels after augmentation: texts with a shorter side are not learned from."""

    @field_validator("crop_size", "eval_size")
    @classmethod
    def _is_a_multiple(cls, value: int | tuple[int, int]) -> int | tuple[int, int]:
        for side in value if isinstance(value, tuple) else (value,):
            if side % STRIDE:
                raise ValueError(f"must be a multiple of {STRIDE}, got {side}")
        return value


class View(ABC):
    """What a dataset makes of an image."""

    @abstractmethod
    def sample(self, labelled: LabelledImage, rng: np.random.Generator) -> Sample:
        """The arrays of one sample, of the same names and shapes for every image.

        Raises:
            OSError: when the file cannot be read.
            UnreadableImage: when it is damaged.
        """


@final
class TrainingView(View):
    """A random crop with its maps.

    `image` float32 [3, crop, crop] (blue, green, red; normalised) and `shrink_map`, `shrink_mask`, `threshold_map`,
    `threshold_mask` float32 [crop, crop].
    """

    def __init__(self, data: DetectionData) -> None:
        self._data = data

    def sample(self, labelled: LabelledImage, rng: np.random.Generator) -> Sample:
        """Flip, rotate, resize, crop, colour, maps; all that is random comes from `rng`."""
        try:
            image = read_image(labelled.image)
        except UnreadableImage as error:
            if self._data.bad_samples == "stop":
                raise
            _log.warning("%s: %s. Left out of the loss (data.bad_samples: skip).", labelled.image, error)
            return self._blank()
        return self.augmented(image, labelled.regions, rng)

    def augmented(self, image: Pixels, regions: Sequence[TextRegion], rng: np.random.Generator) -> Sample:
        """The sample of a decoded image."""
        data, size = self._data, self._data.crop_size
        placement = draw_placement(image.shape[1], image.shape[0], data.augment, rng)
        on_canvas = moved([region.points for region in regions if not region.ignore], placement.matrix)
        window = draw_crop(on_canvas, placement.width, placement.height, data.augment, rng)
        crop = cut_out(image, placement, window, size)
        outlines = moved([region.points for region in regions], crop.matrix)
        shown = [
            (outline, region.ignore) for outline, region in zip(outlines, regions, strict=True) if crop.shows(outline)
        ]
        maps = draw_maps(
            [outline for outline, _ in shown],
            [ignore for _, ignore in shown],
            height=size,
            width=size,
            shrink_ratio=data.shrink_ratio,
            min_text_size=data.min_text_size,
        )
        # Only where there is an image: what is beyond it stays as black as in evaluation.
        filled = crop.pixels[: crop.height, : crop.width]
        filled[:] = jitter_colours(filled, data.augment, rng)
        return {"image": normalised(crop.pixels), **maps.arrays()}

    def _blank(self) -> Sample:
        size = self._data.crop_size
        black = np.zeros((size, size, 3), np.uint8)
        return {"image": normalised(black), **empty_maps(size, size, counts=False).arrays()}


@final
class EvaluationView(View):
    """The whole image, fitted into a fixed size from the upper left, black elsewhere.

    `image` float32 [3, height, width], as in training; `scale` float32 [2]: source pixels per pixel of `image`, x and
    y; `source_size` float32 [2]: width and height of the source image.
    """

    def __init__(self, height: int, width: int) -> None:
        self._height = height
        self._width = width

    def sample(self, labelled: LabelledImage, rng: np.random.Generator) -> Sample:
        """Nothing is random."""
        return self.fitted(read_image(labelled.image))

    def fitted(self, source: Pixels) -> Sample:
        """The sample of a decoded image."""
        source_height, source_width = source.shape[:2]
        factor = min(self._height / source_height, self._width / source_width)
        width = min(self._width, max(1, round(source_width * factor)))
        height = min(self._height, max(1, round(source_height * factor)))
        image = np.zeros((self._height, self._width, 3), np.uint8)
        image[:height, :width] = resized(source, width, height)
        return {
            "image": normalised(image),
            "scale": np.array([source_width / width, source_height / height], np.float32),
            "source_size": np.array([source_width, source_height], np.float32),
        }


@final
class DetectionDataset(Dataset):
    """One split."""

    def __init__(self, images: Sequence[LabelledImage], view: View) -> None:
        # Worker processes are forked, and a fork does not have the threads that OpenCV would wait for. One thread is
        # set before OpenCV has started any; the cores are busy with the workers and with Paddle.
        cv2.setNumThreads(1)
        self._images = tuple(images)
        self._view = view

    def __len__(self) -> int:
        return len(self._images)

    def sample(self, index: int, rng: np.random.Generator) -> Sample:
        """As the view says."""
        return self._view.sample(self._images[index], rng)

    def regions(self, index: int) -> tuple[TextRegion, ...]:
        """Labelled texts in pixels of the source image."""
        return self._images[index].regions

    def image(self, index: int) -> Path:
        """Where the source image is."""
        return self._images[index].image

    def origin(self, index: int) -> SampleOrigin:
        """Label file, line, image and its size."""
        labelled = self._images[index]
        return SampleOrigin(labelled.file, labelled.line, f"{labelled.image}, {labelled.size}")

    def lengths(self) -> None:
        """All samples are of the same size."""
        return None

    def digest(self) -> str:
        """Of the labels, and of the images' names and sizes in bytes: to read them all would take too long."""
        arrays: dict[str, Array] = {}
        for number, labelled in enumerate(self._images):
            size = labelled.image.stat().st_size if labelled.image.exists() else 0
            arrays[f"{number} {labelled.image.name} {size}"] = np.array([region.ignore for region in labelled.regions])
            for place, region in enumerate(labelled.regions):
                arrays[f"{number} {place}"] = region.points
        return digest(arrays)

    def collate(self, samples: Sequence[Sample]) -> dict[str, Array]:
        """Every array stacked."""
        return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def load_detection(data: DetectionData) -> Splits:
    """Read and check all labels and image headers.

    Raises:
        InputError: with everything that is wrong, by file and line.
    """
    sources = {"train": data.train, "dev": data.dev, "test": data.test}
    labels = {
        name: read_labels(Path(source.labels), Path(source.images) if source.images else None)
        for name, source in sources.items()
        if source is not None
    }
    warnings = _checked(labels, data)
    evaluation = EvaluationView(*data.eval_size)
    test = labels.get("test")
    return Splits(
        train=DetectionDataset(labels["train"].images, TrainingView(data)),
        dev=DetectionDataset(labels["dev"].images, evaluation),
        test=None if test is None else DetectionDataset(test.images, evaluation),
        warnings=tuple(warnings),
        facts=_facts(labels),
        full_check=lambda: _decode_all(labels, data),
    )


def _checked(labels: Mapping[str, DetectionLabels], data: DetectionData) -> list[str]:
    """Warnings; an error with all problems if there are any that may not be passed over."""
    problems = [problem for split in labels.values() for problem in split.broken]
    for name, split in labels.items():
        problems += [] if name == "train" and data.bad_samples == "skip" else split.problems
    warnings = [sentence for split in labels.values() for sentence in split.repairs]
    if data.bad_samples == "skip":
        problems += _too_many(labels["train"].problems, data)
        warnings += _passed_over(labels["train"].path, labels["train"].problems)
    if not problems and not labels["train"].images:
        problems.append(Problem(labels["train"].path, 0, "no image of it can be used."))
    if problems:
        raise InputError("The data has problems:", capped(problems))
    return [*warnings, *_shared(labels)]


def _too_many(bad: Sequence[Problem], data: DetectionData) -> list[Problem]:
    if len(bad) <= data.max_bad_samples:
        return []
    limit = f"{len(bad)} bad images and texts, more than data.max_bad_samples ({data.max_bad_samples}) allows to skip."
    return [Problem(data.train.labels, 0, limit), *bad]


def _passed_over(path: str, bad: Sequence[Problem]) -> list[str]:
    if not bad:
        return []
    examples = "; ".join(str(problem) for problem in bad[:SHOWN_EXAMPLES])
    return [f"{path}: {len(bad)} bad images or texts left out (data.bad_samples: skip): {examples}"]


def _shared(labels: Mapping[str, DetectionLabels]) -> list[str]:
    """Images that stand in two splits."""
    places = {name: {image.image.resolve(): image for image in split.images} for name, split in labels.items()}
    sentences = []
    names = list(labels)
    for position, name in enumerate(names):
        for earlier in names[:position]:
            both = [(image, places[earlier][path]) for path, image in places[name].items() if path in places[earlier]]
            if both:
                examples = "; ".join(
                    f"{one.file}:{one.line} = {other.file}:{other.line}" for one, other in both[:SHOWN_EXAMPLES]
                )
                sentences.append(
                    f"{labels[name].path}: {len(both)} of {len(places[name])} {name} images also stand in {earlier}, "
                    f"which makes the {name} figures better than they are: {examples}"
                )
    return sentences


def _facts(labels: Mapping[str, DetectionLabels]) -> dict[str, float | str]:
    facts: dict[str, float | str] = {}
    for name, split in labels.items():
        texts = [region for image in split.images for region in image.regions]
        facts[f"{name}_images"] = float(len(split.images))
        facts[f"{name}_texts"] = float(len(texts))
        facts[f"{name}_ignored_texts"] = float(sum(region.ignore for region in texts))
    return facts


def _decode_all(labels: Mapping[str, DetectionLabels], data: DetectionData) -> list[str]:
    """Decode every image; warnings, or an error like that for labels."""
    found = check_images((image.image for split in labels.values() for image in split.images), cache_file())
    bad = {
        name: [
            Problem(image.file, image.line, f"image {image.image}: {found[image.image]}.")
            for image in split.images
            if image.image in found
        ]
        for name, split in labels.items()
    }
    skipped = data.bad_samples == "skip"
    problems = [problem for name, some in bad.items() if name != "train" or not skipped for problem in some]
    if skipped and bad["train"]:
        problems += _too_many([*labels["train"].problems, *bad["train"]], data)
    if problems:
        raise InputError("Images cannot be decoded:", capped(problems))
    return [
        *(f"{len(some)} training images cannot be decoded: black and left out of the loss: {some[0]}"
          for some in (bad["train"],) if some),
        f"all {sum(len(split.images) for split in labels.values())} images were decoded, or had been before",
    ]  # fmt: skip
