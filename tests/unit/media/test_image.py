"""Image files of every format and kind of damage, and their pixels."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, features

from quintet.errors import UnreadableItem, UsageError
from quintet.media import image as images

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def quarters(width: int = 32, height: int = 24) -> Image.Image:
    """Red, green, blue, white from the top left in reading order: distinguishes every rotation and flip."""
    image = Image.new("RGB", (width, height), WHITE)
    image.paste(RED, (0, 0, width // 2, height // 2))
    image.paste(GREEN, (width // 2, 0, width, height // 2))
    image.paste(BLUE, (0, height // 2, width // 2, height))
    return image


def corners(image: Image.Image) -> list[str]:
    names = {RED: "red", GREEN: "green", BLUE: "blue", WHITE: "white"}
    pixels = np.asarray(image.convert("RGB")).astype(int)
    height, width = pixels.shape[:2]
    positions = [
        (height // 4, width // 4),
        (height // 4, -width // 4),
        (-height // 4, width // 4),
        (-height // 4, -width // 4),
    ]
    return [min(names.items(), key=lambda item: abs(pixels[y, x] - item[0]).sum())[1] for y, x in positions]


def noise(width: int, height: int) -> Image.Image:
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


def png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


def stored(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def refused(path: Path, **options: object) -> str:
    with pytest.raises(UnreadableItem) as problem:
        images.read_image(path, **options)  # type: ignore[arg-type]
    return str(problem.value)


def test_extensions_are_lower_case_with_the_dot() -> None:
    assert {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"} <= images.EXTENSIONS
    assert all(extension == extension.lower() and extension.startswith(".") for extension in images.EXTENSIONS)


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "bmp", "gif", "tif"])
def test_every_format_is_read(tmp_path: Path, extension: str) -> None:
    quarters().save(tmp_path / f"a.{extension}")
    image = images.read_image(tmp_path / f"a.{extension}")
    assert (image.mode, image.size) == ("RGB", (32, 24))
    assert corners(image) == ["red", "green", "blue", "white"]


@pytest.mark.skipif(not features.check("avif"), reason="Pillow without AVIF")
def test_avif_is_read(tmp_path: Path) -> None:
    quarters(64, 64).save(tmp_path / "a.avif")
    assert corners(images.read_image(tmp_path / "a.avif")) == ["red", "green", "blue", "white"]
    assert ".avif" in images.EXTENSIONS


def test_a_misnamed_file_is_read_by_its_content(tmp_path: Path) -> None:
    quarters().save(tmp_path / "a.jpg", format="PNG")
    assert corners(images.read_image(tmp_path / "a.jpg")) == ["red", "green", "blue", "white"]
    assert images.probe_image(tmp_path / "a.jpg").format == "PNG"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("extension", ["jpg", "png", "webp", "tif"])
def test_exif_rotation_is_applied(tmp_path: Path, orientation: int, extension: str) -> None:
    turn = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    turned = quarters() if turn is None else quarters().transpose(turn)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"a.{extension}"
    turned.save(path, exif=exif)
    image = images.read_image(path)
    assert image.size == (32, 24)
    assert corners(image) == ["red", "green", "blue", "white"]
    facts = images.probe_image(path)
    assert (facts.width, facts.height) == (32, 24)


def test_the_size_of_a_rotated_jpeg_is_right_after_reduced_decoding(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    quarters(800, 400).save(tmp_path / "a.jpg", exif=exif)
    facts = images.probe_image(tmp_path / "a.jpg")
    assert (facts.width, facts.height) == (400, 800)


def test_damaged_exif_does_not_matter(tmp_path: Path) -> None:
    stream = io.BytesIO()
    quarters().save(stream, "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0\xff\xff\xff\x7f" * 3)
    (tmp_path / "a.jpg").write_bytes(stream.getvalue())
    assert corners(images.read_image(tmp_path / "a.jpg")) == ["red", "green", "blue", "white"]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    quarters().convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert images.probe_image(tmp_path / "a.jpg").mode == "CMYK"
    assert corners(images.read_image(tmp_path / "a.jpg")) == ["red", "green", "blue", "white"]


@pytest.mark.parametrize("extension", ["png", "tif"])
def test_16_bits_are_scaled_not_clipped(tmp_path: Path, extension: str) -> None:
    ramp = np.linspace(0, 65535, 64 * 8).astype(np.uint16).reshape(8, 64)
    Image.frombytes("I;16", (64, 8), ramp.astype("<u2").tobytes()).save(tmp_path / f"a.{extension}")
    assert images.probe_image(tmp_path / f"a.{extension}").mode.startswith("I;16")
    pixels = np.asarray(images.read_image(tmp_path / f"a.{extension}", mode="L"))
    assert np.array_equal(pixels, np.rint(ramp / 257).astype(np.uint8))
    assert images.read_image(tmp_path / f"a.{extension}").mode == "RGB"


def test_16_bit_colour_keeps_its_colours(tmp_path: Path) -> None:
    samples = np.asarray(quarters()).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in samples)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 32, 24, 16, 2, 0, 0, 0)
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))
    assert np.array_equal(np.asarray(images.read_image(tmp_path / "a.png")), np.asarray(quarters()))


@pytest.mark.parametrize(("top", "full"), [(1.0, 1), (200.0, 255), (60000.0, 65535)])
def test_float_samples_are_scaled_by_the_smallest_usual_range(tmp_path: Path, top: float, full: int) -> None:
    ramp = np.linspace(0, top, 64, dtype=np.float32).reshape(8, 8)
    Image.fromarray(ramp).save(tmp_path / "a.tif")
    pixels = np.asarray(images.read_image(tmp_path / "a.tif", mode="L"))
    assert np.abs(pixels.astype(float) - ramp / full * 255).max() <= 0.51


def test_samples_without_a_usual_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.full((8, 8), -3.5, np.float32)).save(tmp_path / "a.tif")
    assert "samples from -3.5" in refused(tmp_path / "a.tif")
    Image.fromarray(np.full((8, 8), 1e9, np.float32)).save(tmp_path / "b.tif")
    assert "samples from 1e+09" in refused(tmp_path / "b.tif")
    values = np.full((8, 8), 0.5, np.float32)
    values[0, 0] = np.nan
    Image.fromarray(values).save(tmp_path / "c.tif")
    assert np.asarray(images.read_image(tmp_path / "c.tif", mode="L"))[0, :2].tolist() == [0, 128]


def test_transparency_is_blended_with_white(tmp_path: Path) -> None:
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 4, 8))
    image.putpixel((7, 7), (0, 0, 0, 128))
    image.save(tmp_path / "a.png")
    flat = images.read_image(tmp_path / "a.png")
    assert flat.getpixel((0, 0)) == BLUE
    assert flat.getpixel((6, 0)) == WHITE
    assert flat.getpixel((7, 7)) == (127, 127, 127)
    assert images.read_image(tmp_path / "a.png", mode="L").getpixel((6, 0)) == 255
    assert images.read_image(tmp_path / "a.png", mode="RGBA").getpixel((6, 0)) == (255, 0, 0, 0)


def test_a_palette_with_transparency_is_blended_with_white(tmp_path: Path) -> None:
    image = Image.new("P", (8, 8), 0)
    image.putpalette([255, 0, 0, 0, 0, 255, 0, 255, 0])
    image.paste(1, (0, 0, 4, 8))
    image.save(tmp_path / "one.png", transparency=0)
    image.save(tmp_path / "many.png", transparency=bytes([0, 255, 128]))
    image.save(tmp_path / "a.gif", transparency=0)
    for name in ("one.png", "many.png", "a.gif"):
        flat = images.read_image(tmp_path / name)
        assert (flat.getpixel((0, 0)), flat.getpixel((6, 0))) == (BLUE, WHITE), name


def test_grey_with_alpha_and_one_bit(tmp_path: Path) -> None:
    Image.new("LA", (8, 8), (0, 0)).save(tmp_path / "la.png")
    assert images.read_image(tmp_path / "la.png").getpixel((0, 0)) == WHITE
    Image.new("1", (8, 8), 1).save(tmp_path / "one.png")
    assert images.read_image(tmp_path / "one.png").getpixel((0, 0)) == WHITE
    assert images.read_image(tmp_path / "one.png", mode="L").getpixel((0, 0)) == 255


@pytest.mark.parametrize("extension", ["gif", "webp", "png"])
def test_the_first_frame_of_an_animation_is_used(tmp_path: Path, extension: str) -> None:
    rest = [Image.new("RGB", (32, 24), colour) for colour in (BLUE, GREEN)]
    quarters().save(tmp_path / f"a.{extension}", save_all=True, append_images=rest, duration=50)
    image = images.read_image(tmp_path / f"a.{extension}")
    assert corners(image) == ["red", "green", "blue", "white"]
    assert images.probe_image(tmp_path / f"a.{extension}").animated


def test_damage_in_a_later_frame_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    quarters().save(path, save_all=True, append_images=[noise(32, 24)])
    path.write_bytes(path.read_bytes()[:-400])
    assert corners(images.read_image(path)) == ["red", "green", "blue", "white"]


def test_the_main_image_of_an_mpo_jpeg_is_used(tmp_path: Path) -> None:
    quarters(640, 480).save(tmp_path / "a.jpg", format="MPO", save_all=True, append_images=[noise(64, 48)])
    facts = images.probe_image(tmp_path / "a.jpg")
    assert (facts.format, facts.width, facts.height, facts.animated) == ("MPO", 640, 480, False)
    image = images.read_image(tmp_path / "a.jpg", side=40)
    assert image.size == (160, 120)
    assert corners(image) == ["red", "green", "blue", "white"]


def test_a_still_image_is_not_animated(tmp_path: Path) -> None:
    for extension in ("gif", "webp", "png", "jpg", "bmp"):
        quarters().save(tmp_path / f"a.{extension}")
        assert not images.probe_image(tmp_path / f"a.{extension}").animated


def test_files_that_are_not_images_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.png").touch()
    (tmp_path / "text.png").write_text("a picture of a cat\n" * 50)
    (tmp_path / "zeros.jpg").write_bytes(bytes(5000))
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    assert refused(tmp_path / "empty.png") == "empty file"
    assert "no known image format" in refused(tmp_path / "text.png")
    assert "no known image format" in refused(tmp_path / "zeros.jpg")
    assert refused(tmp_path / "folder.png") == "not a regular file"
    assert refused(tmp_path / "pipe.png") == "not a regular file"
    assert refused(tmp_path / "missing.png") == "cannot be opened: No such file or directory"


def test_readers_that_start_programs_are_never_used(tmp_path: Path) -> None:
    quarters().save(tmp_path / "a.png", format="EPS")
    assert "no known image format" in refused(tmp_path / "a.png")


def test_tiny_images_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    Image.new("RGB", (100, 3)).save(tmp_path / "line.png")
    assert refused(tmp_path / "dot.png") == "1x1 pixels, smaller than 4 on a side"
    assert refused(tmp_path / "line.png") == "100x3 pixels, smaller than 4 on a side"
    assert images.read_image(tmp_path / "dot.png", min_side=1).size == (1, 1)


def test_a_header_that_claims_too_much_is_refused_before_decoding(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(png_claiming(12_000, 12_000))
    (tmp_path / "huge.png").write_bytes(png_claiming(2**31 - 1, 2**31 - 1))
    assert refused(tmp_path / "large.png") == "12000x12000 pixels, more than 100 million; make the picture smaller"
    assert "too many pixels" in refused(tmp_path / "huge.png")
    quarters().save(tmp_path / "small.png")
    assert "more than 0.0005 million" in refused(tmp_path / "small.png", max_pixels=500)


def test_a_huge_jpeg_is_decoded_small(tmp_path: Path) -> None:
    Image.new("L", (20_000, 10_000), 128).save(tmp_path / "a.jpg")
    image = images.read_image(tmp_path / "a.jpg", side=64)
    assert image.size == (2500, 1250)
    assert image.getpixel((1000, 1000)) == (128, 128, 128)
    facts = images.probe_image(tmp_path / "a.jpg")
    assert (facts.width, facts.height, facts.mode) == (20_000, 10_000, "L")


def test_a_jpeg_over_the_limit_is_reduced_just_below_it(tmp_path: Path) -> None:
    noise(400, 300).save(tmp_path / "a.jpg")
    assert images.read_image(tmp_path / "a.jpg", max_pixels=30_000).size == (200, 150)
    noise(400, 300).save(tmp_path / "progressive.jpg", progressive=True)
    assert "400x300 pixels" in refused(tmp_path / "progressive.jpg", max_pixels=30_000)
    assert images.read_image(tmp_path / "progressive.jpg", side=8).size == (400, 300)


def test_reduced_decoding_leaves_twice_the_requested_side(tmp_path: Path) -> None:
    quarters(1000, 600).save(tmp_path / "a.jpg")
    image = images.read_image(tmp_path / "a.jpg", side=64)
    assert image.size == (250, 150)
    assert images.read_image(tmp_path / "a.jpg").size == (1000, 600)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_truncated_jpeg_is_refused_or_used(tmp_path: Path, options: dict[str, bool]) -> None:
    path = tmp_path / "a.jpg"
    image = noise(200, 200).resize((400, 400))
    image.save(path, quality=90, **options)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert refused(path).startswith("truncated")
    used = np.asarray(images.read_image(path, truncated="use")).astype(float)
    rest = np.asarray(image).astype(float)
    assert used.shape == (400, 400, 3)
    assert np.abs(used[:150] - rest[:150]).mean() < 40  # the difference of unrelated noise is above 70
    assert refused(path).startswith("truncated")


@pytest.mark.parametrize("extension", ["png", "bmp", "gif"])
def test_other_truncated_files_are_refused_or_used(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"a.{extension}"
    original = noise(300, 300).convert("L")
    original.save(path, interlace=0)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    assert refused(path).startswith("truncated")
    used = np.asarray(images.read_image(path, truncated="use", mode="L"))
    expected = np.asarray(original)
    rows = slice(200, 250) if extension == "bmp" else slice(0, 150)  # a BMP starts at the bottom
    assert np.array_equal(used[rows], expected[rows])
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False


def test_a_truncated_webp_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.webp"
    noise(64, 64).save(path)
    path.write_bytes(path.read_bytes()[:-500])
    refused(path)
    refused(path, truncated="use")


def test_a_file_truncated_before_any_pixel_is_always_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    noise(64, 64).save(path)
    path.write_bytes(path.read_bytes()[:60])
    assert "truncated" in refused(path, truncated="use")
    quarters().save(tmp_path / "a.jpg")
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:100])
    refused(tmp_path / "a.jpg", truncated="use")


@pytest.mark.parametrize(
    "extension", ["png", "jpg", "webp", "bmp", "gif", "tif", *(["avif"] if features.check("avif") else [])]
)
@pytest.mark.parametrize("truncated", ["skip", "use"])
def test_flipped_bytes_never_raise_anything_else(tmp_path: Path, extension: str, truncated: images.Truncated) -> None:
    path = tmp_path / f"a.{extension}"
    quarters().save(path)
    content = path.read_bytes()
    generator = np.random.default_rng(1)
    for _ in range(40):
        damaged = bytearray(content)
        for position in generator.integers(0, len(content), 6):
            damaged[position] = generator.integers(0, 256)
        path.write_bytes(bytes(damaged[: generator.integers(len(content) // 2, len(content) + 1)]))
        try:
            assert images.read_image(path, truncated=truncated).mode == "RGB"
        except UnreadableItem:
            continue


def test_pillows_warnings_do_not_leak_from_any_thread(tmp_path: Path) -> None:
    image = Image.new("P", (64, 64))
    image.putpalette([1, 2, 3] * 2)
    image.save(tmp_path / "a.png", transparency=bytes([0, 255]))
    filters = list(warnings.filters)
    start = threading.Barrier(4)

    def read(_: int) -> None:
        start.wait()
        for _ in range(20):
            images.read_image(tmp_path / "a.png")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read, range(4)))
    (tmp_path / "large.png").write_bytes(png_claiming(9_700, 9_700))  # Pillow warns of it, but it is decoded
    refused(tmp_path / "large.png")
    assert warnings.filters == filters
    with pytest.raises(UserWarning):
        warnings.warn("still an error", stacklevel=1)


# Fitting


def test_an_image_of_the_right_size_is_not_changed() -> None:
    image = noise(40, 30)
    assert np.array_equal(images.resize_and_crop(image, 30, 40), np.asarray(image))


@pytest.mark.parametrize(("x", "left"), [(0.0, 0), (0.5, 6), (0.999, 11), (1.0, 11)])
def test_cropping_alone_moves_whole_pixels(x: float, left: int) -> None:
    image = noise(41, 30)
    pixels = images.resize_and_crop(image, 30, 30, x=x)
    assert np.array_equal(pixels, np.asarray(image)[:, left : left + 30])


@pytest.mark.parametrize(("y", "top"), [(0.0, 0), (0.5, 5), (1.0, 10)])
def test_the_vertical_position(y: float, top: int) -> None:
    image = noise(30, 40)
    pixels = images.resize_and_crop(np.asarray(image), 30, 30, y=y)
    assert np.array_equal(pixels, np.asarray(image)[top : top + 30])


def test_scaling_covers_the_window_and_is_antialiased() -> None:
    stripes = np.zeros((256, 512, 3), np.uint8)
    stripes[:, ::2] = 255
    pixels = images.resize_and_crop(Image.fromarray(stripes), 32, 32)
    assert pixels.shape == (32, 32, 3)
    assert np.abs(pixels.astype(int) - 128).max() <= 2


def test_rectangles_grey_and_enlarging() -> None:
    assert images.resize_and_crop(quarters(5, 4), 64, 96).shape == (64, 96, 3)
    assert images.resize_and_crop(quarters().convert("L"), 16, 8).shape == (16, 8, 1)
    assert images.resize_and_crop(quarters().convert("RGBA"), 16, 8).shape == (16, 8, 4)
    assert corners(Image.fromarray(images.resize_and_crop(quarters(), 96, 128))) == ["red", "green", "blue", "white"]


@pytest.mark.parametrize("size", [(3001, 37), (37, 3001), (101, 99), (7, 5)])
@pytest.mark.parametrize("position", [0.0, 0.3, 0.5, 1.0])
def test_no_crop_leaves_the_image(size: tuple[int, int], position: float) -> None:
    pixels = images.resize_and_crop(Image.new("RGB", size, RED), 48, 64, x=position, y=position)
    assert (pixels == RED).all()


# Tensors and writing


def test_bytes_survive_conversion_to_floats() -> None:
    pixels = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)
    tensor = images.to_tensor(pixels)
    assert (tensor.shape, tensor.dtype) == ((3, 16, 16), torch.float32)
    assert (float(tensor.min()), float(tensor.max())) == (0.0, 1.0)
    assert np.array_equal(images.to_uint8(tensor), pixels)
    assert np.array_equal(images.to_uint8(torch.stack([tensor, tensor]))[1], pixels)
    assert images.to_tensor(pixels[:, :, 0]).shape == (1, 16, 16)


def test_floats_are_clamped_and_rounded() -> None:
    values = torch.tensor([-1.0, 0.499 / 255, 0.501 / 255, 2.0, float("nan"), float("inf")], dtype=torch.float64)
    assert images.to_uint8(values.reshape(1, 1, 6)).ravel().tolist() == [0, 0, 1, 255, 0, 255]
    half = torch.ones(1, 2, 2, dtype=torch.bfloat16, requires_grad=True)
    assert (images.to_uint8(half) == 255).all()
    assert np.array_equal(images.to_uint8(torch.full((1, 2, 2), 7, dtype=torch.uint8)), np.full((2, 2, 1), 7))


def test_writing_takes_tensors_and_arrays(tmp_path: Path) -> None:
    pixels = np.asarray(quarters())
    for number, image in enumerate([pixels, images.to_tensor(pixels), pixels / 255.0]):
        path = images.write_image(image, tmp_path / "sub" / f"{number}.png")
        assert np.array_equal(np.asarray(stored(path)), pixels)
    assert stored(images.write_image(pixels[:, :, :1], tmp_path / "grey.png")).mode == "L"
    transparent = np.zeros((8, 8, 4), np.uint8)
    assert stored(images.write_image(transparent, tmp_path / "a.jpg")).getpixel((0, 0)) == WHITE
    assert stored(images.write_image(transparent, tmp_path / "a.png")).mode == "RGBA"
    with pytest.raises(UsageError, match=r"use \.png"):
        images.write_image(pixels, tmp_path / "a.xyz")
    with pytest.raises(ValueError, match="CHW tensor or an HWC array"):
        images.write_image(pixels.transpose(2, 0, 1), tmp_path / "b.png")


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = images.write_image(np.zeros((8, 8, 3), np.uint8), tmp_path / "a.png")
    before = path.read_bytes()

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Image.Image, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        images.write_image(np.ones((8, 8, 3), np.uint8), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_a_grid_has_images_in_reading_order() -> None:
    cells = [torch.full((3, 4, 5), level / 255) for level in (10, 20, 30)]
    grid = images.image_grid(cells, columns=2, padding=1)
    assert grid.shape == (11, 13, 3)
    assert (grid[1:5, 1:6] == 10).all()
    assert (grid[1:5, 7:12] == 20).all()
    assert (grid[6:10, 1:6] == 30).all()
    assert (grid[6:10, 7:12] == 255).all()
    assert (grid[0] == 255).all()
    assert images.image_grid(cells, columns=8, padding=0).shape == (4, 15, 3)


def test_a_grid_takes_grey_and_transparent_images() -> None:
    cells = [np.full((4, 4, 1), 9, np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((2, 2, 3), np.uint8)]
    pixels = images.image_grid(cells, columns=3, padding=0)
    assert pixels[0, 0].tolist() == [9, 9, 9]
    assert pixels[0, 4].tolist() == [255, 255, 255]
    assert pixels[0, 8].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="at least one image"):
        images.image_grid([], columns=2)


def test_importing_does_not_import_torch() -> None:
    code = "import sys, quintet.media.image, quintet.data.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
