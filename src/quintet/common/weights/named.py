"""Models that are named instead of being a path: on the hub (`hub:USER/NAME`) or in quintet itself (`starter:NAME`)."""

from __future__ import annotations

from quintet.common.weights import hub, starters
from quintet.common.weights.snapshot import Snapshot
from quintet.config.text import NAMED


def is_named(reference: object) -> bool:
    return isinstance(reference, str) and reference.startswith(NAMED)


def fetch(reference: str) -> Snapshot:
    """The files of a named model; UsageError if there is none, or if they are not those of the hash in the name."""
    return hub.fetch(reference) if hub.is_on_hub(reference) else starters.fetch(reference)


def pinned(reference: str) -> str:
    """A named model with its hash (and commit); other references are unchanged."""
    return fetch(reference).reference if is_named(reference) else reference
