"""`SoundStorm` of soundstorm-pytorch: quintet's `SoundStorm`, with an optional codec and semantic tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import quintet
from quintet.common.weights.loading import read_meta
from quintet.compat.model import CompatModel, TrainingParts, notify, refuse_unknown, refuse_unless
from quintet.compat.soundstorm_pytorch.conformer import Conformer, ConformerWrapper
from quintet.compat.soundstorm_pytorch.soundstream import SoundStream
from quintet.compat.soundstorm_pytorch.tokens import check_semantic, fit_semantic, tokens_of
from quintet.errors import UsageError
from quintet.families.soundstorm import decoding
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.model import SoundStorm as OwnSoundStorm
from quintet.families.soundstorm.task import SoundStormTask
from quintet.sampling.masked import MASK_SCHEDULES, Sampling, constant, linear
from quintet.training.maskgit_task import token_loss
from quintet.training.objective import ForwardPass

__all__ = ["Conformer", "ConformerWrapper", "SoundStorm", "SoundStream", "TextToSemantic"]

NAME = "SoundStorm"
COLDEST = 1e-8
"""The temperature at which the most likely code is sampled."""
TEXT = "quintet has no model that makes semantic tokens of them: pass semantic token ids as cond_semantic_token_ids"


class LossBreakdown(NamedTuple):
    """Parts of the loss; None where a part was not computed."""

    generator_loss: Tensor | None
    critic_loss: Tensor | None


class SoundStorm(CompatModel):
    """Predicts masked codes (batch, frames, quantizers) of a codec; waveforms with `soundstream`.

    It is conditioned on semantic tokens if `num_semantic_token_ids` and the rates of both sequences are given.
    """

    config_class = SoundStormConfig
    task_class = SoundStormTask

    def __init__(
        self,
        net: ConformerWrapper,
        *,
        soundstream: SoundStream | None = None,
        spear_tts_text_to_semantic: Any = None,
        wav2vec: Any = None,
        steps: int = 18,
        self_cond: bool = False,
        self_cond_train_prob: float = 0.75,
        no_replace_prob: float = 0.15,
        random_token_prob: float = 0.1,
        schedule: str = "linear",
        can_mask_prev_unmasked: bool = True,
        self_token_critic: bool = False,
        critic_loss_weight: float = 1.0,
        num_semantic_token_ids: int | None = None,
        semantic_pad_id: int = -1,
        pad_id: int | None = None,
        wav2vec_target_sample_hz: float | None = None,
        wav2vec_downsample_factor: float | None = None,
        codec_target_sample_hz: float | None = None,
        codec_downsample_factor: float | None = None,
    ) -> None:
        super().__init__()
        if spear_tts_text_to_semantic is not None or wav2vec is not None:
            raise UsageError(f"{NAME}: spear_tts_text_to_semantic and wav2vec are refused: {TEXT}")
        refuse_unless(NAME, "self_cond_train_prob", self_cond_train_prob, (0.75,), "the fraction is fixed")
        if not isinstance(net, ConformerWrapper):
            raise UsageError(f"{NAME} takes a ConformerWrapper of this package, not a {type(net).__name__}")
        if schedule not in MASK_SCHEDULES:
            raise UsageError(f"{NAME}: schedule={schedule!r} is not one of {', '.join(MASK_SCHEDULES)}")
        self.net, self.soundstream = net, soundstream
        self.steps, self.schedule, self.can_mask_prev_unmasked = steps, schedule, can_mask_prev_unmasked
        self.no_replace_prob, self.random_token_prob = no_replace_prob, random_token_prob
        self.pad_id, self.semantic_pad_id, self.critic_loss_weight = pad_id, semantic_pad_id, critic_loss_weight
        self.num_quantizers, self.grouped_quantizers = net.num_quantizers, net.grouped_quantizers
        self.dim, self.num_tokens, self.mask_id = net.dim, net.codebook_size, net.codebook_size
        self.num_semantic_token_ids = num_semantic_token_ids
        if soundstream is not None:
            self._check_codec(soundstream)
            codec_target_sample_hz = soundstream.target_sample_hz
            codec_downsample_factor = soundstream.downsample_factor
        frame_rate = _rate(codec_target_sample_hz, codec_downsample_factor)
        semantic_rate = _rate(wav2vec_target_sample_hz, wav2vec_downsample_factor)
        self.should_condition = semantic_rate is not None
        if self.should_condition and (num_semantic_token_ids is None or frame_rate is None):
            raise UsageError(
                f"{NAME}: conditioning needs num_semantic_token_ids, and a soundstream or codec_target_sample_hz and "
                "codec_downsample_factor"
            )
        net.extend(
            frame_rate=frame_rate,
            semantic_codes=num_semantic_token_ids if self.should_condition else None,
            semantic_rate=semantic_rate,
            self_conditioning=self_cond,
            self_critic=self_token_critic,
        )
        if no_replace_prob or random_token_prob:
            notify(
                NAME,
                "no_replace_prob and random_token_prob hold for half as many masked codes of every batch, instead of "
                "for half of the batches; codes that are not replaced are predicted, too",
            )

    @property
    def model(self) -> OwnSoundStorm:
        return self.net.model

    def training_parts(self) -> TrainingParts:
        frozen = {} if self.soundstream is None else {"tokenizer": self.soundstream.pipeline()}
        keys = {
            "loss.mask_schedule": self.schedule,
            "loss.visible_token_prob": self.no_replace_prob / 2,
            "loss.random_token_prob": self.random_token_prob / 2,
            "loss.cond_drop_prob": 0.0,
            "loss.critic_weight": float(self.critic_loss_weight),
            "sample.steps": [self.steps, 1],
            "sample.temperature_schedule": "linear",
            "sample.choice_temperature": 0.0,
            "sample.top_k": 0.3,
            "sample.remask_kept": self.can_mask_prev_unmasked,
        }
        return TrainingParts(self.model, dict(frozen), keys=keys, trained=self._initialised)

    def load(self, path: str | Path, strict: bool = True) -> dict[str, Any]:  # type: ignore[override]
        """Load the weights of a folder; returns what the original does: `model`, and of a checkpoint also `step`."""
        super().load(path)
        folder = Path(path)
        step = read_meta(folder, "soundstorm").get("step") if (folder / "meta.json").is_file() else None
        return {"model": self.state_dict(), "version": quintet.__version__, **({} if step is None else {"step": step})}

    # --- training -----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        cond_semantic_token_ids: Tensor | None = None,
        only_train_generator: bool = False,
        only_train_critic: bool = False,
        generator_sample_temperature: float | None = None,
        sum_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, LossBreakdown]:
        """The loss and its parts, of codes (batch, frames, quantizers) or of waveforms (batch, samples).

        `mask` (batch, frames) is true at valid frames, which come first. The codes that the critic judges are sampled
        at `generator_sample_temperature`, by default 1. `sum_embeds` (batch, frames * quantizers, dim) are added to
        the vectors of the frames.
        """
        refuse_unknown(f"{NAME}.forward", kwargs)
        with self.net.adding(sum_embeds):
            forward_pass = self._masked_pass(x, mask, cond_semantic_token_ids, only_train_critic)
        task, output = self.task, forward_pass.output
        assert isinstance(task, SoundStormTask)
        generator = None
        if not only_train_critic:
            smoothing = task.config.loss.label_smoothing
            generator = token_loss(output["logits"], output["masked_codes"].targets, smoothing).value
        if self.model.to_score is None or only_train_generator:
            if generator is None:
                raise UsageError(f"{NAME} has no critic to train; build it with self_token_critic=True")
            return generator, LossBreakdown(generator, None)
        temperature = 1.0 if generator_sample_temperature is None else max(generator_sample_temperature, COLDEST)
        judged = replace(output, values={**output.values, "logits": output["logits"] / temperature})
        critic = task.critic_loss(task.modules, forward_pass.batch, judged, forward_pass.step).value
        total = critic if generator is None else generator + self.critic_loss_weight * critic
        return total, LossBreakdown(generator, critic)

    def _masked_pass(
        self, x: Tensor, mask: Tensor | None, semantic: Tensor | None, only_train_critic: bool
    ) -> ForwardPass:
        codes = self._codes(x)
        frames = torch.ones(codes.shape[:2], dtype=torch.bool, device=codes.device) if mask is None else mask.bool()
        if self.pad_id is not None:
            frames = frames & ~(codes == self.pad_id).any(-1)
        fields = {"codes": codes.masked_fill(~frames[..., None], -1), "frames": frames}
        fields |= self._semantic(semantic, frames)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not only_train_critic):
            return self.forward_pass(fields, len(codes))

    def _codes(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            if x.ndim != 3 or x.shape[2] != self.net.num_effective_quantizers:
                raise UsageError(
                    f"codes of shape {tuple(x.shape)} are not (batch, frames, {self.net.num_effective_quantizers}) of "
                    f"num_quantizers={self.num_quantizers} and grouped_quantizers={self.grouped_quantizers}"
                )
            # Not on a GPU, where the check would synchronise every step.
            if x.device.type == "cpu" and x.numel() and int(x.max()) >= self.num_tokens and self.pad_id != int(x.max()):
                raise UsageError(f"{NAME}: codes up to {int(x.max())}, with codebook_size={self.num_tokens}")
            return x
        if self.soundstream is None:
            raise UsageError(f"{NAME} needs soundstream= to train on waveforms; without one it takes codes")
        return self.soundstream.tokenize(x)

    def _semantic(self, semantic: Tensor | None, frames: Tensor) -> dict[str, Tensor]:
        """The field of the semantic tokens, cut or padded to the lengths of the clips."""
        if (semantic is not None) != self.should_condition:
            missing = "needs" if self.should_condition else "was built without conditioning and takes no"
            raise UsageError(f"{NAME} {missing} cond_semantic_token_ids")
        if semantic is None:
            return {}
        assert self.num_semantic_token_ids is not None
        check_semantic(NAME, semantic, self.semantic_pad_id, self.num_semantic_token_ids)
        counts = [tokens_of(self.model.config, length) for length in frames.sum(1).tolist()]
        return {"semantic": fit_semantic(semantic, self.semantic_pad_id, counts)}

    def maybe_get_condition(self, token_ids: Tensor | None = None, length: int | None = None) -> Tensor | None:
        """The vectors (batch, frames, dim) of semantic tokens, which are added to those of the frames; None without.

        `length` is the number of frames; by default as many as the tokens have.
        """
        if token_ids is None and not self.should_condition:
            return None
        count = 0 if token_ids is None else length or self._frames_of(token_ids.shape[1])
        frames = torch.ones(1 if token_ids is None else len(token_ids), count, dtype=torch.bool, device=self.device)
        fields = self._semantic(None if token_ids is None else token_ids.to(self.device), frames)
        vectors: Tensor = self.model.net.conditions(self.model.conditioning(frames, fields["semantic"]))
        return vectors

    def _check_codec(self, codec: Any) -> None:
        if not isinstance(codec, SoundStream):
            raise UsageError(
                f"{NAME} takes a SoundStream of this package, not a {type(codec).__name__}; encode with your codec and "
                "pass the codes"
            )
        for name, own, other in (
            ("codebook_size", self.net.codebook_size, codec.codebook_size),
            ("num_quantizers", self.net.num_quantizers, codec.num_quantizers),
            ("grouped_quantizers", self.net.grouped_quantizers, codec.rq_groups),
        ):
            if own != other:
                raise UsageError(f"{NAME}: the conformer has {name}={own}, but the soundstream has {other}")

    # --- generation ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def generate(
        self,
        num_latents: int | None = None,
        *,
        mask: Tensor | None = None,
        texts: Any = None,
        cond_semantic_token_ids: Tensor | None = None,
        prompt_acoustic_token_ids: Tensor | None = None,
        seconds: float | None = None,
        batch_size: int | None = None,
        start_temperature: float = 1.0,
        filter_thres: float | None = 0.7,
        noise_level_scale: float = 1.0,
        num_full_sampling_levels: int = 1,
        text_to_semantic_generate_kwargs: Mapping[str, Any] | None = None,
        spec_decode: bool = False,
        spec_decode_gamma: int = 5,
        sum_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Codes (batch, frames * quantizers), or waveforms (batch, samples) with a soundstream.

        Without `batch_size` one clip without the batch axis. Behind the end of a clip (`mask`), its last codes repeat.
        """
        refuse_unknown(f"{NAME}.generate", kwargs)
        if texts is not None or text_to_semantic_generate_kwargs or spec_decode:
            raise UsageError(f"{NAME}.generate: texts are refused: {TEXT}")
        if (cond_semantic_token_ids is not None) != self.should_condition:
            self._semantic(cond_semantic_token_ids, torch.ones(1, 1, dtype=torch.bool))
        if cond_semantic_token_ids is not None:
            batch_size, length = len(cond_semantic_token_ids), self._frames_of(cond_semantic_token_ids.shape[1])
            is_single = batch_size == 1
        else:
            is_single = batch_size is None
            batch_size, length = batch_size or 1, self._length(num_latents, seconds)
        training = self.training
        self.eval()
        try:
            frames = torch.ones(batch_size, length, dtype=torch.bool, device=self.device)
            frames = frames if mask is None else mask.to(self.device).bool()
            settings = self._settings(start_temperature, filter_thres, noise_level_scale, num_full_sampling_levels)
            with self.net.adding(sum_embeds):
                codes = self._decode(frames, cond_semantic_token_ids, prompt_acoustic_token_ids, settings)
            out = codes.flatten(1)
            if self.soundstream is not None:
                out = self.soundstream.decode_from_codebook_indices(codes)[:, 0]
        finally:
            self.train(training)
        return out[0] if is_single else out

    def _decode(
        self, frames: Tensor, semantic: Tensor | None, prompt: Tensor | None, settings: list[Sampling]
    ) -> Tensor:
        fields = self._semantic(None if semantic is None else semantic.to(self.device), frames)
        conditioning = self.model.conditioning(frames, fields.get("semantic"))
        canvas = decoding.canvas(frames, self.model.num_quantizers, None if prompt is None else prompt.to(self.device))
        codes = decoding.generate(self.model, canvas, conditioning, self.new_rng(len(frames)), settings)
        # The codec, and scripts that cut by the mask themselves, need valid codes everywhere.
        positions = torch.arange(frames.shape[1], device=frames.device).where(frames, 0).cummax(1).values
        return codes.gather(1, positions[..., None].expand_as(codes)).clamp(min=0)

    def _settings(
        self, temperature: float, filter_thres: float | None, noise_level_scale: float, full_levels: int
    ) -> list[Sampling]:
        """The settings of each level: `steps` steps for the first levels, and one for each further one."""
        full = Sampling(
            steps=self.steps,
            schedule=MASK_SCHEDULES[self.schedule],
            temperature=temperature,
            temperature_schedule=linear,
            top_k=None if filter_thres is None or filter_thres <= 0 else 1 - filter_thres,
            choice_temperature=noise_level_scale if self.model.to_score is not None else 0.0,
            remask_kept=self.can_mask_prev_unmasked,
        )
        first = temperature * (self.steps - 1) / self.steps
        single = replace(full, steps=1, temperature=first, temperature_schedule=constant)
        return [full if level < full_levels else single for level in range(self.model.num_quantizers)]

    def _length(self, num_latents: int | None, seconds: float | None) -> int:
        if (num_latents is None) == (seconds is None):
            raise UsageError(f"{NAME}.generate takes either num_latents or seconds")
        if num_latents is not None:
            return num_latents
        if self.soundstream is None:
            raise UsageError(f"{NAME} needs soundstream= to generate in seconds; give num_latents, in frames")
        assert seconds is not None
        return int(seconds * self.soundstream.target_sample_hz // self.soundstream.seq_len_multiple_of)

    def _frames_of(self, tokens: int) -> int:
        config = self.model.config
        assert config.semantic_rate is not None
        assert config.frame_rate is not None
        return math.ceil(tokens * config.frame_rate / config.semantic_rate)


class TextToSemantic:
    """Refused: the model of spear-tts-pytorch is not part of quintet."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        raise UsageError("TextToSemantic is refused: quintet has no model from texts to semantic tokens")


def _rate(sample_rate: float | None, hop: float | None) -> float | None:
    """Frames per second."""
    return None if sample_rate is None or hop is None else sample_rate / hop


__all__ = ["Conformer", "ConformerWrapper", "LossBreakdown", "SoundStorm", "SoundStream", "TextToSemantic"]
