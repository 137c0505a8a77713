"""Prompts of a generator: items per prompt, their random numbers, and checks before generation starts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.config import SampleConfig
from quintet.config.text import TextConfig
from quintet.data.captioned import max_text_symbols, overlong_texts
from quintet.errors import UsageError
from quintet.pipelines.base import ConfigT, Generator


@dataclass(frozen=True)
class Prompts:
    """Text prompts and `num` items per prompt. The random numbers of an item do not depend on the batch size."""

    texts: Sequence[str]
    num: int = 1
    seed: int = 0

    @classmethod
    def of(cls, prompts: str | Sequence[str], num: int, seed: int) -> Prompts:
        """From one prompt or a list; an empty list counts as one empty prompt."""
        if num < 1:
            raise UsageError(f"num={num} is invalid; it must be at least 1")
        return cls([prompts] if isinstance(prompts, str) else list(prompts) or [""], num, seed)

    @property
    def items(self) -> list[str]:
        """The text of each item."""
        return [text for text in self.texts for _ in range(self.num)]

    def batches(self, size: int) -> Iterator[tuple[list[str], ItemRNG]]:
        """`items` in batches of at most `size`, each with an `ItemRNG`."""
        items = self.items
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part, ItemRNG(self.seed, [0] * len(part), range(start, start + len(part)))


def check_prompts(
    model: TextConfig, texts: Iterable[str], negative: str | None, requested_scale: float, guidance_scale: float
) -> None:
    """Refuse texts that the model cannot use, and warn about truncated texts and missing guidance.

    `requested_scale` is the configured guidance scale, `guidance_scale` the one that the model supports.
    """
    texts = list(texts)
    if model.text == "none" and (any(texts) or negative):
        raise UsageError("this model was trained without text (model.text=none); omit --text and --negative")
    check_negative(negative, guidance_scale)
    if model.text != "none" and requested_scale != guidance_scale:
        say("warning: generating without guidance, because the model was trained with loss.cond_drop_prob=0")
    if long := overlong_texts(model, [*texts, negative or ""]):
        limit = f"{max_text_symbols(model)} {model.text}"
        say(f"warning: prompt truncated to {limit} (model.text_length): {long[0][:100]!r}")


def check_negative(negative: str | None, guidance_scale: float) -> None:
    """Refuse a negative prompt without guidance."""
    if negative and guidance_scale == 1:
        raise UsageError(
            "a negative prompt needs guidance: set sample.guidance_scale above 1, for a model trained with "
            "loss.cond_drop_prob above 0"
        )


NEWER_SWITCHES = ("remask_kept", "guidance_projection")
"""Decoding settings that are recorded only if they are on, so that samples without them have the same record as before
the settings existed."""


def sample_record(settings: SampleConfig, seed: int, **inputs: str | int | Path | None) -> dict[str, Any]:
    """The common part of a line of `samples.jsonl`: seed, decoding settings, and the texts and files used as input."""
    own = settings.model_dump(mode="json", exclude=set(SampleConfig.model_fields))
    own = {name: value for name, value in own.items() if value or name not in NEWER_SWITCHES}
    known = {name: str(value) for name, value in inputs.items() if value is not None}
    return {"seed": seed, "settings": own, **known}


class TextGenerator(Generator[ConfigT]):
    """A generator with the keys of `TextConfig`, with or without text conditioning."""

    @property
    def unconditional(self) -> bool:
        keys: Any = self.config
        return bool(keys.model.text == "none")

    @property
    def guidance_scale(self) -> float:
        """The guidance scale that the model supports: 1 (no guidance) if it was trained without dropping texts."""
        keys: Any = self.config
        possible = not self.unconditional and keys.loss.cond_drop_prob > 0
        return float(keys.sample.guidance_scale) if possible else 1.0
