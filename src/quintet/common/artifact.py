"""`Artifact`: one output file (image, audio, video or mesh) and its metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Artifact:
    """A file name, a function that writes the file, and its metadata for `samples.jsonl`."""

    file: str
    write: Callable[[Path], object]
    metadata: dict[str, Any] = field(default_factory=dict)
    tensor: Tensor | None = None
