"""The rules of CUDA's autocast, by the names of functions, for tensors that torch does not take for CUDA tensors.

Compare the lists of torch in ATen/autocast_mode.h.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from quintet.training.planning.nested import mapped


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LOWER = _names(
    "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution prelu linear addmm "
    "addmv addr matmul rmatmul einsum mm mv bmm baddbmm addbmm chain_matmul multi_dot vecdot"
)
"""Computed in bf16."""
FULL = _names(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow rpow softplus layer_norm "
    "group_norm norm cosine_similarity normalize nll_loss cross_entropy hinge_embedding_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss margin_ranking_loss soft_margin_loss triplet_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp interpolate upsample prod softmax log_softmax "
    "cumprod cumsum vector_norm matrix_norm sum"
)
"""Computed in fp32."""

_cache: dict[int, tuple[Tensor, Tensor]] = {}
"""Casts of weights, which a forward pass makes once, with the weights themselves, whose ids must not be used again."""


def cuda_autocast(name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a function under CUDA's autocast."""
    name = name.strip("_").removeprefix("linalg_")
    if name in LOWER:
        return mapped(_lower, args), mapped(_lower, kwargs)
    if name in FULL and kwargs.get("dtype") is None:
        return mapped(_full, args), mapped(_full, kwargs)
    return args, kwargs


def clear_cache() -> None:
    """As autocast does when it ends."""
    _cache.clear()


def _is_cast(each: Any) -> bool:
    return isinstance(each, Tensor) and each.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _lower(each: Any) -> Any:
    if not _is_cast(each) or each.dtype == torch.bfloat16:
        return each
    if not (each.is_leaf and each.requires_grad):
        return each.to(torch.bfloat16)
    if id(each) not in _cache:
        _cache[id(each)] = each, each.to(torch.bfloat16)
    return _cache[id(each)][1]


def _full(each: Any) -> Any:
    return each.float() if _is_cast(each) else each
