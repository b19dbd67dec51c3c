"""How difficult the rendered images are: PP-OCRv4's detector on the held-out ones, by the ICDAR rules.

python tools/prepare_data.py text_images
python benchmarks/det_gauge.py --python <an environment with rapidocr-onnxruntime>/bin/python

The detector comes with the package rapidocr-onnxruntime, weights included, which needs its own OpenCV and so an
environment of its own:

python -m venv gauge && gauge/bin/pip install rapidocr-onnxruntime==1.4.4

It runs as that package sets it up (shorter side enlarged to 736, box threshold 0.5, unclip 1.6). An hmean of .73 to .85
is what the images are meant for: above .90 they are too easy, far below .73 too hard, or their labels are wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddle_stable.data.detection_labels import LabelledImage, read_labels
from paddle_stable.detection.scoring import match_texts, total

# In the other environment: paths come in as JSON, outlines go out as a JSON line an image.
DETECT = """
import json, sys
from rapidocr_onnxruntime import RapidOCR
engine = RapidOCR(intra_op_num_threads=1, inter_op_num_threads=1)
for path in json.load(sys.stdin):
    boxes, _ = engine(path, use_det=True, use_cls=False, use_rec=False)
    found = [] if boxes is None else [[[float(x), float(y)] for x, y in box] for box in boxes]
    print("BOXES" + json.dumps(found), flush=True)
"""
SETS_UP = "python -m venv gauge && gauge/bin/pip install rapidocr-onnxruntime==1.4.4"


def detect(python: Path, images: Sequence[Path]) -> list[list[list[list[float]]]]:
    """Outlines that PP-OCRv4 finds in each image, [x, y] by corner, text and image."""
    given = json.dumps([str(image) for image in images])
    try:
        done = subprocess.run([python, "-c", DETECT], input=given, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        details = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
        raise SystemExit(f"{python} cannot run rapidocr-onnxruntime. Set it up: {SETS_UP}\n{details}") from error
    return [json.loads(line.removeprefix("BOXES")) for line in done.stdout.splitlines() if line.startswith("BOXES")]


def score(images: Sequence[LabelledImage], found: Sequence[Sequence[Sequence[Sequence[float]]]]) -> Mapping[str, float]:
    """Precision, recall and hmean over all images."""
    counts = [
        match_texts([np.array(outline, np.float32) for outline in outlines], image.regions).counts()
        for image, outlines in zip(images, found, strict=True)
    ]
    return total(counts).scores()


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help=f"where rapidocr-onnxruntime is: {SETS_UP}")
    parser.add_argument("--labels", type=Path, default=Path("data/text_images/test.txt"), help="(%(default)s)")
    parser.add_argument("--images", type=Path, help="folder that the labels' paths are relative to")
    options = parser.parse_args()
    labels = read_labels(options.labels, options.images)
    if labels.broken or labels.problems:
        raise SystemExit("\n".join(str(problem) for problem in (*labels.broken, *labels.problems)))
    scores = score(labels.images, detect(options.python, [image.image for image in labels.images]))
    texts = [region for image in labels.images for region in image.regions]
    print(
        f"PP-OCRv4 on {options.labels}: precision {scores['precision']:.3f}, recall {scores['recall']:.3f}, "
        f"hmean {scores['hmean']:.3f} ({len(labels.images)} images, {len(texts)} texts, "
        f"{sum(region.ignore for region in texts)} of them ignored)"
    )


if __name__ == "__main__":
    main()
