"""Owns the moving average of the weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from quintet.config import EMAConfig


class Average:
    """Averaged copies of some modules, always in eval mode and without gradients.

    Parameters are averaged; buffers are copied, because they are counts or averages already.
    """

    def __init__(self, config: EMAConfig, modules: Mapping[str, nn.Module], names: Iterable[str]) -> None:
        self.config = config
        self.live = {name: modules[name] for name in names}
        self.modules = {name: copy.deepcopy(module).eval().requires_grad_(False) for name, module in self.live.items()}

    def decay(self, step: int) -> float:
        """Ramped, so that the average of a short run does not consist of its first weights."""
        if step < self.config.start:
            return 0.0
        updates = (step - self.config.start) // self.config.every
        return min(self.config.decay, (1 + updates) / (10 + updates))

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step >= self.config.start and (step - self.config.start) % self.config.every:
            return
        weight = 1 - self.decay(step)
        for name, live in self.live.items():
            average = self.modules[name]
            torch._foreach_lerp_(list(average.parameters()), list(live.parameters()), weight)
            buffers = list(average.buffers())
            if buffers:
                torch._foreach_copy_(buffers, list(live.buffers()))
