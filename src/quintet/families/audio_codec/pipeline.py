"""`AudioCodecPipeline`: waveforms to residual codes and back, with a trained codec or one of `transformers`."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor, nn

from quintet.common.artifact import Artifact
from quintet.common.batch import Batch, Collate
from quintet.common.device import numerics_of
from quintet.common.inference import inference_mode
from quintet.config import validate
from quintet.data.audio import audio_folder_splits, pad_windows, report_resampling
from quintet.data.splits import Splits
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError
from quintet.families.audio_codec.config import AudioCodecConfig
from quintet.families.audio_codec.model import AudioCodec, PretrainedCodec
from quintet.media.audio import write_audio
from quintet.pipelines.base import Frozen, Origin, Tokenizer

Codec = AudioCodec | PretrainedCodec


class AudioCodecPipeline(Tokenizer[AudioCodecConfig]):
    """An audio tokenizer: encodes waveforms to codes and decodes codes to waveforms.

    codec = AudioCodecPipeline.from_pretrained("runs/codec")    # or the folder of an EnCodec, DAC or Mimi
    waves = codec.decode(codec.encode(waves))                   # (batch, samples) at codec.sample_rate
    """

    recipe = "audio-codec"
    exported = "codec"

    @classmethod
    def build_modules(cls, config: AudioCodecConfig, frozen: Frozen) -> dict[str, nn.Module]:
        return {"codec": (AudioCodec if config.model.transformers_config is None else PretrainedCodec)(config.model)}

    @classmethod
    def from_transformers(cls, folder: Path) -> AudioCodecPipeline:
        codec = PretrainedCodec.from_transformers(folder)
        config = validate(AudioCodecConfig, {"model": codec.config.model_dump(mode="json")})
        return cls(config, {"codec": codec}, origin=Origin(folder))

    @property
    def codec(self) -> Codec:
        codec = self.modules["codec"]
        assert isinstance(codec, Codec)
        return codec

    @property
    def sample_rate(self) -> int:
        """Sampling rate in Hz."""
        return self.codec.sample_rate

    def encode(self, waves: Tensor, lengths: Tensor | None = None, *, num_quantizers: int | None = None) -> Tensor:
        """Codes (batch, frames, num_quantizers) of waveforms (batch, samples) at `sample_rate`, or (batch, 2, samples)
        if the codec is stereo.

        `num_quantizers` limits the codes to the first quantizers; None: all. `lengths` (batch,) are the samples of each
        clip in a padded batch; frames behind the end of a clip are -1.
        """
        with self.inference():
            if lengths is not None:
                _check_lengths(lengths, waves)
                lengths = lengths.to(self.device)
            return self.codec.encode(self.media(waves, is_bytes=False), lengths, num_quantizers)

    def decode(self, codes: Tensor) -> Tensor:
        """Waveforms (batch, frames * hop) in [-1, 1] of codes (batch, frames, quantizers); in stereo they have an axis
        of two channels before that of samples.

        Codes of only the first quantizers are enough; frames of -1 become silence.
        """
        with self.inference():
            return self.codec.decode(self.checked_codes(codes))

    def splits(self) -> Splits:
        rate = self.config.model.sample_rate
        splits = audio_folder_splits(self.config.data, rate, channels=self.config.model.channels)
        report_resampling(splits.train, rate, "the model (model.sample_rate)")
        return splits

    @property
    def collate(self) -> Collate:
        return pad_windows

    def encode_batch(self, batch: Batch, num_quantizers: int | None = None) -> Tensor:
        """Codes (batch, frames, num_quantizers) of a batch of clips; frames behind the end of a clip are -1."""
        waves: Tensor = batch["wavs"]
        if len(waves) != len(batch):
            raise UsageError("cannot encode clips that are split into windows; load them as whole clips")
        return self.codec.encode(waves, batch["lengths"], num_quantizers)

    def decode_files(self, codes: Tensor, name: str) -> list[Artifact]:
        """One WAV file per clip, of whole frames."""
        waves = self.codec.decode(codes)
        frames = (codes >= 0).any(-1).sum(1).tolist()
        return [
            Artifact(
                f"{name}.wav" if len(waves) == 1 else f"{name}-{number}.wav",
                partial(write_audio, wave[..., : count * self.codec.hop], rate=self.codec.sample_rate),
            )
            for number, (wave, count) in enumerate(zip(waves.float().cpu(), frames, strict=True))
        ]

    def token_encoder(self, num_quantizers: int | None = None) -> TokenEncoder:
        """The encoder for the token cache, of the first `num_quantizers` only: a codec may have many more."""
        if num_quantizers is None or num_quantizers >= self.codec.num_quantizers:
            return super().token_encoder()

        def encode(batch: Batch) -> Tensor:
            with inference_mode(self.modules):
                return self.encode_batch(batch.to(self.device, self.dtype), num_quantizers)

        digest = f"{self.digest} {num_quantizers} levels{numerics_of(self.device)}"
        return TokenEncoder(digest, self.collate, encode, device=self.device)


def _check_lengths(lengths: Tensor, waves: Tensor) -> None:
    """`UsageError` unless `lengths` are numbers of samples of the clips (batch, samples)."""
    if lengths.shape != waves.shape[:1] or lengths.is_floating_point():
        raise UsageError(f"lengths must be integers of shape (batch,), not {tuple(lengths.shape)} of {lengths.dtype}")
    if waves.ndim > 1 and not 1 <= int(lengths.min()) <= int(lengths.max()) <= waves.shape[-1]:
        raise UsageError(f"lengths must be 1 to {waves.shape[-1]}, the number of samples of the batch")
