"""Owns the way from the folders that a configuration names to the sources of a run, whatever the medium: which items
are trained on, which validate, which are set aside, and what `data.json` says about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from quintet.config import DataConfig
from quintet.core.batch import Source
from quintet.core.recipe import Sources
from quintet.data.folder import Entry, fingerprint, scan, split_entries
from quintet.errors import UsageError

MakeSource = Callable[[str, Sequence[Entry], bool], Source]
"""Files below a root as items; whether to train on them says whether they are augmented."""


def split_folder(config: DataConfig, extensions: frozenset[str], make: MakeSource, *, films: bool = False) -> Sources:
    """The folders that the configuration names, split for validation; with `films`, folders of pictures are items."""
    root = _required(config)
    found = scan(root, extensions, films=films)
    train, validation = split_entries(
        found.entries, config.validation_fraction, config.split_seed, config.validation_group
    )
    train_entries = [found.entries[place] for place in train]
    held_out, held_root = [found.entries[place] for place in validation], root
    skipped = _reasons(found.skipped)
    prints = fingerprint(root, found.entries)
    if config.validation_path is not None:
        other = scan(config.validation_path, extensions, films=films)
        train_entries = [*train_entries, *held_out]
        held_out, held_root = other.entries, config.validation_path
        skipped.update({f"validation: {name}": reason for name, reason in _reasons(other.skipped).items()})
        prints += fingerprint(held_root, held_out)
    about = {"path": root, "captions_from": found.captions_from, "notes": found.notes}
    used = {*train, *validation}
    aside: dict[str, list[Entry]] = defaultdict(list)
    for place, entry in enumerate(found.entries):
        if place not in used:
            aside[str(entry.split).lower()].append(entry)
    others = {split: make(root, entries, False) for split, entries in sorted(aside.items())}
    # Without a validation set the training items are looked at, unaugmented.
    looked_at = make(held_root, held_out or train_entries, False)
    return Sources(make(root, train_entries, True), looked_at, prints, skipped, about, others)


def _reasons(skipped: Sequence[tuple[str, str]]) -> dict[str, str]:
    """One text a file; a metadata file may have several lines that were left out."""
    reasons: dict[str, str] = {}
    for name, reason in skipped:
        reasons[name] = f"{reasons[name]}; {reason}" if name in reasons else reason
    return reasons


def _required(config: DataConfig) -> str:
    if config.path is None:
        raise UsageError(
            "this run was given a data set in Python and can only be resumed from Python, with the same one"
        )
    return config.path
