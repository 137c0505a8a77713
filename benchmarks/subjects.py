"""Whether samples show the subjects of their captions: captions, their choice, and the nearest real picture's subject.

Captions are of the form "broken heart, Noto". A subject is recognized if, among all real pictures, the nearest to a
sample has the subject of the sample's caption, in either style.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence

import torch

from nearest import Nearest
from quintet.errors import UsageError

STYLES = ("Noto", "Twemoji")
"""The last word of every caption: "broken heart, Noto"."""
CAPTION = re.compile(rf"^(?P<subject>.*), (?P<style>{'|'.join(STYLES)})$")


def parts(caption: str) -> tuple[str, str]:
    """Subject and style of a caption."""
    found = CAPTION.match(caption)
    if found is None:
        raise UsageError(f"the caption '{caption}' does not end in a style ({', '.join(STYLES)})")
    return found["subject"], found["style"]


def choose_captions(captions: Iterable[str], count: int, seed: int = 0) -> list[str]:
    """`count` captions of different subjects, or as many as there are; adjacent captions differ in style.

    The choice depends on the set of captions and on the seed, not on their order."""
    shuffled = sorted(set(captions))
    random.Random(seed).shuffle(shuffled)
    chosen: list[str] = []
    subjects: set[str] = set()
    for number in range(count):
        style = STYLES[number % len(STYLES)]
        fitting = (text for text in shuffled if parts(text)[1] == style and parts(text)[0] not in subjects)
        if (text := next(fitting, None)) is None:
            break
        chosen.append(text)
        subjects.add(parts(text)[0])
    return chosen


def recognized(found: Nearest, texts: Sequence[str], captions: Sequence[str]) -> dict[str, float]:
    """Fractions of images with the caption `texts` whose nearest picture has their subject, and their whole caption.

    `captions` are those of the candidates, the real pictures."""
    nearest = [captions[index] for index in found.indices.tolist()]
    subjects = [parts(near)[0] == parts(text)[0] for near, text in zip(nearest, texts, strict=True)]
    pictures = [near == text for near, text in zip(nearest, texts, strict=True)]
    return {"own_subject": _share(subjects), "own_picture": _share(pictures)}


def _share(hits: Sequence[bool]) -> float:
    return float(torch.tensor(hits).double().mean())
