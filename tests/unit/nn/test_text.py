"""Byte encoding of texts: truncation, padding, and independence of the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from quintet.errors import UsageError
from quintet.nn.text import END, NUM_SYMBOLS, PADDING, START, ByteTextEncoder, encode_bytes

TEXTS = ["a red circle", "", "zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich", "🎈 и кот", "x" * 300]


def make(max_length: int = 64) -> ByteTextEncoder:
    torch.manual_seed(0)
    return ByteTextEncoder(dim=32, depth=2, heads=4, max_length=max_length).double()


# --- bytes --------------------------------------------------------------------------------------------------------


def test_bytes_between_two_symbols() -> None:
    ids, mask, truncated = encode_bytes(["aé", ""], 16)
    assert ids.tolist() == [[START, 0x61, 0xC3, 0xA9, END] + [PADDING] * 3, [START, END] + [PADDING] * 6]
    assert mask.tolist() == [[True] * 5 + [False] * 3, [True] * 2 + [False] * 6]
    assert truncated.tolist() == [False, False]


@pytest.mark.parametrize(
    ("length", "max_length", "width"), [(6, 64, 8), (7, 64, 16), (62, 64, 64), (58, 61, 61), (99, 61, 61)]
)
def test_padding_goes_to_a_multiple_of_eight_up_to_the_limit(length: int, max_length: int, width: int) -> None:
    ids, mask, _ = encode_bytes(["a", "b" * length], max_length)
    assert ids.shape == mask.shape == (2, width)


def test_a_text_that_fits_exactly_is_not_truncated() -> None:
    ids, mask, truncated = encode_bytes(["abcdef", "abcdefg"], 8)
    assert truncated.tolist() == [False, True]
    assert ids[0].tolist() == ids[1].tolist() == [START, *b"abcdef", END]
    assert mask.all()


@given(st.lists(st.text(max_size=30), max_size=5), st.integers(min_value=6, max_value=40))
def test_truncation_keeps_the_start_of_the_text(texts: list[str], max_length: int) -> None:
    ids, mask, truncated = encode_bytes(texts, max_length)
    assert ids.shape[1] <= max_length
    for text, row, valid_mask, was_cut in zip(texts, ids, mask, truncated, strict=True):
        symbols = row[valid_mask].tolist()
        assert (row[~valid_mask] == PADDING).all()
        assert (symbols[0], symbols[-1]) == (START, END)
        retained = bytes(symbols[1:-1]).decode("utf-8")  # raises on half a character
        assert text.startswith(retained)
        assert was_cut == (retained != text)
        if was_cut:
            assert len((retained + text[len(retained)]).encode()) > max_length - 2, (
                "one more character would have fitted"
            )


def test_invalid_unicode_is_accepted() -> None:
    """Captions from file names can contain it."""
    ids, mask, _ = encode_bytes(["a\udcffb"], 16)
    assert ids[0][mask[0]].tolist() == [START, *b"a?b", END]


def test_no_texts() -> None:
    ids, mask, truncated = encode_bytes([], 16)
    assert (len(ids), len(mask), len(truncated)) == (0, 0, 0)


# --- the encoder --------------------------------------------------------------------------------------------------


def test_a_text_does_not_depend_on_the_batch() -> None:
    encoder = make()
    together, mask = encoder.embed(TEXTS)
    assert together.shape == (*mask.shape, 32)
    for number, text in enumerate(TEXTS):
        single, own_mask = encoder.embed([text])
        torch.testing.assert_close(together[number][mask[number]], single[0][own_mask[0]], rtol=1e-12, atol=1e-12)
        assert own_mask.sum() == min(64, len(text.encode()) + 2)


def test_order_and_content_matter() -> None:
    vectors, mask = make().embed(["ab", "ba", "ac"])
    assert mask[:, :4].all()
    assert (vectors[0, 0] - vectors[1, 0]).abs().max() > 1e-8
    assert (vectors[0, 0] - vectors[2, 0]).abs().max() > 1e-8


def test_every_weight_gets_a_gradient_and_padding_none() -> None:
    encoder = make()
    vectors, mask = encoder.embed(TEXTS)
    (vectors[mask] * torch.randn(32, dtype=torch.float64)).sum().backward()
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
    gradient = encoder.embedding.weight.grad
    assert gradient is not None
    assert gradient.shape[0] == NUM_SYMBOLS
    assert gradient[PADDING].abs().sum() == 0
    assert gradient[START].abs().sum() > 0


def test_forward_takes_the_output_of_encode_bytes() -> None:
    encoder = make()
    ids, mask, _ = encode_bytes(TEXTS, 64)
    vectors, same = encoder(ids, mask)
    assert torch.equal(vectors, encoder.embed(TEXTS)[0])
    assert torch.equal(same, mask)


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(UsageError, match="max_length of at least 6"):
        encode_bytes(["a"], 5)
    with pytest.raises(UsageError, match="max_length of at least 6"):
        ByteTextEncoder(32, 1, 4, max_length=2)
    with pytest.raises(UsageError, match="multiple of twice its heads"):
        ByteTextEncoder(36, 1, 4)
