"""Texts of `MeshTransformer`: the key of its encoder, frozen embeddings of words, and embeddings of the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.config.text import PRETRAINED
from quintet.nn.conditioning import PrecomputedText
from quintet.nn.text import ByteTextEncoder, WordTextEncoder

TEXT_DIM = 768
"""Dimension of the embeddings of the T5 that the original uses by default."""
SEED = 0


def text_key(model_kwargs: Sequence[Mapping[str, Any]]) -> str:
    """The key `model.text`: a T5 in a local folder that is named, or quintet's byte-level encoder."""
    names = [str(options["name"]) for options in model_kwargs if "name" in options]
    folders = [Path(name).expanduser() for name in names if Path(name).expanduser().is_dir()]
    return f"{PRETRAINED}{folders[0]}" if folders else "bytes"


class FrozenWords:
    """Embeddings of words that are the same in every process: fixed random vectors of words and their trigrams."""

    def __init__(self, dim: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.encoder = WordTextEncoder(dim, 1, 1).eval()

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, words, dim) of unit deviation; 0 behind the last word of a text."""
        prepared = self.encoder.prepare(texts)
        vectors = F.layer_norm(self.encoder.look_up(prepared["text"]), (self.encoder.embedding.embedding_dim,))
        return vectors.masked_fill(~prepared["text_mask"][..., None], 0)


def embedding_mask(embeds: Tensor) -> Tensor:
    """Mask (batch, words) of embeddings that are not padding, which is 0, or -1 as data loaders of the original pad."""
    return ~((embeds == 0).all(-1) | (embeds == -1).all(-1))


def as_projection(encoder: nn.Module, dim: int) -> PrecomputedText:
    """A projection of text embeddings that replaces a text encoder.

    It takes over two parameters of the encoder, with new values: an optimizer that exists already then trains them.
    """
    assert isinstance(encoder, ByteTextEncoder)
    weight = encoder.embedding.weight
    projection = PrecomputedText(dim, encoder.dim).to(weight.device, weight.dtype)
    bias = encoder.transformer.norm.weight
    for name, parameter in (("weight", weight), ("bias", bias)):
        parameter.data = getattr(projection.project, name).data
        setattr(projection.project, name, parameter)
    return projection
