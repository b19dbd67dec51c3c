"""Write configs/recipe.schema.json, which lets editors complete and explain the keys of a recipe.

Run it after a change of a recipe section or of a task: `python tools/schema.py`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Write the schema and say where."""
    parser = argparse.ArgumentParser(
        description="Write the JSON Schema of recipes from the sections and tasks there are."
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=ROOT / "configs" / "recipe.schema.json", help="file to write"
    )
    arguments = parser.parse_args()

    # After the arguments, so that --help does not wait for Paddle.
    sys.path.insert(0, str(ROOT))
    from paddle_stable.recipe_schema import render_schema
    from paddle_stable.recipe_target import built_in_tasks
    from paddle_stable.terminal import complain, say

    tasks = built_in_tasks()
    try:
        arguments.output.write_text(render_schema(tasks), encoding="utf-8")
    except OSError as error:
        complain(f"The schema cannot be written: {error}. Choose another --output.")
        return 2
    say(f"{arguments.output}: {len(tasks)} tasks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
