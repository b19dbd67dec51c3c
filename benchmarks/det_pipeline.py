"""Our label maps, augmentation and post-processing beside PaddleOCR 2.9.1's, on the same images in one run.

python benchmarks/det_pipeline.py --python <an environment with paddleocr 2.9.1>/bin/python

PaddleOCR's transforms come from its wheel and need an older set of packages, so an environment of their own:

python -m venv paddleocr && paddleocr/bin/pip install --no-deps paddleocr==2.9.1 imgaug==0.4.0 && \
paddleocr/bin/pip install numpy==1.26.4 "opencv-python-headless<4.12" pyclipper shapely "scipy<1.15" six scikit-image

Speed: flip, rotation, resize, crop, both maps, normalisation; colour jitter only on our side, decoding on neither. Both
take turns on one core, images/s are of processor time, and the figure is the median ratio over the rounds. Our side
keeps freed memory, as our tools do (paddle_stable/freed_memory.py); PaddleOCR runs as its users run it, and a second
time with the same setting from the environment, which tells what is owed to it.
Maps: both draw the same outlines without augmentation.
Post-processing: both look for texts in the same maps, the labels' shrunk texts, enlarged and blurred. PaddleOCR's is
given a stand-in for the module paddle, of which it uses one type only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import cv2
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddle_stable.data.detection import DetectionData, TrainingView
from paddle_stable.data.detection_labels import LabelledImage, read_labels
from paddle_stable.data.detection_maps import DetectionMaps, draw_maps
from paddle_stable.data.images import Pixels, read_image
from paddle_stable.data.text_images import build_studio, scenes
from paddle_stable.data.text_scenes import HEIGHT, WIDTH
from paddle_stable.detection.boxes import BoxFinder
from paddle_stable.freed_memory import keep_freed_memory

Floats = npt.NDArray[np.float32]
ON_OUTLINE = 0.69
"""Threshold above which a pixel is a fraction of a pixel from an outline, where it is 0.7."""

# In the other environment. Transforms are imported by file, because the package's own __init__ files import far more.
# A request is a JSON line on stdin, the answer one on stdout.
PEER = """
import importlib, json, random, sys, time, types
import cv2, numpy
from pathlib import Path
from importlib.util import find_spec
if not hasattr(numpy, "bool"):  # imgaug 0.4 is older than numpy's removal of it
    numpy.bool = bool
folder = Path(next(iter(find_spec("paddleocr").submodule_search_locations))) / "ppocr"
def package(name, path):
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(path)]
package("ppocr", folder), package("ppocr.data", folder / "data"), package("ppocr.data.imaug", folder / "data/imaug")
def load(name):
    return importlib.import_module("ppocr.data.imaug." + name)
augment = load("iaa_augment").IaaAugment()
crop = load("random_crop_data").EastRandomCropData(size=[640, 640], max_tries=50, keep_ratio=True)
border = load("make_border_map").MakeBorderMap(shrink_ratio=0.4, thresh_min=0.3, thresh_max=0.7)
shrink = load("make_shrink_map").MakeShrinkMap(shrink_ratio=0.4, min_text_size=8)
package("ppocr.postprocess", folder / "postprocess")
sys.modules["paddle"] = types.SimpleNamespace(Tensor=type("Tensor", (), {}))
finder = importlib.import_module("ppocr.postprocess.db_postprocess").DBPostProcess(
    thresh=0.3, box_thresh=0.6, max_candidates=1000, unclip_ratio=1.5)
mean, std = numpy.array([0.485, 0.456, 0.406], "float32"), numpy.array([0.229, 0.224, 0.225], "float32")
def data(image, labels):
    longest = max((len(points) for points, _ in labels), default=0)
    padded = [points + [points[-1]] * (longest - len(points)) for points, _ in labels]
    return {"image": image, "polys": numpy.array(padded, "float32"), "ignore_tags": [tag for _, tag in labels],
            "texts": ["" for _ in labels]}
def transformed(image, labels):
    sample = shrink(border(crop(augment(data(image, labels)))))
    scaled = (sample["image"].astype("float32") * (1 / 255.0) - mean) / std
    return scaled.transpose((2, 0, 1)), sample
cv2.setNumThreads(1)
for line in sys.stdin:
    request = json.loads(line)
    if "probabilities" in request:
        probabilities = numpy.load(request["probabilities"])
        shapes = [(*one.shape, 1.0, 1.0) for one in probabilities]
        begin = time.process_time()
        for one, shape in zip(probabilities, shapes):
            finder({"maps": one[None, None]}, [shape])
        print("ANSWER%r" % (time.process_time() - begin), flush=True)
        continue
    images = [cv2.imread(path) for path, _ in request["images"]]
    labels = [texts for _, texts in request["images"]]
    if request["maps"]:
        drawn = [shrink(border(data(image, texts))) for image, texts in zip(images, labels)]
        names = "shrink_map", "shrink_mask", "threshold_map", "threshold_mask"
        numpy.savez(request["maps"], **{f"{name}{i}": one[name] for i, one in enumerate(drawn) for name in names})
        print("ANSWER0", flush=True)
    else:
        random.seed(request["seed"]), numpy.random.seed(request["seed"])
        begin = time.process_time()
        for image, texts in zip(images, labels):
            transformed(image, texts)
        print("ANSWER%r" % (time.process_time() - begin), flush=True)
