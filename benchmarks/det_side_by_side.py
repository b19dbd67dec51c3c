"""hmean of a trained detector on its held-out images, beside that before training and that of PP-OCRv4.

python benchmarks/det_side_by_side.py runs/dbnet_det --python <an environment with rapidocr-onnxruntime>/bin/python

benchmarks/det_gauge.py says how that environment is made; without it PP-OCRv4 is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: F401  has to be there before denormals are flushed

from paddle_stable.tool_start import start_tool

if __name__ == "__main__":
    start_tool()  # before the first tensor

from benchmarks.det_gauge import detect, score
from paddle_stable.build import Prepared, prepare, use_device
from paddle_stable.data.detection import DetectionData
from paddle_stable.data.detection_labels import read_labels
from paddle_stable.distributed import World
from paddle_stable.evaluation import evaluate
from paddle_stable.recipe_io import load_recipe
from paddle_stable.scoring import find_checkpoint
from paddle_stable.stability.amp import build_precision
from paddle_stable.training_state import load_model_arrays
from paddle_stable.watchdog import Heartbeat


def hmean(run: Prepared) -> Mapping[str, float]:
    """Metrics of the present weights on the test set."""
    assert run.splits.test is not None
    precision, size = build_precision(run.recipe.amp, run.model), run.recipe.data.eval_batch_size
    test, world = run.splits.test, World.single()
    found = evaluate(run.task, run.model, precision, test, batch_size=size, world=world, heartbeat=Heartbeat())
    return found.metrics


def row(name: str, metrics: Mapping[str, float]) -> str:
    """One line of the table."""
    return f"| {name} | {metrics['precision']:.3f} | {metrics['recall']:.3f} | {metrics['hmean']:.3f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder, or the folder of one checkpoint")
    parser.add_argument("--python", type=Path, help="where rapidocr-onnxruntime is")
    options = parser.parse_args()
    store, checkpoint = find_checkpoint(options.run, newest=False)
    loaded = load_recipe(str(checkpoint / "recipe.yaml"))
    use_device(loaded.recipe)
    run = prepare(loaded, World.single())
    print("| detector | precision | recall | hmean |\n| --- | --- | --- | --- |")
    print(row("before training", hmean(run)), flush=True)
    load_model_arrays(run.model, store.load(checkpoint).model)
    print(row(f"{checkpoint.name} of {options.run}", hmean(run)), flush=True)
    if options.python is not None:
        assert isinstance(loaded.recipe.data, DetectionData)
        assert loaded.recipe.data.test is not None
        source = loaded.recipe.data.test
        labels = read_labels(Path(source.labels), Path(source.images) if source.images else None)
        found = detect(options.python, [image.image for image in labels.images])
        print(row("PP-OCRv4 (rapidocr-onnxruntime)", score(labels.images, found)))


if __name__ == "__main__":
    main()
