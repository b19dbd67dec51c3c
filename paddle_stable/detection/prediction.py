"""Texts in images that nobody has labelled, for `tools/predict.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import paddle

from paddle_stable.build import use_device
from paddle_stable.checkpoint import CheckpointError
from paddle_stable.data.dataset import Batch
from paddle_stable.data.detection import STRIDE, DetectionData, EvaluationView
from paddle_stable.data.detection_labels import IMAGE_ENDINGS
from paddle_stable.data.images import UnreadableImage, read_image
from paddle_stable.detection.drawing import RIGHT, draw_outlines, write_picture
from paddle_stable.errors import ExitCode, InputError, Problem
from paddle_stable.recipe_io import load_recipe
from paddle_stable.scoring import find_checkpoint
from paddle_stable.tasks.dbnet import DbnetConfig, DbnetDetection, texts_of
from paddle_stable.terminal import complain, say
from paddle_stable.training_state import StateMismatch, load_model_arrays

_MUCH_SMALLER = 0.5


@final
@dataclass(frozen=True, slots=True)
class PredictionRequest:
    """What was asked for on the command line."""

    run: Path
    """Run folder, or the folder of one checkpoint."""
    images: tuple[Path, ...]
    """Image files, or folders of them."""
    output: Path
    """Folder for the drawn images and texts.json."""
    newest: bool = False
    """The newest checkpoint that verifies instead of the best one."""
    overrides: tuple[str, ...] = ()


@final
class Detector:
    """A trained detector, ready for single images."""

    def __init__(self, checkpoint_recipe: Path, overrides: Sequence[str]) -> None:
        """Build the network of a checkpoint's recipe; its training data is not looked at.

        Raises:
            InputError: when the recipe is wrong, or not one of text detection.
        """
        loaded = load_recipe(str(checkpoint_recipe), overrides)
        task, data = loaded.recipe.task, loaded.recipe.data
        if loaded.task_class is not DbnetDetection or not isinstance(task, DbnetConfig):
            message = f"task.target: expected a text detector (DbnetDetection), found {task.target}."
            raise InputError.single(str(checkpoint_recipe), message)
        assert isinstance(data, DetectionData)
        use_device(loaded.recipe)
        # The weights come from the checkpoint: those that training started from may be gone by now.
        fresh = task.model_copy(update={"init_from": None, "sync_bn": False})
        self._task = DbnetDetection(fresh, data, seed=0)
        self.view_size = data.eval_size
        """Height and width that every image is fitted into."""
        self._view = EvaluationView(*data.eval_size)
        self.model = self._task.build_model()
        self.model.eval()

    def find(self, path: Path, drawing: Path) -> dict[str, Any]:
        """Find the texts of one image, draw them, and return what texts.json says of it.

        Raises:
            OSError: when the image cannot be read, or the drawing cannot be written.
            UnreadableImage: when it is damaged or not an image.
        """
        image = read_image(path)
        sample = self._view.fitted(image)
        batch = Batch({name: paddle.to_tensor(array[None]) for name, array in sample.items()}, (0,))
        with paddle.no_grad():
            found = texts_of(self._task.outputs(self.model, batch), 0)
        write_picture(drawing, draw_outlines(image, list(found.points), RIGHT))
        texts = [
            {"points": [[round(float(x), 1), round(float(y), 1)] for x, y in points], "score": round(float(score), 4)}
            for points, score in zip(found.points, found.scores, strict=True)
        ]
        size = {"width": image.shape[1], "height": image.shape[0]}
        return {"image": str(path), **size, "drawing": drawing.name, "texts": texts}


def predict(request: PredictionRequest) -> ExitCode:
    """Draw the texts of every image and write texts.json. Mistakes are printed, not raised.

    An image that cannot be read does not stop the others; it is named in the end, and the exit code is then
    `ExitCode.INPUT`.
    """
    try:
        store, checkpoint = find_checkpoint(request.run, newest=request.newest)
        images = _listed(request.images)
        parts = store.load(checkpoint)
        detector = Detector(checkpoint / "recipe.yaml", request.overrides)
        load_model_arrays(detector.model, parts.model)
        request.output.mkdir(parents=True, exist_ok=True)
        results, problems = _find_all(detector, images, request.output)
        content = {"checkpoint": str(checkpoint), "images": results, "unreadable": [str(one) for one in problems]}
        path = request.output / "texts.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        count = sum(len(result["texts"]) for result in results)
        say(f"{count} texts in {len(results)} images: {path}")
        for sentence in _shrunk(results, detector.view_size):
            say(sentence)
        if problems:
            raise InputError(f"{len(problems)} of {len(images)} images could not be used:", problems)
    except (InputError, CheckpointError, StateMismatch, OSError) as error:
        complain(str(error))
        return ExitCode.INPUT
    return ExitCode.DONE


def _listed(given: Sequence[Path]) -> list[Path]:
    """Every image file, those of a folder by name.

    Raises:
        InputError: when a path does not exist or a folder holds no image.
    """
    images: list[Path] = []
    problems = []
    for path in given:
        inside = sorted(one for one in path.iterdir() if one.suffix.lower() in IMAGE_ENDINGS) if path.is_dir() else []
        if path.is_dir() and not inside:
            problems.append(Problem(str(path), 0, f"no image in it ({', '.join(IMAGE_ENDINGS)})."))
        elif not path.exists():
            problems.append(Problem(str(path), 0, "no such file or folder."))
        images += inside if path.is_dir() else [path]
    if problems:
        raise InputError("There are no images:", problems)
    return images


def _shrunk(results: Sequence[Mapping[str, Any]], view: tuple[int, int]) -> list[str]:
    """What there is to say of images that the detector has seen much smaller than they are."""
    factors = [min(view[0] / result["height"], view[1] / result["width"]) for result in results]
    if not factors or min(factors) >= _MUCH_SMALLER:
        return []
    height, width = (STRIDE * math.ceil(max(r[side] for r in results) / STRIDE) for side in ("height", "width"))
    return [
        f"note: {sum(factor < _MUCH_SMALLER for factor in factors)} of {len(factors)} images seen at less than half "
        f"their size (data.eval_size: {list(view)}), where small texts are lost; the largest would fit with "
        f"-o data.eval_size=[{height},{width}]"
    ]


def _find_all(detector: Detector, images: Sequence[Path], folder: Path) -> tuple[list[dict[str, Any]], list[Problem]]:
    results: list[dict[str, Any]] = []
    problems: list[Problem] = []
    taken: set[str] = set()
    given = {path.resolve() for path in images}
    for path in images:
        name = path.stem
        while name in taken or (folder / f"{name}.png").resolve() in given:
            name += "_"  # images of the same name from two folders, or an image that the drawing would overwrite
        taken.add(name)
        try:
            results.append(detector.find(path, folder / f"{name}.png"))
        except (OSError, UnreadableImage) as error:
            problems.append(Problem(str(path), 0, f"{error}."))
    return results, problems
