"""Sampling a code from logits: filters, compared with naive implementations."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from quintet.sampling.filters import filter_top_k, filter_top_p, sample_on_device

steady = settings(deadline=None, derandomize=True, max_examples=60)
"""The same examples in every session, however busy the machine."""


# Filters


def naive_top_k(values: list[float], k: int) -> set[int]:
    least = sorted(values, reverse=True)[:k][-1]
    return {position for position, value in enumerate(values) if value >= least}


def naive_top_p(values: list[float], p: float) -> set[int]:
    total = math.fsum(math.exp(value - max(values)) for value in values)
    mass, least = 0.0, math.inf
    for value in sorted(values, reverse=True):
        if mass >= p * total * (1 + 1e-12):
            break
        mass, least = mass + math.exp(value - max(values)), value
    return {position for position, value in enumerate(values) if value >= least}


def kept(filtered: Tensor, logits: Tensor) -> set[int]:
    stays = filtered == logits
    assert (filtered[~stays] == -math.inf).all()
    return set(stays.nonzero()[:, 0].tolist())


scores_of_codes = st.lists(st.integers(-60, 60).map(lambda value: value / 7), min_size=1, max_size=12)
precision = st.sampled_from([torch.float32, torch.float64])


@steady
@given(values=scores_of_codes, k=st.integers(1, 14), dtype=precision)
def test_top_k_keeps_the_k_most_likely_codes(values: list[float], k: int, dtype: torch.dtype) -> None:
    logits = torch.tensor(values, dtype=dtype)
    assert kept(filter_top_k(logits, k), logits) == naive_top_k(logits.tolist(), k)


@steady
@given(values=scores_of_codes, p=st.integers(0, 100).map(lambda hundredths: hundredths / 101), dtype=precision)
def test_top_p_keeps_the_fewest_that_reach_p(values: list[float], p: float, dtype: torch.dtype) -> None:
    logits = torch.tensor(values, dtype=dtype)
    found = kept(filter_top_p(logits, p), logits)
    assert found
    # within rounding of the border, either answer is right
    assert naive_top_p(logits.tolist(), max(p - 1e-6, 1e-9)) <= found <= naive_top_p(logits.tolist(), p + 1e-6)


def test_filters_treat_rows_independently() -> None:
    logits = torch.tensor([[[4.0, 1, 2, 3], [0, 0, 0, 9]]])
    assert filter_top_k(logits, 2).isfinite().tolist() == [[[True, False, False, True], [True] * 4]]
    assert filter_top_p(logits, 0.7).isfinite().tolist() == [[[True, False, False, True], [False, False, False, True]]]


def test_a_float_top_k_is_a_fraction_of_the_codes() -> None:
    logits = torch.arange(100.0)
    assert filter_top_k(logits, 0.07).isfinite().sum() == 7
    assert filter_top_k(logits, 1.0).isfinite().all()
    assert filter_top_k(logits, 0.001).isfinite().sum() == 1
    assert filter_top_k(logits, 1).isfinite().sum() == 1
    assert filter_top_p(logits * 1e3, 1.0).isfinite().all()


def test_filters_support_half_precision() -> None:
    logits = torch.tensor([1.0, 5, 3, 2])
    for narrow in (torch.bfloat16, torch.float16):
        assert torch.equal(filter_top_k(logits.to(narrow), 2), filter_top_k(logits, 2).to(narrow))
        assert torch.equal(filter_top_p(logits.to(narrow), 0.9), filter_top_p(logits, 0.9).to(narrow))


def test_sampling_inverts_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.5, 0.25, 0.0, 0.25]).log().repeat(6, 1)
    chances = torch.tensor([0.0, 0.49, 0.51, 0.74, 0.76, 1 - 2**-24])
    assert sample_on_device(logits, chances).tolist() == [0, 0, 1, 1, 3, 3]
