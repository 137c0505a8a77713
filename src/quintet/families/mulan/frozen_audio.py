"""`FrozenAudioTower`: a frozen audio encoder of `transformers` under a trained projection, as the audio tower of MuLaN.

The encoder is not a module, so it is in no checkpoint and no optimizer; a run records the hash of its folder. Clips are
encoded one by one, because most encoders do not support padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from quintet.config import validate
from quintet.config.text import PRETRAINED
from quintet.errors import UsageError
from quintet.families.mulan.config import AudioTowerConfig
from quintet.families.mulan.towers import AudioSpectrogramTransformer, SpecAugmentNoise
from quintet.nn.pretrained_audio import FrozenAudio


class FrozenAudioTower(nn.Module):
    """Waveforms (batch, samples) to vectors (batch, dim). Keyword arguments are the keys of `model.audio`."""

    def __init__(self, config: AudioTowerConfig | None = None, **keywords: Any) -> None:
        super().__init__()
        self.config = config = config or validate(AudioTowerConfig, keywords)
        self.encoder = FrozenAudio(config.encoder.removeprefix(PRETRAINED))
        if config.encoder_hash not in (None, self.encoder.digest):
            raise UsageError(
                f"model.audio.encoder_hash={config.encoder_hash}, but {config.encoder} now has the hash "
                f"{self.encoder.digest}; restore the folder, or train with the new one"
            )
        if config.sample_rate != self.encoder.sample_rate:
            raise UsageError(
                f"model.audio.sample_rate={config.sample_rate}, but {config.encoder} takes audio at "
                f"{self.encoder.sample_rate} Hz"
            )
        self.project = nn.Linear(self.encoder.dim, config.dim)

    def forward(
        self, waves: Tensor, lengths: Tensor, noise: SpecAugmentNoise | None = None, after: Sequence[int] = ()
    ) -> Tensor:
        """Mean-pooled vectors (batch, 1, dim); `lengths` (batch,) are in samples. There is no augmentation."""
        rows = [self.encoder.states(wave[:length]) for wave, length in zip(waves, lengths.tolist(), strict=True)]
        counts = torch.tensor([len(row) for row in rows], device=waves.device)
        states = pad_sequence(rows, batch_first=True).to(self.project.weight.dtype)
        # Encoders differ in the scale of their outputs; layer norm removes it.
        vectors = F.gelu(self.project(F.layer_norm(states, (self.encoder.dim,))))
        valid = torch.arange(states.shape[1], device=waves.device) < counts[:, None]
        return (vectors.masked_fill(~valid[..., None], 0).sum(1) / counts[:, None])[:, None]


def make_audio_tower(config: AudioTowerConfig) -> AudioSpectrogramTransformer | FrozenAudioTower:
    """The tower that `model.audio.encoder` names."""
    if not config.is_frozen:
        return AudioSpectrogramTransformer(config)
    if torch.get_default_device().type == "meta":
        raise UsageError(
            f"a plan cannot contain model.audio.encoder={config.encoder}, whose weights it would have to load; plan "
            "without it"
        )
    return FrozenAudioTower(config)
