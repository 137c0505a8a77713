"""The public names of musiclm-pytorch 0.2.8."""

from __future__ import annotations

from quintet.compat.musiclm_pytorch.contrastive import SigmoidContrastiveLearning, SoftmaxContrastiveLearning
from quintet.compat.musiclm_pytorch.mulan import MuLaN
from quintet.compat.musiclm_pytorch.quantizer import AudioLM, MuLaNEmbedQuantizer, MusicLM
from quintet.compat.musiclm_pytorch.towers import AudioSpectrogramTransformer, TextTransformer
from quintet.compat.musiclm_pytorch.trainer import MuLaNTrainer

__all__ = [
    "AudioLM",
    "AudioSpectrogramTransformer",
    "MuLaN",
    "MuLaNEmbedQuantizer",
    "MuLaNTrainer",
    "MusicLM",
    "SigmoidContrastiveLearning",
    "SoftmaxContrastiveLearning",
    "TextTransformer",
]
