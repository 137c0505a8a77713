"""Configuration keys of the recipe `mulan`. Does not import torch, so that `--help` is fast."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import EvalConfig, RunConfig, Section, WindowedAudioDataConfig
from quintet.config.presets import BASE, DEBUG, FEW, SMALL, preset
from quintet.config.text import PRETRAINED

SPECTROGRAM = "spectrogram"
TOKENS = "tokens:"
"""Prefix of the folder of a tokenizer."""


class TowerConfig(Section):
    """The transformer of a tower."""

    dim: int = Field(256, ge=16, multiple_of=8, description="Hidden dimension of the transformer.")
    depth: int = Field(4, ge=1, le=64, description="Number of transformer blocks.")
    heads: int = Field(4, ge=1, description="Number of attention heads.")
    head_dim: int = Field(64, ge=8, multiple_of=4, description="Dimension of each attention head.")
    ff_mult: float = Field(4.0, gt=0, description="Feed-forward expansion factor.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of the output of each residual branch.")


class AudioTowerConfig(TowerConfig):
    """The audio tower; its keys are the keyword arguments of `AudioSpectrogramTransformer`."""

    encoder: str = Field(
        SPECTROGRAM,
        description="Audio tower: spectrogram (a transformer over log-mel patches, trained), or hf:PATH_OR_NAME, a "
        "frozen audio encoder of transformers (CLAP, WavLM, HuBERT, wav2vec 2.0), under a projection to "
        "model.audio.dim, which alone is trained; then the keys of transformer, spectrogram and augmentation have no "
        "effect.",
    )
    encoder_hash: str | None = Field(
        None, description="SHA-256 of the files of the frozen audio encoder, recorded when the run starts."
    )
    sample_rate: int = Field(16_000, ge=1000, le=384_000, description="Sampling rate in Hz; files are resampled to it.")
    n_fft: int = Field(1024, ge=16, description="STFT window length of the spectrogram, in samples.")
    hop_length: int = Field(160, gt=0, description="STFT hop length, in samples.")
    n_mels: int = Field(64, ge=8, description="Number of mel bins of the spectrogram.")
    patch_size: int = Field(16, ge=1, description="Side of a square patch, in mel bins and spectrogram frames.")
    max_seconds: float = Field(
        10.0, gt=0, description="Maximum length of a window, in seconds; longer clips are split into windows."
    )
    patch_dropout: float = Field(0.25, ge=0, lt=1, description="Fraction of the patches dropped in training.")
    frequency_mask: int = Field(
        16, ge=0, description="SpecAugment: maximum width of the masked frequency band, in mel bins; 0 disables it."
    )
    time_mask: int = Field(
        32, ge=0, description="SpecAugment: maximum length of the masked time span, in frames; 0 disables it."
    )

    @model_validator(mode="after")
    def _patches_fit(self) -> AudioTowerConfig:
        if self.n_mels % self.patch_size:
            raise ValueError(
                f"model.audio.n_mels={self.n_mels} is not a multiple of model.audio.patch_size={self.patch_size}"
            )
        if self.frequency_mask > self.n_mels // 2:
            raise ValueError(
                f"model.audio.frequency_mask={self.frequency_mask} could mask more than half of "
                f"model.audio.n_mels={self.n_mels}"
            )
        return self

    @field_validator("encoder")
    @classmethod
    def _known_encoder(cls, encoder: str) -> str:
        if encoder != SPECTROGRAM and not (encoder.startswith(PRETRAINED) and encoder.removeprefix(PRETRAINED).strip()):
            raise ValueError("choose spectrogram, or hf:PATH_OR_NAME")
        return encoder

    @property
    def is_frozen(self) -> bool:
        """Whether the tower is a frozen encoder under a projection."""
        return self.encoder != SPECTROGRAM

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches of a window of `max_seconds`."""
        frames = int(self.sample_rate * self.max_seconds) // self.hop_length + 1
        return self.n_mels // self.patch_size, -(-frames // self.patch_size)


class TextTowerConfig(TowerConfig):
    """The text tower; its keys are the keyword arguments of `TextTransformer`."""

    encoder: str = Field(
        "bytes",
        description="Input of the text tower: bytes; tokens:FOLDER, tokens of a transformers tokenizer; "
        "hf:PATH_OR_NAME, hidden states of a frozen transformers text encoder.",
    )
    vocab_size: int | None = Field(
        None, ge=2, description="Vocabulary size; null takes that of bytes, or of the tokenizer."
    )
    max_length: int = Field(
        128, ge=8, le=4096, description="Maximum length of a text, in bytes or tokens; longer texts are truncated."
    )

    @field_validator("encoder")
    @classmethod
    def _known_encoder(cls, encoder: str) -> str:
        named = any(encoder.startswith(kind) and encoder.removeprefix(kind).strip() for kind in (TOKENS, PRETRAINED))
        if encoder != "bytes" and not named:
            raise ValueError("choose bytes, tokens:FOLDER, or hf:PATH_OR_NAME")
        return encoder


