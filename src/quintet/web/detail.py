"""Owns what the page says of a run beside its curves and samples: configuration, data, checkpoints, console, codes."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from quintet import config as configs
from quintet import registry
from quintet.config import RunConfig
from quintet.errors import QuintetError, UsageError
from quintet.web.folders import Missing, Place
from quintet.web.summary import text, whole

MOST_SKIPPED = 1_000
CONSOLE_BYTES = 2**16
LARGEST_DATA = 2**27
STEP_FOLDER = re.compile(r"step-(\d{1,15})")
MOST_CELLS = 1_024
"""Cells of a row of the map of codes; of a larger codebook several codes share one."""


def configuration(place: Place) -> dict[str, Any]:
    """The keys of a run, and those of its preset, both flat. What cannot be read is a problem to show."""
    try:
        tree = configs.read_yaml(Path(place.path("config.yaml")))
    except (QuintetError, Missing) as error:
        return {"keys": {}, "preset": None, "preset_keys": {}, "problem": str(error)}
    keys = configs.flatten(tree)
    name = text(tree.get("preset"))
    try:
        schema = registry.find(str(tree.get("recipe"))).config_class()
        keys = configs.flatten(configs.migrated(schema, tree))
        base = configs.flatten(configs.build(schema, preset=name).model_dump(mode="json"))
    except UsageError as error:  # of another version, or of a family that is not installed here
        return {"keys": keys, "preset": name, "preset_keys": {}, "problem": str(error)}
    return {"keys": keys, "preset": name, "preset_keys": base, "problem": None}


def data(place: Place) -> dict[str, Any]:
    """How many items there are, and which were passed over, each with the reason."""
    found = place.json("data.json", most=LARGEST_DATA)
    skipped = found.get("skipped")
    skipped = skipped if isinstance(skipped, dict) else {}
    notes = found.get("notes")
    return {
        "counts": {
            name: len(value) if isinstance(value, list) else value
            for name, value in found.items()
            if (isinstance(value, list) and name != "notes") or type(value) is int
        },
        "path": text(found.get("path")),
        "skipped": [[str(name)[:500], str(reason)[:500]] for name, reason in list(skipped.items())[:MOST_SKIPPED]],
        "skipped_count": len(skipped),
        "notes": [str(note)[:500] for note in notes[:20]] if isinstance(notes, list) else [],
    }


def checkpoints(place: Place) -> list[dict[str, Any]]:
    pointed = {name: place.text("checkpoints", name, most=200).strip() for name in ("best", "latest")}
    found = []
    for name in place.names("checkpoints"):
        matched = STEP_FOLDER.fullmatch(name)
        if matched:
            sizes = [place.stamp("checkpoints", name, *parts) for parts in _files(place, name)]
            written = place.stamp("checkpoints", name, "meta.json")[2] / 1e9
            marks = [mark for mark, target in pointed.items() if target == name]
            found.append(
                {"step": int(matched[1]), "bytes": sum(s[1] for s in sizes), "time": written or None, "marks": marks}
            )
    return found


def _files(place: Place, name: str) -> list[tuple[str, ...]]:
    """Those of the checkpoint and of the two folders that it may have inside."""
    top: list[tuple[str, ...]] = [(file,) for file in place.names("checkpoints", name) if "." in file]
    deeper = [(folder, file) for folder in ("ema", "optim") for file in place.names("checkpoints", name, folder)]
    return top + deeper


def console(place: Place) -> str:
    try:
        content = place.tail("log.txt", most=CONSOLE_BYTES)
    except (OSError, Missing):
        return ""
    lines = content.decode("utf-8", errors="replace")
    return lines.partition("\n")[2] if len(content) == CONSOLE_BYTES else lines


def evaluated(place: Place) -> dict[str, float]:
    found = place.json("eval.json")
    return {name: value for name, value in found.items() if isinstance(value, float) and math.isfinite(value)}


def codes(place: Place) -> dict[str, Any] | None:
    """How often each code of a tokenizer is used, as the newest checkpoint counts it; none if it counts nothing."""
    for name in reversed(place.names("checkpoints")):
        matched = STEP_FOLDER.fullmatch(name)
        levels = _counts(place, name) if matched else []
        if matched and levels:
            return {"step": int(matched[1]), "levels": [_row(counts) for counts in levels]}
    return None


def _counts(place: Place, checkpoint: str) -> list[Any]:
    from safetensors import SafetensorError, safe_open

    found: dict[tuple[int, ...], Any] = {}
    for file in place.names("checkpoints", checkpoint):
        if not file.endswith(".safetensors"):
            continue
        try:
            with safe_open(place.path("checkpoints", checkpoint, file), "numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    if name.endswith("cluster_size"):
                        level = tuple(int(number) for number in re.findall(r"\d+", name))
                        found[level] = tensors.get_tensor(name).reshape(-1)
        except (OSError, SafetensorError, Missing, TypeError):  # being deleted, damaged, or of a kind numpy has not
            continue
    return [found[level] for level in sorted(found)]


def _row(counts: Any) -> dict[str, Any]:
    """Shares of use, as multiples of what each code would have if all were used alike."""
    shares = counts.astype(np.float64) / max(float(counts.sum()), 1e-12) * len(counts)
    group = -(-len(shares) // MOST_CELLS)
    padded = np.pad(shares, (0, -len(shares) % group), constant_values=np.nan).reshape(-1, group)
    return {
        "size": len(counts),
        "used": float((shares > 1e-3).mean()),
        "cells": [round(float(cell), 3) for cell in np.nanmean(padded, axis=1)],
    }


def trying(keys: dict[str, Any], summary: dict[str, Any], saved: bool) -> dict[str, Any] | None:
    """What can be asked of a finished generator, with the values it would take by itself; none if it is none."""
    try:
        schema: type[RunConfig] = registry.find(summary["recipe"]).config_class()
    except UsageError:
        return None
    if "tokenizer" not in schema.FROZEN_KEYS or not saved or summary["state"] == "running":
        return None
    steps = keys.get("sample.steps")
    first = steps[0] if isinstance(steps, list) and steps else steps
    return {"guidance": keys.get("sample.guidance_scale"), "steps": whole(first), "step_list": isinstance(steps, list)}
