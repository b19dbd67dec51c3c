"""What a process is called in files that other processes read, also on other machines."""

from __future__ import annotations

import os
import re
import socket


def this_process() -> str:
    """Host and number: processes in two containers may have the same number."""
    return f"{re.sub('[^A-Za-z0-9.]', '_', socket.gethostname())}-{os.getpid()}"


def has_ended(process: str) -> bool:
    """Whether the process of a name that ends with `this_process()` has ended; only those of this host are known."""
    host, _, number = process.rpartition("-")
    if not f"-{host}".endswith(f"-{this_process().rpartition('-')[0]}"):
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(number) == os.getpid()
