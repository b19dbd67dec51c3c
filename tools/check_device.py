"""Say which promises hold on this machine's device, in a few minutes. Needs no data and writes nothing that stays.

python tools/check_device.py            # the GPU when there is one, else the CPU
python tools/check_device.py --device gpu -c configs/ernie_cls.yaml
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Run all checks; exit code 1 when a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", default=str(ROOT / "configs" / "ernie_cls.yaml"), metavar="RECIPE")
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "gpu", "xpu", "npu"])
    arguments = parser.parse_args()
    from paddle_stable.tool_start import start_tool

    start_tool()
    import paddle

    from paddle_stable.device_check import DeviceCheck
    from paddle_stable.errors import ExitCode, InputError
    from paddle_stable.terminal import complain, say

    checks = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for check in DeviceCheck(arguments.config, arguments.device, Path(folder)).run():
                say(str(check))
                checks.append(check)
    except InputError as error:
        complain(str(error))
        return ExitCode.INPUT
    broken = sum(check.held is False for check in checks)
    held = sum(check.held is True for check in checks)
    impossible = len(checks) - held - broken
    say(
        f"{paddle.get_device()}, paddle {paddle.__version__}: {held} held, {broken} broken, "
        f"{impossible} not possible here"
    )
    return ExitCode.ERROR if broken or not held else ExitCode.DONE  # nothing that held is no good news


if __name__ == "__main__":
    sys.exit(main())
