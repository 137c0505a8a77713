"""Owns texts as the tokens of a tokenizer of `transformers` that lies in a folder; nothing is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import files
from quintet.errors import UsageError
from quintet.nn.text import padded_length
from quintet.nn.transformers_folder import load_transformers


class TokenizerFolder:
    """A tokenizer: texts to padded rows of ids. Not a module; it is read when the first text comes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser()

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenizerFolder:
        """Itself: it never changes."""
        return self

    @property
    def vocabulary(self) -> int:
        """How many ids there are, the padding's included, which is the last."""
        return len(self._tokenizer) + 1

    def encode(self, texts: Sequence[str], max_length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Ids `(batch, length)`, which are not padding, and which texts, `(batch,)`, had more than fits."""
        most = min(max_length, self._tokenizer.model_max_length)
        whole = kept = self._tokenizer(list(texts), verbose=False)["input_ids"] if texts else []
        if any(len(row) > most for row in whole):
            kept = self._tokenizer(list(texts), truncation=True, max_length=most)["input_ids"]
        width = padded_length(max((len(row) for row in kept), default=1) or 1, max_length)
        ids = torch.full((len(kept), width), self.vocabulary - 1, dtype=torch.int64)
        for place, row in zip(ids, kept, strict=True):
            place[: len(row)] = torch.tensor(row, dtype=torch.int64)
        mask = torch.arange(width) < torch.tensor([len(row) for row in kept], dtype=torch.int64)[:, None]
        cut = torch.tensor([len(row) < len(all_of_it) for row, all_of_it in zip(kept, whole, strict=True)])
        return ids, mask, cut.bool()

    @cached_property
    def _tokenizer(self) -> Any:
        if not self.folder.is_dir():
            raise UsageError(f"text: there is no folder {self.folder} with a tokenizer")
        try:
            return load_transformers("text: tokens:…").AutoTokenizer.from_pretrained(
                self.folder, local_files_only=True, trust_remote_code=False
            )
        except (OSError, ValueError, KeyError, AttributeError, ImportError, RuntimeError) as error:
            reason = files.one_line(error)
            raise UsageError(f"{self.folder} is not a tokenizer that `transformers` can load ({reason})") from None
