"""Text embeddings of Python data sets (model.text=vectors): the field of an item, its checks, and padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from quintet.common.batch import Item
from quintet.config.text import TextConfig
from quintet.data.python_dataset import Field
from quintet.errors import UnreadableItem, UsageError


def has_type(value: Any, kinds: tuple[str, ...], axes: tuple[int, ...]) -> bool:
    """Whether a value is an array or a tensor of one of these kinds of numbers, with one of these numbers of axes."""
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return getattr(value, "ndim", None) in axes and dtype.startswith(kinds)


VECTORS = Field(
    "vectors",
    ("text_embeds", "text_embeddings"),
    lambda value: has_type(value, ("float",), (2,)),
    "floats (words, dim), the embedding of a text",
    required=False,
)


def embedding_of(routed: Mapping[str, Any]) -> Item:
    """`vectors` (words, dim) of an item, or nothing."""
    if routed.get("vectors") is None:
        return {}
    vectors = torch.as_tensor(routed["vectors"]).detach().cpu().float()
    if vectors.ndim != 2 or not len(vectors) or not vectors.isfinite().all():
        raise UnreadableItem(f"has a text embedding of shape {tuple(vectors.shape)}, or one with non-finite values")
    return {"vectors": vectors}


def collate_embeddings(items: Sequence[Item]) -> dict[str, Any]:
    """`vectors` (items, words, dim) with the mask `words` (items, words), if every item with a text has an embedding.

    An item without text and embedding has no words.
    """
    known = [item["vectors"] for item in items if "vectors" in item]
    if not known or any(item.get("texts") for item in items if "vectors" not in item):
        return {}
    rows = [item.get("vectors", known[0][:0]) for item in items]
    vectors = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    counts = torch.tensor([len(row) for row in rows])
    return {"vectors": vectors, "words": torch.arange(vectors.shape[1]) < counts[:, None]}


def check_embeddings(first: Mapping[str, Any], model: TextConfig) -> None:
    """Check that an item has the text embeddings that `model.text` needs, or none."""
    vectors = first.get("vectors")
    if vectors is not None and model.text in ("bytes", "words", "classes"):
        raise UsageError(
            f"the items have text embeddings of dimension {vectors.shape[-1]}: train with model.text=vectors and "
            f"model.vector_dim={vectors.shape[-1]}"
        )
    if vectors is None and model.text == "vectors":
        raise UsageError("model.text=vectors needs items with text embeddings (text_embeds)")
