"""`Artifact`: one file to look at or listen to, with what is known about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Artifact:
    """A file name, how to write the file, and the line about it in `samples.jsonl`."""

    file: str
    write: Callable[[Path], object]
    metadata: dict[str, Any] = field(default_factory=dict)
    tensor: Tensor | None = None
