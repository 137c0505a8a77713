"""`MaskGitPipeline`: base class of generators with a `MaskGit` over the codes of a tokenizer."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from quintet.config.masked import MaskGitRunConfig
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.base import Frozen
from quintet.pipelines.prompts import TextGenerator
from quintet.sampling import masked

ConfigT = TypeVar("ConfigT", bound=MaskGitRunConfig)


class MaskGitPipeline(TextGenerator[ConfigT]):
    exported = "maskgit"
    auxiliary_modules = ("critic",)

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
