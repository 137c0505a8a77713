"""`SoundStormPipeline`: texts to sounds, by way of a codec's codes."""

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
    """Clips (samples,) of whole frames, on the CPU; where a text or vector was wanted, what MuLaN makes of them."""

    waves: list[Tensor]
    vectors: Tensor | None = None
    """(clips, dim)"""
    scores: Tensor | None = None
    """(clips,): cosine similarity to what was wanted."""


class SoundStormPipeline(Generator[SoundStormConfig]):
    """Text to sound, for a model with `--condition`; otherwise whatever the model makes, or goes on from a prompt.

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
            raise UsageError("soundstorm makes the codes of a codec: name one with --tokenizer RUN")
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
        """Samples per second of the waves."""
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
        """Waves (samples,) at `sample_rate`, `num` of each text.

        `seconds` is their length, at most and by default the longest of training. `prompt` is an audio file that all of
        them go on from; it is part of what is returned, and of `seconds`.
        """
        return self.generate_texts(Prompts.of(prompts, num, seed), seconds, prompt).waves

    def files(self, prompts: Sequence[str], options: SoundStormOptions) -> list[Artifact]:
        """Each clip as a WAV file, and a sheet of their spectrograms."""
        asked = Prompts.of(prompts, options.num, options.seed)
        made = self.generate_texts(asked, options.seconds, options.prompt)
        rate = self.sample_rate
        seconds = self._num_frames(options.seconds) / self.codec.frame_rate
        common = {**sample_record(self.config.sample, options.seed, prompt=options.prompt), "seconds": seconds}
        scores = [0.0] * len(made.waves) if made.scores is None else made.scores.tolist()
        clips: list[Artifact] = []
        for number, (wave, text, score) in enumerate(zip(made.waves, asked.items, scores, strict=True)):
            about = {"text": text, "number": number, **({"mulan_score": round(score, 4)} if text else {}), **common}
            clips.append(Artifact(f"{number:03d}.wav", partial(write_audio, wave, rate=rate), about))
        images = [spectrogram(wave, rate, width=SPECTROGRAM_WIDTH) for wave in made.waves]
        sheet = image_grid(images, columns=min(4, len(images)))
        return [Artifact("spectrograms.png", partial(write_image, sheet), {"texts": asked.items, **common}), *clips]

    def generate_texts(self, prompts: Prompts, seconds: float | None, prompt: str | Path | None) -> GeneratedAudio:
        """Clips of all prompts, in batches; an empty text is none."""
        self._check(prompts.texts)
        num_frames, device = self._num_frames(seconds), self.device
        begun = None if prompt is None else self._encode_prompt(Path(prompt), num_frames)
        waves: list[Tensor] = []
        scores: list[Tensor] = []
        with self.inference():
            for texts, rng in prompts.batches(CLIPS_AT_ONCE):
                frames = torch.ones(len(texts), num_frames, dtype=torch.bool, device=device)
                wanted = clip = keep = None
                if self.conditioner is not None:
                    wanted = self.conditioner.embed_texts(texts)
                    clip, keep = self.conditioner.conditioning(wanted), torch.tensor([bool(text) for text in texts])
                conditioning = self.soundstorm.conditioning(frames, clip=clip, keep=keep)
                own = None if begun is None else begun.expand(len(texts), -1, -1)
                made = self.generate(conditioning, rng, wanted, own)
                waves += made.waves
                scores += [] if made.scores is None else [made.scores]
        return GeneratedAudio(waves, scores=torch.cat(scores) if scores else None)

    def generate(
        self, conditioning: Conditioning, rng: ItemRNG, wanted: Tensor | None = None, prompt: Tensor | None = None
    ) -> GeneratedAudio:
        """Clips of one batch of conditioning, by the random numbers of its items.

        `wanted` are MuLaN's vectors (clips, dim) that they should come near to: of `sample.best_of` candidates the
        nearest is kept. `prompt` are the codes (clips, frames of it, levels) that they begin with.
        """
        frames, settings = conditioning["frames"], self.sampling()
        canvas = decoding.canvas(frames, self.soundstorm.num_quantizers, prompt)
        best: GeneratedAudio | None = None
        for candidate in range(self.config.sample.best_of if wanted is not None else 1):
            own = ItemRNG(seed_from(rng.seed, candidate), rng.epochs, rng.items) if candidate else rng
            codes = decoding.generate(self.soundstorm, canvas, conditioning, own, settings)
            waves = self.decode(codes, frames)
            if self.conditioner is None or wanted is None:
                return GeneratedAudio(waves)
            vectors = self.conditioner.embed_audio(waves, self.sample_rate)
            made = GeneratedAudio(waves, vectors, (vectors * wanted.to(vectors)).sum(1))
            best = made if best is None else _better(best, made)
        assert best is not None
        return best

    def decode(self, codes: Tensor, frames: Tensor) -> list[Tensor]:
        """Waves (samples,) of codes (clips, frames, levels), of the frames that are there."""
        lengths = (frames.sum(1) * self.codec.hop).tolist()
        return [wave[:length] for wave, length in zip(self.codec.decode(codes).float().cpu(), lengths, strict=True)]

    @property
    def guidance(self) -> float:
        """The guidance scale that the model can be sampled with: 1, none, if nothing was dropped in training."""
        possible = self.config.model.conditioned and self.config.loss.cond_drop_prob > 0
        return self.config.sample.guidance_scale if possible else 1.0

    def sampling(self) -> list[masked.Sampling]:
        """How each level is decoded; steps of levels that the codec does not have are left out."""
        config, levels = self.config.sample, self.soundstorm.num_quantizers
        settings = masked.settings_of(config, config.steps[0], self.guidance, config.top_k, config.greedy_last_step)
        return decoding.level_settings(settings, config.steps[:levels], levels)

    def _check(self, texts: Sequence[str]) -> None:
        """Refuse texts that the model cannot be given."""
        if any(texts) and self.conditioner is None:
            raise UsageError(
                "this model was trained without --condition, and no text can tell it anything; leave --text out"
            )
        if self.config.model.semantic_codes is not None:
            raise UsageError(
                "this model is told semantic tokens, which come with the data: leave --text, --prompt and --seconds "
                "out, and it makes validation clips again"
            )
        if self.config.sample.best_of > 1 and not (self.conditioner is not None and all(texts)):
            raise UsageError("sample.best_of keeps what is nearest to a text: it needs --text, and a mulan to tell")
        if self.config.sample.guidance_scale != self.guidance:
            say("warning: made without guidance, because nothing was left out in training (loss.cond_drop_prob)")

    def _num_frames(self, seconds: float | None) -> int:
        """Frames of a clip of so many seconds; by default the most that the model makes."""
        longest: int = self.soundstorm.net.max_frames
        rate: float = self.codec.frame_rate
        if seconds is None:
            return longest
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"--seconds {seconds:g} is no length; give a number above 0")
        frames = max(1, round(seconds * rate))
        if frames > longest:
            raise UsageError(
                f"--seconds {seconds:g} is longer than what this model makes: {longest / rate:g} s "
                f"(model.max_frames={longest})"
            )
        return frames

    def _encode_prompt(self, path: Path, num_frames: int) -> Tensor:
        """The codes (1, frames, levels) of a file, for a clip of so many frames to go on from."""
        codec, longest = self.codec, self.soundstorm.net.max_frames
        try:
            header = read_header(path)
            samples = read_audio(path, codec.sample_rate, frames=(longest + 1) * codec.hop, header=header)
        except UnreadableItem as problem:
            raise UsageError(f"--prompt {path}: {problem}") from None
        if header.rate != codec.sample_rate:
            say(f"{path}: resampled from {header.rate} Hz to the {codec.sample_rate} Hz of the tokenizer")
        # Whole frames: what filled up the last one would be silence in the middle of the clip.
        whole = max(1, samples.shape[1] // codec.hop)
        if whole >= num_frames:
            limit, what = (longest, "this model makes") if num_frames == longest else (num_frames, "--seconds asks for")
            raise UsageError(
                f"--prompt {path} is {header.seconds:.2f} s long, and {what} clips of {limit / codec.frame_rate:g} s: "
                "nothing would be left to make"
            )
        samples = samples[:, : whole * codec.hop]
        if self.config.data.loudness is not None:
            samples = to_loudness(samples, codec.sample_rate, self.config.data.loudness)
        with self.inference():
            codes: Tensor = codec.encode(torch.from_numpy(samples).to(self.device))
        return codes[..., : self.soundstorm.num_quantizers]


def codec_of(frozen: Frozen) -> Any:
    """The pipeline that sounds are encoded and decoded by; a model that is trained on token ids may have none."""
    if "tokenizer" not in frozen:
        raise UsageError("this model knows no codec, only token ids: there are no sounds to read or to make")
    return frozen["tokenizer"]


def _fit_to_codec(config: SoundStormConfig, tokenizer: Pipeline[Any]) -> SoundStormConfig:
    codec = tokenizer.model
    if not hasattr(codec, "frame_rate"):
        raise UsageError(
            f"soundstorm needs a tokenizer of sound; {tokenizer.reference} is of recipe '{tokenizer.recipe}'"
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
            f"data.seconds={config.data.seconds:g} makes clips of {needed} frames, more than "
            f"model.max_frames={config.model.max_frames}"
        )
    return config


def _fit_to_conditioner(config: SoundStormConfig, conditioner: MuLaNConditioner | None) -> SoundStormConfig:
    if conditioner is not None:
        whose = f"the condition {conditioner.mulan.reference}"
        return config.adopt(whose, {"model.condition_dim": conditioner.dim})
    if config.model.condition_dim is not None:
        raise UsageError("model.condition_dim is that of a mulan, which --condition names")
    if config.loss.caption_cond_prob:
        raise UsageError(
            "loss.caption_cond_prob tells captions by the vectors of a mulan: name one with --condition RUN"
        )
    if config.sample.best_of > 1:
        raise UsageError("sample.best_of keeps what is nearest to a text by a mulan: name one with --condition RUN")
    return config


def _better(best: GeneratedAudio, made: GeneratedAudio) -> GeneratedAudio:
    """Clip by clip the one with the higher score; of equals the earlier."""
    assert best.scores is not None
    assert best.vectors is not None
    assert made.scores is not None
    assert made.vectors is not None
    higher = made.scores > best.scores
    waves = [new if better else old for old, new, better in zip(best.waves, made.waves, higher.tolist(), strict=True)]
    vectors = torch.where(higher[:, None], made.vectors, best.vectors)
    return GeneratedAudio(waves, vectors, torch.maximum(best.scores, made.scores))
