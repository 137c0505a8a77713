"""The keys of the recipe `mulan`. Imports no torch, so that help is quick."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from quintet.config import EvalConfig, RunConfig, Section, WindowedAudioDataConfig
from quintet.config.presets import BASE, DEBUG, SMALL, preset
from quintet.config.text import PRETRAINED

TOKENS = "tokens:"
"""Before the folder of a tokenizer."""


class TowerConfig(Section):
    """The transformer of a tower."""

    dim: int = Field(256, ge=16, multiple_of=8, description="Width.")
    depth: int = Field(4, ge=1, le=64, description="Blocks.")
    heads: int = Field(4, ge=1, description="Attention heads.")
    head_dim: int = Field(64, ge=8, multiple_of=4, description="Width of a head.")
    ff_mult: float = Field(4.0, gt=0, description="Weights of a feed-forward layer, in squares of the width / 2.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout of each branch.")


class AudioTowerConfig(TowerConfig):
    """The tower of sound; the keyword arguments of `AudioSpectrogramTransformer`."""

    sample_rate: int = Field(16_000, ge=1000, le=384_000, description="Samples a second; files are resampled to it.")
    n_fft: int = Field(1024, ge=16, description="Samples of a window of the spectrogram.")
    hop_length: int = Field(160, gt=0, description="Samples from one window to the next.")
    n_mels: int = Field(64, ge=8, description="Bins of the spectrogram, on the mel scale.")
    patch_size: int = Field(16, ge=1, description="Side of a patch, in bins and in windows.")
    max_seconds: float = Field(10.0, gt=0, description="Longest window of sound; longer clips come as several.")
    patch_dropout: float = Field(0.25, ge=0, lt=1, description="Share of the patches left out in training.")
    frequency_mask: int = Field(16, ge=0, description="Widest band of bins that is silenced in training; 0: none.")
    time_mask: int = Field(32, ge=0, description="Longest stretch of windows that is silenced in training; 0: none.")

    @model_validator(mode="after")
    def _patches_fit(self) -> AudioTowerConfig:
        if self.n_mels % self.patch_size:
            raise ValueError(
                f"model.audio.n_mels={self.n_mels} is not a multiple of model.audio.patch_size={self.patch_size}"
            )
        if self.frequency_mask > self.n_mels // 2:
            raise ValueError(
                f"model.audio.frequency_mask={self.frequency_mask} could silence more than half of "
                f"model.audio.n_mels={self.n_mels}"
            )
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Patches over the bins and over the longest window."""
        frames = int(self.sample_rate * self.max_seconds) // self.hop_length + 1
        return self.n_mels // self.patch_size, -(-frames // self.patch_size)


class TextTowerConfig(TowerConfig):
    """The tower of text; the keyword arguments of `TextTransformer`."""

    encoder: str = Field(
        "bytes",
        description="What a text is read as: bytes; tokens:FOLDER, of a tokenizer of transformers; hf:PATH_OR_NAME, "
        "what a frozen encoder of transformers makes of it.",
    )
    vocab_size: int | None = Field(
        None, ge=2, description="Symbols of the text; none: those of bytes, or of the tokenizer."
    )
    max_length: int = Field(128, ge=8, le=4096, description="Longest text, in bytes or tokens; longer ones are cut.")

    @field_validator("encoder")
    @classmethod
    def _known_reader(cls, reads: str) -> str:
        named = any(reads.startswith(kind) and reads.removeprefix(kind).strip() for kind in (TOKENS, PRETRAINED))
        if reads != "bytes" and not named:
            raise ValueError("choose bytes, tokens:FOLDER, or hf:PATH_OR_NAME")
        return reads


class MuLaNModelConfig(Section):
    """Both towers and the space they share; the keyword arguments of `MuLaN`."""

    audio: AudioTowerConfig = Field(default_factory=AudioTowerConfig, description="The tower of sound.")
    text: TextTowerConfig = Field(default_factory=TextTowerConfig, description="The tower of text.")
    latent_dim: int = Field(128, ge=2, description="Dimensions of the space both share.")
    contrastive_loss: Literal["softmax", "decoupled", "sigmoid"] = Field(
        "softmax",
        description="What is asked of a batch: softmax, which of all captions is a clip's, and the other way round; "
        "decoupled, the same without the right one among the wrong; sigmoid, of every pair, whether it is one.",
    )
    temperature: float = Field(0.1, gt=0, le=10, description="By which similarities are divided at the start.")
    min_temperature: float = Field(0.01, gt=0, description="The least that training may bring it to.")
    intermediate_losses: int = Field(
        0, ge=0, description="Evenly spaced blocks of both towers that the loss is asked of too, each by itself."
    )
    num_quantizers: int = Field(
        0, ge=0, le=64, description="Levels of a residual quantizer of the shared space, for generators; 0: none."
    )
    codebook_size: int = Field(1024, ge=2, description="Codes of each of its levels.")

    @model_validator(mode="after")
    def _middle_exists(self) -> MuLaNModelConfig:
        shallower = min(self.audio.depth, self.text.depth)
        if self.intermediate_losses >= shallower:
            raise ValueError(
                f"model.intermediate_losses={self.intermediate_losses} needs towers of more than that many blocks, not {shallower}"
            )
        return self


class MuLaNDataConfig(WindowedAudioDataConfig):
    """Clips and their captions."""

    word_dropout: float = Field(
        0.8, ge=0, le=1, description="Most of a training caption's words that may be left out; half of them stay whole."
    )
    allow_missing_captions: bool = Field(False, description="Train on clips without a caption too.")


class MuLaNEvalConfig(EvalConfig):
    """Validation: of every caption, at which place its clip is found."""

    batches: int | None = Field(None, gt=0, description="Validation batches while training; none: all.")
    distinct_captions: int = Field(
        0, ge=0, description="Search among the first so many clips of different captions; 0: among all clips."
    )
    zero_shot_labels: tuple[str, ...] = Field(
        (),
        description="Words to tell clips by, without having been trained to: a clip's own is the one in its caption.",
    )
    zero_shot_template: str = Field("{}", description="The text that a label stands in, such as 'the sound of a {}'.")

    @field_validator("zero_shot_template")
    @classmethod
    def _has_a_place(cls, prompt: str) -> str:
        if "{}" not in prompt:
            raise ValueError("needs {}, where the label goes")
        return prompt


class MuLaNConfig(RunConfig):
    PRESETS: ClassVar = {
        "debug": preset(
            DEBUG,
            model={tower: {"dim": 32, "depth": 2, "heads": 2, "head_dim": 16} for tower in ("audio", "text")}
            | {"latent_dim": 16},
            data={"seconds": 1.0},
            sample={"num": 8},
        ),
        # Two CPU cores, minutes.
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
    }

    recipe: Literal["mulan"] = Field("mulan", description="What is trained.")
    data: MuLaNDataConfig = Field(default_factory=MuLaNDataConfig, description="The files.")
    model: MuLaNModelConfig = Field(default_factory=MuLaNModelConfig, description="The two towers.")
    eval: MuLaNEvalConfig = Field(default_factory=MuLaNEvalConfig, description="Validation.")
