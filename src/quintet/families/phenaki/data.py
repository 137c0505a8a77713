"""Phenaki's data: the codes of captioned clips, of a folder or of a data set in Python.

The codes are made once by a frozen tokenizer and kept in the cache. Items of a data set in Python are those that the
original trainer takes: videos or codebook ids, frame masks, and texts or their embeddings; in dictionaries, in tuples
with declared names, or in tuples routed by type. Codes of clips of different lengths are padded with -1 to those of the
longest clip of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from quintet.common.batch import Item
from quintet.common.batch import collate as collate_equal
from quintet.data.captioned import check_captions
from quintet.data.splits import Splits
from quintet.data.tokenized import tokenized_splits
from quintet.data.video import video_folder_splits
from quintet.families.phenaki.config import PhenakiConfig
from quintet.pipelines.base import Tokenizer

PADDING = -1
_OWN_LENGTH = ("codes", "vectors")


def clip_splits(config: PhenakiConfig, tokenizer: Tokenizer[Any]) -> Splits:
    """The codes of the folders that the configuration names, from the cache, encoded where they are not yet."""
    media = video_folder_splits(config.data, tokenizer.model.config.size)
    check_captions(config.model, media, "clips", config.data.empty_captions)
    return tokenized_splits(
        tokenizer.token_encoder(), media, "clips encoded", cache=config.data.cache, variants=config.data.variants
    )


def collate_clips(items: Sequence[Item]) -> dict[str, Any]:
    """The codes, (items, moments, …), and `there`, which of them there are, (items, codes); left out where all are.

    Embeddings of texts, `vectors` (items, words, width), come with `words`, which of them there are; an item that has
    neither text nor embedding has none of them.
    """
    fields = collate_equal([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    codes = [item["codes"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    if len({len(one) for one in codes}) > 1:
        fields["there"] = fields["codes"].flatten(1) != PADDING
    known = [item["vectors"] for item in items if "vectors" in item]
    if known and not any(item.get("texts") for item in items if "vectors" not in item):
        vectors = [item.get("vectors", known[0][:0]) for item in items]
        fields["vectors"] = torch.nn.utils.rnn.pad_sequence(vectors, batch_first=True)
        counts = torch.tensor([len(one) for one in vectors])
        fields["words"] = torch.arange(fields["vectors"].shape[1]) < counts[:, None]
    return fields
