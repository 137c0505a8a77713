"""Checks before the first step that all processes train the same run: configuration, data, initial weights and code.

Each process reads its own command line and its own copy of the data, and gradients are averaged whatever they are
gradients of: a process with another learning rate or fewer items would train to the end, with other weights and without
an error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import quintet
from quintet.common import collectives
from quintet.common.batch import Dataset
from quintet.common.weights.loading import Weights, tensors_digest
from quintet.config import RunConfig, flatten
from quintet.config.tree import short
from quintet.data.splits import Splits
from quintet.errors import UsageError
from quintet.training.engine import Engine
from quintet.training.task import Task

LOCAL_KEYS = (
    *("data.path", "data.validation_path", "data.cache_dir", "data.num_workers", "data.memory_megabytes"),
    *("engine.device", "engine.threads", "log.trackers", "log.project", "log.name", "init"),
)
"""Keys that may differ between processes: folders of a machine, whose contents are compared instead, its resources, and
trackers, which only rank 0 uses. The references to frozen models may differ too: their hashes are keys."""


def check_agreement(engine: Engine, task: Task[Any], config: RunConfig, splits: Splits, init: Weights | None) -> None:
    """Raise UsageError on all ranks if any of them has another configuration, data, initial weights or code."""
    if not engine.is_distributed:
        return
    facts = _facts(engine, task, config, splits, init)
    text = json.dumps(facts, sort_keys=True)
    if not _differs(text, engine):
        return
    others = [json.loads(each) for each in collectives.gather_texts(text, engine.device)]
    rank = next(rank for rank, other in enumerate(others) if other != others[0])
    keys = [key for key in {**others[0], **others[rank]} if others[0].get(key) != others[rank].get(key)]
    listed = [
        f"{key} is {short(others[0].get(key))} on rank 0 and {short(others[rank].get(key))} on rank {rank}"
        for key in keys
        if key != "data"
    ]
    if "data" in keys:
        listed.append(_data_difference(engine, splits, rank))
    engine.barrier()  # all ranks raise: none of them may exit while another still reads its values
    raise UsageError(f"the processes do not train the same run: {'; '.join(listed)}")


def _facts(engine: Engine, task: Task[Any], config: RunConfig, splits: Splits, init: Weights | None) -> dict[str, Any]:
    """Everything that must be equal on all ranks, by the name that an error message uses."""
    local = {*LOCAL_KEYS, *config.FROZEN_KEYS}
    keys = {key: value for key, value in flatten(config.model_dump(mode="json")).items() if key not in local}
    weights = {} if init is None else {"the weights of --init": _weights_digest(init)}
    return {
        **keys,
        **weights,
        "data": _hash(splits.fingerprint, *sorted(splits.skipped)),
        "the type of device": engine.device.type,
        "the version of quintet": quintet.__version__,
        "the version of torch": torch.__version__,
        "the code": _code_digest(task),
    }


def _differs(text: str, engine: Engine) -> bool:
    """Whether a text differs between ranks; sends only its hash."""
    return len({*collectives.gather_texts(_hash(text), engine.device)}) > 1


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()


def _weights_digest(init: Weights) -> str:
    return _hash(*(tensors_digest(name, tensors) for name, tensors in sorted(init.items())))


def _code_digest(task: Task[Any]) -> str:
    """Hash of the source of quintet and of the task, which may belong to another package."""
    package = Path(quintet.__file__).parent
    hashes = {path.relative_to(package).as_posix(): _hash_of(path) for path in package.rglob("*.py")}
    with suppress(OSError, TypeError):  # a class of a notebook has no file
        hashes["task"] = _hash_of(Path(inspect.getfile(type(task))))
    return _hash(json.dumps(sorted(hashes.items())))


def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _data_difference(engine: Engine, splits: Splits, rank: int) -> str:
    """The first item that differs between rank 0 and another one. All ranks call this."""
    rows = [
        *_rows("training", splits.train),
        *_rows("validation", splits.validation),
        *(f"unreadable item {name}" for name in sorted(splits.skipped)),
    ]
    counts = collectives.gather_texts(f"{len(splits.train)} + {len(splits.validation)}", engine.device)
    numbers = f"{counts[0]} items on rank 0, {counts[rank]} on rank {rank} (training + validation)"
    position = _first_difference(rows, max(map(int, collectives.gather_texts(str(len(rows)), engine.device))), engine)
    own = rows[position] if position < len(rows) else "nothing more"
    listed = collectives.gather_texts(own, engine.device)
    if listed[0] == listed[rank]:
        return f"the data differs ({numbers}), but the names, sizes and captions of all items are equal"
    return f"the data differs ({numbers}), first in: {listed[0]} on rank 0, {listed[rank]} on rank {rank}"


def _first_difference(rows: Sequence[str], longest: int, engine: Engine) -> int:
    """The first position at which the rows of the ranks differ, by bisection: each round exchanges a hash."""
    low, high = 0, longest
    while low < high:
        middle = (low + high) // 2
        if _differs("\n".join(rows[: middle + 1]), engine):
            high = middle
        else:
            low = middle + 1
    return low


def _rows(part: str, dataset: Dataset) -> list[str]:
    """A line for each item: its name and, if it comes from a file, size and caption."""
    entries = getattr(getattr(dataset, "media", dataset), "entries", None)  # a token data set wraps that of its media
    rows = []
    for item in range(len(dataset)):
        row = f"{part} item {item}, {short(dataset.name(item))}"
        if entries is not None:
            entry = entries[item]
            size = entry.stamp.size if entry.stamp else "?"
            row += f" ({size} bytes, caption {short(entry.text)}, split {entry.split})"
        rows.append(row)
    return rows
