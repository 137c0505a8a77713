"""`MaskGitPipeline`: base class of generators with a `MaskGit` over the codes of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from torch import nn

from quintet.config.masked import MaskGitRunConfig
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.base import Frozen
from quintet.pipelines.prompts import TextGenerator
from quintet.sampling import masked

ConfigT = TypeVar("ConfigT", bound=MaskGitRunConfig)

MIN_SIDE = 8
"""Smallest number of rows and columns that are grouped in twos: fewer positions leave too little to attend to."""


def auto_patch_size(grid: Sequence[int], num_time_axes: int) -> tuple[int, ...] | None:
    """The size of patches of codes for `model.code_patch_size=auto`, or None for one position per code.

    The axes of `grid` are `num_time_axes` of time, rows, columns, and for a residual quantizer the quantizers, which a
    patch has all of.
    """
    end = num_time_axes + 2
    sides = tuple(2 if length % 2 == 0 and length >= MIN_SIDE else 1 for length in grid[num_time_axes:end])
    return None if max(sides) == 1 else (*(1,) * num_time_axes, *sides, *grid[end:])


class MaskGitPipeline(TextGenerator[ConfigT]):
    exported = "maskgit"
    auxiliary_modules = ("critic",)
    num_time_axes: ClassVar[int] = 0
    """Number of axes of the grid of codes before its rows and columns."""

    @classmethod
    def fit(cls, config: ConfigT, frozen: Frozen) -> ConfigT:
        config = super().fit(config, frozen)
        if config.model.code_patch_size != "auto" or config.model.grid is None:
            return config
        size = auto_patch_size(config.model.grid, cls.num_time_axes)
        return config.changed({"model.code_patch_size": None if size is None else list(size)})

    @classmethod
    def build_modules(cls, config: ConfigT, frozen: Frozen) -> dict[str, nn.Module]:
        modules: dict[str, nn.Module] = {"maskgit": MaskGit(config.model)}
        if config.loss.critic:
            modules["critic"] = TokenCritic(config.model)
        return modules

    @property
    def maskgit(self) -> MaskGit:
        maskgit = self.modules["maskgit"]
        assert isinstance(maskgit, MaskGit)
        return maskgit

    @property
    def critic(self) -> TokenCritic | None:
        critic = self.modules.get("critic")
        assert critic is None or isinstance(critic, TokenCritic)
        return critic

    def sampling(self) -> masked.Sampling:
        """The decoding settings of the keys `sample.*`."""
        config = self.config.sample
        return masked.sampling_from_config(config, config.steps, self.guidance_scale, config.top_k)
