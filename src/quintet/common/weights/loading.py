"""Loading weights from checkpoints into existing modules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from quintet.common.weights import checkpoint, lora, tensor_groups
from quintet.errors import CheckpointError

Weights = Mapping[str, Mapping[str, Tensor]]
"""Module name to state dict."""


def read_meta(folder: Path, recipe: str) -> dict[str, Any]:
    """`meta.json` of a checkpoint; `CheckpointError` if its format or recipe differs."""
    meta = checkpoint.read_json(folder, "meta")
    if not isinstance(meta, dict) or meta.get("format") != checkpoint.FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise CheckpointError(
            f"{folder} has checkpoint format {str(found)[:20]}; this version reads {checkpoint.FORMAT}"
        )
    if meta.get("recipe") != recipe:
        raise CheckpointError(f"{folder} is a checkpoint of recipe {str(meta.get('recipe'))[:40]!r}, not of '{recipe}'")
    return meta


def load_module(module: nn.Module, folder: Path, name: str) -> None:
    """Copy saved tensors into a module, with adapters merged. It keeps its device, dtype and memory format."""
    copy_tensors(module, lora.merged(tensor_groups.read_tensors(folder, name)), f"{folder / name}.safetensors")


def copy_tensors(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    origin: str,
    copy: Callable[[Tensor, Tensor], object] = Tensor.copy_,
) -> None:
    """Copy tensors into the state dict of a module; `CheckpointError` if names, shapes or types differ."""
    own = module.state_dict()
    check_shapes(own, {key: tuple(value.shape) for key, value in tensors.items()}, origin)
    for key, value in own.items():
        if value.is_floating_point() != tensors[key].is_floating_point():
            raise CheckpointError(f"{origin}: '{key}' is of type {tensors[key].dtype}, the model expects {value.dtype}")
    with torch.no_grad():
        for key, value in own.items():
            copy(value, tensors[key])


def check_shapes(own: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], origin: str) -> None:
    for key in sorted(own.keys() ^ shapes.keys()):
        raise CheckpointError(f"{origin} {'lacks' if key in own else 'has an unknown'} tensor '{key}'")
    for key, value in own.items():
        if value.shape != shapes[key]:
            raise CheckpointError(f"{origin}: '{key}' has shape {shapes[key]}, the model expects {tuple(value.shape)}")


def rounded(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The floating-point tensors in `dtype`, and the others."""
    return {key: tensor.to(dtype) if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}


def unchanged(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors in `dtype`, if it holds exactly their values; others as they are."""
    small = rounded(tensors, dtype)
    return {
        key: small[key] if torch.equal(small[key].to(tensor), tensor) else tensor for key, tensor in tensors.items()
    }


def weights_digest(name: str, model: nn.Module) -> str:
    """SHA-256 of a model's weights and name: models with equal digests encode identically."""
    return tensors_digest(name, model.state_dict())


def tensors_digest(name: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of named tensors and of the name of their module."""
    plain = {
        # Converted back, so that the digest does not change when a loaded model is moved to float64.
        key: (tensor.float() if tensor.dtype == torch.float64 else tensor).detach().cpu().contiguous()
        for key, tensor in tensors.items()
    }
    return hashlib.sha256(name.encode() + save(checkpoint.unshared(plain))).hexdigest()
