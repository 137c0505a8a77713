"""`SoundStormPipeline`: text to audio, through the codes of a codec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.logging import say
from quintet.common.rng import ItemRNG, seed_from
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm import decoding
from quintet.families.soundstorm.conditioning import Conditioning
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormOptions
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.mulan_conditioner import MuLaNConditioner
from quintet.media.audio import read_audio, to_loudness, write_audio
from quintet.media.audio_formats import read_header
from quintet.media.chart import spectrogram
from quintet.media.image import image_grid, write_image
from quintet.pipelines.base import Frozen, Generator, Pipeline
from quintet.pipelines.prompts import Prompts, sample_record
from quintet.sampling import masked

CLIPS_AT_ONCE = 16
SPECTROGRAM_WIDTH = 320
"""Pixels of the time axis."""


@dataclass(frozen=True)
class GeneratedAudio:
    """Clips (samples,) of whole frames, on the CPU; with target embeddings also their MuLaN embeddings and scores."""

    waves: list[Tensor]
    vectors: Tensor | None = None
    """(clips, dim)"""
    scores: Tensor | None = None
    """(clips,): cosine similarity to the target embeddings."""


class SoundStormPipeline(Generator[SoundStormConfig]):
    """Text to audio, for a model with `--condition`; other models generate unconditionally. Can continue a prompt.

    storm = SoundStormPipeline.from_pretrained("runs/storm")
    waves = storm(["a rising flute"], num=4, seconds=2)     # (samples,) each, at storm.sample_rate
    """

    recipe = "soundstorm"
    exported = "soundstorm"
    model_class = SoundStorm

    @classmethod
    def fit(cls, config: SoundStormConfig, frozen: Frozen) -> SoundStormConfig:
        conditioner = MuLaNConditioner.of(frozen, config.model.condition_form)
        if "tokenizer" in frozen:
            config = _fit_to_codec(config, frozen["tokenizer"])
            config = _fit_to_conditioner(config, conditioner)
        elif config.model.num_codes is None or config.model.num_quantizers is None:
            raise UsageError("soundstorm needs an audio codec: set --tokenizer RUN")
        return super().fit(config, frozen)

    @property
    def soundstorm(self) -> SoundStorm:
        soundstorm = self.modules["soundstorm"]
        assert isinstance(soundstorm, SoundStorm)
        return soundstorm

    @property
    def codec(self) -> Any:
        return codec_of(self.frozen).model

    @property
    def conditioner(self) -> MuLaNConditioner | None:
        return MuLaNConditioner.of(self.frozen, self.config.model.condition_form)

    @property
    def sample_rate(self) -> int:
        """Sampling rate of the generated audio, in Hz."""
        rate: int = self.codec.sample_rate
        return rate

    @property
    def unconditional(self) -> bool:
        return not self.config.model.conditioned

    @property
    def prompted(self) -> bool:
        return self.conditioner is not None and self.config.model.semantic_codes is None

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        num: int = 1,
        seed: int = 0,
        seconds: float | None = None,
        prompt: str | Path | None = None,
    ) -> list[Tensor]:
        """Waveforms (samples,) at `sample_rate`, `num` per text.

        `seconds` is their length, at most and by default the maximum of the model. `prompt` is an audio file that all
        clips continue; it is part of the result and counts towards `seconds`.
        """
        return self.generate_texts(Prompts.of(prompts, num, seed), seconds, prompt).waves

    def files(self, prompts: Sequence[str], options: SoundStormOptions) -> list[Artifact]:
        """One WAV file per clip, and a sheet of their spectrograms."""
        requested = Prompts.of(prompts, options.num, options.seed)
        generated = self.generate_texts(requested, options.seconds, options.prompt)
        rate = self.sample_rate
        seconds = self._num_frames(options.seconds) / self.codec.frame_rate
        common = {**sample_record(self.config.sample, options.seed, prompt=options.prompt), "seconds": seconds}
        scores = [0.0] * len(generated.waves) if generated.scores is None else generated.scores.tolist()
        clips: list[Artifact] = []
        for number, (wave, text, score) in enumerate(zip(generated.waves, requested.items, scores, strict=True)):
            metadata = {"text": text, "number": number, **({"mulan_score": round(score, 4)} if text else {}), **common}
            clips.append(Artifact(f"{number:03d}.wav", partial(write_audio, wave, rate=rate), metadata))
        images = [spectrogram(wave, rate, width=SPECTROGRAM_WIDTH) for wave in generated.waves]
        sheet = image_grid(images, columns=min(4, len(images)))
        return [Artifact("spectrograms.png", partial(write_image, sheet), {"texts": requested.items, **common}), *clips]

    def generate_texts(self, prompts: Prompts, seconds: float | None, prompt: str | Path | None) -> GeneratedAudio:
        """Clips of all prompts, in batches; an empty text means no text."""
        self._check(prompts.texts)
        num_frames, device = self._num_frames(seconds), self.device
        prompt_codes = None if prompt is None else self._encode_prompt(Path(prompt), num_frames)
        waves: list[Tensor] = []
        scores: list[Tensor] = []
        with self.inference():
            for texts, rng in prompts.batches(CLIPS_AT_ONCE):
                frames = torch.ones(len(texts), num_frames, dtype=torch.bool, device=device)
                target = clip = keep = None
                if self.conditioner is not None:
                    target = self.conditioner.embed_texts(texts)
                    clip, keep = self.conditioner.conditioning(target), torch.tensor([bool(text) for text in texts])
                conditioning = self.soundstorm.conditioning(frames, clip=clip, keep=keep)
                rows = None if prompt_codes is None else prompt_codes.expand(len(texts), -1, -1)
                generated = self.generate(conditioning, rng, target, rows)
                waves += generated.waves
                scores += [] if generated.scores is None else [generated.scores]
        return GeneratedAudio(waves, scores=torch.cat(scores) if scores else None)

    def generate(
        self, conditioning: Conditioning, rng: ItemRNG, target: Tensor | None = None, prompt: Tensor | None = None
    ) -> GeneratedAudio:
        """Clips of one batch of conditioning, with the random numbers of its items.

        `target` are MuLaN embeddings (clips, dim): of `sample.best_of` candidates the most similar one is returned.
        `prompt` are the codes (clips, prompt frames, quantizers) that the clips start with.
        """
        frames, settings = conditioning["frames"], self.sampling()
        canvas = decoding.canvas(frames, self.soundstorm.num_quantizers, prompt)
        best: GeneratedAudio | None = None
        for candidate in range(self.config.sample.best_of if target is not None else 1):
            own = ItemRNG(seed_from(rng.seed, candidate), rng.epochs, rng.items) if candidate else rng
            codes = decoding.generate(self.soundstorm, canvas, conditioning, own, settings)
            waves = self.decode(codes, frames)
            if self.conditioner is None or target is None:
                return GeneratedAudio(waves)
            vectors = self.conditioner.embed_audio(waves, self.sample_rate)
            generated = GeneratedAudio(waves, vectors, (vectors * target.to(vectors)).sum(1))
            best = generated if best is None else _better(best, generated)
        assert best is not None
        return best

    def decode(self, codes: Tensor, frames: Tensor) -> list[Tensor]:
        """Waveforms (samples,) of the valid `frames` (clips, frames) of codes (clips, frames, quantizers)."""
        lengths = (frames.sum(1) * self.codec.hop).tolist()
        return [wave[:length] for wave, length in zip(self.codec.decode(codes).float().cpu(), lengths, strict=True)]

    @property
    def guidance_scale(self) -> float:
        """The guidance scale; 1 (no guidance) if the model was trained without dropping its conditioning."""
        possible = self.config.model.conditioned and self.config.loss.cond_drop_prob > 0
        return self.config.sample.guidance_scale if possible else 1.0

    def sampling(self) -> list[masked.Sampling]:
        """The decoding settings of each level; `sample.steps` of levels that the codec does not have are ignored."""
        config, num_quantizers = self.config.sample, self.soundstorm.num_quantizers
        settings = masked.sampling_from_config(
            config, config.steps[0], self.guidance_scale, config.top_k, config.greedy_last_step
        )
        return decoding.level_settings(settings, config.steps[:num_quantizers], num_quantizers)

    def _check(self, texts: Sequence[str]) -> None:
        """Raise if the model cannot be sampled with these texts."""
        if any(texts) and self.conditioner is None:
            raise UsageError("this model was trained without --condition and takes no text; remove --text")
        if self.config.model.semantic_codes is not None:
            raise UsageError(
                "this model is conditioned on semantic tokens, which come with the data: without --text, --prompt and "
                "--seconds it generates validation clips"
            )
        if self.config.sample.best_of > 1 and not (self.conditioner is not None and all(texts)):
            raise UsageError(
                "sample.best_of above 1 compares clips with their text: it needs --text, and a model trained with "
                "--condition"
            )
        if self.config.sample.guidance_scale != self.guidance_scale:
            say("warning: generating without guidance, because the model was trained with loss.cond_drop_prob=0")

    def _num_frames(self, seconds: float | None) -> int:
        """The number of frames of a clip of `seconds`; None: the maximum of the model."""
        longest: int = self.soundstorm.net.max_frames
        rate: float = self.codec.frame_rate
        if seconds is None:
            return longest
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"--seconds {seconds:g} must be a number above 0")
        frames = max(1, round(seconds * rate))
        if frames > longest:
            raise UsageError(
                f"--seconds {seconds:g} is longer than the maximum of this model, {longest / rate:g} s "
                f"(model.max_frames={longest})"
            )
        return frames

    def _encode_prompt(self, path: Path, num_frames: int) -> Tensor:
        """The codes (1, prompt frames, quantizers) of an audio file that a clip of `num_frames` continues."""
        codec, longest = self.codec, self.soundstorm.net.max_frames
        try:
            header = read_header(path)
            samples = read_audio(path, codec.sample_rate, frames=(longest + 1) * codec.hop, header=header)
        except UnreadableItem as problem:
            raise UsageError(f"--prompt {path}: {problem}") from None
        if header.rate != codec.sample_rate:
            say(f"{path}: resampled from {header.rate} Hz to the {codec.sample_rate} Hz of the tokenizer")
        # Whole frames only: a padded last frame would be silence in the middle of the clip.
        prompt_frames = max(1, samples.shape[1] // codec.hop)
        if prompt_frames >= num_frames:
            limit = "the maximum of this model" if num_frames == longest else "--seconds"
            raise UsageError(
                f"--prompt {path} is {header.seconds:.2f} s long and leaves nothing to generate: the length of a clip "
                f"is {num_frames / codec.frame_rate:g} s ({limit})"
            )
        samples = samples[:, : prompt_frames * codec.hop]
        if self.config.data.loudness is not None:
            samples = to_loudness(samples, codec.sample_rate, self.config.data.loudness)
        with self.inference():
            codes: Tensor = codec.encode(torch.from_numpy(samples).to(self.device))
        return codes[..., : self.soundstorm.num_quantizers]


def codec_of(frozen: Frozen) -> Any:
    """The pipeline of the audio codec; a model that is trained on token ids may have none."""
    if "tokenizer" not in frozen:
        raise UsageError(
            "this model was trained on token ids without a codec, so it can neither read nor generate audio"
        )
    return frozen["tokenizer"]


def _fit_to_codec(config: SoundStormConfig, tokenizer: Pipeline[Any]) -> SoundStormConfig:
    codec = tokenizer.model
    if not hasattr(codec, "frame_rate"):
        raise UsageError(
            f"soundstorm needs an audio tokenizer, but {tokenizer.reference} is a run of recipe '{tokenizer.recipe}'"
        )
    found = {"model.num_codes": codec.num_codes, "model.frame_rate": codec.frame_rate}
    config = config.adopt(f"the tokenizer {tokenizer.reference}", found)
    config = config.changed(
        {"model.num_quantizers": min(config.model.num_quantizers or codec.num_quantizers, codec.num_quantizers)}
    )
    needed = -(-max(1, round(config.data.seconds * codec.sample_rate)) // codec.hop)
    if config.model.max_frames is None:
        return config.changed({"model.max_frames": needed})
    if config.model.max_frames < needed:
        raise UsageError(
            f"data.seconds={config.data.seconds:g} gives clips of {needed} frames, more than "
            f"model.max_frames={config.model.max_frames}"
        )
    return config


def _fit_to_conditioner(config: SoundStormConfig, conditioner: MuLaNConditioner | None) -> SoundStormConfig:
    if conditioner is not None:
        whose = f"the condition {conditioner.mulan.reference}"
        return config.adopt(whose, {"model.condition_dim": conditioner.dim})
    if config.model.condition_dim is not None:
        raise UsageError("model.condition_dim needs --condition RUN, a trained mulan")
    if config.loss.caption_cond_prob:
        raise UsageError("loss.caption_cond_prob needs --condition RUN, a trained mulan")
    if config.sample.best_of > 1:
        raise UsageError("sample.best_of above 1 needs --condition RUN, a trained mulan")
    return config


def _better(best: GeneratedAudio, candidate: GeneratedAudio) -> GeneratedAudio:
    """Of each clip the one with the higher score; of equal scores the earlier one."""
    assert best.scores is not None
    assert best.vectors is not None
    assert candidate.scores is not None
    assert candidate.vectors is not None
    higher = candidate.scores > best.scores
    waves = [
        new if better else old for old, new, better in zip(best.waves, candidate.waves, higher.tolist(), strict=True)
    ]
    vectors = torch.where(higher[:, None], candidate.vectors, best.vectors)
    return GeneratedAudio(waves, vectors, torch.maximum(best.scores, candidate.scores))
