"""Training tasks of tokenizers, and codebook metrics.

`TokenizerTask` trains any tokenizer. `GanTokenizerTask` adds a discriminator: two phases on one forward pass.
`PatchGanTask` is a `GanTokenizerTask` for images and video frames, with a `PatchDiscriminator` and pixel losses.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from quintet.common.batch import Batch, Collate
from quintet.common.rng import seed_from
from quintet.common.statistics import Statistics
from quintet.config import RunConfig
from quintet.config.adversarial import AdversarialLossConfig, ImageLossConfig
from quintet.data.splits import Splits
from quintet.nn.adversarial import PatchDiscriminator, hinge_generator_loss, patch_loss
from quintet.nn.perceptual import PerceptualLoss
from quintet.nn.quantize import perplexity, usage
from quintet.pipelines.base import Frozen, Tokenizer, as_tokenizer
from quintet.training.engine import Engine
from quintet.training.phase import Loss, Modules, Output, Phase, frozen
from quintet.training.task import Task, Traits

PIXEL_METRICS = ("psnr", "ssim", "reconstruction_loss")

ConfigT = TypeVar("ConfigT", bound=RunConfig)


class TokenizerTask(Task[ConfigT]):
    """Trains a tokenizer with a `quantizer`: initialises its codebook from data and revives dead codes."""

    revive_every: ClassVar[int] = 50
    """Steps between two revivals of dead codes. Candidate vectors are gathered only at these steps."""

    model: Any
    """The trained tokenizer."""

    def __init__(self, config: ConfigT, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen)
        self.modules = dict(modules or self.pipeline_class.build_modules(self.config, self.frozen))
        self.model = self.modules[self.pipeline_class.exported]
        self.phases = self.make_phases() if self.trainable else []

    @property
    def trainable(self) -> bool:
        """Whether the tokenizer has trainable weights."""
        return True

    def splits(self) -> Splits:
        return self._tokenizer.splits()

    @property
    def collate(self) -> Collate:
        return self._tokenizer.collate

    @property
    def _tokenizer(self) -> Tokenizer[ConfigT]:
        return as_tokenizer(self.pipeline(self.modules))

    @abstractmethod
    def make_phases(self) -> list[Phase]:
        """The phase of the tokenizer, and phases of other trained modules, which are added to `modules`."""

    @abstractmethod
    def latents(self, batch: Batch) -> Tensor:
        """The input vectors of the quantizer, (..., dim), without padding."""

    def init_from_data(self, modules: Modules, batches: Iterable[Batch], engine: Engine) -> None:
        """Initialise a vector codebook from the latents of the first batches."""
        with torch.no_grad():
            reports = [Statistics(rows={"latents": self.latents(batch)}) for batch in batches]
        latents = sum(reports, Statistics()).over_ranks().rows["latents"]
        self.model.quantizer.init_from_data(latents, seed_from(self.config.train.seed, "codebook"))

    def after_step(self, statistics: Statistics, step: int) -> None:
        self.model.quantizer.update(
            statistics.strip_prefix("quantizer"), seed_from(self.config.train.seed, step, "revival")
        )


class GanTokenizerTask(TokenizerTask[ConfigT]):
    """Trains a tokenizer, with a discriminator if `loss.discriminator` is set."""

    loss: AdversarialLossConfig

    def make_phases(self) -> list[Phase]:
        keys: Any = self.config
        self.loss = keys.loss
        phases = [Phase("generator", (self.pipeline_class.exported,), self.generator_loss, keys.optim.for_phase())]
        if self.loss.discriminator:
            if "discriminator" not in self.modules:
                self.modules["discriminator"] = self.make_discriminator()
            optim = keys.optim.for_phase(keys.optim.discriminator)
            names = ("discriminator",)
            phases.append(Phase("discriminator", names, self.discriminator_loss, optim, self.loss.is_adversarial))
        return phases

    @property
    def discriminator(self) -> Any:
        return self.modules["discriminator"]

    @abstractmethod
    def make_discriminator(self) -> nn.Module:
        """Build the discriminator, which classifies media as real or reconstructed."""

    @abstractmethod
    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Loss of the tokenizer. Uses the unwrapped discriminator with frozen parameters."""

    @abstractmethod
    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        """Loss of the discriminator, on real media and detached reconstructions."""


