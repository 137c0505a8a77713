"""The precision that `engine.precision=auto` chooses, and fp32 for computations that lose accuracy in bf16."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def as_float64(x: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device of the tensor may lack it, as MPS does."""
    return x.double() if x.device.type in ("cpu", "cuda") else x.cpu().double()


def choose_precision(name: str, device_type: str) -> str:
    """`engine.precision` on a type of device: auto is bf16 if the device computes it by instruction, else fp32."""
    if name != "auto":
        return name
    return "bf16" if has_bf16(device_type) else "fp32"


def has_bf16(device_type: str) -> bool:
    """Whether a device has bf16 instructions; emulated bf16 is slower than fp32. False if it is unknown, as for MPS."""
    if device_type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
