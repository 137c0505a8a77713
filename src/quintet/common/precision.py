"""The precision that `engine.precision=auto` chooses, and fp32 for computations that lose accuracy in bf16."""

from __future__ import annotations

import torch
from torch import Tensor

TENSOR_CORES = (7, 0)
"""Compute capability of the first CUDA devices with fast fp16 (Volta)."""
NATIVE_BF16 = (8, 0)
"""Compute capability of the first CUDA devices with bf16 and TF32 (Ampere)."""
FLOAT64_DEVICES = ("cpu", "cuda")
"""Types of devices that have float64."""


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to float32; float64 stays float64."""
    return x if x.dtype == torch.float64 else x.float()


def as_float64(x: Tensor) -> Tensor:
    """Convert to float64, on the CPU if the device of the tensor may lack it, as MPS does."""
    return x.double() if has_float64(x.device) else x.cpu().double()


def has_float64(device: torch.device) -> bool:
    return device.type in FLOAT64_DEVICES


def choose_precision(name: str, device_type: str) -> str:
    """`engine.precision` on a type of device: auto is bf16 or fp16 if the device computes it fast, else fp32.

    A model that was trained in fp16 on a GPU is used in fp32 on a CPU, which has no instructions for fp16.
    """
    if name == "fp16" and device_type == "cpu":
        return "fp32"
    if name != "auto":
        return name
    if has_bf16(device_type):
        return "bf16"
    return "fp16" if has_fp16(device_type) else "fp32"


def autocast_dtype(precision: str) -> torch.dtype | None:
    """The data type of autocast; None: the precision needs no autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def has_fp16(device_type: str) -> bool:
    """Whether a device computes fp16 faster than fp32: a CUDA device with tensor cores."""
    return device_type == "cuda" and torch.cuda.get_device_capability() >= TENSOR_CORES


def has_bf16(device_type: str) -> bool:
    """Whether a device has bf16 instructions; emulated bf16 is slower than fp32. False if it is unknown, as for MPS."""
    if device_type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return device_type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
