"""What every command does first: quiet the libraries, flush denormals, send log lines to the terminal."""

from __future__ import annotations

import logging
import sys
import warnings

_NOISE = (
    "No ccache found",  # paddle, on import
    "The value of the smallest subnormal",  # numpy, because denormals are flushed on purpose
    "Setuptools is replacing distutils",  # paddlenlp, on import
    "pkg_resources is deprecated",  # jieba, which paddlenlp imports
    "When training, we now always track global mean and variance",  # paddle, at every BatchNorm of every step
)
"""Beginnings of warnings that say nothing to the person who trains."""


def start_tool() -> None:
    """Call once at the beginning of a command, after its arguments are parsed and before Paddle is imported."""
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message)
    import numpy  # noqa: F401 - has to be there before denormals are flushed

    from paddle_stable.denormals import flush_denormals

    flush_denormals()
    log = logging.getLogger("paddle_stable")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False  # paddlenlp puts a handler of its own on the root logger
