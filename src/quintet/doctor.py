"""`quintet doctor`: reports versions, devices and optional packages of this installation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata

import torch

import quintet
from quintet.common.device import choose_device
from quintet.common.precision import NATIVE_BF16, TENSOR_CORES, choose_precision, has_bf16
from quintet.training.state import cpu_name

OPTIONAL = {
    "tensorboardX": "curves in TensorBoard",
    "wandb": "tracking with W&B",
    "trackio": "tracking with trackio",
    "pyarrow": "parquet files as data",
    "s3fs": "data on S3",
}


def lines() -> Iterator[str]:
    """The lines of the report."""
    yield f"quintet   {quintet.__version__}"
    yield f"python    {platform.python_version()} on {platform.system()}"
    yield f"torch     {torch.__version__}"
    yield f"cpu       {cpu_name()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads"
    yield f"bf16      {'supported by this CPU' if has_bf16('cpu') else 'emulated on this CPU: slower than fp32'}"
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            able = precisions((properties.major, properties.minor))
            yield f"cuda:{number}    {properties.name}, {properties.total_memory / 2**30:.0f} GiB, {able}"
    else:
        yield "cuda      no device found: training runs on the CPU"
    yield f"precision engine.precision=auto is {choose_precision('auto', choose_device('auto').type)} on this machine"
    for package, use in OPTIONAL.items():
        yield f"{package:<12} {_version(package)} ({use})"


def precisions(capability: tuple[int, int]) -> str:
    """The precisions that a CUDA device of this compute capability is fast in."""
    if capability >= NATIVE_BF16:
        return "fast in bf16, fp16 and TF32"
    if capability >= TENSOR_CORES:
        return "fast in fp16 (bf16 is emulated, no TF32)"
    return "fast in fp32 only (no tensor cores)"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
