"""SoundStorm's data: the codes of clips, made once by a frozen codec, and the conditioning of each.

A clip is used from its start, as far as `data.seconds`. Codes, and the vectors that a MuLaN makes of clips, are kept in
the cache. Semantic tokens come from a folder of their own, by the names of the files.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.rng import ItemRNG
from quintet.data.audio import audio_folder_splits, say_resampled
from quintet.data.splits import Splits
from quintet.data.token_cache import MediaDataset, TokenDataset
from quintet.data.token_files import SemanticTokens, read_semantic
from quintet.data.tokenized import tokenized_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.soundstorm.conditioning import misfit
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.mulan_conditioner import MuLaNConditioner

PADDING = -1
_OWN_LENGTH = ("codes", "semantic")


@dataclass
class ClipDataset:
    """Clips as codes. An item holds `codes` (frames, levels), its `texts` and what is known of it; with a MuLaN also
    its vector `clip`; where captions condition it in training the vector `caption`, and whether it is `captioned`; and
    its `semantic` tokens (tokens), if there are any."""

    codes: TokenDataset
    clips: TokenDataset | None = None
    captions: Mapping[str, Tensor] | None = None
    semantic: Mapping[int, Tensor] | None = None
    """By the number of the item; none: the model has no semantic tokens."""
    unusable: Mapping[int, str] = field(default_factory=dict)
    """Items that lack their semantic tokens, with the reason."""

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return self.codes.name(item)

    def load(self, item: int, draw: ItemRNG) -> Item:
        if item in self.unusable:
            raise UnreadableItem(self.unusable[item])
        loaded = self.codes.load(item, draw)
        if self.semantic is not None:
            loaded["semantic"] = self.semantic[item]
        if self.clips is not None:
            loaded["clip"] = self.clips.load(item, draw)["clip"]
        if self.captions is not None:
            vector = self.captions.get(loaded.get("texts", ""))
            loaded |= {"caption": loaded["clip"] if vector is None else vector, "captioned": vector is not None}
        return loaded

    def lengths(self) -> list[int]:
        """Frames of each clip; 0 where it cannot be used."""
        return [0 if item in self.unusable else count for item, count in enumerate(self.codes.lengths())]


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The codes padded to those of the longest clip, and `frames`, which of them are there."""
    fields = collate_equal([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    for name in _OWN_LENGTH:
        if all(name in item for item in items):
            values = [item[name] for item in items]
            fields[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=PADDING)
    fields["frames"] = (fields["codes"] >= 0).any(-1)
    return fields


def clip_splits(config: SoundStormConfig, tokenizer: Any, conditioner: MuLaNConditioner | None) -> Splits:
    """The codes of the folders that the configuration names, from the cache, encoded where they are not yet."""
    media = audio_folder_splits(config.data, tokenizer.model.rate, opening=True)
    say_resampled(media.train, tokenizer.model.rate, "the tokenizer")
    return coded_splits(config, tokenizer, conditioner, media)


def coded_splits(
    config: SoundStormConfig, tokenizer: Any, conditioner: MuLaNConditioner | None, media: Splits
) -> Splits:
    """The same items as codes of the tokenizer, the pipeline of a codec, with the conditioning of each clip."""
    codes = tokenized_splits(
        tokenizer.token_encoder(config.model.levels), media, "clips encoded", cache=config.data.cache
    )
    clips = heard = None
    if conditioner is not None:
        encoder = conditioner.token_encoder(tokenizer.model.rate)
        heard = tokenized_splits(encoder, media, "clips heard", cache=config.data.cache)
        clips = {"train": heard.train, "validation": heard.validation, **heard.extra_splits}
    captions = _captions(media.train, conditioner) if config.loss.tell_caption and conditioner is not None else None
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
    if config.data.semantic is None:
        if config.model.semantic_codes is not None:
            raise UsageError(
                "this model is told semantic tokens (model.semantic_codes): name those of the files with "
                "data.semantic=FOLDER"
            )
        return None
    tokens = read_semantic(Path(config.data.semantic))
    config.adopt(
        f"{config.data.semantic}", {"model.semantic_codes": tokens.num_codes, "model.semantic_rate": tokens.rate}
    )
    return tokens


def _semantic_of_items(
    config: SoundStormConfig, codes: TokenDataset, tokens: SemanticTokens
) -> tuple[dict[int, Tensor], dict[int, str]]:
    """The semantic tokens of each item, as far as it is used; and the items that have none."""
    found: dict[int, Tensor] = {}
    missing: dict[int, str] = {}
    assert config.model.frame_rate is not None
    ratio = tokens.rate / config.model.frame_rate
    cut = math.floor(config.data.seconds * config.model.frame_rate)
    for item, frames in enumerate(codes.lengths()):
        own = tokens.of_file.get(codes.name(item))
        if own is None:
            missing[item] = f"has no semantic tokens in {config.data.semantic}"
            continue
        own = own[: max(1, math.ceil(frames * ratio))] if frames >= cut else own
        if frames and (reason := misfit(config.model, len(own), frames)):
            raise UsageError(f"{codes.name(item)}: {reason}")
        found[item] = own
    if missing and not found:
        raise UsageError(
            f"{config.data.semantic} has no tokens of any file, {codes.name(0)} for one; encode this folder, as it is"
        )
    return found, missing


def _fingerprint(tokens: SemanticTokens) -> str:
    content = hashlib.sha256()
    for file, own in sorted(tokens.of_file.items()):
        content.update(f"{file} {own.tolist()}".encode())
    return content.hexdigest()


def _captions(source: Dataset, conditioner: MuLaNConditioner) -> dict[str, Tensor]:
    """Of each caption that is trained on its vector. All at once and in order, so that a resumed run has the same."""
    assert isinstance(source, MediaDataset)
    texts = sorted({source.metadata(item).get("texts", "") for item in range(len(source))} - {""})
    if not texts:
        raise UsageError("loss.tell_caption tells captions, and no clip has one; leave it at 0, or add captions")
    return dict(zip(texts, conditioner.embed_texts(texts).cpu(), strict=True))
