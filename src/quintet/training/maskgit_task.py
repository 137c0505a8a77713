"""Owns how a `MaskGit` and its critic are trained on a tokenizer's codes and measured, whatever the codes stand for.

A family says by `rows` what a batch is to the model: the codes, which of them are there, and what is told of them.
Padding is never masked, guessed or scored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common import collectives
from quintet.common.batch import Batch
from quintet.common.precision import at_least_fp32
from quintet.common.statistics import Statistics
from quintet.config.masked import MaskGitRunConfig
from quintet.errors import UsageError
from quintet.nn.codebook import CodebookSmoothing, codebook_smoothing
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.base import Pipeline
from quintet.sampling import filters, masked
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Task, Traits

SELF_CONDITIONED = 0.9
"""Share of rows that see the model's own prediction, where it is trained to."""

RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Shares of masked tokens at which validation looks."""

ConfigT = TypeVar("ConfigT", bound=MaskGitRunConfig)


@dataclass(frozen=True)
class Rows:
    """A batch as the model sees it."""

    codes: Tensor
    """(batch, places), with any code where there is none."""
    conditioning: dict[str, Tensor]
    valid: Tensor | None = None
    """(batch, places): where there is a code; none: everywhere."""
    given: Tensor | None = None
    """(batch, places): what is never masked; none: nothing."""

    @property
    def there(self) -> Tensor:
        """On the CPU, where choices are made, if nothing is missing; else where the codes are."""
        return torch.ones(self.codes.shape, dtype=torch.bool) if self.valid is None else self.valid

    @property
    def open(self) -> Tensor:
        """What may be masked."""
        return self.there if self.given is None else self.there.to(self.given.device) & ~self.given


class MaskGitTask(Task[ConfigT]):
    traits = Traits(best=("loss", "min"), shardable=True)

    maskgit: MaskGit
    is_new: bool
    """Whether the model was made here, rather than handed over."""

    def make_modules(self, tokenizer: Pipeline[Any] | None, given: Mapping[str, nn.Module] | None) -> None:
        """Generator and critic, as far as they are not given, and their phases."""
        given, config = given or {}, self.config
        self.is_new = "maskgit" not in given
        maskgit = given["maskgit"] if "maskgit" in given else MaskGit(config.model)
        assert isinstance(maskgit, MaskGit)
        if self.is_new and tokenizer is not None:
            start_from_codebook(maskgit, tokenizer)
        if config.data.cache_dir:
            maskgit.cache_texts(Path(config.data.cache_dir))
        self.maskgit = maskgit
        self.modules = {"maskgit": maskgit}
        if config.loss.critic:
            self.modules["critic"] = given["critic"] if "critic" in given else TokenCritic(config.model)
        self.phases = self.make_phases()

    @cached_property
    def codebook_smoothing(self) -> CodebookSmoothing | None:
        """Which codes share a target, found once training asks; a tokenizer that has none was refused before."""
        spread = self.config.loss.codebook_smoothing
        return codebook_smoothing(self.frozen["tokenizer"].model.quantizer.all_vectors(), spread) if spread else None

    @abstractmethod
    def rows(self, batch: Batch, keep: Tensor | None = None, train: bool = False) -> Rows:
        """What the model sees of a batch; the text is dropped where `keep` is False."""

    def make_phases(self) -> list[Phase]:
        """Those of generator and critic, once `modules` holds both; what is not trained is taken out of the graph."""
        config, critic = self.config, "critic" if self.config.loss.critic else "maskgit"
        generator = Phase("generator", ("maskgit",), self.generator_loss, config.optim.for_phase())
        judge = Phase("critic", (critic,), self.critic_loss, config.optim.for_phase(config.optim.critic))
        if config.loss.train_only == "critic":
            self.maskgit.requires_grad_(False)
            if self.maskgit.to_score is not None:
                self.maskgit.to_score.requires_grad_(True)
            return [judge]
        if config.loss.train_only == "generator":
            for module in (self.modules.get("critic"), self.maskgit.to_score):
                if module is not None:
                    module.requires_grad_(False)
        elif config.loss.critic:
            return [generator, judge]
        return [generator]

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        if self.config.loss.train_only == "critic":
            refuse_untrained(self.is_new and self.config.init is None)

    @property
    def averaged(self) -> tuple[str, ...]:
        return tuple(self.modules)

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        keep = batch.rng.uniform("keep text") >= self.config.loss.cond_drop_prob
        rows = self.rows(batch, keep, train=True)
        hidden = masked.training_mask(batch.rng, rows.open, masked.MASK_SCHEDULES[self.config.loss.mask_schedule])
        hidden = hidden.to(rows.codes.device)
        tokens = rows.codes.masked_fill(hidden, self.maskgit.mask_id)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.loss.train_only != "critic"):
            previous = self._own_prediction(batch, tokens, rows.conditioning)
            logits = modules["maskgit"](tokens, rows.conditioning, where=hidden, previous=previous)
        return Output({"codes": rows.codes, "hidden": hidden, "logits": logits, "conditioning": rows.conditioning})

    def _own_prediction(self, batch: Batch, tokens: Tensor, conditioning: dict[str, Tensor]) -> Tensor | None:
        """What the model would say without help, for most rows; the others learn to do without."""
        if not self.config.model.self_conditioning:
            return None
        with torch.no_grad():
            logits: Tensor = self.maskgit(tokens, conditioning)
        helped = batch.rng.uniform("self-conditioning").to(logits.device) < SELF_CONDITIONED
        return logits * helped[:, None, None]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        target = output["codes"][output["hidden"]]
        loss = token_loss(output["logits"], target, self.config.loss.label_smoothing, self.codebook_smoothing)
        if self.config.model.self_critic and self.config.loss.train_only is None:
            opinion = self.critic_loss(modules, batch, output, step).value
            return Loss(loss.value + opinion, {**loss.parts, "self_critic": opinion})
        return loss

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Is a token the original one, where the generator has made it?"""
        codes, hidden = output["codes"], output["hidden"]
        chances = batch.rng.uniform("critic", codes.shape[1]).to(codes.device)[hidden]
        tokens = codes.masked_scatter(hidden, filters.sample_on_device(output["logits"].detach(), chances))
        if "critic" in modules:
            scores = modules["critic"](tokens, output["conditioning"])
        else:
            scores = modules["maskgit"](tokens, output["conditioning"], scores=True)
        return Loss(score_loss(scores, tokens != codes, hidden))

    # --- validation -------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Loss and accuracy at fixed shares of masked tokens, the same ones every time."""
        rows = self.rows(batch)
        sums: dict[str, Tensor] = {}
        for ratio in RATIOS:
            hidden = masked.training_mask(batch.rng, rows.open, partial(_always, ratio), f"at {ratio}")
            hidden = hidden.to(rows.codes.device)
            tokens, target = rows.codes.masked_fill(hidden, self.maskgit.mask_id), rows.codes[hidden]
            logits = at_least_fp32(modules["maskgit"](tokens, rows.conditioning, where=hidden))
            sums[f"loss/{ratio}"] = F.cross_entropy(logits, target, reduction="sum")
            sums[f"right/{ratio}"] = (logits.argmax(-1) == target).sum().to(logits.dtype)
            sums[f"count/{ratio}"] = hidden.sum().to(logits.dtype)
        return Statistics(sums)

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        figures: dict[str, float] = {}
        for name, kind in (("loss", "loss"), ("accuracy", "right")):
            at = {ratio: float(sums[f"{kind}/{ratio}"] / sums[f"count/{ratio}"]) for ratio in RATIOS}
            figures[name] = sum(at.values()) / len(at)
            figures.update({f"{name}_{ratio:.0%}".replace("%", ""): value for ratio, value in at.items()})
        figures.update({name: float(values.double().mean()) for name, values in statistics.rows.items()})
        return figures