class MuLaNModelConfig(Section):
    """Both towers and the joint embedding space; its keys are the keyword arguments of `MuLaN`."""

    audio: AudioTowerConfig = Field(default_factory=AudioTowerConfig, description="The audio tower.")
    text: TextTowerConfig = Field(default_factory=TextTowerConfig, description="The text tower.")
    latent_dim: int = Field(128, ge=2, description="Dimension of the joint embedding space.")
    contrastive_loss: Literal["softmax", "decoupled", "sigmoid"] = Field(
        "softmax",
        description="Contrastive loss: softmax (InfoNCE, both directions), decoupled (DCL), or sigmoid (SigLIP).",
    )
    temperature: float = Field(0.1, gt=0, le=10, description="Initial temperature of the contrastive loss.")
    min_temperature: float = Field(0.01, gt=0, description="Lower limit of the learned temperature.")
    intermediate_losses: int = Field(
        0, ge=0, description="Number of intermediate blocks, evenly spaced in both towers, with a contrastive loss too."
    )
    num_quantizers: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of residual quantizers of the embedding space, for generators; 0 disables it.",
    )
    codebook_size: int = Field(1024, ge=2, description="Number of codes of each quantizer.")

    @model_validator(mode="after")
    def _check_intermediate_losses(self) -> MuLaNModelConfig:
        if self.audio.is_frozen and self.intermediate_losses:
            raise ValueError(
                f"model.audio.encoder={self.audio.encoder} has no blocks for model.intermediate_losses; set it to 0"
            )
        shallower = min(self.audio.depth, self.text.depth)
        if self.intermediate_losses >= shallower:
            raise ValueError(
                f"model.intermediate_losses={self.intermediate_losses} must be smaller than the depth of both towers "
                f"({shallower})"
            )
        return self


class MuLaNDataConfig(WindowedAudioDataConfig):
    """Captioned audio clips."""

    word_dropout: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Maximum fraction of words dropped from a training caption; half of the captions stay complete.",
    )
    text_swap_prob: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Fraction of training captions with a hard negative: the caption with a part of another caption of "
        "its micro-batch, which the clip must not be similar to; 0 disables it.",
    )
    allow_missing_captions: bool = Field(False, description="Train even if some items have no caption.")


class MuLaNEvalConfig(EvalConfig):
    """Validation: retrieval of clips by captions, and zero-shot classification."""

    batches: int | None = Field(None, gt=0, description="Validation batches during training; null uses all.")
    distinct_captions: int = Field(
        0, ge=0, description="Retrieve among the first N clips with distinct captions; 0 retrieves among all clips."
    )
    zero_shot_labels: tuple[str, ...] = Field(
        (),
        description="Labels for zero-shot classification; the label of a clip is the one its caption contains.",
    )
    zero_shot_template: str = Field(
        "{}", description="Text template for the labels; {} is replaced by the label, as in 'the sound of a {}'."
    )

    @field_validator("zero_shot_template")
    @classmethod
    def _has_placeholder(cls, template: str) -> str:
        if "{}" not in template:
            raise ValueError("must contain {}, the placeholder of the label")
        return template


class MuLaNConfig(RunConfig):
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG,
            model={tower: {"dim": 32, "depth": 2, "heads": 2, "head_dim": 16} for tower in ("audio", "text")}
            | {"latent_dim": 16},
            data={"seconds": 1.0},
            sample={"num": 8},
        ),
        # For two CPU cores.
        "small": preset(
            SMALL,
            model={
                "audio": {"dim": 128, "depth": 4, "head_dim": 32},
                "text": {"dim": 128, "depth": 3, "head_dim": 32},
            },
            data={"seconds": 4.0},
            train={"steps": 4000, "batch_size": 64},
            optim={"lr": 1e-3, "warmup_steps": 200, "max_grad_norm": 1.0},
        ),
        "base": preset(
            BASE,
            model={
                "audio": {"dim": 768, "depth": 12, "heads": 12, "n_mels": 128},
                "text": {"dim": 768, "depth": 12, "heads": 12, "max_length": 512},
            },
            data={"seconds": 10.0},
            train={"steps": 200_000, "batch_size": 2048},
            optim={"lr": 5e-4, "warmup_steps": 2000, "weight_decay": 0.1, "max_grad_norm": 1.0},
        ),
        # The other clips of a batch are the wrong answers of a caption, so a batch of 16 would be too easy.
        "few": preset(
            FEW,
            model={"audio": {"dropout": 0.1}, "text": {"dropout": 0.1}},
            train={"batch_size": 64},
            optim={"weight_decay": 0.1},
        ),
    }

    recipe: Literal["mulan"] = Field("mulan", description="Recipe of the run.")
    data: MuLaNDataConfig = Field(default_factory=MuLaNDataConfig, description="Training data.")
    model: MuLaNModelConfig = Field(default_factory=MuLaNModelConfig, description="The two towers.")
    eval: MuLaNEvalConfig = Field(default_factory=MuLaNEvalConfig, description="Validation.")
