"""Lines for a person, from a program that goes on when nobody reads them any more."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def say(line: str) -> None:
    """Print a line to stdout, at once."""
    _print(line, sys.stdout)


def complain(line: str) -> None:
    """Print a line to stderr, at once."""
    _print(line, sys.stderr)


def silence(stream: TextIO) -> None:
    """Let all that is still written to this stream vanish, also what Python has kept of it and flushes at the end.

    Source: the note on SIGPIPE in the documentation of Python's `signal` module.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _print(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except OSError:
        # `| head` has ended, a pipe's reader was killed, the terminal is closed, the disk of a redirected log is full:
        # no reason to end a run, which says everything in its folder too.
        silence(stream)
