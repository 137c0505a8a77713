"""Frozen text encoders of `transformers` (such as T5), and a file cache of their embeddings.

The cache is `CACHE/text/MODEL/xx/CAPTION.safetensors`, where MODEL is a hash of all files that affect the embeddings,
and CAPTION the SHA-256 of the text. Entries are written atomically (temporary file, then rename), and concurrent
processes write the same content. An entry contains its own hash, and a damaged entry is computed again. The encoder is
loaded when the first text is not in the cache.
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
from quintet.common.caches import VARIABLE, writing_cache
from quintet.common.weights import checkpoint
from quintet.config.text import PRETRAINED
from quintet.errors import RunError, UsageError
from quintet.nn import transformers_folder
from quintet.nn.text import padded_length

_ROLE = "text encoder"
_MAX_BATCH_SIZE = 64
_FORMAT = 1
"""Format version of cache entries; it is part of the cache key."""


class Embedding(NamedTuple):
    """Embedding of one text: `(tokens, dim)`, in fp16 if its range suffices, and whether the text was truncated."""

    vectors: Tensor
    truncated: bool


class PretrainedText:
    """A frozen text encoder: texts to padded embeddings. Not a module, so it is not in checkpoints or optimizers.

    `root` is the cache folder, None for no cache; it may be changed. Files are hashed when the first text is encoded,
    so that a model with precomputed embeddings never waits for it.

    `hits` and `misses` count distinct texts, `damaged` the cache entries that were computed again.
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
        self._warned = False
        self.folder = transformers_folder.find_folder(self.reference, "text")
        with transformers_folder.loading(self.folder, _ROLE):
            self.config: Any = transformers_folder.load_part(self.folder, _ROLE, "AutoConfig")
            self.dim = int(self.config.hidden_size)
        transformers_folder.check_weights(self.folder, _ROLE)
        self.root = cache

    def __deepcopy__(self, memo: dict[int, Any]) -> PretrainedText:
        """Returns itself: it is immutable, so the EMA copy of a model can share it."""
        return self

    @property
    def cache(self) -> Path | None:
        return None if self.root is None else Path(self.root) / "text" / self._model_key

    def embed(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embeddings `(batch, tokens, dim)` in fp32 and their mask `(batch, tokens)`, on the encoder's device."""
        texts = [text.encode("utf-8", errors="replace").decode() for text in texts]
        known = self._look_up(dict.fromkeys(texts))
        self._warn_of_truncation(sum(known[text].truncated for text in texts))
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
        """Encode in batches of texts with the same number of tokens: without padding, no text depends on others."""
        if not texts:
            return
        limit = min(self.max_length, self._tokenizer.model_max_length)
        full = self._tokenizer(texts, verbose=False)["input_ids"]
        truncated = self._tokenizer(texts, truncation=True, max_length=limit)["input_ids"]
        by_length: dict[int, list[int]] = defaultdict(list)
        for number, tokens in enumerate(truncated):
            by_length[len(tokens)].append(number)
        for numbers in by_length.values():
            for start in range(0, len(numbers), _MAX_BATCH_SIZE):
                batch = numbers[start : start + _MAX_BATCH_SIZE]
                for number, vectors in zip(batch, self._encode([truncated[number] for number in batch]), strict=True):
                    if not vectors.isfinite().all():
                        raise RunError(f"{self.reference} returns non-finite embeddings for {texts[number][:80]!r}")
                    half = vectors.half()
                    entry = Embedding(
                        half if half.isfinite().all() else vectors, len(truncated[number]) < len(full[number])
                    )
                    yield texts[number], entry

    @torch.no_grad()
    def _encode(self, tokens: Sequence[Sequence[int]]) -> Tensor:
        if not tokens[0]:  # without an end symbol, an empty text has no tokens
            return torch.zeros(len(tokens), 0, self.dim)
        ids = torch.tensor(tokens, device=self.device)
        with torch.autocast(self.device.type, enabled=False):
            vectors: Tensor = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        return vectors.float().cpu()

    @cached_property
    def _tokenizer(self) -> Any:
        return transformers_folder.load_part(self.folder, _ROLE, "AutoTokenizer")

    @cached_property
    def _model(self) -> nn.Module:
        # A pooler is for classification and does not affect the embeddings.
        unneeded, kind = ["pooler."], "AutoModelForTextEncoding"
        model: nn.Module = transformers_folder.load_model(self.folder, _ROLE, unneeded, kind)
        return model.to(self.device)

    def _warn_of_truncation(self, count: int) -> None:
        if count and not self._warned:
            self._warned = True
            self.notice(
                f"some texts are too long for the text encoder {self.reference} and are truncated "
                f"(max_length is {self.max_length} tokens; the model may have a lower limit)"
            )

    # --- the cache ------------------------------------------------------------------------------------------------

    @cached_property
    def _model_key(self) -> str:
        """Hash of everything that affects the embeddings: configuration, tokenizer, weights, maximum length."""
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
        with writing_cache(path.parents[1], VARIABLE):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.replace_bytes(path, _pack(text, entry), durable=False, concurrent=True)

    def _unpack(self, text: str, raw: bytes) -> Embedding:
        tensors = load(raw)
        entry = Embedding(tensors["vectors"], bool(tensors["cut"].item()))
        if not torch.equal(_digest(text, entry), tensors["digest"]) or entry.vectors.shape[1:] != (self.dim,):
            raise ValueError("the cache entry is damaged")
        return entry


def _pack(text: str, entry: Embedding) -> bytes:
    return save(
        {"vectors": entry.vectors.contiguous(), "cut": torch.tensor([entry.truncated]), "digest": _digest(text, entry)}
    )


def _digest(text: str, entry: Embedding) -> Tensor:
    """Hash of the entry and its text, so that an entry is valid only for that text."""
    metadata = json.dumps([text, str(entry.vectors.dtype), list(entry.vectors.shape), entry.truncated])
    content = hashlib.sha256(metadata.encode() + entry.vectors.contiguous().numpy().tobytes())
    return torch.tensor(list(content.digest()), dtype=torch.uint8)
