"""Values of a person's own data set find their fields by key, by declared name or by type."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from quintet.data.python_dataset import Field, route
from quintet.errors import UsageError

FIELDS = (
    Field("images", ("image", "picture"), lambda value: hasattr(value, "ndim") and value.ndim == 3, "a picture"),
    Field("texts", ("text", "caption", "label"), lambda value: isinstance(value, str), "a caption", required=False),
)
PICTURE = torch.zeros(3, 4, 4)


@pytest.mark.parametrize(
    "item",
    [
        {"images": PICTURE, "texts": "a cat"},
        {"image": PICTURE, "caption": "a cat"},
        {"text": "a cat", "picture": PICTURE, "id": 7},
        (PICTURE, "a cat"),
        ("a cat", PICTURE),
        [PICTURE, "a cat"],
    ],
    ids=["names", "aliases", "more keys", "tuple", "other order", "list"],
)
def test_items_of_any_form(item: Any) -> None:
    routed = route(item, FIELDS)
    assert routed.keys() == {"images", "texts"}
    assert routed["images"] is PICTURE
    assert routed["texts"] == "a cat"


def test_a_single_value_and_a_missing_option() -> None:
    assert route(PICTURE, FIELDS) == {"images": PICTURE}
    assert route({"image": PICTURE}, FIELDS) == {"images": PICTURE}


def test_declared_names_decide() -> None:
    assert route(("a cat", PICTURE), FIELDS, ["caption", "image"]) == {"images": PICTURE, "texts": "a cat"}
    assert route(PICTURE, FIELDS, ["image"]) == {"images": PICTURE}
    # What the type would not have told.
    assert route((PICTURE, 5), FIELDS, ["image", "label"]) == {"images": PICTURE, "texts": 5}


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_names_for_one_field_the_plainest_wins(order: int) -> None:
    """As in data sets with both a caption and the number of a class."""
    item = dict([("image", PICTURE), ("text", "a cat"), ("label", 3)][::order])
    assert route(item, FIELDS)["texts"] == "a cat"
    both = dict([("images", PICTURE), ("image", torch.ones(3, 4, 4))][::order])
    assert route(both, FIELDS)["images"] is PICTURE


def complaint(item: Any, declared: list[str] | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        route(item, FIELDS, declared)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_missing_field_lists_what_was_seen_and_what_is_expected() -> None:
    message = complaint({"photo": PICTURE, "text": "a cat"})
    assert "no 'images'" in message
    assert "photo: Tensor(3, 4, 4) torch.float32, text: str" in message
    assert "images (a picture), texts (a caption, optional)" in message
    assert "no 'images'" in complaint("only text")


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ((PICTURE, 3), "a int in an item fits no field"),
        ((PICTURE, PICTURE), "fits a field twice"),
        ((PICTURE, None), "a NoneType in an item fits no field"),
    ],
)
def test_a_bare_tuple_that_is_ambiguous_is_refused(item: Any, reason: str) -> None:
    message = complaint(item)
    assert reason in message
    assert "return a dictionary" in message


def test_a_value_that_fits_several_fields_is_refused() -> None:
    twins = (FIELDS[0], Field("masks", (), lambda value: hasattr(value, "ndim"), "a mask", required=False))
    with pytest.raises(UsageError, match=r"Tensor\(3, 4, 4\) torch\.float32 in an item fits several fields"):
        route((PICTURE,), twins)


def test_declared_names_must_fit() -> None:
    assert "2 fields are declared (image, text), an item has 1 values" in complaint((PICTURE,), ["image", "text"])
    assert "the declared field 'photo' is not known" in complaint((PICTURE,), ["photo"])
