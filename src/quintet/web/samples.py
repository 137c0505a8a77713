"""Owns the samples of a run: at which steps there are some, what lies in one, and which files may be shown as what."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from quintet.web.detail import STEP_FOLDER
from quintet.web.folders import Missing, Place, parsed

KINDS = {
    ".png": ("image", "image/png"),
    ".jpg": ("image", "image/jpeg"),
    ".jpeg": ("image", "image/jpeg"),
    ".webp": ("image", "image/webp"),
    ".gif": ("image", "image/gif"),
    ".wav": ("sound", "audio/wav"),
    ".flac": ("sound", "audio/flac"),
    ".mp3": ("sound", "audio/mpeg"),
    ".ogg": ("sound", "audio/ogg"),
    ".mp4": ("video", "video/mp4"),
    ".webm": ("video", "video/webm"),
    ".glb": ("mesh", "model/gltf-binary"),
    ".obj": ("mesh", "text/plain; charset=utf-8"),
}
"""Ending to what it is and how it is sent. Nothing else is sent: no page, script or drawing that could hold one."""
LONGEST_CAPTION = 2_000
LARGEST_LIST = 2**25


def steps(place: Place) -> list[int]:
    matched = (STEP_FOLDER.fullmatch(name) for name in place.names("samples"))
    return sorted(int(found[1]) for found in matched if found)


def folder_of(step: int) -> str:
    return f"step-{step:08d}"


def entries(place: Place, *folder: str) -> list[dict[str, Any]]:
    """What lies in a folder of samples, in the order it was written; what is named but gone is `missing`."""
    there = {name: None for name in place.names(*folder) if kind_of(name)}
    found: dict[str, dict[str, Any]] = {}
    for about in _about(place, *folder):
        file = about.get("file")
        if isinstance(file, str) and kind_of(file) and os.path.basename(file) == file:
            found[file] = _entry(file, about, missing=file not in there)
    for file in there:
        found.setdefault(file, _entry(file, {}, missing=False))
    return [entry for file, entry in found.items() if not _is_double(file, found)]


def _is_double(file: str, found: Collection[str]) -> bool:
    """Whether a mesh or video lies there twice: it is shown once, in the form that is smaller or can be stopped."""
    stem, ending = os.path.splitext(file)
    better = {".obj": ".glb", ".gif": ".mp4"}.get(ending)
    return better is not None and f"{stem}{better}" in found


def _about(place: Place, *folder: str) -> list[dict[str, Any]]:
    lines = place.text(*folder, "samples.jsonl", most=LARGEST_LIST).split("\n")
    return [about for about in map(parsed, lines) if isinstance(about, dict)]


def _entry(file: str, about: dict[str, Any], missing: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"file": file, "kind": kind_of(file)}
    for key in ("text", "item", "what", "columns", "rows", "seed", "faces", "number"):
        value = about.get(key)
        if isinstance(value, str):
            entry[key] = value[:LONGEST_CAPTION]
        elif isinstance(value, int):
            entry[key] = value
    for key in ("texts", "items"):
        value = about.get(key)
        if isinstance(value, list):
            entry[key] = [str(each)[:200] for each in value[:64]]
    if missing:
        entry["missing"] = True
    return entry


def kind_of(file: str) -> str | None:
    known = KINDS.get(os.path.splitext(file)[1].lower())
    return known[0] if known else None


def media(place: Place, *parts: str) -> tuple[str, str]:
    """The real path of a file to show, and how to send it; `Missing` for all else."""
    known = KINDS.get(os.path.splitext(parts[-1])[1].lower())
    if known is None or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise Missing("there is nothing of that kind")
    place.open(*parts).close()
    return place.path(*parts), known[1]
