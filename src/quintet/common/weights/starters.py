"""Starter models, which are part of quintet: `starter:NAME[#hash]` is the folder `models/NAME`.

Each is an exported folder with `starter.json`, which `quintet models` lists. In a checkout they are beside `src/`; an
installed package contains them. Nothing is downloaded.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.common.weights import checkpoint
from quintet.common.weights.snapshot import Snapshot, content_hash
from quintet.config.text import STARTER
from quintet.errors import CheckpointError, UsageError

ABOUT = "starter"
"""The JSON file that makes an exported folder a starter model."""
_REFERENCE = re.compile(rf"{STARTER}([\w.-]+)(?:#([0-9a-f]{{64}}))?")
_PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Starter:
    """What `quintet models` says about a starter model."""

    name: str
    recipe: str
    summary: str
    """What it is for, in a few words."""
    licenses: tuple[str, ...]
    """SPDX names of the licences of its training data."""
    figures: dict[str, float]
    """Metrics on held-out data."""
    size: int
    """Bytes of its weights, with those of the models inside."""


def root() -> Path:
    """The folder of the starter models."""
    inside = _PACKAGE / "models"
    return inside if inside.is_dir() else _PACKAGE.parents[1] / "models"


def names() -> list[str]:
    return sorted(path.parent.name for path in root().glob(f"*/{ABOUT}.json"))


def read(name: str) -> Starter:
    """The description of a starter model, from its folder."""
    folder = root() / name
    about: dict[str, Any] = checkpoint.read_json(folder, ABOUT)
    size = sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    try:
        return Starter(name, about["recipe"], about["summary"], tuple(about["licenses"]), dict(about["figures"]), size)
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"{folder / ABOUT}.json is damaged{_ADVICE}") from None


def fetch(reference: str) -> Snapshot:
    """The folder of a starter model, with all of its files as they were published."""
    found = _REFERENCE.fullmatch(reference)
    name, expected = found.groups() if found is not None else (reference.removeprefix(STARTER), None)
    if name not in names():
        raise UsageError(_unknown(name))
    folder = root() / name
    try:
        checkpoint.verify(folder)
    except CheckpointError as error:
        raise CheckpointError(f"{error}{_ADVICE}") from None
    content = content_hash(folder)
    if expected is not None and expected != content:
        raise UsageError(
            f"{STARTER}{name} is not the model that was recorded (its hash is {content[:12]}…, not {expected[:12]}…); "
            "use the version of quintet that has that model"
        )
    return Snapshot(folder, f"{STARTER}{name}#{content}")


_ADVICE = "; restore the file from the repository, or install quintet again"


def _unknown(name: str) -> str:
    known = names()
    if not known:
        return f"{STARTER}{name[:80]} does not exist: this installation has no starter models"
    (near,) = difflib.get_close_matches(name, known, n=1, cutoff=0)
    return f"{STARTER}{name[:80]} does not exist; the nearest is {STARTER}{near}, and `quintet models` lists all"
