"""Processes of this machine."""

from __future__ import annotations

import os


def is_alive(process: int) -> bool:
    """Whether a process has this number, whoever started it."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
