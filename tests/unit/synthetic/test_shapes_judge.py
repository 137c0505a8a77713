"""The judge of `shapes`: clean images, lossy images, and images without objects."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageFilter

from quintet.synthetic.shapes import COLOURS, POSITIONS, ObjectRecord, coverage, draw_item
from quintet.synthetic.shapes_judge import Finding, judge, label_parts, match

ImageArray = npt.NDArray[np.uint8]


def fraction_all_right(
    size: int, num: int, spoil: Callable[[ImageArray], ImageArray] = lambda picture: picture
) -> float:
    """The fraction of images with the right colour, shape, position and number of all objects."""
    right = 0
    for index in range(num):
        item = draw_item(11, index, size)
        findings = judge(spoil(item.image))
        agreement = match(item.objects, findings)
        right += len(findings) == len(item.objects) and all(value == 1.0 for value in agreement.values())
    return right / num


def add_noise(picture: ImageArray) -> ImageArray:
    noise = np.random.default_rng(int(picture.sum())).normal(0.0, 8.0, picture.shape)
    return np.clip(np.rint(picture + noise), 0, 255).astype(np.uint8)


def blur(picture: ImageArray) -> ImageArray:
    return np.asarray(Image.fromarray(picture).filter(ImageFilter.GaussianBlur(1)))


def through_jpeg(picture: ImageArray) -> ImageArray:
    stream = io.BytesIO()
    Image.fromarray(picture).save(stream, "JPEG", quality=50)
    return np.asarray(Image.open(stream).convert("RGB"))


def through_thumbnail(picture: ImageArray) -> ImageArray:
    return np.asarray(Image.fromarray(picture).resize((32, 32), Image.Resampling.BOX).resize((64, 64)))


def shift_colours(picture: ImageArray) -> ImageArray:
    return np.clip(picture.astype(np.int64) + np.array([12, -12, 9]), 0, 255).astype(np.uint8)


def test_clean_images_are_recognised() -> None:
    assert fraction_all_right(64, 200) >= 0.99


@pytest.mark.parametrize("size", [32, 48, 128, 256])
def test_other_sizes_are_recognised(size: int) -> None:
    assert fraction_all_right(size, 25) >= 0.96


@pytest.mark.parametrize("spoil", [add_noise, blur, through_jpeg, through_thumbnail, shift_colours])
def test_lossy_images_are_recognised(spoil: Callable[[ImageArray], ImageArray]) -> None:
    assert fraction_all_right(64, 40, spoil) >= 0.96


def test_the_size_is_recognised() -> None:
    for index in range(40):
        item = draw_item(12, index, 64)
        expected = sorted((one["shape"], one["size"]) for one in item.objects)
        assert sorted((finding.shape, finding.size) for finding in judge(item.image)) == expected


def test_nothing_is_found_where_there_is_only_background() -> None:
    ramp = np.linspace(40, 140, 64)
    gradient = (ramp[:, None, None] * (1.0, 0.9, 0.8) + ramp[None, :, None] * 0.5).astype(np.uint8)
    for picture in (np.zeros((64, 64, 3), np.uint8), np.full((128, 128, 3), 255, np.uint8), gradient):
        assert judge(picture) == []
        assert judge(add_noise(picture)) == []


def test_specks_are_not_objects() -> None:
    picture = np.full((64, 64, 3), 90, np.uint8)
    picture[10:15, 10:15] = 255
    assert judge(picture) == []


@pytest.mark.parametrize("colour", COLOURS)
def test_touching_objects_are_separated(colour: str) -> None:
    """One object touches another of a different colour, as in some generated images."""
    other = "white" if colour not in ("white", "yellow") else "black"
    picture = np.full((64, 64, 3), 128.0)
    for name, shape, x in ((colour, "square", 17.0), (other, "circle", 38.0)):
        mask = coverage(shape, (x, 32.0), 12.0, 0.0, 64)[..., None]
        picture += mask * (np.asarray(COLOURS[name]) - picture)
    findings = {(finding.colour, finding.position) for finding in judge(np.rint(picture).astype(np.uint8))}
    assert findings == {(colour, "left"), (other, "centre")}


def test_unsupported_images_are_refused() -> None:
    for picture in (np.zeros((64, 48, 3), np.uint8), np.zeros((64, 64), np.uint8), np.zeros((64, 64, 3))):
        with pytest.raises(ValueError, match="square uint8"):
            judge(picture)  # type: ignore[arg-type]


def test_parts_are_joined_by_sides_not_corners() -> None:
    mask = np.array(
        [
            [1, 0, 1, 0, 1],
            [1, 0, 1, 0, 0],
            [1, 1, 1, 0, 1],
            [0, 0, 0, 1, 0],
        ],
        dtype=bool,
    )
    labels, count = label_parts(mask)
    assert count == 4
    assert labels.tolist() == [[1, 0, 1, 0, 2], [1, 0, 1, 0, 0], [1, 1, 1, 0, 3], [0, 0, 0, 4, 0]]
    assert label_parts(np.zeros((3, 3), dtype=bool))[1] == 0


def record(colour: str, shape: str, position: str) -> ObjectRecord:
    assert position in POSITIONS
    return {"colour": colour, "shape": shape, "position": position, "size": "small"}


def finding(colour: str, shape: str, position: str) -> Finding:
    return Finding(shape=shape, colour=colour, position=position, size="small", confidence=0.9)


def test_match_assigns_findings_in_any_order() -> None:
    objects = [record("red", "circle", "left"), record("blue", "star", "right")]
    findings = [finding("green", "ring", "top"), finding("blue", "star", "right"), finding("red", "circle", "left")]
    assert match(objects, findings) == {"colour": 1.0, "shape": 1.0, "position": 1.0, "pair": 1.0}


def test_match_counts_a_pair_only_when_both_are_of_one_object() -> None:
    objects = [record("red", "circle", "left"), record("blue", "star", "right")]
    swapped = [finding("blue", "circle", "left"), finding("red", "star", "right")]
    assert match(objects, swapped) == {"colour": 0.0, "shape": 1.0, "position": 1.0, "pair": 0.0}


def test_match_uses_a_finding_once() -> None:
    twins = [record("red", "circle", "left"), record("red", "circle", "right")]
    assert match(twins, [finding("red", "circle", "left")]) == {
        **{"colour": 0.5, "shape": 0.5},
        **{"position": 0.5, "pair": 0.5},
    }
    assert match(twins, []) == {"colour": 0.0, "shape": 0.0, "position": 0.0, "pair": 0.0}


def test_match_needs_an_object() -> None:
    with pytest.raises(ValueError, match="at least one object"):
        match([], [])
