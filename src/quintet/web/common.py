"""Shared by the server and the static export: the files of the page, and conversion of values to JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "page"


def to_json(value: Any) -> bytes:
    """JSON of a value from `json_safe`. Bytes of a file name that are not text become question marks."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", errors="replace")


MAX_DEPTH = 20
"""Maximum nesting of a value that is shown."""


def json_safe(value: Any, depth: int = 0) -> Any:
    """The value in types that JSON supports; infinities and NaN, which browsers cannot read, become texts. What is
    nested too deeply becomes "…"."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (dict, list, tuple)) and depth > MAX_DEPTH:
        return "…"
    if isinstance(value, dict):
        return {str(key): json_safe(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(each, depth + 1) for each in value]
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
