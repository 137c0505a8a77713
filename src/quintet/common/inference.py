"""`inference_mode`: a context manager for eval mode without gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference_mode(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Put modules in eval mode and disable gradients. On exit every submodule returns to its previous mode."""
    modes = {submodule: submodule.training for module in modules.values() for submodule in module.modules()}
    for submodule in modes:
        submodule.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode
