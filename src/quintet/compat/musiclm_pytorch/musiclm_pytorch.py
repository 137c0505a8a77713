"""The models of musiclm-pytorch under the path of their original module."""

from __future__ import annotations

from quintet.compat.musiclm_pytorch.contrastive import SigmoidContrastiveLearning, SoftmaxContrastiveLearning
from quintet.compat.musiclm_pytorch.mulan import MuLaN
from quintet.compat.musiclm_pytorch.quantizer import AudioLM, MuLaNEmbedQuantizer, MusicLM
from quintet.compat.musiclm_pytorch.towers import AudioSpectrogramTransformer, TextTransformer

__all__ = [
    "AudioLM",
    "AudioSpectrogramTransformer",
    "MuLaN",
    "MuLaNEmbedQuantizer",
    "MusicLM",
    "SigmoidContrastiveLearning",
    "SoftmaxContrastiveLearning",
    "TextTransformer",
]