def refuse_untrained(untrained: bool) -> None:
    """Before a critic alone is trained."""
    if untrained:
        raise UsageError(
            "loss.train_only=critic needs a trained generator to judge: --init RUN; in Python, hand over the trained model"
        )


def token_loss(
    logits: Tensor, target: Tensor, label_smoothing: float, codebook_smoothing: CodebookSmoothing | None = None
) -> Loss:
    """Of the codes that were masked, over all processes; with the share that is guessed right."""
    # Also for the comparison: the likeliest of bf16 numbers takes a CPU four times as long to find.
    logits = at_least_fp32(logits)
    if codebook_smoothing is None:
        each = F.cross_entropy(logits, target, reduction="none", label_smoothing=label_smoothing)
    else:
        each = codebook_smoothing.loss(logits.log_softmax(-1), target)
    everything = torch.ones_like(each, dtype=torch.bool)
    right = (logits.argmax(-1) == target).to(each.dtype)
    loss = collectives.mean_over_ranks(each, everything)
    return Loss(loss, {"accuracy": collectives.mean_over_ranks(right, everything)})


def score_loss(scores: Tensor, wrong: Tensor, where: Tensor | None = None) -> Tensor:
    """Of a critic's scores of tokens, against which of them are not the original ones; over all processes."""
    scores = at_least_fp32(scores)
    each = F.binary_cross_entropy_with_logits(scores, wrong.to(scores), reduction="none")
    return collectives.mean_over_ranks(each, torch.ones_like(each, dtype=torch.bool) if where is None else where)


def start_from_codebook(maskgit: MaskGit, tokenizer: Pipeline[Any]) -> None:
    """Codes that look alike start alike, where they have vectors: the model need not learn that from the data."""
    quantizer = tokenizer.model.quantizer
    if quantizer.levels == 1:
        maskgit.init_from_codebook(quantizer.all_vectors())


def _always(share: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, share)