"""


@final
class Peer:
    """PaddleOCR's transforms in a process of another environment."""

    def __init__(self, python: Path, images: Sequence[LabelledImage], *, keeps_memory: bool = False) -> None:
        kept = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-c", PEER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (kept if keeps_memory else {}),
        )
        self._images = [
            [str(one.image), [[region.points.tolist(), region.ignore] for region in one.regions]] for one in images
        ]

    def seconds(self, seed: int) -> float:
        """Processor time of one pass of augmentation and maps over all images, decoded before."""
        return self._ask({"images": self._images, "maps": "", "seed": seed})

    def maps(self, count: int) -> list[DetectionMaps]:
        """Maps of the images as they are."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "maps.npz"
            self._ask({"images": self._images, "maps": str(path)})
            with np.load(path) as drawn:
                return [
                    DetectionMaps(*(drawn[f"{name}{number}"] for name in DetectionMaps.__annotations__))
                    for number in range(count)
                ]

    def postprocessing_seconds(self, probabilities: Path) -> float:
        """Processor time to find the texts in the maps of a .npy file, one after the other."""
        return self._ask({"probabilities": str(probabilities)})

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()

    def _ask(self, request: Mapping[str, Any]) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ANSWER"):
                return float(line.removeprefix("ANSWER"))
        raise SystemExit("PaddleOCR's transforms ended with an error. See --help for their environment.")


def our_seconds(view: TrainingView, images: Sequence[tuple[LabelledImage, Pixels]], seed: int) -> float:
    """Processor time of our augmentation and maps."""
    begin = time.process_time()
    for number, (labelled, image) in enumerate(images):
        view.augmented(image, labelled.regions, np.random.default_rng((seed, number)))
    return time.process_time() - begin


def compare_speed(peers: Mapping[str, Peer], data: DetectionData, images: Sequence[LabelledImage], rounds: int) -> str:
    """Images/s of ours and of each peer, and the ratios."""
    view = TrainingView(data)
    decoded = [(one, read_image(one.image)) for one in images]
    turns = [
        [our_seconds(view, decoded, seed), *(peer.seconds(seed) for peer in peers.values())]
        for seed in range(rounds + 1)
    ][1:]  # the first pass warms up
    ours, *theirs = np.array(turns).T
    lines = [f"label maps + augmentation: ours {len(images) / np.median(ours):.1f} images/s a core"]
    for name, seconds in zip(peers, theirs, strict=True):
        ratios = seconds / ours
        lines.append(
            f"  {name} {len(images) / np.median(seconds):.1f}: x {np.median(ratios):.1f} ({ratios.min():.1f} to "
            f"{ratios.max():.1f} in {rounds} rounds of {len(images)} images)"
        )
    return "\n".join(lines)


def likely_maps(images: Sequence[LabelledImage], height: int, width: int) -> Floats:
    """What a good network would say of each image, fitted into one size: [images, height, width]."""
    maps = []
    for one in images:
        factor = min(height / one.size.height, width / one.size.width)
        outlines = [(region.points * factor).astype(np.float32) for region in one.regions]
        drawn = draw_maps(outlines, [False] * len(outlines), height=height, width=width).shrink_map
        maps.append(np.clip(cv2.GaussianBlur(drawn, (0, 0), 1.5), 0.0, 0.98).astype(np.float32))
    return np.stack(maps)


def compare_postprocessing(peer: Peer, images: Sequence[LabelledImage], rounds: int) -> str:
    """Time for a map on either side and the ratio, at PaddleOCR's evaluation size."""
    probabilities, finder = likely_maps(images, 736, 1280), BoxFinder(box_threshold=0.6)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probabilities.npy"
        np.save(path, probabilities)
        for _ in range(rounds + 1):
            begin = time.process_time()
            found = [finder.find(one) for one in probabilities]
            pairs.append((time.process_time() - begin, peer.postprocessing_seconds(path)))
    ours, theirs = 1e3 * np.array(pairs[1:]).T / len(images)  # the first pass warms up
    ratios = theirs / ours
    texts = sum(len(one.scores) for one in found) / len(images)
    return (
        f"post-processing, {texts:.1f} texts in a map of 736 x 1280: ours {np.median(ours):.2f} ms, PaddleOCR "
        f"{np.median(theirs):.2f} ms: x {np.median(ratios):.1f} ({ratios.min():.1f} to {ratios.max():.1f} in {rounds} "
        f"rounds of {len(images)} maps)"
    )


