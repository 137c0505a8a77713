"""Values of a Python data set are routed to fields by key, by declared name or by type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintet.data.python_dataset import Field, route
from quintet.errors import UsageError

FIELDS = (
    Field("images", ("image", "picture"), lambda value: hasattr(value, "ndim") and value.ndim == 3, "an image"),
    Field("texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False),
)
IMAGE = torch.zeros(3, 4, 4)


@pytest.mark.parametrize(
    "item",
    [
        {"images": IMAGE, "texts": "a cat"},
        {"image": IMAGE, "caption": "a cat"},
        {"text": "a cat", "picture": IMAGE, "id": 7},
        (IMAGE, "a cat"),
        ("a cat", IMAGE),
        [IMAGE, "a cat"],
    ],
    ids=["names", "aliases", "more keys", "tuple", "other order", "list"],
)
def test_items_of_any_form(item: Any) -> None:
    routed = route(item, FIELDS)
    assert routed.keys() == {"images", "texts"}
    assert routed["images"] is IMAGE
    assert routed["texts"] == "a cat"


def test_a_single_value_and_a_missing_option() -> None:
    assert route(IMAGE, FIELDS) == {"images": IMAGE}
    assert route({"image": IMAGE}, FIELDS) == {"images": IMAGE}


def test_declared_names_decide() -> None:
    assert route(("a cat", IMAGE), FIELDS, ["caption", "image"]) == {"images": IMAGE, "texts": "a cat"}
    assert route(IMAGE, FIELDS, ["image"]) == {"images": IMAGE}
    # The type alone would not decide.
    assert route((IMAGE, 5), FIELDS, ["image", "label"]) == {"images": IMAGE, "texts": 5}


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_names_for_one_field_the_first_counts(order: int) -> None:
    """As in data sets with both a caption and the number of a class."""
    item = dict([("image", IMAGE), ("text", "a cat"), ("label", 3)][::order])
    assert route(item, FIELDS)["texts"] == "a cat"
    both = dict([("images", IMAGE), ("image", torch.ones(3, 4, 4))][::order])
    assert route(both, FIELDS)["images"] is IMAGE


def error_of(item: Any, declared: list[str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        route(item, FIELDS, declared)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_missing_field_lists_the_values_and_the_expected_fields() -> None:
    message = error_of({"photo": IMAGE, "text": "a cat"})
    assert "no 'images'" in message
    assert "photo: Tensor(3, 4, 4) torch.float32, text: str" in message
    assert "images (an image), texts (a caption, optional)" in message
    assert "no 'images'" in error_of("only text")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ((IMAGE, 3), "a int in an item fits no field"),
        ((IMAGE, IMAGE), "fits a field twice"),
        ((IMAGE, None), "a NoneType in an item fits no field"),
    ],
)
def test_a_bare_tuple_that_is_ambiguous_is_refused(item: Any, reason: str) -> None:
    message = error_of(item)
    assert reason in message
    assert "return a dictionary" in message


def test_a_value_that_fits_several_fields_is_refused() -> None:
    twins = (FIELDS[0], Field("masks", (), lambda value: hasattr(value, "ndim"), "a mask", required=False))
    with pytest.raises(UsageError, match=r"Tensor\(3, 4, 4\) torch\.float32 in an item fits several fields"):
        route((IMAGE,), twins)


def test_declared_names_must_fit() -> None:
    assert "2 fields are declared (image, text), but an item has 1 values" in error_of((IMAGE,), ["image", "text"])
    assert "the declared field 'photo' is unknown" in error_of((IMAGE,), ["photo"])
