"""Configuration keys of masked-token recipes: decoding, and training a `MaskGit`. Imports no torch, so that help is
quick."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from quintet.config import LOGIT_CHUNK, LogitChunk, OptimConfig, PhaseOptimConfig, RunConfig, SampleConfig, Section
from quintet.config.text import TextConfig


class MaskGitConfig(TextConfig):
    """A masked transformer (MaskGIT) over a grid of tokens."""

    grid: tuple[int, ...] | None = Field(
        None, description="Size of the token grid along each axis; null takes it from the tokenizer."
    )
    num_codes: int | None = Field(
        None, gt=1, description="Number of codes (vocabulary size); null takes it from the tokenizer."
    )
    low_res_grid: tuple[int, ...] | None = Field(
        None,
        description="Super-resolution: size of the low-resolution token grid along each axis; "
        "null for a model that is not a super-resolution model.",
    )
    low_res_num_codes: int | None = Field(
        None,
        gt=1,
        description="Super-resolution: number of codes (vocabulary size) of the low-resolution tokens; "
        "null for a model that is not a super-resolution model.",
    )
    dim: int = Field(256, ge=16, le=16_384, multiple_of=8, description="Hidden dimension of the transformer.")
    depth: int = Field(6, ge=1, le=256, description="Number of transformer blocks.")
    heads: int = Field(8, ge=1, description="Number of attention heads; must divide `model.dim`.")
    code_patch_size: tuple[int, ...] | Literal["auto"] | None = Field(
        None,
        description="Group neighbouring codes into patches of this size along each axis, one transformer position per "
        "patch (for example [1,2,2] for video), which reduces computation; auto: two rows and two columns where they "
        "divide the grid, with all residual quantizers; null uses one position per code.",
    )
    rotary: bool = Field(False, description="Add rotary position embeddings (RoPE) to queries and keys.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Dropout probability of the output of each residual branch.")
    self_conditioning: bool = Field(
        False, description="Self-conditioning: feed the prediction of the previous step back as input."
    )
    self_critic: bool = Field(
        False, description="Self-critic: add a head to the generator that scores tokens for re-masking."
    )

    @field_validator("low_res_grid")
    @classmethod
    def _check_grid(cls, grid: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if grid is not None and (len(grid) not in (2, 3) or min(grid) < 1):
            raise ValueError("give rows and columns, and for a residual quantizer also the number of quantizers")
        return grid

    @model_validator(mode="after")
    def _check_sizes(self) -> MaskGitConfig:
        if self.dim % self.heads:
            raise ValueError(f"model.heads={self.heads} does not divide model.dim={self.dim}")
        if (self.low_res_grid is None) != (self.low_res_num_codes is None):
            raise ValueError("set both model.low_res_grid and model.low_res_num_codes, or neither")
        if isinstance(self.code_patch_size, tuple) and self.grid is not None:
            fits = len(self.code_patch_size) == len(self.grid) and min(self.code_patch_size) > 0
            if not fits or any(size % step for size, step in zip(self.grid, self.code_patch_size, strict=True)):
                raise ValueError(
                    f"model.code_patch_size={list(self.code_patch_size)} does not divide "
                    f"model.grid={list(self.grid)}; set another size, or null"
                )
        if self.low_res_grid is not None and self.grid is not None and len(self.grid) not in (2, 3):
            raise ValueError(f"a super-resolution model needs a model.grid of rows and columns, not {self.grid}")
        return self


class MaskedSampleConfig(SampleConfig):
    """Decoding of masked tokens."""

    guidance_scale: float = Field(1.0, ge=0, description="Classifier-free guidance scale; 1 disables guidance.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "constant", description="Schedule of the guidance scale over the decoding steps; falling decreases linearly."
    )
    temperature: float = Field(1.0, ge=0, description="Temperature of token sampling; 0 takes the most likely token.")
    temperature_schedule: Literal["constant", "linear"] = Field(
        "constant", description="Schedule of the temperature over the decoding steps; linear decreases to 0."
    )
    choice_temperature: float = Field(
        4.5,
        ge=0,
        description="Temperature of the noise in choosing which tokens a step keeps; decreases to 0.",
    )
    top_p: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Sample from the most likely codes of this total probability; null uses all codes.",
    )
    remask_kept: bool = Field(
        False,
        description="Let every step mask tokens again that an earlier step kept, if they became unlikely; needs a "
        "model trained with loss.visible_token_prob, and has no effect with a critic, which always does so.",
    )
    guidance_projection: bool = Field(
        False,
        description="Projected guidance: remove the part of the guidance that is parallel to the conditional logits, "
        "which makes them more extreme instead of steering them.",
    )


class MaskGitSampleConfig(MaskedSampleConfig):
    steps: int = Field(18, ge=1, le=1000, description="Number of decoding steps.")
    guidance_scale: float = Field(3.0, ge=0, description="Classifier-free guidance scale; 1 disables guidance.")
    guidance_schedule: Literal["constant", "linear", "cosine", "falling"] = Field(
        "linear", description="Schedule of the guidance scale over the decoding steps; falling decreases linearly."
    )
    top_k: int | None = Field(None, ge=1, description="Sample from the K most likely codes; null uses all codes.")


class CorruptionConfig(Section):
    """What the model sees at the tokens that it predicts in training, besides the mask token (as in BERT)."""

    visible_token_prob: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of the predicted tokens that stay visible in training, so that the model can judge "
        "visible tokens, too; 0 masks them all.",
    )
    random_token_prob: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of the predicted tokens that are replaced by a random code in training; 0 replaces none.",
    )

    @model_validator(mode="after")
    def _check_corruption(self) -> Self:
        if self.visible_token_prob + self.random_token_prob >= 1:
            raise ValueError("loss.visible_token_prob and loss.random_token_prob must add up to less than 1")
        return self


class MaskGitLossConfig(CorruptionConfig):
    """Losses of a masked transformer."""

    mask_schedule: Literal["cosine", "linear"] = Field(
        "cosine", description="Schedule that the fraction of masked tokens is sampled from."
    )
    cond_drop_prob: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Probability of dropping the text of a training item, for classifier-free guidance.",
    )
    label_smoothing: float = Field(
        0.1, ge=0, lt=1, description="Label smoothing: fraction of the target probability spread over all codes."
    )
    codebook_smoothing: float = Field(
        0.0,
        ge=0,
        description="Spread targets over similar codebook entries instead of loss.label_smoothing, which is then 0: "
        "width of the kernel in median squared distances between nearest neighbours; 0 disables it.",
    )
    logit_chunk: LogitChunk = LOGIT_CHUNK
    critic: bool = Field(
        False, description="Also train a token critic, which decides which tokens to mask again during decoding."
    )
    train_only: Literal["generator", "critic"] | None = Field(
        None,
        description="Train only the generator or only the critic (which needs --init RUN); null trains both.",
    )

    @model_validator(mode="before")
    @classmethod
    def _replace_label_smoothing(cls, values: Any) -> Any:
        """Codebook smoothing replaces the default of label smoothing, but not a value that was given."""
        if isinstance(values, Mapping) and values.get("codebook_smoothing"):
            return {"label_smoothing": 0.0, **values}
        return values


class MaskGitOptimConfig(OptimConfig):
    critic: PhaseOptimConfig = Field(
        default_factory=PhaseOptimConfig, description="Optimizer of the critic; a null key takes the value of `optim`."
    )


class MaskGitRunConfig(RunConfig):
    """A run that trains a `MaskGit` and optionally a token critic."""

    model: MaskGitConfig = Field(default_factory=MaskGitConfig, description="The masked transformer.")
    loss: MaskGitLossConfig = Field(default_factory=MaskGitLossConfig, description="Losses.")
    optim: MaskGitOptimConfig = Field(default_factory=MaskGitOptimConfig, description="Optimizer and schedule.")
    sample: MaskGitSampleConfig = Field(
        default_factory=MaskGitSampleConfig, description="Samples during training, and decoding."
    )

    @model_validator(mode="after")
    def _check_critics(self) -> Self:
        if self.loss.critic and self.model.self_critic:
            raise ValueError("loss.critic=true and model.self_critic=true exclude each other; set one of them to false")
        if self.loss.train_only == "critic" and not (self.loss.critic or self.model.self_critic):
            raise ValueError("loss.train_only=critic needs a critic: loss.critic=true or model.self_critic=true")
        if isinstance(self.loss.logit_chunk, int) and (self.loss.critic or self.model.self_critic):
            raise ValueError(
                f"loss.logit_chunk={self.loss.logit_chunk} and a critic, which samples from all logits, exclude each "
                "other; set loss.logit_chunk=null or auto"
            )
        if self.loss.codebook_smoothing and self.loss.label_smoothing:
            raise ValueError(
                f"loss.codebook_smoothing={self.loss.codebook_smoothing:g} replaces label smoothing: leave out "
                f"loss.label_smoothing={self.loss.label_smoothing:g}, or set it to 0"
            )
        return self
