"""What the preparations of generators share, which run in the data workers: texts, and a check of codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quintet.common.batch import Batch
from quintet.errors import UsageError
from quintet.nn.text import TextPreparation


def prepared_texts(prepare: TextPreparation | None, batch: Batch, keep: Tensor) -> dict[str, Tensor]:
    """`keep_text`, and `text` and `text_mask` if the texts can be prepared here."""
    if "texts" not in batch or "vectors" in batch:
        return {"keep_text": keep}
    keep = keep & has_texts(batch)
    return {"keep_text": keep, **({} if prepare is None else prepare(batch["texts"], keep))}


def has_texts(batch: Batch) -> Tensor:
    """Mask (batch,) of the items with a caption. An empty caption means unconditional, as in sampling."""
    return torch.tensor([bool(text) for text in batch["texts"]])


def check_vocabulary(names: Sequence[str], codes: Tensor, num_codes: int, what: str = "codes") -> None:
    """Raise UsageError if codes (batch, ...) are outside the vocabulary. On a GPU, the embedding of such a code would
    end the process with an error of a kernel that names neither the item nor the code."""
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < num_codes:
        wrong = ((codes < 0) | (codes >= num_codes)).flatten(1).any(1).nonzero()[0, 0]
        least, most = codes[wrong].min(), codes[wrong].max()
        raise UsageError(
            f"{names[int(wrong)]} has {what} from {int(least)} to {int(most)}, which are outside the vocabulary of "
            f"{num_codes}; encode the data with the tokenizer of this model"
        )
