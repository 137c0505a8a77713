"""Owns where caches live: never in the data's folder, and in the user's own cache folder unless a key names another."""

from __future__ import annotations

import os
from pathlib import Path


def default_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintet"
