"""The limits on reading one media file of any kind: memory, and steps of a walk over its structure.

Readers check them before they allocate or go on, in training, in `quintet data check` and wherever else a file is
read, so that a hostile or damaged file costs little. A file beyond a limit raises `UnreadableItem`.
"""

from __future__ import annotations

from quintet.errors import UnreadableItem

READ_BUDGET_BYTES = 512 * 2**20
"""Most memory that reading one file may take, above what the process used before."""
MAX_STEPS = 1_000_000
"""Most parts (chunks, boxes, blocks) of one file that a walk over its structure visits: a second or two of Python."""


def check_memory(needed: int, what: str) -> None:
    """Raise `UnreadableItem` if `what` (such as "a frame of 9x9 pixels") needs more bytes than the budget."""
    if needed > READ_BUDGET_BYTES:
        limit = READ_BUDGET_BYTES // 2**20
        raise UnreadableItem(f"{what} needs {-(-needed // 2**20)} MB of memory, more than {limit} MB")


def check_steps(steps: int, parts: str, limit: int | None = None) -> None:
    """Raise `UnreadableItem` if a walk has visited more than `limit` (by default `MAX_STEPS`) parts of a file."""
    limit = limit or MAX_STEPS
    if steps > limit:
        raise UnreadableItem(f"damaged: more than {limit} {parts}")
