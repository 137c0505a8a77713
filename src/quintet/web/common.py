"""Owns what the server and the static page have in common: the files of the page, and values as JSON can say them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "page"


def to_json(value: Any) -> bytes:
    """Of what is speakable. A name of a file may hold bytes that are no text; they are question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


def speakable(value: Any) -> Any:
    """What JSON can say: a configuration may hold an infinity, which no browser reads."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {str(key): speakable(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [speakable(each) for each in value]
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
