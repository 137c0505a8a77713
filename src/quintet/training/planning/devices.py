"""The devices that `quintet plan` knows, with memory and rates from the data sheets. Does not import torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from quintet.errors import UsageError

MIB = 2**20
GIB = 2**30
FRAGMENTS = 0.06
"""Fraction of the memory that an allocator cannot use."""
CONTEXT = int(0.6 * GIB)
"""Memory of a GPU for the context of CUDA and the workspaces of its libraries."""


@dataclass(frozen=True)
class DeviceSpec:
    """A kind of device. Rates are dense, without sparsity; 0 if they have to be measured on this machine."""

    name: str
    kind: str
    """`cuda` or `cpu`."""
    memory: int
    """In bytes, as the driver reports it."""
    bf16: float
    """FLOP/s of matrix products with bf16 operands; that of fp32 if it has no instructions for them."""
    fp32: float
    """FLOP/s of matrix products in fp32, without TF32."""
    bandwidth: float
    """Bytes per second that are read from or written to its memory."""
    link: float
    """Bytes per second to another device of the same machine."""
    has_bf16: bool = True
    native_fp16: float = 0
    """FLOP/s of matrix products in fp16 of a device without bf16; others have the rate of bf16."""

    @property
    def fp16(self) -> float:
        return self.native_fp16 or self.bf16

    @property
    def usable(self) -> int:
        """Bytes that tensors can use."""
        return int(self.memory * (1 - FRAGMENTS)) - (CONTEXT if self.kind == "cuda" else 0)


DEVICES: Mapping[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        DeviceSpec("h100", "cuda", 81_559 * MIB, bf16=989e12, fp32=67e12, bandwidth=3.35e12, link=450e9),
        DeviceSpec("a100", "cuda", 40_960 * MIB, bf16=312e12, fp32=19.5e12, bandwidth=1.555e12, link=300e9),
        DeviceSpec("a100-80gb", "cuda", 81_920 * MIB, bf16=312e12, fp32=19.5e12, bandwidth=2.039e12, link=300e9),
        DeviceSpec("4090", "cuda", 24_564 * MIB, bf16=165e12, fp32=82.6e12, bandwidth=1.008e12, link=25e9),
        DeviceSpec(
            "t4",
            "cuda",
            15_360 * MIB,
            bf16=8.1e12,
            fp32=8.1e12,
            bandwidth=320e9,
            link=12e9,
            has_bf16=False,
            native_fp16=65e12,
        ),
        DeviceSpec("cpu", "cpu", 0, bf16=0, fp32=0, bandwidth=0, link=10e9),
    )
}


def find_device(name: str) -> DeviceSpec:
    """The device of a name; UsageError with the nearest name if there is none."""
    if name.lower() in DEVICES:
        return DEVICES[name.lower()]
    near = difflib.get_close_matches(name.lower(), DEVICES, n=1)
    hint = f"did you mean '{near[0]}'? " if near else ""
    raise UsageError(f"unknown --device {name[:40]!r}; {hint}known devices: {', '.join(DEVICES)}")


def size(number: float) -> str:
    """Bytes with a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}" if number < 1000 * scale else f"{number / scale:,.0f} {unit}"
    return f"{number:.0f} B"
