"""Find texts in images with a trained detector: draws their outlines and writes them to texts.json.

python tools/predict.py runs/dbnet_det photo.jpg
python tools/predict.py runs/dbnet_det folder/ --output found
python tools/predict.py runs/dbnet_det photo.jpg -o data.eval_size=[736,1280] -o task.box_threshold=0.7
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Parse first: `--help` has to answer before Paddle is imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder, or the folder of one checkpoint")
    parser.add_argument("images", type=Path, nargs="+", help="image files or folders of them")
    parser.add_argument("--output", type=Path, default=Path("predictions"), help="folder to write (%(default)s)")
    parser.add_argument("--newest", action="store_true", help="the newest checkpoint instead of the best one")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="as in train.py")
    arguments = parser.parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    from paddle_stable.detection.prediction import PredictionRequest, predict

    return predict(
        PredictionRequest(
            run=arguments.run,
            images=tuple(arguments.images),
            output=arguments.output,
            newest=arguments.newest,
            overrides=tuple(arguments.override),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
