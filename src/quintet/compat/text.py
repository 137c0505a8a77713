"""Text encoders of the originals, which name a T5 of the Hugging Face hub: nothing is downloaded.

A local folder is used as a frozen encoder; any other name means quintet's byte-level encoder, which is trained with the
model. Embeddings that the user passes always work: a linear layer projects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.errors import UsageError
from quintet.nn.conditioning import FrozenText
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.nn.text import mask_dropped

DEFAULT_T5_NAME = "google/t5-v1_1-base"
T5_DIMS = {"small": 512, "base": 768, "large": 1024, "xl": 2048, "xxl": 4096, "3b": 1024, "11b": 1024}
"""Dimensions of T5 models by the last part of their names."""


@dataclass(frozen=True)
class TextSource:
    """The text encoder that a name of the originals stands for."""

    text: str
    """The key `model.text`."""
    embed_dim: int
    """Dimension of the embeddings of the T5 of that name, which a user may pass as `text_embeds`."""
    notices: tuple[str, ...]


def text_source(t5_name: str | Path, embed_dim: int | None = None) -> TextSource:
    size = str(t5_name).rpartition("-")[2].lower()
    dim = embed_dim or T5_DIMS.get(size, T5_DIMS["base"])
    if Path(t5_name).expanduser().is_dir():
        return TextSource(f"hf:{Path(t5_name).expanduser()}", dim, ())
    notice = (
        f"nothing is downloaded: texts are encoded by quintet's byte-level encoder instead of {t5_name}, and it is "
        "trained with the model; pass a local folder as t5_name to use a T5"
    )
    return TextSource("bytes", dim, (notice,))


class EmbeddingProjection(nn.Module):
    """Text embeddings (batch, tokens, dim) as context of a masked transformer; rows of zeros are padding."""

    def __init__(self, embed_dim: int, text_dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(embed_dim, text_dim)

    def conditioning(
        self, model: MaskGit | TokenCritic, embeds: Tensor, keep: Tensor | None = None
    ) -> dict[str, Tensor]:
        mask = (embeds != 0).any(-1)
        if isinstance(model.text_encoder, FrozenText):
            return model.text_vectors(embeds, mask, keep)
        if embeds.ndim != 3 or embeds.shape[-1] != self.project.in_features:
            raise UsageError(
                f"text_embeds have shape {tuple(embeds.shape)}; expected (batch, tokens, {self.project.in_features}), "
                "the dimension of the T5 that the model was built for"
            )
        context = self(embeds)
        return {"context": context, "context_mask": mask_dropped(mask.to(context.device), keep)}

    def forward(self, embeds: Tensor) -> Tensor:
        """Vectors (batch, tokens, text_dim) of embeddings (batch, tokens, dim)."""
        embeds = embeds.to(self.project.weight.device, self.project.weight.dtype)
        context: Tensor = self.project(F.layer_norm(embeds, (self.project.in_features,)))
        return context


def text_conditioning(
    model: MaskGit | TokenCritic,
    projection: EmbeddingProjection | None,
    texts: list[str] | None,
    embeds: Tensor | None,
    keep: Tensor | None = None,
) -> dict[str, Tensor]:
    """Conditioning of texts or of their embeddings; an empty text means no text."""
    if embeds is not None:
        assert projection is not None
        return projection.conditioning(model, embeds, keep)
    has_text = torch.tensor([bool(text) for text in texts or ()])
    return model.texts(texts or [], has_text if keep is None else keep & has_text)


def take_over(source: nn.Module, target: nn.Module) -> None:
    """Move the parameters and buffers of a model to its successor, by name, and its training mode and device.

    The parameters stay the same objects, so that an optimizer that was built for `source` trains `target`. One that has
    another shape now keeps its first rows, as far as both have them, and loses its gradient.
    """
    first = next(source.parameters())
    target.to(first.device, first.dtype).train(source.training)
    parameters = dict(source.named_parameters(remove_duplicate=False))
    buffers = dict(source.named_buffers())
    for prefix, module in target.named_modules():
        for name, new in module.named_parameters(prefix, recurse=False):
            if name in parameters:
                module._parameters[name.rpartition(".")[2]] = _reshaped(parameters[name], new)
        for name, buffer in module.named_buffers(prefix, recurse=False):
            if name in buffers:
                _copy_rows(buffers[name], buffer)


def _reshaped(old: nn.Parameter, new: nn.Parameter) -> nn.Parameter:
    """The object `old` with the shape of `new`, and the rows of `new` where `old` has none."""
    if old.shape != new.shape:
        _copy_rows(old, new)
        old.data, old.grad = new.data, None
    return old


@torch.no_grad()
def _copy_rows(old: Tensor, new: Tensor) -> None:
    """Copy the rows that both have; of tensors whose rows differ in shape none."""
    if old.shape == new.shape:
        new.copy_(old)
    elif old.ndim and old.shape[1:] == new.shape[1:]:
        rows = min(len(old), len(new))
        new[:rows] = old[:rows]
