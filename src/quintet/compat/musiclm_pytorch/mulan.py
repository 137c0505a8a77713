"""`MuLaN` of musiclm-pytorch: quintet's `MuLaN` with the loss of its recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.statistics import Statistics
from quintet.compat.model import CompatModel, TrainingParts
from quintet.compat.musiclm_pytorch.towers import (
    AudioSpectrogramTransformer,
    TextTransformer,
    checked_waves,
    with_layers,
)
from quintet.errors import UsageError
from quintet.families.mulan.config import MuLaNConfig
from quintet.families.mulan.model import MuLaN as OwnMuLaN
from quintet.families.mulan.model import Vectors
from quintet.families.mulan.task import MuLaNTask
from quintet.families.mulan.towers import AudioSpectrogramTransformer as OwnAudioTransformer
from quintet.training.phase import Output

INITIAL_TEMPERATURE = 0.1


class MuLaN(CompatModel):
    """A joint embedding of waveforms (batch, samples) and texts: token ids (batch, length) or raw texts.

    `forward` returns the contrastive loss. Training passes are augmented, as in the original; eval passes are not.
    """

    config_class = MuLaNConfig
    task_class = MuLaNTask

    def __init__(
        self,
        audio_transformer: AudioSpectrogramTransformer,
        text_transformer: TextTransformer,
        dim_latent: int = 128,
        decoupled_contrastive_learning: bool = True,
        hierarchical_contrastive_loss: bool = False,
        hierarchical_contrastive_loss_layers: int | None = None,
        sigmoid_contrastive_loss: bool = False,
    ) -> None:
        super().__init__()
        for tower, kind in ((audio_transformer, AudioSpectrogramTransformer), (text_transformer, TextTransformer)):
            if not isinstance(tower, kind):
                raise UsageError(f"MuLaN takes a {kind.__name__} of this package, not a {type(tower).__name__}")
        layers = hierarchical_contrastive_loss_layers or min(audio_transformer.depth, text_transformer.depth) - 1
        softmax = "decoupled" if decoupled_contrastive_learning else "softmax"
        # In a tuple, so that the weights of the towers are in the state once, as those of `model`.
        self._towers = audio_transformer, text_transformer
        self.model = OwnMuLaN(
            audio_transformer=audio_transformer.model,
            text_transformer=text_transformer.model,
            latent_dim=dim_latent,
            contrastive_loss="sigmoid" if sigmoid_contrastive_loss else softmax,
            temperature=INITIAL_TEMPERATURE,
            intermediate_losses=layers if hierarchical_contrastive_loss else 0,
        )
        self.dim_latent = dim_latent

    @property
    def audio(self) -> AudioSpectrogramTransformer:
        return self._towers[0]

    @property
    def text(self) -> TextTransformer:
        return self._towers[1]

    def training_parts(self) -> TrainingParts:
        """The original trains on complete captions."""
        keys = {"data.word_dropout": 0.0, "data.seconds": self.model.config.audio.max_seconds}
        return TrainingParts(self.model, keys=keys, trained=self._initialised)

    def get_audio_latents(self, wavs: Tensor, return_all_layers: bool = False) -> Any:
        """Unit embeddings (batch, dim_latent); with `return_all_layers` also the states of all blocks but the last."""
        waves, lengths = checked_waves(wavs, self.audio)
        noise = self.audio.new_noise(len(wavs))
        tower = self.model.audio
        assert isinstance(tower, OwnAudioTransformer)
        states, layers = with_layers(tower.transformer, lambda: tower(waves, lengths, noise))
        latents = F.normalize(self.model.audio_to_latent[-1](states[:, -1]), dim=-1)
        return (latents, layers) if return_all_layers else latents

    def get_text_latents(
        self, texts: Tensor | None = None, raw_texts: Sequence[str] | None = None, return_all_layers: bool = False
    ) -> Any:
        """Unit embeddings (batch, dim_latent); with `return_all_layers` also the states of all blocks but the last."""
        states, layers = self.text(texts, raw_texts, return_all_layers=True)
        latents = F.normalize(self.model.text_to_latent[-1](states), dim=-1)
        return (latents, layers) if return_all_layers else latents

    def forward(
        self,
        wavs: Tensor,
        texts: Tensor | None = None,
        raw_texts: Sequence[str] | None = None,
        return_latents: bool = False,
        return_similarities: bool = False,
        return_pairwise_similarities: bool = False,
    ) -> Any:
        """The contrastive loss, or the latents of both, their similarities (batch,), or those of all pairs."""
        if return_latents or return_similarities or return_pairwise_similarities:
            audio, text = self.get_audio_latents(wavs), self.get_text_latents(texts, raw_texts)
            if return_latents:
                return audio, text
            return (audio * text).sum(-1) if return_similarities else audio @ text.t()
        if len(wavs) < 2:
            raise UsageError("MuLaN needs at least two clips: a contrastive loss compares the items of a batch")
        waves, lengths = checked_waves(wavs, self.audio)
        fields = {"wavs": waves, "lengths": lengths, **self.text.fields(texts, raw_texts)}
        if not self.training:
            return self._eval_loss(self.make_batch(fields, len(waves)))
        # The limit of the learned temperature, which quintet's trainer applies after a step.
        self.task.after_step(Statistics(), self._calls)
        return self.phase_loss("mulan", self.forward_pass(fields, len(waves))).value

    def _eval_loss(self, batch: Batch) -> Tensor:
        """The loss without augmentation."""
        task = self.task
        assert isinstance(task, MuLaNTask)
        vectors: Vectors = self.model(batch["wavs"], batch["lengths"], *task.prepared_texts(batch), None)
        rows = {"audio": vectors.audio, "text": vectors.text}
        output = Output({"rows": rows, "shared": {"scale": vectors.scale, "bias": vectors.bias}})
        return task.loss(task.modules, batch, output, 0).value
