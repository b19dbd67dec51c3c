"""Train a recipe.

python tools/train.py -c configs/ernie_cls.yaml
python tools/train.py -c configs/ernie_cls.yaml -o optim.lr=1e-3 -o clip.max_norm=5.0 --resume auto
python -m paddle.distributed.launch --nproc_per_node 2 tools/train.py -c configs/ernie_cls.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from paddle_stable.stop_signal import stop_with_launcher
from paddle_stable.training_arguments import training_parser


def main() -> int:
    """Parse first: `--help` has to answer before Paddle is imported."""
    arguments = training_parser(__doc__).parse_args()
    stop_with_launcher()  # which may be killed in the seconds that importing Paddle takes
    from paddle_stable.tool_start import start_tool

    start_tool()
    if arguments.trust:
        sys.path.insert(0, str(Path.cwd()))
    from paddle_stable.run import TrainingRequest, run_training

    return run_training(
        TrainingRequest(
            config=arguments.config,
            overrides=tuple(arguments.override),
            resume=arguments.resume,
            smoke=arguments.smoke,
            trust=arguments.trust,
            check=arguments.check,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
