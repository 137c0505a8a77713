"""Splits of images: folders that a configuration names, and Python data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from quintet.common.rng import ItemRNG
from quintet.config import ImageDataConfig
from quintet.data.image import PythonImages, folder_splits, python_splits
from quintet.data.splits import Splits
from quintet.errors import UnreadableItem, UsageError

SIZE = (8, 8)


def rng(item: int = 0, epoch: int = 0) -> ItemRNG:
    return ItemRNG(0, [epoch], [item])


def names(source: Any) -> set[str]:
    return {source.name(item) for item in range(len(source))}


# --- folders ------------------------------------------------------------------------------------------------------


def make_folder(folder: Path, count: int, prefix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.full((8, 8, 3), number, np.uint8)
        pixels[:, :4, 0] = 200
        Image.fromarray(pixels).save(folder / f"{prefix}{number:03d}.png")
    return folder


def splits(folder: Path, **keys: Any) -> Splits:
    return folder_splits(ImageDataConfig(path=str(folder), **keys), SIZE, 3)


def test_a_folder_is_split_and_no_item_is_on_both_sides(tmp_path: Path) -> None:
    result = splits(make_folder(tmp_path / "data", 40), validation_fraction=0.25)
    train, validation = names(result.train), names(result.validation)
    assert not train & validation
    assert len(train | validation) == 40
    assert 2 <= len(validation) <= 20
    assert result.about["path"] == str(tmp_path / "data")
    other = splits(tmp_path / "data", validation_fraction=0.25, split_seed=1)
    assert names(other.validation) != validation


def test_without_a_validation_fraction_the_training_items_validate_unaugmented(tmp_path: Path) -> None:
    result = splits(make_folder(tmp_path / "data", 20), validation_fraction=0, flip=True)
    assert names(result.train) == names(result.validation)
    trained = [result.train.load(item, rng(item))["images"] for item in range(20)]
    validated = [result.validation.load(item, rng(item))["images"] for item in range(20)]
    flipped = sum(not torch.equal(one, two) for one, two in zip(trained, validated, strict=True))
    assert 3 <= flipped <= 17
    assert all(image[0, 0, 0] == 200 for image in validated)


def test_flips_can_be_off(tmp_path: Path) -> None:
    result = splits(make_folder(tmp_path / "data", 20), validation_fraction=0, flip=False)
    assert all(result.train.load(item, rng(item))["images"][0, 0, 0] == 200 for item in range(20))


def test_a_separate_validation_folder_leaves_all_items_for_training(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "other", 5, "v")
    result = splits(make_folder(tmp_path / "data", 40), validation_path=str(own), validation_fraction=0.25)
    assert names(result.train) == {f"{number:03d}.png" for number in range(40)}
    assert names(result.validation) == {f"v{number:03d}.png" for number in range(5)}


def test_the_fingerprint_notices_other_items_on_either_side(tmp_path: Path) -> None:
    data, own = make_folder(tmp_path / "data", 5), make_folder(tmp_path / "other", 3)
    before = splits(data, validation_path=str(own)).fingerprint
    assert splits(data, validation_path=str(own)).fingerprint == before
    (own / "002.png").unlink()
    after = splits(data, validation_path=str(own)).fingerprint
    assert after != before
    (data / "004.png").unlink()
    assert splits(data, validation_path=str(own)).fingerprint not in (before, after)


def test_all_skipped_files_are_named_with_the_reason(tmp_path: Path) -> None:
    """Two lines of one metadata file are two reasons."""
    data = make_folder(tmp_path / "data", 5)
    (data / "empty.png").touch()
    rows = [{"file_name": "000.png", "text": "a"}, {"file_name": "gone.png"}, {"file_name": "lost.png"}]
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    skipped = splits(data).skipped
    assert skipped["empty.png"] == "empty file"
    reasons = " ".join(skipped.values())
    assert "gone.png" in reasons
    assert "lost.png" in reasons


def test_skipped_files_of_a_validation_folder_are_named_too(tmp_path: Path) -> None:
    own = make_folder(tmp_path / "other", 5)
    (own / "empty.png").touch()
    result = splits(make_folder(tmp_path / "data", 5), validation_path=str(own))
    assert result.skipped == {"validation: empty.png": "empty file"}


def test_captions_and_shape(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", 3)
    (data / "001.txt").write_text("a caption", encoding="utf-8")
    result = folder_splits(ImageDataConfig(path=str(data), validation_fraction=0), (4, 12), 1)
    items = [result.train.load(item, rng(item)) for item in range(3)]
    assert {item["images"].shape for item in items} == {(1, 4, 12)}
    assert items[0]["images"].dtype == torch.uint8
    assert [item["texts"] for item in items] == ["", "a caption", ""]


def test_a_run_on_a_python_data_set_is_not_resumed_from_its_folder() -> None:
    with pytest.raises(UsageError, match="can only be resumed from Python"):
        folder_splits(ImageDataConfig(), SIZE, 3)


# --- data set objects ---------------------------------------------------------------------------------------------


def python_images(dataset: Any, channels: int = 3, flip: bool = False, **options: Any) -> PythonImages:
    return PythonImages(dataset, range(len(dataset)), *SIZE, channels, flip, **options)


def loaded(value: Any, **options: Any) -> torch.Tensor:
    image: torch.Tensor = python_images([value], **options).load(0, rng())["images"]
    return image


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "CMYK", "P", "1", "I;16"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pillow_images_of_any_mode_and_size(mode: str, channels: int) -> None:
    image = loaded(Image.new(mode, (20, 10)), channels=channels)
    assert image.shape == (channels, *SIZE)
    assert image.dtype == torch.uint8


def unusual_images() -> dict[str, Image.Image]:
    """Images whose plain conversion to RGB would be wrong."""
    gradient = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    clear = Image.new("RGBA", (8, 8), (10, 20, 30, 0))
    clear.paste((200, 0, 0, 255), (0, 0, 4, 4))
    turned = Image.fromarray(np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3))
    turned.getexif()[0x0112] = 6
    return {"transparent": clear, "palette": clear.quantize(), "16 bit": Image.fromarray(gradient), "turned": turned}


@pytest.mark.parametrize("kind", ["transparent", "palette", "16 bit", "turned"])
def test_an_image_in_memory_is_treated_as_in_a_folder(tmp_path: Path, kind: str) -> None:
    """Transparency on white, 16 bits scaled, EXIF rotation applied: Hugging Face returns such images."""
    original = unusual_images()[kind]
    file = make_folder(tmp_path / "data", 0) / "odd.png"
    original.save(file, exif=original.getexif())
    in_folder = splits(file.parent, validation_fraction=0, flip=False).train.load(0, rng())["images"]
    with Image.open(file) as opened:
        assert torch.equal(loaded(opened), in_folder)


def test_arrays_and_tensors_keep_their_values() -> None:
    array = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    assert torch.equal(loaded(array), torch.from_numpy(array).permute(2, 0, 1))
    tensor = torch.rand(3, 8, 8)
    assert torch.equal(loaded(tensor), tensor)
    assert torch.equal(loaded(torch.ones(3, 8, 8, dtype=torch.uint8)), torch.ones(3, 8, 8, dtype=torch.uint8))


def test_grey_arrays_need_no_channel() -> None:
    array = np.arange(64, dtype=np.uint8).reshape(8, 8)
    assert torch.equal(loaded(array, channels=1)[0], torch.from_numpy(array))
    assert torch.equal(loaded(torch.from_numpy(array), channels=1)[0], torch.from_numpy(array))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_other_sizes_are_resized_in_their_own_type(dtype: torch.dtype) -> None:
    value = 255 if dtype == torch.uint8 else 1
    image = loaded(torch.full((3, 20, 20), value, dtype=dtype))
    assert image.dtype == dtype
    torch.testing.assert_close(image, torch.full((3, *SIZE), value, dtype=dtype))


def test_a_wrong_number_of_channels_is_an_unreadable_item() -> None:
    with pytest.raises(UnreadableItem, match=r"has 1 channels, model\.channels is 3"):
        loaded(torch.zeros(1, 8, 8))


def test_a_missing_caption_is_empty() -> None:
    image = Image.new("RGB", (8, 8))
    items = [
        (image, "a cat"),
        {"image": image, "text": "a dog"},
        {"image": image},
        {"image": image, "text": None},
    ]
    source = python_images(items)
    assert [source.load(item, rng(item))["texts"] for item in range(4)] == ["a cat", "a dog", "", ""]


def test_flips_follow_the_random_numbers_of_the_item() -> None:
    tensor = torch.arange(3 * 64, dtype=torch.uint8).view(3, 8, 8)
    source = python_images([tensor] * 40, flip=True)
    images = [source.load(item, rng(item))["images"] for item in range(40)]
    again = [source.load(item, rng(item))["images"] for item in range(40)]
    assert all(torch.equal(one, two) for one, two in zip(images, again, strict=True))
    flipped = [torch.equal(image, tensor.flip(-1)) for image in images]
    assert 8 <= sum(flipped) <= 32
    assert all(torch.equal(image, tensor) for image, turned in zip(images, flipped, strict=True) if not turned)


class Captioned(list[Any]):
    """Declares the names of its own fields."""

    data_kwargs = ("text", "image")


def split(dataset: Any, **options: Any) -> Splits:
    return python_splits(dataset, ImageDataConfig(validation_fraction=0.2), SIZE, 3, **options)


def test_a_data_set_is_split_by_fraction_and_seed() -> None:
    dataset = [torch.full((3, 8, 8), number, dtype=torch.uint8) for number in range(100)]
    result = split(dataset)
    train, validation = names(result.train), names(result.validation)
    assert not train & validation
    assert len(train | validation) == 100
    assert 10 <= len(validation) <= 30
    position = int(result.validation.name(3).removeprefix("item "))
    assert result.validation.load(3, rng())["images"].unique().tolist() == [position]
    assert names(split(dataset).validation) == validation


def test_a_separate_validation_set_leaves_all_items_for_training() -> None:
    result = split([torch.zeros(3, 8, 8)] * 30, validation=[torch.ones(3, 8, 8)] * 4)
    assert len(result.train) == 30
    assert len(result.validation) == 4
    assert result.validation.load(0, rng())["images"].min() == 1


def test_a_small_data_set_has_items_on_both_sides() -> None:
    """As for a folder, neither side is empty if there are two items."""
    config = ImageDataConfig(validation_fraction=0.05)
    for count in range(2, 12):
        result = python_splits([torch.zeros(3, 8, 8)] * count, config, SIZE, 3)
        assert len(result.train) + len(result.validation) == count, count
        assert not names(result.train) & names(result.validation)


def test_a_data_sets_own_field_names_are_used() -> None:
    result = split(Captioned([("a cat", torch.zeros(3, 8, 8))] * 10))
    assert result.train.load(0, rng())["texts"] == "a cat"
    declared = split([(5, torch.zeros(3, 8, 8))] * 10, declared=["label", "image"])
    assert declared.train.load(0, rng())["texts"] == "5"
