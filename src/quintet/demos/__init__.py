"""`quintet demo`: the whole way on embedded data, one file a medium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from quintet.demos.script import Script

MEDIA: Mapping[str, str] = {"audio": "audio_demo", "image": "image_demo", "mesh": "mesh_demo", "video": "video_demo"}


def find(medium: str) -> Callable[[Path, bool, Script], None]:
    """What shows a medium: called with the folder to work in, whether to train in full, and who runs commands."""
    demo: Callable[[Path, bool, Script], None] = getattr(import_module(f"quintet.demos.{medium}"), MEDIA[medium])
    return demo
