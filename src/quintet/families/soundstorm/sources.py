"""Owns SoundStorm's data: the codes of clips, made once by a frozen codec, and what the model is told of each.

A clip is used from its start, as far as `data.seconds`. Codes, and the vectors that a MuLaN makes of clips, are kept in
the cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from quintet.core.batch import Item, Source
from quintet.core.batch import collate as collate_equal
from quintet.core.display import say
from quintet.core.draw import Draw
from quintet.core.link import Link
from quintet.core.recipe import Sources
from quintet.data.audio import AudioFolder, audio_folder_sources
from quintet.data.code_cache import CodeSource, MediaSource
from quintet.data.coded import coded_sources, made_sources
from quintet.errors import UsageError
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.families.soundstorm.listening import Listener

PADDING = -1
LOOKED_AT = 100
"""Files whose rate is looked at before they are encoded."""
_OWN_LENGTH = ("codes", "semantic")


@dataclass
class ClipSource:
    """Clips as codes. An item holds `codes` (frames, levels), its `texts` and what is known of it; with a MuLaN also
    its vector `clip`; and where captions are told in training the vector `caption`, and whether it is `captioned`."""

    codes: CodeSource
    clips: CodeSource | None = None
    captions: Mapping[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return self.codes.name(item)

    def load(self, item: int, draw: Draw) -> Item:
        loaded = self.codes.load(item, draw)
        if self.clips is not None:
            loaded["clip"] = self.clips.load(item, draw)["clip"]
        if self.captions is not None:
            vector = self.captions.get(loaded.get("texts", ""))
            loaded |= {"caption": loaded["clip"] if vector is None else vector, "captioned": vector is not None}
        return loaded

    def lengths(self) -> list[int]:
        """Frames of each clip."""
        return self.codes.lengths()


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """The codes padded to those of the longest clip, and `frames`, which of them are there."""
    fields = collate_equal([{name: value for name, value in item.items() if name not in _OWN_LENGTH} for item in items])
    for name in _OWN_LENGTH:
        if all(name in item for item in items):
            values = [item[name] for item in items]
            fields[name] = torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=PADDING)
    fields["frames"] = (fields["codes"] >= 0).any(-1)
    return fields


def clip_sources(config: SoundStormConfig, tokenizer: Link, listener: Listener | None) -> Sources:
    """The codes of the folders that the configuration names, from the cache, encoded where they are not yet."""
    media = audio_folder_sources(config.data, tokenizer.model.rate, opening=True)
    _say_resampled(media.train, tokenizer.model.rate)
    return coded(config, tokenizer, listener, media)


def coded(config: SoundStormConfig, tokenizer: Link, listener: Listener | None, media: Sources) -> Sources:
    """The same sources as codes, with what the model is told of each clip."""
    codes = coded_sources(tokenizer, media, "clips", cache=config.data.cache)
    clips = heard = None
    if listener is not None:
        heard = made_sources(listener.maker(tokenizer.model.rate), media, "clips heard", cache=config.data.cache)
        clips = {"train": heard.train, "validation": heard.validation, **heard.others}
    captions = _captions(media.train, listener) if config.loss.tell_caption and listener is not None else None

    def joined(source: Source, part: str, captions: Mapping[str, Tensor] | None = None) -> ClipSource:
        vectors = clips[part] if clips is not None else None
        assert isinstance(source, CodeSource)
        assert vectors is None or isinstance(vectors, CodeSource)
        return ClipSource(source, vectors, captions)

    return replace(
        codes,
        train=joined(codes.train, "train", captions),
        validation=joined(codes.validation, "validation"),
        others={split: joined(source, split) for split, source in codes.others.items()},
    )


def _captions(source: Source, listener: Listener) -> dict[str, Tensor]:
    """Of each caption that is trained on its vector. All at once and in order, so that a resumed run has the same."""
    assert isinstance(source, MediaSource)
    texts = sorted({source.about(item).get("texts", "") for item in range(len(source))} - {""})
    if not texts:
        raise UsageError("loss.tell_caption tells captions, and no clip has one; leave it at 0, or add captions")
    return dict(zip(texts, listener.read(texts).cpu(), strict=True))


def _say_resampled(source: Source, rate: int) -> None:
    assert isinstance(source, AudioFolder)
    looked_at = min(len(source), LOOKED_AT)
    others = Counter(found for item in range(looked_at) if (found := source.file_rate(item)) not in (rate, None))
    if others:
        rates = ", ".join(f"{count} of {other} Hz" for other, count in others.most_common())
        say(f"resampled to the {rate} Hz of the tokenizer: {rates}, of the first {looked_at} files")
