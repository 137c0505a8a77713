"""Inference with modules: eval mode and no gradients, for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference_mode(modules: Mapping[str, nn.Module]) -> Iterator[None]:
    """Modules in eval mode and no gradients; afterwards every part is back in the mode it was in."""
    modes = {part: part.training for module in modules.values() for part in module.modules()}
    for part in modes:
        part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