class PatchGanTask(GanTokenizerTask[ConfigT]):
    """Trains a tokenizer of images or video frames against a `PatchDiscriminator`.

    The output of `forward` contains the inputs of the discriminator, `real` and `fake` (batch, channels, height,
    width), and `result`, the output of the tokenizer, which has the `loss` of the quantizer.
    """

    # The gradient penalty of the discriminator needs second derivatives.
    traits = Traits(best=("psnr", "max"), uncompiled=frozenset({"discriminator"}), takes_gradients=True)
    loss: ImageLossConfig

    def __init__(self, config: ConfigT, frozen: Frozen | None = None, modules: Modules | None = None) -> None:
        super().__init__(config, frozen, modules)
        keys: Any = self.config
        weights = keys.loss.perceptual_weights
        self.perceptual = PerceptualLoss(Path(weights)) if weights else None

    def make_discriminator(self) -> nn.Module:
        loss, shape = self.loss, self.model.config
        return PatchDiscriminator(shape.channels, loss.discriminator_dim, loss.discriminator_layers, min(shape.size))

    @abstractmethod
    def reconstruction_loss(self, batch: Batch, output: Output) -> tuple[Tensor, dict[str, Tensor]]:
        """The reconstruction loss and its parts."""

    def add_perceptual(self, loss: Tensor, parts: dict[str, Tensor], fake: Tensor, real: Tensor) -> Tensor:
        """Add the perceptual loss of images (batch, channels, height, width) to `loss` and `parts`, if enabled."""
        if self.perceptual is None:
            return loss
        parts["perceptual"] = self.perceptual.to(real.device, real.dtype)(fake.to(real.dtype), real)
        return loss + self.loss.perceptual * parts["perceptual"]

    def generator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        reconstruction, parts = self.reconstruction_loss(batch, output)
        parts["quantizer"] = output["result"].loss
        if self.loss.is_adversarial(step):
            loss, adversarial = self.adversarial_loss(reconstruction, output, step)
            return Loss(loss, {**parts, **adversarial})
        return Loss(reconstruction + parts["quantizer"], parts)

    def adversarial_loss(self, reconstruction: Tensor, output: Output, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The total loss of the tokenizer, and the adversarial parts of it."""
        adversarial = self.hinge_loss(output["fake"])
        weight = self.loss.adversarial * self.loss.adversarial_ramp(step)
        return reconstruction + output["result"].loss + weight * adversarial, {"adversarial": adversarial}

    def hinge_loss(self, fake: Tensor) -> Tensor:
        with frozen(self.discriminator) as discriminator:
            return hinge_generator_loss(discriminator(fake))

    def discriminator_loss(self, modules: Modules, batch: Batch, output: Output, step: int) -> Loss:
        return self.discriminator_loss_of(modules, output, self.loss.has_gradient_penalty(step))

    def discriminator_loss_of(self, modules: Modules, output: Output, penalised: bool) -> Loss:
        """The loss of the discriminator, with the gradient penalty if `penalised`."""
        loss, parts, logits = patch_loss(modules["discriminator"], output["real"], output["fake"], penalised)
        loss, statistics = self.regularise(loss, parts, *logits)
        return Loss(loss + self.loss.gradient_penalty * parts["penalty"] if penalised else loss, parts, statistics)

    def regularise(
        self, loss: Tensor, parts: dict[str, Tensor], real_logits: Tensor, fake_logits: Tensor
    ) -> tuple[Tensor, Statistics]:
        """Hook for regularisers: returns the discriminator loss with extra terms, and statistics for `after_step`."""
        return loss, Statistics()


def mean_metrics(sums: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, float]:
    """Means over the validation items, from the sums and the `count` that `measure` returned."""
    return {name: float(sums[name] / sums["count"]) for name in names}


def count_codes(codes: Tensor, num_codes: int, num_quantizers: int) -> Tensor:
    """Count how often each quantizer uses each code, (num_quantizers, num_codes).

    `codes` is (..., num_quantizers); negative codes are padding and are not counted."""
    by_quantizer = codes.reshape(-1, num_quantizers).T
    return torch.stack([torch.bincount(column[column >= 0], minlength=num_codes) for column in by_quantizer])


def codebook_metrics(counts: Tensor) -> dict[str, float]:
    """Codebook usage and perplexity, from counts (num_quantizers, num_codes); means over the quantizers."""
    return {
        "codebook_usage": float(torch.stack([usage(row) for row in counts]).mean()),
        "codebook_perplexity": float(torch.stack([perplexity(row) for row in counts]).mean()),
    }
