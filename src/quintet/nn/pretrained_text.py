"""Owns frozen text encoders of `transformers` (T5 and the like) and the cache of their embeddings on files.

The cache is `CACHE/text/MODEL/xx/CAPTION.safetensors`, where MODEL is a hash over all files that decide the
embeddings, and CAPTION the SHA-256 of the text. An entry is written under another name and renamed, so it is whole or
absent whatever kills the process, and two processes at once write the same. It carries its own hash: what is damaged
is computed again. The encoder itself is loaded when the first text is missing.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from quintet.common import files
from quintet.common.weights import checkpoint
from quintet.config.text import PRETRAINED
from quintet.errors import RunError, UsageError
from quintet.nn import transformers_folder
from quintet.nn.text import padded_length

_WHAT = "text encoder"
_LARGEST_BATCH = 64
_FORMAT = 1
"""Of the cache's entries; another number is another cache."""


class Embedding(NamedTuple):
    """One text: `(tokens, dim)` in half precision where its range allows, and whether the text was cut."""

    vectors: Tensor
    cut: bool


class PretrainedText:
    """A frozen encoder: texts to padded embeddings. Not a module, so it is in no checkpoint and no optimizer.

    `root` is the folder that holds the cache, None for no cache; it may change. Files are hashed when the first text
    comes, so that a model which is given embeddings never waits for it.

    `hits` and `misses` count distinct texts, `damaged` the entries that had to be computed again.
    """

    def __init__(
        self,
        reference: str,
        cache: Path | None,
        max_length: int,
        device: torch.device | str = "cpu",
        notice: Callable[[str], None] = warnings.warn,
    ) -> None:
        if max_length < 1:
            raise UsageError(f"A text encoder needs a max_length of at least 1, not {max_length}.")
        self.reference = reference.removeprefix(PRETRAINED)
        self.max_length = max_length
        self.device = torch.device(device)
        self.notice = notice
        self.hits = self.misses = self.damaged = 0
        self._told = False
        self.folder = transformers_folder.find_folder(self.reference, "text")
        with transformers_folder.loading(self.folder, _WHAT):
            self.config: Any = transformers_folder.load_part(self.folder, _WHAT, "AutoConfig")
            self.dim = int(self.config.hidden_size)
        transformers_folder.refuse_pickle(self.folder)
        self.root = cache

    def __deepcopy__(self, memo: dict[int, Any]) -> PretrainedText:
        """Itself: what never changes need not be in memory again for the average of a model's weights."""
        return self

    @property
    def cache(self) -> Path | None:
        return None if self.root is None else Path(self.root) / "text" / self._model_key

    def embed(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings `(batch, tokens, dim)` in fp32 and which tokens are not padding, on the encoder's device."""
        texts = [text.encode("utf-8", errors="replace").decode() for text in texts]
        known = self._look_up(dict.fromkeys(texts))
        self._tell_of_cuts(sum(known[text].cut for text in texts))
        rows = [known[text].vectors.float() for text in texts]
        width = padded_length(max((len(row) for row in rows), default=1), self.max_length)
        filler = torch.zeros(width, self.dim)
        vectors = pad_sequence([*rows, filler], batch_first=True)[:-1]
        mask = torch.arange(width) < torch.tensor([len(row) for row in rows], dtype=torch.int64)[:, None]
        return vectors.to(self.device), mask.to(self.device)

    def _look_up(self, texts: Mapping[str, None]) -> dict[str, Embedding]:
        known = {text: entry for text in texts if (entry := self._read(text)) is not None}
        missing = [text for text in texts if text not in known]
        self.hits += len(known)
        self.misses += len(missing)
        for text, entry in self._compute(missing):
            self._write(text, entry)
            known[text] = entry
        return known

    # --- the encoder ----------------------------------------------------------------------------------------------

    def _compute(self, texts: Sequence[str]) -> Iterator[tuple[str, Embedding]]:
        """In batches of texts with equally many tokens: no padding, so no text depends on its neighbours."""
        if not texts:
            return
        most = min(self.max_length, self._tokenizer.model_max_length)
        whole = self._tokenizer(texts, verbose=False)["input_ids"]
        kept = self._tokenizer(texts, truncation=True, max_length=most)["input_ids"]
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, tokens in enumerate(kept):
            by_length[len(tokens)].append(number)
        for numbers in by_length.values():
            for start in range(0, len(numbers), _LARGEST_BATCH):
                batch = numbers[start : start + _LARGEST_BATCH]
                for number, vectors in zip(batch, self._encode([kept[number] for number in batch]), strict=True):
                    if not vectors.isfinite().all():
                        raise RunError(f"{self.reference} makes non-finite embeddings, of {texts[number][:80]!r}")
                    half = vectors.half()
                    entry = Embedding(
                        half if half.isfinite().all() else vectors, len(kept[number]) < len(whole[number])
                    )
                    yield texts[number], entry

    @torch.no_grad()
    def _encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        if not tokens[0]:  # a tokenizer without an end symbol makes nothing of an empty text
            return torch.zeros(len(tokens), 0, self.dim)
        ids = torch.tensor(tokens, device=self.device)
        with torch.autocast(self.device.type, enabled=False):
            vectors: Tensor = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return vectors.float().cpu()

    @cached_property
    def _tokenizer(self) -> Any:
        return transformers_folder.load_part(self.folder, _WHAT, "AutoTokenizer")

    @cached_property
    def _model(self) -> nn.Module:
        # A pooler is for classifying and takes no part in the embeddings.
        unneeded, kind = ["pooler."], "AutoModelForTextEncoding"
        model: nn.Module = transformers_folder.load_model(self.folder, _WHAT, unneeded, kind)
        return model.to(self.device)

    def _tell_of_cuts(self, number: int) -> None:
        if number and not self._told:
            self._told = True
            self.notice(
                f"some texts are longer than the text encoder {self.reference} takes and are cut "
                f"(max_length is {self.max_length} tokens; the model may have a limit of its own)"
            )

    # --- the cache ------------------------------------------------------------------------------------------------

    @cached_property
    def _model_key(self) -> str:
        """A hash over what decides the embeddings: configuration, tokenizer, weights, the greatest length."""
        return transformers_folder.digest(self.folder, _FORMAT, self.max_length)

    def _path(self, text: str) -> Path | None:
        cache, name = self.cache, hashlib.sha256(text.encode()).hexdigest()
        return None if cache is None else cache / name[:2] / f"{name}.safetensors"

    def _read(self, text: str) -> Embedding | None:
        path = self._path(text)
        if path is None:
            return None
        try:
            return self._unpack(text, checkpoint.read_regular(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RuntimeError, SafetensorError):
            self.damaged += 1
            return None

    def _write(self, text: str, entry: Embedding) -> None:
        path = self._path(text)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_bytes(path, _pack(text, entry), durable=False, concurrent=True)
        except OSError as error:
            raise RunError(f"cannot write to the cache of text embeddings {self.cache} ({error})") from None

    def _unpack(self, text: str, raw: bytes) -> Embedding:
        tensors = load(raw)
        entry = Embedding(tensors["vectors"], bool(tensors["cut"].item()))
        if not torch.equal(_digest(text, entry), tensors["digest"]) or entry.vectors.shape[1:] != (self.dim,):
            raise ValueError("an entry is not what was written")
        return entry


def _pack(text: str, entry: Embedding) -> bytes:
    return save(
        {"vectors": entry.vectors.contiguous(), "cut": torch.tensor([entry.cut]), "digest": _digest(text, entry)}
    )


def _digest(text: str, entry: Embedding) -> Tensor:
    """Over all an entry says, and of which text, so that it is sound in its own place alone."""
    about = json.dumps([text, str(entry.vectors.dtype), list(entry.vectors.shape), entry.cut])
    content = hashlib.sha256(about.encode() + entry.vectors.contiguous().numpy().tobytes())
    return torch.tensor(list(content.digest()), dtype=torch.uint8)
