"""Compute an incident of a run again, from its folder alone, and print the report.

python tools/diagnose.py runs/lstm_forecast/incidents/step-000123

Ends with 0 when the same cause and the same layer come out as in the run, with 1 when others do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def main() -> int:
    """Parse first: `--help` has to answer before Paddle is imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="an incident's folder, in <run.output_dir>/incidents")
    parser.add_argument("--trust", action="store_true", help="allow task.target outside paddle_stable.tasks")
    arguments = parser.parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    if arguments.trust:
        sys.path.insert(0, str(Path.cwd()))
    from paddle_stable.diagnosis import reproduce
    from paddle_stable.errors import ExitCode, InputError
    from paddle_stable.stability.incident_report import as_markdown
    from paddle_stable.terminal import complain, say

    try:
        found = reproduce(arguments.folder, trust=arguments.trust)
    except (InputError, OSError) as error:
        complain(str(error))
        return ExitCode.INPUT
    say(as_markdown(found.findings, str(arguments.folder)))
    if found.is_same:
        say("The same as in the run.")
        return ExitCode.DONE
    say(f"Not the same as in the run, which found: {found.cause_then}, first at {found.layer_then}.")
    return ExitCode.ERROR


if __name__ == "__main__":
    sys.exit(main())
