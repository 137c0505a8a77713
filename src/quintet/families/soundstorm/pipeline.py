"""`SoundStormPipeline`: text to audio, through the codes of a codec."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.artifact import Artifact
from quintet.common.logging import say
from quintet.common.rng import ItemRNG, seed_from
from quintet.errors import UsageError
from quintet.families.soundstorm import decoding, windows
from quintet.families.soundstorm.captions import report_unknown_words
from quintet.families.soundstorm.clips import Clip, GeneratedAudio, better_of
from quintet.families.soundstorm.conditioning import Conditioning
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormOptions
from quintet.families.soundstorm.keeping import KEEP_OPTIONS, Keep
from quintet.families.soundstorm.model import SoundStorm
from quintet.families.soundstorm.mulan_conditioner import MuLaNConditioner
from quintet.families.soundstorm.start import Start, kept_start, read_prompt
from quintet.media.image import image_grid, write_image
from quintet.pipelines.base import Frozen, Generator, Pipeline
from quintet.pipelines.prompts import Prompts, check_negative, check_prompts, sample_record
from quintet.sampling import masked
from quintet.sampling.guidance import encode_prompts

CLIPS_AT_ONCE = 16
MAX_SECONDS = 86_400


class SoundStormPipeline(Generator[SoundStormConfig]):
    """Text to audio, for a model with `model.text` or `--condition`; other models generate unconditionally. Can
    continue a prompt, or generate parts of one.

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
        return self.takes_text and self.config.model.semantic_codes is None

    @property
    def takes_text(self) -> bool:
        return self.conditioner is not None or self.config.model.text != "none"

    def __call__(
        self,
        prompts: str | Sequence[str] = (),
        *,
        negative_prompt: str | None = None,
        num: int = 1,
        seed: int = 0,
        seconds: float | None = None,
        prompt: str | Path | None = None,
        keep: str | Sequence[tuple[float, float]] | None = None,
        keep_every: int | None = None,
        keep_quantizers: int | None = None,
    ) -> list[Tensor]:
        """Waveforms (samples,) at `sample_rate`, `num` per text; (2, samples) with a stereo codec.

        `seconds` is their length, by default the maximum of the model; longer clips are generated window by window.
        `prompt` is an audio file that all clips continue; it is part of the result and counts towards `seconds`. Or
        clips keep parts of it: spans of seconds (`keep`, such as "0-2,5-7" or [(0, 2), (5, 7)]), every N-th frame, or
        the codes of its first quantizers; then clips are by default as long as the prompt.
        """
        wanted = Keep.of(keep, keep_every, keep_quantizers)
        return self.generate_texts(Prompts.of(prompts, num, seed), seconds, prompt, wanted, negative_prompt).waves

    def files(self, prompts: Sequence[str], options: SoundStormOptions) -> list[Artifact]:
        """One WAV file per clip, and a sheet of their spectrograms."""
        prompts = [text if text.strip() else "" for text in prompts]
        requested = Prompts.of(prompts, options.num, options.seed)
        if not all(prompts):
            say("warning: a --text is empty; its clips are generated without a text")
        keep = Keep.of(options.keep, options.keep_every, options.keep_quantizers)
        generated = self.generate_texts(requested, options.seconds, options.prompt, keep, options.negative_prompt)
        kept = {} if keep is None else {name: getattr(options, name) for name in KEEP_OPTIONS}
        inputs = {"prompt": options.prompt, "negative": options.negative_prompt, **kept}
        num_frames = len(generated.clips[0].codes)
        common = sample_record(self.config.sample, options.seed, **inputs)
        common["seconds"] = num_frames / self.codec.frame_rate
        if num_frames <= self.soundstorm.net.max_frames:
            common["settings"].pop("overlap")  # of no effect
        scores = [0.0] * len(generated.clips) if generated.scores is None else generated.scores.tolist()
        clips: list[Artifact] = []
        for number, (clip, text, score) in enumerate(zip(generated.clips, requested.items, scores, strict=True)):
            scored = {"mulan_score": round(score, 4)} if text and self.conditioner is not None else {}
            clips.append(
                Artifact(f"{number:03d}.wav", clip.write, {"text": text, "number": number, **scored, **common})
            )
        images = [clip.spectrogram() for clip in generated.clips]
        sheet = image_grid(images, columns=min(4, len(images)))
        return [Artifact("spectrograms.png", partial(write_image, sheet), {"texts": requested.items, **common}), *clips]

    def generate_texts(
        self,
        prompts: Prompts,
        seconds: float | None,
        prompt: str | Path | None,
        keep: Keep | None = None,
        negative: str | None = None,
    ) -> GeneratedAudio:
        """Clips of all prompts, in batches; an empty text means no text."""
        self._check(prompts.texts, negative)
        start = self._start(seconds, None if prompt is None else Path(prompt), keep)
        window = min(len(start.canvas), self.soundstorm.net.max_frames)
        clips: list[Clip] = []
        scores: list[Tensor] = []
        with self.inference():
            for texts, rng in prompts.batches(CLIPS_AT_ONCE):
                frames = torch.ones(len(texts), window, dtype=torch.bool, device=self.device)
                target = None if self.conditioner is None else self.conditioner.embed_texts(texts)
                conditioning, uncond = self._text_conditioning(texts, negative, frames, target)
                canvas = start.canvas.to(self.device).expand(len(texts), -1, -1)
                generated = self.generate(conditioning, rng, target, canvas, uncond)
                clips += [start.composite(clip) for clip in generated.clips]
                scores += [] if generated.scores is None else [generated.scores]
        return GeneratedAudio(clips, scores=torch.cat(scores) if scores else None)

    def _text_conditioning(
        self, texts: Sequence[str], negative: str | None, frames: Tensor, target: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The conditioning of texts with their MuLaN embeddings `target`, and of the negative text."""
        uncond: dict[str, Tensor] = {}
        clip = keep = None
        if self.conditioner is not None and target is not None:
            clip, keep = self.conditioner.conditioning(target), torch.tensor([bool(text) for text in texts])
            if negative:
                vector = self.conditioner.conditioning(self.conditioner.embed_texts([negative]))
                uncond = {"clip": vector.expand_as(clip), "clip_valid": torch.ones_like(frames[:, 0])}
        text, no_text = encode_prompts(self.soundstorm, texts, negative)
        return self.soundstorm.conditioning(frames, clip=clip, keep=keep, text=text), uncond | no_text

    def generate(
        self,
        conditioning: Conditioning,
        rng: ItemRNG,
        target: Tensor | None = None,
        canvas: Tensor | None = None,
        negative: Conditioning | None = None,
    ) -> GeneratedAudio:
        """Clips of one batch of conditioning, with the random numbers of its items.

        `target` are MuLaN embeddings (clips, dim): of `sample.best_of` candidates the most similar one is returned.
        `canvas` (clips, frames, quantizers) holds the known codes, and -1 elsewhere; if it has more frames than the
        conditioning, that is the conditioning of every window. `negative` is what guidance steers away from.
        """
        frames, settings = conditioning["frames"], self.sampling()
        canvas = decoding.canvas(frames, self.soundstorm.num_quantizers) if canvas is None else canvas
        is_long = canvas.shape[1] > frames.shape[1]

        def complete(part: Tensor, rng: ItemRNG) -> Tensor:
            return decoding.generate(self.soundstorm, part, conditioning, rng, settings, negative=negative)

        best: GeneratedAudio | None = None
        for candidate in range(self.config.sample.best_of if target is not None else 1):
            own = ItemRNG(seed_from(rng.seed, candidate), rng.epochs, rng.items) if candidate else rng
            if is_long:
                codes = windows.generate_windows(complete, canvas, frames.shape[1], self.config.sample.overlap, own)
                clips = [Clip(self.codec, row, self.inference) for row in codes]
            else:
                codes = complete(canvas, own)
                waves = self.decode(codes, frames)
                clips = [Clip(self.codec, row, self.inference, wave) for row, wave in zip(codes, waves, strict=True)]
            generated = GeneratedAudio(clips)
            if self.conditioner is None or target is None:
                return generated
            vectors = self.conditioner.embed_audio(generated.mono, self.sample_rate)
            generated = GeneratedAudio(clips, vectors, (vectors * target.to(vectors)).sum(1))
            best = generated if best is None else better_of(best, generated)
        assert best is not None
        return best

    def decode(self, codes: Tensor, frames: Tensor) -> list[Tensor]:
        """Waveforms (samples,) or (2, samples) of the valid `frames` (clips, frames) of codes (clips, frames,
        quantizers)."""
        lengths = (frames.sum(1) * self.codec.hop).tolist()
        waves = self.codec.decode(codes).float().cpu()
        return [wave[..., :length] for wave, length in zip(waves, lengths, strict=True)]

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

    def _check(self, texts: Sequence[str], negative: str | None = None) -> None:
        """Raise if the model cannot be sampled with these texts."""
        config = self.config
        if (any(texts) or negative) and not self.takes_text:
            raise UsageError(
                "this model was trained without --condition and with model.text=none, and takes no text; remove --text"
            )
        if config.model.semantic_codes is not None:
            raise UsageError(
                "this model is conditioned on semantic tokens, which come with the data: without --text, --prompt and "
                "--seconds it generates validation clips"
            )
        if config.sample.best_of > 1 and not (self.conditioner is not None and all(texts)):
            raise UsageError(
                "sample.best_of above 1 compares clips with their text: it needs --text, and a model trained with "
                "--condition"
            )
        if config.model.text != "none":
            check_prompts(config.model, texts, negative, config.sample.guidance_scale, self.guidance_scale)
        else:
            check_negative(negative, self.guidance_scale)
            if config.sample.guidance_scale != self.guidance_scale:
                say("warning: generating without guidance, because the model was trained with loss.cond_drop_prob=0")
        report_unknown_words(config, [*texts, negative or ""])

    def _num_frames(self, seconds: float | None) -> int:
        """The number of frames of a clip of `seconds`; None: the maximum of the model."""
        if seconds is None:
            longest: int = self.soundstorm.net.max_frames
            return longest
        if not (math.isfinite(seconds) and seconds > 0):
            raise UsageError(f"--seconds {seconds:g} must be a number above 0")
        if seconds > MAX_SECONDS:
            raise UsageError(f"--seconds {seconds:g} is longer than a day, {MAX_SECONDS} s")
        frame_rate: float = self.codec.frame_rate
        return max(1, round(seconds * frame_rate))

    def _start(self, seconds: float | None, path: Path | None, keep: Keep | None) -> Start:
        """The known codes of a clip of `seconds`: those of the audio file `path`, or a part of them."""
        num_quantizers = self.soundstorm.num_quantizers
        if path is None:
            if keep is not None:
                raise UsageError(
                    "--keep, --keep-every and --keep-quantizers need --prompt FILE, of which they keep parts"
                )
            return Start(torch.full((self._num_frames(seconds), num_quantizers), -1))
        codec, loudness = codec_of(self.frozen), self.config.data.loudness
        if keep is not None:
            num_frames = None if seconds is None else self._num_frames(seconds)
            return kept_start(path, codec, num_quantizers, keep, num_frames, loudness)
        num_frames = self._num_frames(seconds)
        samples, file_seconds = read_prompt(path, codec, num_frames, loudness)
        if samples.shape[-1] // codec.model.hop >= num_frames:
            limit = "the maximum of this model" if seconds is None else "--seconds"
            raise UsageError(
                f"--prompt {path} is {file_seconds:.2f} s long and leaves nothing to generate: the length of a clip "
                f"is {num_frames / codec.model.frame_rate:g} s ({limit}); set longer --seconds"
            )
        with self.inference():
            codes: Tensor = codec.model.encode(samples.to(self.device))[0, :, :num_quantizers].cpu()
        canvas = torch.full((num_frames, num_quantizers), -1)
        canvas[: len(codes), : codes.shape[1]] = codes
        return Start(canvas)


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
