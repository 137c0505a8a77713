"""Prompts of a generator: how many items of each text, their random numbers, and checks before anything is made."""

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
    """Texts to generate from, `num` items of each. The random numbers of an item do not depend on the batch size."""

    texts: Sequence[str]
    num: int = 1
    seed: int = 0

    @classmethod
    def of(cls, prompts: str | Sequence[str], num: int, seed: int) -> Prompts:
        """As a person gives them; no prompt at all is an empty one."""
        if num < 1:
            raise UsageError(f"num={num}: give at least 1")
        return cls([prompts] if isinstance(prompts, str) else list(prompts) or [""], num, seed)

    @property
    def items(self) -> list[str]:
        """The text of each item."""
        return [text for text in self.texts for _ in range(self.num)]

    def batches(self, size: int) -> Iterator[tuple[list[str], ItemRNG]]:
        """`items` in batches of at most `size`, each with its random numbers."""
        items = self.items
        for start in range(0, len(items), size):
            part = items[start : start + size]
            yield part, ItemRNG(self.seed, [0] * len(part), range(start, start + len(part)))


def check_prompts(model: TextConfig, texts: Iterable[str], negative: str | None, asked: float, guidance: float) -> None:
    """Refuse texts that the model cannot be given. It is `asked` for one guidance scale and can give the other."""
    texts = list(texts)
    if model.text == "none" and (any(texts) or negative):
        raise UsageError("this model was trained without text (model.text=none); leave --text and --negative out")
    if negative and guidance == 1:
        raise UsageError(
            "a negative text works by guidance: it needs sample.guidance_scale above 1 and loss.cond_drop_prob"
        )
    if model.text != "none" and asked != guidance:
        say("warning: made without guidance, because no text was dropped in training (loss.cond_drop_prob)")
    if long := overlong_texts(model, [*texts, negative or ""]):
        most = f"{max_text_symbols(model)} {model.text}"
        say(f"warning: cut to {most}, which is all the model reads: {long[0][:100]!r}")


def sample_record(settings: SampleConfig, seed: int, **given: str | Path | None) -> dict[str, Any]:
    """What `samples.jsonl` says of everything that is made: seed, settings, and the texts and files that were given."""
    own = settings.model_dump(mode="json", exclude=set(SampleConfig.model_fields))
    known = {name: str(value) for name, value in given.items() if value is not None}
    return {"seed": seed, "settings": own, **known}


class TextGenerator(Generator[ConfigT]):
    """A generator with the keys of `TextConfig`, perhaps guided by texts."""

    @property
    def unconditional(self) -> bool:
        keys: Any = self.config
        return bool(keys.model.text == "none")

    @property
    def guidance(self) -> float:
        """The guidance scale that the model can be sampled with; 1, which is none, where no text was ever dropped."""
        keys: Any = self.config
        possible = not self.unconditional and keys.loss.cond_drop_prob > 0
        return float(keys.sample.guidance_scale) if possible else 1.0
