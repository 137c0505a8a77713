"""Standard streams that are closed or that nobody reads, as under cron, after `>&-` or before `| head`.

No work depends on its console: what cannot be printed is dropped. Does not import torch.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

SIGPIPE_CODE = 141
"""Exit code of a command whose output nobody reads any more: that of a process ended by SIGPIPE."""


def open_missing() -> None:
    """Open the null device in place of standard streams that are closed.

    Otherwise, the next file that is opened would get the number of a standard stream, and libraries that print would
    write into it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - as long as the process


def flush() -> None:
    """Flush both output streams. What cannot be written is dropped: the interpreter would report it at exit, and end
    with another code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _discard(stream)


def _discard(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def write_error(text: str) -> None:
    """Print to stderr, unless the terminal is closed or the disk of a redirected stderr is full."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False
