"""`MaskGitTask`: training and validation of a `MaskGit` and its critic on the codes of any tokenizer.

A family implements `code_rows`, the codes of a batch with their masks, and `conditioning`. Masks are sampled in the
data workers (`maskgit_preparation.py`). Padding is never masked, predicted or scored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.common import collectives
from quintet.common.batch import Batch, Prepare
from quintet.common.precision import as_float64, at_least_fp32
from quintet.common.statistics import Statistics
from quintet.config.masked import MaskGitRunConfig
from quintet.errors import UsageError
from quintet.nn.chunked_loss import ChunkedLoss, chunk_size
from quintet.nn.codebook import CodebookSmoothing, codebook_smoothing
from quintet.nn.losses import code_losses, token_losses
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.nn.preparation import has_texts
from quintet.nn.text import mask_dropped
from quintet.pipelines.base import Pipeline
from quintet.sampling import filters, masked
from quintet.sampling.maskgit_preparation import CodeRows, MaskGitPreparation
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase
from quintet.training.task import Task, Traits

MASK_RATIOS = (0.25, 0.5, 0.75, 1.0)
"""Fractions of masked tokens at which validation measures loss and accuracy."""

ConfigT = TypeVar("ConfigT", bound=MaskGitRunConfig)


class MaskGitTask(Task[ConfigT]):
    """Trains a masked generator, its critic, or both."""

    traits = Traits(best=("loss", "min"), varying_shapes=True, shardable=True)

    maskgit: MaskGit
    is_new: bool
    """Whether the model was built by this task, not passed in."""

    def make_modules(self, tokenizer: Pipeline[Any] | None, modules: Mapping[str, nn.Module] | None) -> None:
        """Build the generator and the critic, unless they are in `modules`, and the phases."""
        modules, config = modules or {}, self.config
        self.is_new = "maskgit" not in modules
        maskgit = modules["maskgit"] if "maskgit" in modules else MaskGit(config.model)
        assert isinstance(maskgit, MaskGit)
        if self.is_new and tokenizer is not None:
            start_from_codebook(maskgit, tokenizer)
        if config.data.cache_dir:
            maskgit.cache_texts(Path(config.data.cache_dir))
        self.maskgit = maskgit
        self.modules = {"maskgit": maskgit}
        if config.loss.critic:
            self.modules["critic"] = modules["critic"] if "critic" in modules else TokenCritic(config.model)
        self.phases = self.make_phases()

    @cached_property
    def codebook_smoothing(self) -> CodebookSmoothing | None:
        """Soft targets over similar codes, computed on first use."""
        spread = self.config.loss.codebook_smoothing
        if not spread:
            return None
        quantizer = self.frozen["tokenizer"].model.quantizer
        return codebook_smoothing([quantizer.all_vectors(level) for level in range(quantizer.levels)], spread)

    @property
    @abstractmethod
    def code_rows(self) -> Callable[[Batch], CodeRows]:
        """The codes of a collated batch as rows, with their masks. Sent to data workers, as `collate` is."""

    @property
    def training_rows(self) -> Callable[[Batch], CodeRows]:
        """The same for training, if it differs."""
        return self.code_rows

    @abstractmethod
    def conditioning(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The conditioning of a batch; the text is dropped in rows where `keep` (batch,) is False."""

    def texts(self, batch: Batch, keep: Tensor | None = None) -> dict[str, Tensor]:
        """The conditioning of the texts of a batch, which the data workers have prepared if no weights are needed."""
        if not batch.is_prepared:
            has_caption = has_texts(batch)
            return self.maskgit.texts(batch["texts"], has_caption if keep is None else keep & has_caption)
        encoder = self.maskgit.text_encoder
        if encoder is None:
            return {}
        if encoder.preparation is not None:
            return {name: batch[name] for name in ("text", "text_mask")}
        texts = self.maskgit.texts(batch["texts"])
        return {**texts, "text_mask": mask_dropped(texts["text_mask"], keep)}

    @property
    def prepare(self) -> Prepare:
        loss, encoder = self.config.loss, self.maskgit.text_encoder
        return MaskGitPreparation(
            self.training_rows,
            self.maskgit.mask_id,
            self.mask_schedule,
            self.cond_drop_prob,
            None if encoder is None else encoder.preparation,
            loss.visible_token_prob,
            loss.random_token_prob,
            self.config.model.self_conditioning,
            loss.critic or self.config.model.self_critic,
        )

    def make_phases(self) -> list[Phase]:
        """The phases of generator and critic. Modules that are not trained get `requires_grad=False`."""
        config, critic = self.config, "critic" if self.config.loss.critic else "maskgit"
        generator = Phase("generator", ("maskgit",), self.generator_loss, config.optim.for_phase())
        critic_phase = Phase("critic", (critic,), self.critic_loss, config.optim.for_phase(config.optim.critic))
        if config.loss.train_only == "critic":
            self.maskgit.requires_grad_(False)
            if self.maskgit.to_score is not None:
                self.maskgit.to_score.requires_grad_(True)
            return [critic_phase]
        if config.loss.train_only == "generator":
            for module in (self.modules.get("critic"), self.maskgit.to_score):
                if module is not None:
                    module.requires_grad_(False)
        elif config.loss.critic:
            return [generator, critic_phase]
        return [generator]

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        if self.config.loss.train_only == "critic":
            refuse_untrained(self.is_new and self.config.init is None)

    @property
    def averaged(self) -> tuple[str, ...]:
        return tuple(self.modules)

    # --- training ---------------------------------------------------------------------------------------------

    def forward(self, modules: Modules, batch: Batch, step: int) -> Output:
        batch = batch.prepared(self.prepare)
        conditioning = self.conditioning(batch, batch["keep_text"])
        if batch["valid_mask"] is not None:
            conditioning["valid_mask"] = batch["valid_mask"]
        tokens, targets = batch["tokens"], batch["targets"]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.config.loss.train_only != "critic"):
            previous = self._own_prediction(batch, tokens, conditioning)
            loss = self._chunked_loss(batch)
            made = modules["maskgit"](tokens, conditioning, where=batch["positions"], previous=previous, loss=loss)
        names = ("hidden", "positions", "targets", "critic_noise")
        known = {name: batch[name] for name in names if name in batch}
        known |= {"logits": made[: len(targets)]} if loss is None else {"losses": made}
        return Output({"codes": batch["code_rows"], "conditioning": conditioning, **known})

    @property
    def cond_drop_prob(self) -> float:
        """The probability with which the text of an item is dropped."""
        return self.config.loss.cond_drop_prob

    @property
    def mask_schedule(self) -> masked.Schedule:
        return masked.MASK_SCHEDULES[self.config.loss.mask_schedule]

    def _own_prediction(self, batch: Batch, tokens: Tensor, conditioning: dict[str, Tensor]) -> Tensor | None:
        """Logits (batch, positions, codes) of a first pass, 0 in rows that train without self-conditioning."""
        if not self.config.model.self_conditioning:
            return None
        with torch.no_grad():
            logits: Tensor = self.maskgit(tokens, conditioning)
        enabled: Tensor = batch["self_conditioned"]
        return logits * enabled[:, None, None]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        loss = self.prediction_loss(output)
        if self.config.model.self_critic and self.config.loss.train_only is None:
            critic_loss = self.critic_loss(modules, batch, output, step).value
            return Loss(loss.value + critic_loss, {**loss.parts, "self_critic": critic_loss})
        return loss

    def prediction_loss(self, output: Output) -> Loss:
        """Cross-entropy of the predicted codes, without a critic."""
        if "losses" in output.values:
            return mean_loss(*output["losses"])
        target, smoothing = output["targets"], self.codebook_smoothing
        levels = self._levels(output["positions"][: len(target)], output["codes"])
        return token_loss(output["logits"], target, self.config.loss.label_smoothing, smoothing, levels)

    def _levels(self, positions: Tensor, codes: Tensor) -> Tensor | int:
        """The level of the codes at flat positions of `codes` (batch, positions), for codebook smoothing."""
        smoothing = self.codebook_smoothing
        if smoothing is None or smoothing.levels == 1:
            return 0
        # The levels of a position follow each other.
        return positions % codes.shape[1] % smoothing.levels

    def _chunked_loss(self, batch: Batch) -> ChunkedLoss | None:
        """The loss chunk by chunk; None if the logits are few, or if a critic samples from them."""
        config, targets = self.config, batch["targets"]
        if config.loss.critic or config.model.self_critic:
            return None
        size = chunk_size(config.loss.logit_chunk, self.maskgit.mask_id, len(targets))
        if size is None:
            return None
        levels = self._levels(batch["positions"][: len(targets)], batch["code_rows"])
        columns = (targets, levels) if isinstance(levels, Tensor) else (targets,)
        smoothing = self.codebook_smoothing
        losses = partial(code_losses, label_smoothing=config.loss.label_smoothing, codebook_smoothing=smoothing)
        return ChunkedLoss(losses, columns, size)

    def critic_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Binary classification of predicted tokens: does a token differ from the original code?"""
        codes, hidden = output["codes"], output["hidden"]
        # In fp32, also if the batch was converted to fp64: the choices do not depend on the precision.
        sampled = filters.sample_on_device(output["logits"].detach(), output["critic_noise"].float())
        tokens = codes.masked_scatter(hidden, sampled)
        if "critic" in modules:
            scores = modules["critic"](tokens, output["conditioning"])
        else:
            scores = modules["maskgit"](tokens, output["conditioning"], scores=True)
        return Loss(score_loss(scores, tokens != codes, hidden))

    # --- validation -------------------------------------------------------------------------------------------

    def measure(self, modules: Modules, batch: Batch) -> Statistics:
        """Loss and accuracy at fixed mask ratios, with the same masks every time."""
        rows, conditioning = self.code_rows(batch), self.conditioning(batch)
        if rows.valid_mask is not None:
            conditioning["valid_mask"] = rows.valid_mask
        sums: dict[str, Tensor] = {}
        for ratio in MASK_RATIOS:
            hidden = masked.training_mask(batch.rng, rows.maskable, partial(_constant, ratio), f"at {ratio}")
            hidden = hidden.to(rows.codes.device)
            tokens, target = rows.codes.masked_fill(hidden, self.maskgit.mask_id), rows.codes[hidden]
            logits = at_least_fp32(modules["maskgit"](tokens, conditioning, where=hidden))
            sums[f"loss/{ratio}"] = F.cross_entropy(logits, target, reduction="sum")
            sums[f"right/{ratio}"] = (logits.argmax(-1) == target).sum().to(logits.dtype)
            sums[f"count/{ratio}"] = hidden.sum().to(logits.dtype)
        return Statistics(sums)

    def summarise(self, statistics: Statistics) -> dict[str, float]:
        sums = statistics.sums
        metrics: dict[str, float] = {}
        for name, kind in (("loss", "loss"), ("accuracy", "right")):
            at = {ratio: float(sums[f"{kind}/{ratio}"] / sums[f"count/{ratio}"]) for ratio in MASK_RATIOS}
            metrics[name] = sum(at.values()) / len(at)
            metrics.update({f"{name}_{ratio:.0%}".replace("%", ""): value for ratio, value in at.items()})
        metrics.update({name: float(as_float64(values).mean()) for name, values in statistics.rows.items()})
        return metrics


def refuse_untrained(untrained: bool) -> None:
    """Raise UsageError if a critic would be trained on an untrained generator."""
    if untrained:
        raise UsageError(
            "loss.train_only=critic needs a trained generator: use --init RUN or, in Python, pass the trained model"
        )


def token_loss(
    logits: Tensor,
    target: Tensor,
    label_smoothing: float,
    codebook_smoothing: CodebookSmoothing | None = None,
    levels: Tensor | int = 0,
) -> Loss:
    """Cross-entropy and accuracy over the masked codes of all ranks.

    `logits` (tokens, codes), `target` (tokens,), `levels` (tokens,) or one level for all."""
    return mean_loss(*token_losses(logits, target, label_smoothing, codebook_smoothing, levels))


def mean_loss(losses: Tensor, right: Tensor) -> Loss:
    """The mean over the tokens of all ranks, and the accuracy."""
    all_tokens = torch.ones_like(losses, dtype=torch.bool)
    loss = collectives.mean_over_ranks(losses, all_tokens)
    return Loss(loss, {"accuracy": collectives.mean_over_ranks(right.to(losses.dtype), all_tokens)})


def score_loss(scores: Tensor, wrong: Tensor, where: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of critic scores over all ranks.

    `scores` and `wrong` (tokens that differ from the originals) have the same shape; `where` selects positions."""
    scores = at_least_fp32(scores)
    each = F.binary_cross_entropy_with_logits(scores, wrong.to(scores), reduction="none")
    return collectives.mean_over_ranks(each, torch.ones_like(each, dtype=torch.bool) if where is None else where)


def start_from_codebook(maskgit: MaskGit, tokenizer: Pipeline[Any]) -> None:
    """Initialise token embeddings from the codebook of a tokenizer with one quantizer, so that similar codes start with
    similar embeddings."""
    quantizer = tokenizer.model.quantizer
    if quantizer.levels == 1:
        maskgit.init_from_codebook(quantizer.all_vectors())


def _constant(ratio: float, progress: Tensor) -> Tensor:
    return torch.full_like(progress, ratio)
