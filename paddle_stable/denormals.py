"""Flushing denormal numbers to zero, which on a CPU can double the speed of training."""

from __future__ import annotations

import ctypes
import platform
import sys

_FENV_BYTES = 32
"""Size of glibc's `fenv_t` on x86-64: 28 bytes for the x87 unit, then the SSE control register MXCSR."""
_MXCSR_OFFSET = 28
_FLUSH_TO_ZERO = 0x8000
"""MXCSR bit 15: a result too small for a normal number becomes 0."""
_DENORMALS_ARE_ZERO = 0x0040
"""MXCSR bit 6: a denormal operand counts as 0."""
_FLUSH = _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO


def flush_denormals() -> bool:
    """Make this thread, and every thread and fork it starts later, treat denormal numbers as zero.

    Padding makes denormals in the backward pass, and the processor handles each one in slow microcode. They are below
    1.2e-38 and mean nothing to training.

    Call it once in a program's first lines, after numpy (and scipy, if used) have been imported and **before the first
    Paddle tensor exists**: Paddle's worker threads copy the setting when they start. A data worker that is spawned
    and not forked needs a call of its own. Never call it while a module is imported, because it changes the arithmetic
    of the whole process. numpy asks for its smallest subnormal number when `finfo` is first used and then warns that
    it is zero.

    Returns:
        Whether denormals are flushed now. False, with nothing changed, where it is not known how: anything but Linux
        with glibc on x86-64. A GPU does not need it.

    Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, section 10.2.3 (MXCSR).
    """
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return False
    try:
        libm = ctypes.CDLL("libm.so.6")
    except OSError:
        return False
    environment = (ctypes.c_ubyte * _FENV_BYTES)()
    if libm.fegetenv(environment) != 0:
        return False
    control = ctypes.c_uint32.from_buffer(environment, _MXCSR_OFFSET)
    control.value |= _FLUSH
    if libm.fesetenv(environment) != 0:
        return False
    return libm.fegetenv(environment) == 0 and control.value & _FLUSH == _FLUSH
