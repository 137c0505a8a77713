"""Captions of text-conditioned generators: their checks, their longest length, and the keys that data determines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from quintet.common.batch import Dataset
from quintet.common.logging import say
from quintet.config import DataConfig
from quintet.config.text import PRETRAINED, TextConfig
from quintet.data.index.captions import equal_captions
from quintet.data.index.listing import list_media
from quintet.data.splits import Splits
from quintet.data.text_embeddings import check_embeddings
from quintet.data.token_cache import MediaDataset
from quintet.errors import UsageError
from quintet.nn.text import words_of


def inferred_text_keys(model: TextConfig, data: DataConfig, extensions: frozenset[str]) -> dict[str, Any]:
    """Text keys that follow from the data: the names of the classes, and the full path of a frozen text encoder."""
    encoder = Path(model.text.removeprefix(PRETRAINED))
    if model.text.startswith(PRETRAINED) and encoder.is_dir():
        return {"model.text": f"{PRETRAINED}{encoder.resolve()}"}
    if model.text == "classes" and model.classes is None:
        if data.path is None:
            raise UsageError(
                "model.text=classes needs the names of the classes: set model.classes, or train on a folder whose "
                "captions are classes"
            )
        entries = list_media(data.path, extensions, cache=data.cache_dir).entries
        return {"model.classes": sorted({entry.text for entry in entries if entry.text})}
    return {}


def check_captions(model: TextConfig, media: Splits, what: str, may_be_empty: bool) -> None:
    """Check the captions of the training and validation items; `what` is the plural noun of the items in messages."""
    if model.text == "none":
        return
    if model.text == "vectors":
        assert isinstance(media.train, MediaDataset)
        check_embeddings(media.train.metadata(0), model)
        return
    captions = [caption for source in (media.train, media.validation) for caption in _captions(source)]
    if model.text == "classes":
        known = set(model.classes or ())
        unknown = [(name, text) for name, text in captions if text and text not in known]
        if unknown:
            raise UsageError(
                f"{len(unknown)} captions are not among the {len(known)} classes (model.classes), for example "
                f"{unknown[0][1]!r} of {unknown[0][0]}"
            )
    missing = [name for name, text in captions if not text]
    if missing and not may_be_empty:
        raise UsageError(
            f"{len(missing)} of {len(captions)} {what} have no caption, for example {missing[0]}; add captions, or set "
            "data.allow_missing_captions=true, or train without text (model.text=none)"
        )
    if len(captions) > 1 and captions[0][1] and len({text for _, text in captions}) == 1:
        say(f"warning: {equal_captions(len(captions), what, captions[0][1])}")
    if long := overlong_texts(model, [text for _, text in captions]):
        most = f"{max_text_symbols(model)} {model.text}"
        say(
            f"{len(long)} captions have more than {most} and are truncated (model.text_length), for example {long[0]!r}"
        )


def _captions(source: Dataset) -> Iterator[tuple[str, str]]:
    """The name and the caption of each item."""
    assert isinstance(source, MediaDataset)
    return ((source.name(item), source.metadata(item)["texts"]) for item in range(len(source)))


def overlong_texts(model: TextConfig, texts: Iterable[str]) -> list[str]:
    """Texts that an encoder of bytes or words truncates; a frozen encoder reports truncation itself."""
    if model.text not in _LENGTHS:
        return []
    return [text for text in texts if _LENGTHS[model.text](text) > max_text_symbols(model)]


def max_text_symbols(model: TextConfig) -> int:
    """Most bytes or words of a text: bytes have a start and an end token, words an end token only."""
    return model.text_length - (2 if model.text == "bytes" else 1)


_LENGTHS: Mapping[str, Callable[[str], int]] = {
    "bytes": lambda text: len(text.encode(errors="replace")),
    "words": lambda text: len(words_of(text)),
}
