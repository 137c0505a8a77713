"""Words of texts that a SoundStorm has never seen."""

from __future__ import annotations

from collections.abc import Iterable

from quintet.common.logging import say
from quintet.families.soundstorm.config import SoundStormConfig
from quintet.nn.text import words_of

MAX_NAMED = 8
"""Unknown words that are named at most."""


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
