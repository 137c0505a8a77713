"""Data of SoundStorm: the codes of clips, encoded once by a frozen codec, and the conditioning of each clip.

Windows of `data.seconds` are used, of each clip the first or several (`data.windows`). Codes and MuLaN embeddings of
clips are stored in the token cache. Semantic tokens are read from a separate folder, by file name. Python datasets may
hold token ids, as the original trainer takes them: (semantic, acoustic) pairs, dictionaries of both, or acoustic tokens
alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.data.audio import FIELDS, PythonAudio, audio_folder_splits, report_resampling
from quintet.data.audio_windows import with_windows
from quintet.data.captioned import check_captions, inferred_text_keys
from quintet.data.index.captions import equal_captions
from quintet.data.index.listing import list_media
from quintet.data.python_dataset import Field, Indexable, PythonDataset, route, split_object
from quintet.data.splits import Splits
from quintet.data.text_embeddings import VECTORS, collate_embeddings, embedding_of
from quintet.data.token_cache import MediaDataset, TokenDataset
from quintet.data.token_files import SemanticTokens, read_semantic
from quintet.data.tokenized import tokenized_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm.conditioning import length_mismatch
from quintet.families.soundstorm.config import SoundStormConfig, SoundStormModelConfig
from quintet.families.soundstorm.mulan_conditioner import MuLaNConditioner
from quintet.media.audio import EXTENSIONS
from quintet.nn.text import words_of

PADDING = -1
MAX_KNOWN_WORDS = 2000
"""Words that a run records at most; of a larger vocabulary hardly a word is unknown by mistake."""
_PADDED = ("codes", "semantic")
_VARIABLE_LENGTH = (*_PADDED, "vectors")


@dataclass
class ClipDataset:
    """Clips as codes.

    An item holds `codes` (frames, num_quantizers), its `texts` and other metadata. With a MuLaN it holds the embedding
    `clip` of its audio, and with `loss.caption_cond_prob` the embedding `caption` and whether it is `captioned`. With
    semantic tokens it holds `semantic` (tokens,).
    """

    codes: TokenDataset
    clips: TokenDataset | None = None
    captions: Mapping[str, Tensor] | None = None
    semantic: Mapping[int, Tensor] | None = None
    """By the index of the item; None: the model has no semantic tokens."""
    unusable: Mapping[int, str] = field(default_factory=dict)
    """Items without semantic tokens, with the reason."""

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return self.codes.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        if item in self.unusable:
            raise UnreadableItem(self.unusable[item])
        loaded = self.codes.load(item, rng)
        if self.semantic is not None:
            loaded["semantic"] = self.semantic[item]
        if self.clips is not None:
            loaded["clip"] = self.clips.load(item, rng)["clip"]
        if self.captions is not None:
            vector = self.captions.get(loaded.get("texts", ""))
            loaded |= {"caption": loaded["clip"] if vector is None else vector, "captioned": vector is not None}
        return loaded

    def lengths(self) -> list[int]:
        """The number of frames of each clip; 0 if it cannot be used."""
        return [0 if item in self.unusable else count for item, count in enumerate(self.codes.lengths())]


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """A batch: `codes` (batch, frames, num_quantizers) padded to the longest clip, and `frames`, their valid mask."""
    fields = collate_equal(
        [{name: value for name, value in item.items() if name not in _VARIABLE_LENGTH} for item in items]
    )
    for name in _PADDED:
        if all(name in item for item in items):
            values = [item[name] for item in items]
            fields[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=PADDING)
    fields["frames"] = (fields["codes"] >= 0).any(-1)
    return {**fields, **collate_embeddings(items)}


def text_keys(config: SoundStormConfig, has_condition: bool) -> dict[str, Any]:
    """The text encoder for `model.text=auto`, the names of the classes, and the words of the captions."""
    keys: dict[str, Any] = {}
    if config.model.text == "auto":
        keys["model.text"] = "words" if not has_condition and _distinct_captions(config) else "none"
        config = config.changed(keys)
    keys |= inferred_text_keys(config.model, config.data, EXTENSIONS)
    if config.model.text == "words" and config.model.known_words is None:
        words = sorted({word for caption in _distinct_captions(config) for word in words_of(caption)})
        keys |= {"model.known_words": words} if 0 < len(words) <= MAX_KNOWN_WORDS else {}
    return keys


def _distinct_captions(config: SoundStormConfig) -> set[str]:
    """The distinct captions of the data; none for a Python dataset."""
    if config.data.path is None:
        return set()
    return {
        entry.text
        for entry in list_media(config.data.path, EXTENSIONS, cache=config.data.cache_dir).entries
        if entry.text
    }


def clip_splits(config: SoundStormConfig, tokenizer: Any, conditioner: MuLaNConditioner | None) -> Splits:
    """The codes of the folders of the configuration, from the token cache or encoded now."""
    media = audio_folder_splits(
        config.data,
        tokenizer.model.sample_rate,
        channels=tokenizer.model.channels,
        first_window_only=True,
        uses_captions=config.model.text != "none",
    )
    if config.data.windows != 1:
        if config.data.semantic_tokens is not None:
            raise UsageError("semantic tokens are those of the start of a clip: leave data.windows at 1")
        media = with_windows(media, config.data.windows)
    report_resampling(media.train, tokenizer.model.sample_rate, "the tokenizer")
    return encode_splits(config, tokenizer, conditioner, media)


def encode_splits(
    config: SoundStormConfig, tokenizer: Any, conditioner: MuLaNConditioner | None, media: Splits
) -> Splits:
    """The items of `media` as codes of the tokenizer, the pipeline of a codec, with the conditioning of each clip."""
    check_captions(config.model, media, "clips", config.data.allow_missing_captions)
    data = config.data
    cached = partial(tokenized_splits, cache=data.cache_dir, workers=data.num_workers, encoding=data)
    codes = cached(tokenizer.token_encoder(config.model.num_quantizers), media, "clips encoded")
    clips = embedded = None
    if conditioner is not None:
        encoder = conditioner.token_encoder(tokenizer.model.sample_rate)
        embedded = cached(encoder, media, "clips embedded")
        clips = {"train": embedded.train, "validation": embedded.validation, **embedded.extra_splits}
    captions = (
        _captions(media.train, conditioner) if config.loss.caption_cond_prob and conditioner is not None else None
    )
    tokens = _semantic(config)
    skipped = dict(codes.skipped)

    def joined(source: Dataset, part: str, captions: Mapping[str, Tensor] | None = None) -> ClipDataset:
        vectors = clips[part] if clips is not None else None
        assert isinstance(source, TokenDataset)
        assert vectors is None or isinstance(vectors, TokenDataset)
        semantic, unusable = (None, {}) if tokens is None else _semantic_of_items(config, source, tokens)
        skipped.update({source.name(item): reason for item, reason in unusable.items()})
        return ClipDataset(source, vectors, captions, semantic, unusable)

    return replace(
        codes,
        train=joined(codes.train, "train", captions),
        validation=joined(codes.validation, "validation"),
        extra_splits={split: joined(source, split) for split, source in codes.extra_splits.items()},
        skipped=skipped,
        fingerprint=codes.fingerprint if tokens is None else codes.fingerprint + _fingerprint(tokens),
    )


def _semantic(config: SoundStormConfig) -> SemanticTokens | None:
    if config.data.semantic_tokens is None:
        if config.model.semantic_codes is not None:
            raise UsageError(
                "this model is conditioned on semantic tokens (model.semantic_codes): set data.semantic_tokens=FOLDER"
            )
        return None
    tokens = read_semantic(Path(config.data.semantic_tokens))
    config.adopt(
        f"{config.data.semantic_tokens}", {"model.semantic_codes": tokens.num_codes, "model.semantic_rate": tokens.rate}
    )
    return tokens


def _semantic_of_items(
    config: SoundStormConfig, codes: TokenDataset, tokens: SemanticTokens
) -> tuple[dict[int, Tensor], dict[int, str]]:
    """The semantic tokens of each item, truncated as its clip is; and the items that have none, with the reason."""
    found: dict[int, Tensor] = {}
    missing: dict[int, str] = {}
    assert config.model.frame_rate is not None
    ratio = tokens.rate / config.model.frame_rate
    max_frames = math.floor(config.data.seconds * config.model.frame_rate)
    for item, frames in enumerate(codes.lengths()):
        own = tokens.of_file.get(codes.name(item))
        if own is None:
            missing[item] = f"has no semantic tokens in {config.data.semantic_tokens}"
            continue
        own = own[: max(1, math.ceil(frames * ratio))] if frames >= max_frames else own
        if frames and (reason := length_mismatch(config.model, len(own), frames)):
            raise UsageError(f"{codes.name(item)}: {reason}")
        found[item] = own
    if missing and not found:
        raise UsageError(
            f"{config.data.semantic_tokens} has no tokens of any file of the data, for example {codes.name(0)}; "
            "encode the same data folder"
        )
    return found, missing


def _fingerprint(tokens: SemanticTokens) -> str:
    content = hashlib.sha256()
    for file, own in sorted(tokens.of_file.items()):
        content.update(f"{file} {own.tolist()}".encode())
    return content.hexdigest()


def _captions(source: Dataset, conditioner: MuLaNConditioner) -> dict[str, Tensor]:
    """The embedding of each training caption. Embedded together and sorted, so that a resumed run gets the same."""
    assert isinstance(source, MediaDataset)
    if not len(source):  # a folder that is only evaluated
        return {}
    texts = sorted({source.metadata(item).get("texts", "") for item in range(len(source))} - {""})
    if not texts:
        raise UsageError("loss.caption_cond_prob needs captions, but no clip has one; leave it at 0, or add captions")
    if len(texts) == 1 and len(source) > 1:
        say(f"warning: {equal_captions(len(source), 'clips', texts[0])}")
    return dict(zip(texts, conditioner.embed_texts(texts).cpu(), strict=True))


class EmbeddedAudio(PythonAudio):
    """Audio of a Python dataset with text embeddings, `vectors` (words, dim), for model.text=vectors."""

    fields = (*FIELDS, VECTORS)

    def load(self, item: int, rng: ItemRNG) -> Item:
        loaded = super().load(item, rng)
        loaded.pop("vectors", None)  # of the item, not of its samples: `metadata` has them
        return loaded

    def _text(self, item: int, routed: dict[str, Any]) -> Item:
        return embedding_of(routed)


def _are_ids(value: Any, axes: int) -> bool:
    return hasattr(value, "ndim") and value.ndim == axes and "int" in str(value.dtype)


ACOUSTIC = Field(
    "codes",
    ("acoustic_token_ids", "acoustic_tokens", "acoustic", "x"),
    lambda value: _are_ids(value, 2),
    "integers (frames, quantizers), the acoustic tokens",
)
SEMANTIC = Field(
    "semantic",
    ("semantic_token_ids", "cond_semantic_token_ids", "semantic_tokens"),
    lambda value: _are_ids(value, 1),
    "integers (tokens), the semantic tokens",
)


def has_token_ids(dataset: Indexable, declared: Sequence[str] | None) -> bool:
    """Whether the items of a dataset are token ids, not waveforms."""
    declared = declared or getattr(dataset, "data_kwargs", None)
    item = dataset[0]
    if isinstance(item, Mapping):
        return any(ACOUSTIC.known_as(key) for key in item)
    if declared is not None:
        return any(ACOUSTIC.known_as(name) for name in declared)
    return any(ACOUSTIC.accepts(value) for value in (item if isinstance(item, (tuple, list)) else (item,)))


@dataclass
class PythonTokens(PythonDataset):
    """A Python dataset of token ids. Items that do not fit the model are unreadable; frames of -1 at the end are
    padding."""

    fields = (ACOUSTIC, SEMANTIC)

    model: SoundStormModelConfig

    def load(self, item: int, rng: ItemRNG) -> Item:
        model = self.model
        routed = self.routed(item)
        codes = token_ids(routed["codes"], 2, "acoustic tokens", model.num_codes)
        if codes.shape[1] != model.num_quantizers:
            raise UnreadableItem(
                f"has acoustic tokens of {codes.shape[1]} quantizers; model.num_quantizers={model.num_quantizers}"
            )
        if model.max_frames is not None and len(codes) > model.max_frames:
            raise UnreadableItem(f"has {len(codes)} frames, more than model.max_frames={model.max_frames}")
        if model.semantic_codes is None:
            return {"codes": codes}
        return {"codes": codes, "semantic": self.semantic(routed["semantic"], len(codes))}

    def semantic(self, value: Any, frames: int) -> Tensor:
        """The semantic tokens of a clip of `frames` frames."""
        tokens = token_ids(value, 1, "semantic tokens", self.model.semantic_codes)
        if reason := length_mismatch(self.model, len(tokens), frames):
            raise UnreadableItem(reason)
        return tokens

    def routed(self, item: int) -> dict[str, Any]:
        fields = self.fields[:1] if self.model.semantic_codes is None else self.fields
        return route(self.dataset[self.positions[item]], fields, self.declared)


def token_ids(value: Any, axes: int, what: str, vocabulary: int | None) -> Tensor:
    """Token ids without padding; raises `UnreadableItem` if they are invalid."""
    if not _are_ids(value, axes):
        kind = f"{value.dtype} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else type(value).__name__
        raise UnreadableItem(f"has {kind} for {what}; expected integers with {axes} axes")
    ids = value.detach().cpu().long() if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, np.int64))
    valid = ids >= 0 if axes == 1 else (ids >= 0).all(1)
    length = int(valid.sum())
    if not length:
        raise UnreadableItem(f"has no {what}")
    # Only padding, which is -1, may follow the last token.
    if not valid[:length].all() or bool((ids[length:] != -1).any()):
        raise UnreadableItem(f"has {what} below 0 that are not padding at its end")
    if vocabulary is not None and int(ids.max()) >= vocabulary:
        raise UnreadableItem(f"has {what} up to {int(ids.max())}; the vocabulary ends at {vocabulary - 1}")
    return ids[:length]


def python_token_splits(
    dataset: Indexable,
    config: SoundStormConfig,
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    make: Callable[..., PythonTokens] = PythonTokens,
) -> Splits:
    """The splits of a dataset of token ids; without a validation dataset they are split by fraction and seed."""
    return split_object(dataset, config.data, partial(make, model=config.model), validation, declared)