def compare_maps(peer: Peer, images: Sequence[LabelledImage]) -> str:
    """How far the maps of the same outlines differ, and where."""
    theirs = peer.maps(len(images))
    ours = [
        draw_maps(
            [region.points for region in one.regions],
            [region.ignore for region in one.regions],
            height=one.size.height,
            width=one.size.width,
        )
        for one in images
    ]
    both = sum(int(((a.shrink_map > 0) & (b.shrink_map > 0)).sum()) for a, b in zip(ours, theirs, strict=True))
    either = sum(int(((a.shrink_map > 0) | (b.shrink_map > 0)).sum()) for a, b in zip(ours, theirs, strict=True))
    differences, acute, on_outline = [], [], []
    for one, a, b in zip(images, ours, theirs, strict=True):
        drawn = (a.threshold_map > 0.3 + 1e-6) | (b.threshold_map > 0.3 + 1e-6)
        differences.append(np.abs(a.threshold_map - b.threshold_map)[drawn])
        acute.append(_sees_an_edge_acutely(one, drawn))
        on_outline.append(a.threshold_map[drawn] > ON_OUTLINE)
    difference = np.concatenate(differences)
    kinds = np.stack([np.concatenate(acute), np.concatenate(on_outline)])
    masks = [
        float(np.mean(getattr(a, name) != getattr(b, name)))
        for a, b in zip(ours, theirs, strict=True)
        for name in ("shrink_mask", "threshold_mask")
    ]
    differing = difference > 1e-3
    return "\n".join(
        [
            f"shrink map: IoU {both / max(either, 1):.4f} ({either} pixels)",
            f"threshold map where either is above .3: mean difference {difference.mean():.5f}, 99th percentile "
            f"{np.quantile(difference, 0.99):.5f}, largest {difference.max():.4f} ({len(difference)} pixels)",
            f"  {differing.mean():.2%} of these pixels differ by more than .001: {_share(kinds[0][differing])} of them "
            "see an edge under less than 90 degrees, where PaddleOCR takes the distance to its nearer corner;",
            f"  {_share((~kinds[0] & kinds[1])[differing])} lie on an outline, where its 1 - cos² is lost to rounding; "
            f"{_share((~kinds.any(axis=0))[differing])} are not explained",
            f"masks: {np.mean(masks):.6%} of all pixels differ",
        ]
    )


def _share(flags: npt.NDArray[np.bool_]) -> str:
    return f"{flags.mean() if len(flags) else 0.0:.2%}"


def renderer_speed(count: int = 200) -> str:
    """Images/s of `tools/prepare_data.py text_images`, without writing them."""
    studio = build_studio(None)
    begin = time.process_time()
    for _ in scenes(studio, "train", count, seed=1):
        pass
    return f"renderer: {count / (time.process_time() - begin):.0f} images/s a core at {WIDTH} x {HEIGHT}"


def _sees_an_edge_acutely(one: LabelledImage, where: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """For the chosen pixels: whether an edge that they stand beside is seen under an acute angle."""
    rows, columns = np.nonzero(where)
    pixels = np.stack([columns, rows], axis=1).astype(np.float64)
    found = np.zeros(len(pixels), np.bool_)
    for region in one.regions:
        if region.ignore:
            continue
        for start, end in zip(region.points, np.roll(region.points, -1, axis=0), strict=True):
            to_start, to_end = start - pixels, end - pixels
            edge = end - start
            acute = (to_start * to_end).sum(axis=1) > 0
            beside = ((-to_start @ edge) > 0) & ((to_end @ edge) > 0)
            found |= acute & beside
    return found


def main() -> None:
    """Print a few lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, required=True, help="where paddleocr 2.9.1 is")
    parser.add_argument("--labels", type=Path, default=Path("data/text_images/test.txt"), help="(%(default)s)")
    parser.add_argument("--images", type=Path, help="folder that the labels' paths are relative to")
    parser.add_argument("--count", type=int, default=50, help="images (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    options = parser.parse_args()
    labels = read_labels(options.labels, options.images)
    if labels.broken or labels.problems:
        raise SystemExit("\n".join(str(problem) for problem in (*labels.broken, *labels.problems)))
    images = [one for one in labels.images if one.regions][: options.count]
    source = {"labels": str(options.labels), "images": None if options.images is None else str(options.images)}
    data = DetectionData.model_validate({"train": source, "dev": source})
    cv2.setNumThreads(1)
    keep_freed_memory()
    peer, keeping = Peer(options.python, images), Peer(options.python, images, keeps_memory=True)
    print(f"{options.labels}, {len(images)} images, crops of {data.crop_size}")
    print(compare_maps(peer, images))
    peers = {"PaddleOCR": peer, "PaddleOCR that keeps freed memory": keeping}
    print(compare_speed(peers, data, images, options.rounds))
    print(compare_postprocessing(peer, images, options.rounds))
    peer.close()
    keeping.close()
    print(renderer_speed())


if __name__ == "__main__":
    main()
