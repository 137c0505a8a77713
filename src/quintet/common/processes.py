"""Helpers for processes of this machine."""

from __future__ import annotations

import os


def is_alive(process: int) -> bool:
    """Whether a process with this ID exists, of any user."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
