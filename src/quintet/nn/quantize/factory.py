"""Builds quantizers by name: `vq`, `lfq` or `fsq`, single, residual or as a product of residual quantizers."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Sequence
from typing import Any, Literal

from quintet.errors import UsageError
from quintet.nn.quantize.base import Quantizer, SingleQuantizer
from quintet.nn.quantize.codebook_free import FiniteScalarQuantizer, LookupFreeQuantizer, bits_of, grid_for
from quintet.nn.quantize.residual import ProductQuantizer, ResidualQuantizer
from quintet.nn.quantize.vector import VectorQuantizer

Kind = Literal["vq", "lfq", "fsq"]

_CLASSES: dict[str, type[SingleQuantizer]] = {
    "vq": VectorQuantizer,
    "lfq": LookupFreeQuantizer,
    "fsq": FiniteScalarQuantizer,
}
_POSITIONAL = {"self", "dim", "num_codes", "depth"}


def make_quantizer(kind: Kind, dim: int, num_codes: int, levels: int | Sequence[int] = 1, **options: Any) -> Quantizer:
    """A quantizer of vectors of dimension `dim`.

    `levels=1` is a single quantizer, a larger number a residual quantizer, and several numbers a product quantizer
    with one residual quantizer per equal part of the vector. `options` are keyword arguments of the quantizer's class,
    and `shared=True` uses one VQ codebook for all levels. FSQ uses the paper's grid for `num_codes`, or `level_sizes`,
    whose product must be `num_codes`.
    """
    if kind not in _CLASSES:
        raise UsageError(f"Unknown quantizer {kind!r}; use one of {', '.join(_CLASSES)}.")
    if min([levels] if isinstance(levels, int) else levels, default=0) < 1:
        raise UsageError(f"A quantizer needs levels of at least 1, not {levels}.")
    shared = bool(options.pop("shared", False))
    if shared and kind != "vq":
        raise UsageError(f"Only vq has a codebook that levels can share; set shared=False for {kind}.")
    _check_options(kind, options)
    if kind == "fsq":
        options["level_sizes"] = _level_sizes(num_codes, options.get("level_sizes"))
    if levels == 1:
        return _single(kind, dim, num_codes, 0, options)
    if isinstance(levels, int):
        return _residual(kind, dim, num_codes, levels, options, shared)
    if dim % len(levels):
        raise UsageError(f"A vector of dimension {dim} cannot be split into {len(levels)} equal parts.")
    own = dim // len(levels)
    return ProductQuantizer([_residual(kind, own, num_codes, each, dict(options), shared) for each in levels])


def configured_quantizer(keys: Any, dim: int, levels: int | Sequence[int], **options: Any) -> Quantizer:
    """The quantizer of the keys `model.quantizer` and `model.codebook_size`; errors name these keys."""
    try:
        return make_quantizer(keys.quantizer, dim, keys.codebook_size, levels, **options)
    except UsageError as error:
        raise UsageError(
            f"model.codebook_size={keys.codebook_size}, model.quantizer={keys.quantizer}: {error}"
        ) from None


def _residual(
    kind: Kind, dim: int, num_codes: int, levels: int, options: dict[str, Any], shared: bool
) -> ResidualQuantizer:
    code_dim = _code_dim(kind, dim, num_codes, options)
    return ResidualQuantizer(
        dim, levels, lambda level: _single(kind, code_dim, num_codes, level, options), shared=shared
    )


def _check_options(kind: Kind, options: dict[str, Any]) -> None:
    known = set(inspect.signature(_CLASSES[kind]).parameters) - _POSITIONAL
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, 1, 0)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
            raise UsageError(f"The quantizer {kind} has no option {name!r}{hint}")


def _level_sizes(num_codes: int, sizes: Sequence[int] | None) -> Sequence[int]:
    if sizes is None:
        return grid_for(num_codes)
    if math.prod(sizes) != num_codes:
        raise UsageError(f"level_sizes {list(sizes)} have {math.prod(sizes)} codes: set num_codes to that.")
    return sizes


def _code_dim(kind: Kind, dim: int, num_codes: int, options: dict[str, Any]) -> int:
    if kind == "vq":
        code_dim = options.pop("code_dim", None)
        return dim if code_dim is None else int(code_dim)
    return len(options["level_sizes"]) if kind == "fsq" else bits_of(num_codes)


def _single(kind: Kind, dim: int, num_codes: int, depth: int, options: dict[str, Any]) -> SingleQuantizer:
    if kind == "vq":
        return VectorQuantizer(dim, num_codes, **options)
    if kind == "lfq":
        return LookupFreeQuantizer(dim, num_codes, depth=depth, **options)
    return FiniteScalarQuantizer(dim, depth=depth, **options)
