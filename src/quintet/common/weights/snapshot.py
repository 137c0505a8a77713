"""The files of a model that is named by a prefix: their folder, and the reference that names exactly these files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from quintet.common.weights import checkpoint


@dataclass(frozen=True)
class Snapshot:
    folder: Path
    reference: str
    """`hub:user/name@COMMIT#HASH` or `starter:NAME#HASH`"""


def content_hash(folder: Path) -> str:
    """A hash of all weights and settings of a folder."""
    files = sorted(path for kind in ("*.safetensors", "*.json") for path in folder.rglob(kind))
    hashes = {path.relative_to(folder).as_posix(): checkpoint.hash_file(path) for path in files}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()
