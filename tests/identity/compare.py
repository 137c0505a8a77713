"""The first difference between two records, in one sentence that has both values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from identity.record import Record, Tensor

LEFT, RIGHT = "base", "working tree"


def first_difference(base: Record, work: Record) -> str | None:
    """What differs, or None. Numbers come first: an early loss says more than a weight of the last step."""
    return (
        different_value("number", base.numbers, work.numbers)
        or different_tensor(base.tensors, work.tensors)
        or different_value("file", base.files, work.files)
    )


def different_value(kind: str, base: Mapping[str, str], work: Mapping[str, str]) -> str | None:
    for name in [*base, *(name for name in work if name not in base)]:
        if base.get(name) != work.get(name):
            return f"{kind} '{name}': {LEFT} {shown(base.get(name))}, {RIGHT} {shown(work.get(name))}"
    return None


def different_tensor(base: Sequence[Tensor], work: Sequence[Tensor]) -> str | None:
    """The first tensor whose content the other side lacks; names do not matter, so a module may be renamed."""
    lost, added = unmatched(base, work), unmatched(work, base)
    if lost:
        return f"tensor '{lost[0].name}': {LEFT} {described(lost[0])}, {RIGHT} {described(partner(lost[0], added))}"
    if added:
        return f"tensor '{added[0].name}': {LEFT} has none of this content, {RIGHT} {described(added[0])}"
    return None


def unmatched(tensors: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """The tensors without one of the same content among the others; equal ones are counted.

    Of equal tensors those are left over that have no namesake on the other side.
    """
    available = Counter(tensor.content for tensor in others)
    names = {tensor.name for tensor in others}
    left = []
    for tensor in sorted(tensors, key=lambda tensor: tensor.name not in names):
        if available[tensor.content]:
            available[tensor.content] -= 1
        else:
            left.append(tensor)
    return left


def partner(tensor: Tensor, candidates: Sequence[Tensor]) -> Tensor | None:
    """The tensor of the other side that most likely stands for this one: of the same name, else of the same shape."""
    by_name = [other for other in candidates if other.name == tensor.name]
    by_shape = [other for other in candidates if other.shape == tensor.shape]
    return next(iter(by_name + by_shape), None)


def described(tensor: Tensor | None) -> str:
    if tensor is None:
        return "has none of this content"
    return f"{tensor.dtype} {list(tensor.shape)} sha256 {tensor.digest[:16]}… ('{tensor.name}')"


def shown(value: str | None) -> str:
    """A value as it was recorded, and a float in decimals too."""
    if value is None:
        return "has none"
    try:
        return f"{value} ({float.fromhex(value)!r})" if "0x" in value else value
    except ValueError:
        return value
