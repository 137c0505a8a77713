"""Details of a run besides its curves and samples: configuration, data, checkpoints, console, codes and playground."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from quintet import config as configs
from quintet import registry
from quintet.config import RunConfig
from quintet.errors import QuintetError, UsageError
from quintet.web.folders import Missing, RunDir
from quintet.web.summary import text, to_int
from quintet.web.tensors import read_tensors

MAX_SKIPPED = 1_000
CONSOLE_BYTES = 2**16
MAX_DATA_BYTES = 2**27
STEP_FOLDER = re.compile(r"step-([0-9]{1,15})")
MAX_CELLS = 1_024
"""Maximum number of cells in a row of the code map; in a larger codebook several codes share one cell."""
MAX_LEVELS = 64
MAX_COUNT = 1e30
"""A larger count is not one of quintet's."""
NO_CONFIGURATION: dict[str, Any] = {"keys": {}, "preset": None, "preset_keys": {}, "problem": None}
NO_DATA: dict[str, Any] = {"counts": {}, "path": None, "skipped": [], "skipped_count": 0, "notes": []}


def configuration(run_dir: RunDir) -> dict[str, Any]:
    """Keys of a run and of its preset, both flat, and a problem to show if they cannot be read."""
    try:
        run_dir.open("config.yaml").close()  # raises unless it is a regular file
        tree = configs.read_yaml(Path(run_dir.path("config.yaml")))
    except (QuintetError, Missing) as error:
        return {**NO_CONFIGURATION, "problem": str(error)}
    keys = configs.flatten(tree)
    name = text(tree.get("preset"))
    try:
        schema = registry.find(str(tree.get("recipe"))).config_class()
        keys = configs.flatten(configs.migrated(schema, tree))
        base = configs.flatten(configs.build(schema, preset=name).model_dump(mode="json"))
    except UsageError as error:  # of another version, or of a family that is not installed
        return {"keys": keys, "preset": name, "preset_keys": {}, "problem": str(error)}
    return {"keys": keys, "preset": name, "preset_keys": base, "problem": None}


def data(run_dir: RunDir) -> dict[str, Any]:
    """Number of items, and the skipped files, each with the reason."""
    found = run_dir.json("data.json", max_bytes=MAX_DATA_BYTES)
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
        "skipped": [[str(name)[:500], str(reason)[:500]] for name, reason in list(skipped.items())[:MAX_SKIPPED]],
        "skipped_count": len(skipped),
        "notes": [str(note)[:500] for note in notes[:20]] if isinstance(notes, list) else [],
    }


def checkpoints(run_dir: RunDir) -> list[dict[str, Any]]:
    targets = {name: run_dir.text("checkpoints", name, max_bytes=200).strip() for name in ("best", "latest")}
    found = []
    for name in run_dir.names("checkpoints"):
        matched = STEP_FOLDER.fullmatch(name)
        if matched:
            sizes = [run_dir.stamp("checkpoints", name, *parts) for parts in _files(run_dir, name)]
            written = run_dir.stamp("checkpoints", name, "meta.json")[2] / 1e9
            marks = [mark for mark, target in targets.items() if target == name]
            found.append(
                {"step": int(matched[1]), "bytes": sum(s[1] for s in sizes), "time": written or None, "marks": marks}
            )
    return found


def _files(run_dir: RunDir, name: str) -> list[tuple[str, ...]]:
    """Files of a checkpoint and of its two subfolders."""
    top: list[tuple[str, ...]] = [(file,) for file in run_dir.names("checkpoints", name) if "." in file]
    deeper = [(folder, file) for folder in ("ema", "optim") for file in run_dir.names("checkpoints", name, folder)]
    return top + deeper


def console(run_dir: RunDir) -> str:
    try:
        content = run_dir.tail("log.txt", max_bytes=CONSOLE_BYTES)
    except (OSError, Missing):
        return ""
    lines = content.decode("utf-8", errors="replace")
    return lines.partition("\n")[2] if len(content) == CONSOLE_BYTES else lines


def evaluated(run_dir: RunDir) -> dict[str, float]:
    found = run_dir.json("eval.json")
    return {name: value for name, value in found.items() if isinstance(value, float) and math.isfinite(value)}


def codes(run_dir: RunDir) -> dict[str, Any] | None:
    """Usage of each code of a tokenizer in the newest checkpoint; None if the tokenizer does not count it."""
    for name in reversed(run_dir.names("checkpoints")):
        matched = STEP_FOLDER.fullmatch(name)
        levels = _counts(run_dir, name) if matched else []
        if matched and levels:
            return {"step": int(matched[1]), "levels": [_row(counts) for counts in levels]}
    return None


def _counts(run_dir: RunDir, checkpoint: str) -> list[Any]:
    """Counts of the codes of each level; levels that are not counts are left out."""
    found: dict[tuple[int, ...], Any] = {}
    for file in run_dir.names("checkpoints", checkpoint):
        if not file.endswith(".safetensors"):
            continue
        with suppress(OSError, Missing, ValueError), run_dir.open("checkpoints", checkpoint, file) as opened:
            for name, counts in read_tensors(opened, "cluster_size"):  # the file may be damaged, or being deleted
                level = tuple(int(number) for number in re.findall(r"[0-9]{1,9}", name))
                if len(counts) and bool((counts >= 0).all()) and float(counts.max()) < MAX_COUNT:
                    found[level] = counts
    return [found[level] for level in sorted(found)[:MAX_LEVELS]]


def _row(counts: Any) -> dict[str, Any]:
    """Usage of each code, as a multiple of uniform usage."""
    usage = counts / max(float(counts.sum()), 1e-12) * len(counts)
    group = -(-len(usage) // MAX_CELLS)
    padded = np.pad(usage, (0, -len(usage) % group), constant_values=np.nan).reshape(-1, group)
    return {
        "size": len(counts),
        "used": float((usage > 1e-3).mean()),
        "cells": [round(float(cell), 3) for cell in np.nanmean(padded, axis=1)],
    }


def playground(keys: dict[str, Any], summary: dict[str, Any], saved: bool) -> dict[str, Any] | None:
    """Default settings of the playground; None if the run is not a finished generator."""
    try:
        schema: type[RunConfig] = registry.find(summary["recipe"]).config_class()
    except UsageError:
        return None
    if "tokenizer" not in schema.FROZEN_KEYS or not saved or summary["state"] == "running":
        return None
    steps = keys.get("sample.steps")
    first = steps[0] if isinstance(steps, list) and steps else steps
    return {
        "guidance_scale": keys.get("sample.guidance_scale"),
        "steps": to_int(first),
        "step_list": isinstance(steps, list),
    }
