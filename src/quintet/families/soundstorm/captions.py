"""Captions of the clips of SoundStorm: the keys of `model.*` that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quintet.common.logging import say
from quintet.data.captioned import inferred_text_keys
from quintet.data.index.listing import list_media
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.media.audio import EXTENSIONS
from quintet.nn.text import words_of

MAX_KNOWN_WORDS = 2000
"""Words that a run records at most; of a larger vocabulary hardly a word is unknown by mistake."""

MAX_NAMED = 8


def text_keys(config: SoundStormConfig, has_condition: bool) -> dict[str, Any]:
    """The text encoder for `model.text=auto`, the names of the classes, and the words of the captions."""
    keys: dict[str, Any] = {}
    if config.model.text == "auto":
        keys["model.text"] = "words" if not has_condition and _captions(config) else "none"
        config = config.changed(keys)
    keys |= inferred_text_keys(config.model, config.data, EXTENSIONS)
    if config.model.text == "words" and config.model.known_words is None:
        words = sorted({word for caption in _captions(config) for word in words_of(caption)})
        keys |= {"model.known_words": words} if 0 < len(words) <= MAX_KNOWN_WORDS else {}
    return keys


def _captions(config: SoundStormConfig) -> set[str]:
    """The distinct captions of the data; none for a Python dataset."""
    if config.data.path is None:
        return set()
    return {
        entry.text
        for entry in list_media(config.data.path, EXTENSIONS, cache=config.data.cache_dir).entries
        if entry.text
    }


def report_unknown_words(config: SoundStormConfig, texts: Iterable[str]) -> None:
    """Name the words of texts that the model has never seen."""
    if unknown := list(dict.fromkeys(word for text in texts for word in unknown_words(config, text))):
        named = ", ".join(repr(word) for word in unknown[:MAX_NAMED])
        say(f"warning: words that no training caption has, which the model can only guess from their letters: {named}")


def unknown_words(config: SoundStormConfig, text: str) -> list[str]:
    """The words of a text that no caption of the training data has; punctuation is none."""
    known = set(config.model.known_words or ())
    if not known:
        return []
    return [word for word in dict.fromkeys(words_of(text)) if word not in known and word[0].isalnum()]
