"""Functions and commands of quintet in a process whose device is the fake GPU."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

import torch

import quintet.common.collectives
import quintet.common.device
import quintet.common.precision
from fakegpu import autocast, device
from quintet.cli import call


def use_device(
    refuse_float64: bool = True, refuse_cpu_collectives: bool = False, float64_on_device: bool | None = None
) -> None:
    """Every command of this process now chooses the fake GPU.

    `float64_on_device` is whether quintet knows that the device has float64, by default if it does not refuse it.
    """
    device.use(refuse_float64, refuse_cpu_collectives)
    autocast.use()
    quintet.common.device.choose_device = lambda name, local_rank=0: torch.device(device.NAME, 0)
    if not refuse_float64 if float64_on_device is None else float64_on_device:
        quintet.common.precision.FLOAT64_DEVICES = ("cpu", device.NAME)
    if refuse_cpu_collectives:
        quintet.common.collectives._backend_device = lambda: torch.device(device.NAME, 0)


def run_check(check: Callable[[], object], refuse_float64: bool = True, float64_on_device: bool | None = None) -> None:
    """Call a function in a process with the device; ends the process."""
    use_device(refuse_float64, float64_on_device=float64_on_device)
    check()
    os._exit(0)


def run_all(commands: Sequence[Sequence[str]], refuse_float64: bool = True, nccl: bool = False) -> None:
    """Run commands of quintet, one after the other, until one fails; ends the process.

    With `nccl`, several such processes form a group that sends tensors of the device and no others."""
    use_device(refuse_float64, nccl)
    for words in commands:
        print("$ quintet", *words, flush=True)  # noqa: T201
        try:
            code = call(words)
        except BaseException:
            traceback.print_exc()
            code = 1
        if code:
            sys.stderr.flush()
            os._exit(code)
    sys.stdout.flush()
    os._exit(0)
