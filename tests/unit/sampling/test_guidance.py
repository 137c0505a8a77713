"""Classifier-free guidance: two conditionings of prompts, one batch for both, and one prediction out of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from quintet.errors import UsageError
from quintet.sampling.guidance import check_guidance, combined, encode_prompts, guided, joined, split, twice


class Model:
    """Notes what it is asked to encode; a text becomes its length."""

    def texts(self, texts: Sequence[str], keep: Tensor | None = None) -> dict[str, Tensor]:
        assert keep is not None
        return {"text": torch.tensor([len(text) for text in texts]), "kept": keep}


def encoded(prompts: Sequence[str], negative: str | None = None) -> list[dict[str, list[object]]]:
    return [
        {name: value.tolist() for name, value in each.items()} for each in encode_prompts(Model(), prompts, negative)
    ]


def test_guidance_goes_from_one_through_the_other() -> None:
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([0.5, 3.0])
    assert torch.equal(guided(one, other, 0.0), other)
    assert guided(one, other, 1.0) is one
    assert guided(one, other, 3.0).tolist() == [2.0, 0.0]
    assert guided(torch.tensor([-math.inf, 1.0]), torch.tensor([-math.inf, 0.0]), 2.0).tolist() == [-math.inf, 2.0]
    assert torch.equal(combined(torch.stack([one, other]), 3.0)[0], guided(one, other, 3.0))


def test_prompts_are_led_away_from_no_text() -> None:
    assert encoded(["red", ""]) == [{"text": [3, 0], "kept": [True, False]}, {"text": [3, 0], "kept": [False, False]}]


def test_a_negative_prompt_is_led_away_from() -> None:
    assert encoded(["red", ""], "blue")[1] == {"text": [4, 4], "kept": [True, True]}


def test_an_empty_negative_prompt_is_none() -> None:
    assert encoded(["red"], "") == encoded(["red"], None)


def test_both_halves_make_one_batch_and_come_apart_again() -> None:
    cond, uncond = {"text": torch.tensor([1, 2]), "low": torch.tensor([3, 4])}, {"text": torch.tensor([0, 0])}
    both = joined(cond, uncond)
    assert {name: value.tolist() for name, value in both.items()} == {"text": [1, 2, 0, 0], "low": [3, 4, 3, 4]}
    first, second = split(both, 2)
    assert first["text"].tolist() == [1, 2]
    assert second["low"].tolist() == [3, 4]
    assert twice(cond["low"]).tolist() == both["low"].tolist()
    with pytest.raises(ValueError, match="txt"):
        joined(cond, {"txt": torch.zeros(2)})


def test_guidance_needs_something_to_lead_away_from() -> None:
    check_guidance(1.0, None)
    check_guidance(3.0, {})
    with pytest.raises(UsageError, match="nothing to guide away from"):
        check_guidance(3.0, None)
