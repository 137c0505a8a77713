"""The names of the module `musiclm_pytorch` of musiclm-pytorch."""

from __future__ import annotations

from quintet.compat.musiclm_pytorch import (
    AudioSpectrogramTransformer,
    MuLaN,
    MuLaNEmbedQuantizer,
    MusicLM,
    SigmoidContrastiveLearning,
    SoftmaxContrastiveLearning,
    TextTransformer,
)

__all__ = [
    "AudioSpectrogramTransformer",
    "MuLaN",
    "MuLaNEmbedQuantizer",
    "MusicLM",
    "SigmoidContrastiveLearning",
    "SoftmaxContrastiveLearning",
    "TextTransformer",
]
