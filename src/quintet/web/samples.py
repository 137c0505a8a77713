"""Samples of a run: the steps that have samples, the entries of a step, and the media types that may be served."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from quintet.web.detail import STEP_FOLDER
from quintet.web.folders import Missing, RunDir, parsed

KINDS = {
    ".png": ("image", "image/png"),
    ".jpg": ("image", "image/jpeg"),
    ".jpeg": ("image", "image/jpeg"),
    ".webp": ("image", "image/webp"),
    ".gif": ("image", "image/gif"),
    ".wav": ("audio", "audio/wav"),
    ".flac": ("audio", "audio/flac"),
    ".mp3": ("audio", "audio/mpeg"),
    ".ogg": ("audio", "audio/ogg"),
    ".mp4": ("video", "video/mp4"),
    ".webm": ("video", "video/webm"),
    ".glb": ("mesh", "model/gltf-binary"),
    ".obj": ("mesh", "text/plain; charset=utf-8"),
}
"""Suffix to kind and content type. Nothing else is served: no HTML, script or SVG, which could contain a script."""
MAX_CAPTION_LENGTH = 2_000
MAX_LIST_BYTES = 2**25


def steps(run_dir: RunDir) -> list[int]:
    matched = (STEP_FOLDER.fullmatch(name) for name in run_dir.names("samples"))
    return sorted(int(found[1]) for found in matched if found)


def folder_of(step: int) -> str:
    return f"step-{step:08d}"


def entries(run_dir: RunDir, *folder: str) -> list[dict[str, Any]]:
    """Entries of a folder of samples in the order of writing; entries without a file are marked `missing`."""
    present = {name: None for name in run_dir.names(*folder) if kind_of(name)}
    found: dict[str, dict[str, Any]] = {}
    for record in _records(run_dir, *folder):
        file = record.get("file")
        if isinstance(file, str) and kind_of(file) and os.path.basename(file) == file:
            found[file] = _entry(file, record, missing=file not in present)
    for file in present:
        found.setdefault(file, _entry(file, {}, missing=False))
    return [entry for file, entry in found.items() if not _is_duplicate(file, found)]


def _is_duplicate(file: str, found: Collection[str]) -> bool:
    """Whether the same mesh or video exists in a preferred format: GLB is smaller than OBJ, MP4 can be paused."""
    stem, ending = os.path.splitext(file)
    better = {".obj": ".glb", ".gif": ".mp4"}.get(ending)
    return better is not None and f"{stem}{better}" in found


def _records(run_dir: RunDir, *folder: str) -> list[dict[str, Any]]:
    lines = run_dir.text(*folder, "samples.jsonl", max_bytes=MAX_LIST_BYTES).split("\n")
    return [record for record in map(parsed, lines) if isinstance(record, dict)]


def _entry(file: str, record: dict[str, Any], missing: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {"file": file, "kind": kind_of(file)}
    for key in ("text", "item", "what", "columns", "rows", "seed", "faces", "number"):
        value = record.get(key)
        if isinstance(value, str):
            entry[key] = value[:MAX_CAPTION_LENGTH]
        elif isinstance(value, int):
            entry[key] = value
    for key in ("texts", "items"):
        value = record.get(key)
        if isinstance(value, list):
            entry[key] = [str(each)[:200] for each in value[:64]]
    if missing:
        entry["missing"] = True
    return entry


def kind_of(file: str) -> str | None:
    known = KINDS.get(os.path.splitext(file)[1].lower())
    return known[0] if known else None


def media(run_dir: RunDir, *parts: str) -> tuple[str, str]:
    """Real path and content type of a file to serve; raises `Missing` for anything else."""
    known = KINDS.get(os.path.splitext(parts[-1])[1].lower())
    if known is None or any(part in ("", ".", "..") or "/" in part or "\0" in part for part in parts):
        raise Missing("files of this kind are not served")
    run_dir.open(*parts).close()
    return run_dir.path(*parts), known[1]
