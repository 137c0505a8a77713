"""Emoji and icons at 64 pixels on white: `images.py NODE_MODULES OUT [--emoji]`.

Without `--emoji`: all sets, for the tokenizer. With it: Noto and Twemoji with captions, for the generator; people in
one gender and skin tone only. Drawings of held-out subjects are the validation split, in every set and style.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from resvg_py import svg_to_bytes

from held_out import held_out, slug
from rows import Row, begin, checked_license, finish, package_source

SIDE = 64
PNG_SETS = {
    "emoji-datasource-google": ("google", "noto", "Noto", "Apache-2.0"),
    "emoji-datasource-twitter": ("twitter", "twemoji", "Twemoji", "CC-BY-4.0"),
}
"""Package: folder of its images, suffix, style, and licence as its README says."""
SVG_SETS = (
    "circle-flags",
    "emojione",
    "flat-color-icons",
    "fluent-emoji",
    "fluent-emoji-flat",
    "fxemoji",
    "game-icons",
    "noto-v1",
    "streamline-emojis",
)
EVERY = {"circle-flags": 4, "game-icons": 6}
"""Use every n-th icon of large sets whose icons resemble each other."""
TONE = re.compile(r"-((medium-)?(light|dark)|medium)(-skin-tone)?$")
PERSON = re.compile(r"\b(wo)?m[ae]n\b|\bboy\b|\bgirl\b")
JOINER = "200D"
VARIATION = re.compile(r"-?FE0F", re.IGNORECASE)


@dataclass(frozen=True)
class Subject:
    """What an emoji shows, by the names of Unicode CLDR."""

    label: str
    gendered: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--emoji", action="store_true")
    arguments = parser.parse_args()
    target = arguments.out
    arguments.out = begin(target)
    subjects = read_subjects(arguments.packages / "emojibase-data")
    rows = [row for package in PNG_SETS for row in png_set(arguments.packages / package, subjects, arguments)]
    if not arguments.emoji:
        for name in SVG_SETS:
            rows += svg_set(arguments.packages / "@iconify-json" / name, subjects, arguments.out)
    finish(target, without_copies(arguments.out, rows))


def read_subjects(package: Path) -> dict[str, Subject]:
    """Subjects by code points, without skin tones."""
    found = json.loads((package / "en" / "data.json").read_text(encoding="utf-8"))
    return {points(each["hexcode"]): Subject(each["label"], _is_gendered(each)) for each in found}


def _is_gendered(emoji: dict[str, Any]) -> bool:
    """Whether this is a form of a person for a gender, or a family."""
    return JOINER in emoji["hexcode"] and PERSON.search(emoji["label"]) is not None


def points(text: str) -> str:
    """Code points in the form of emojibase, without the selector of the colored form."""
    return VARIATION.sub("", text.upper())


def png_set(package: Path, subjects: dict[str, Subject], arguments: argparse.Namespace) -> Iterator[Row]:
    folder, suffix, style, licence = PNG_SETS[package.name]
    if style not in (package / "README.md").read_text(encoding="utf-8") and folder not in package.name:
        raise SystemExit(f"{package} is not the package of {style}")
    source = package_source(package)
    for each in json.loads((package / "emoji.json").read_text(encoding="utf-8")):
        subject = subjects.get(points(each["unified"]))
        path = package / "img" / folder / "64" / each["image"]
        if subject is None or not path.is_file() or (arguments.emoji and subject.gendered):
            continue
        name = f"{slug(subject.label)}--{suffix}.png"
        if (arguments.out / name).exists():  # the keycaps of # and * have names without letters
            continue
        write_image(Image.open(path), arguments.out / name)
        texts = captions(subject.label, style) if arguments.emoji else [f"{subject.label}, {style}"]
        yield Row(name, texts, source, checked_license(licence, source), split_of(subject.label))


def captions(label: str, style: str) -> list[str]:
    """The subject in the order in which people write it, with and without its style."""
    kind, _, what = label.partition(": ")
    plain = f"{what} {kind}" if kind == "flag" else label
    article = "an" if plain[0].lower() in "aeiou" else "a"
    return [f"{label}, {style}", plain, f"{article} {plain}", f"{article} {plain}, {style}"]


def svg_set(package: Path, subjects: dict[str, Subject], out: Path) -> Iterator[Row]:
    about = read(package / "info.json")
    licence, source = checked_license(about["license"]["spdx"], package.name), package_source(package)
    icons, emoji = read(package / "icons.json"), read(package / "chars.json")
    labels = {name: subjects[points(code)].label for code, name in emoji.items() if points(code) in subjects}
    names = [
        name
        for name in sorted(icons["icons"])
        if TONE.sub("", name) == name or TONE.sub("", name) not in icons["icons"]
    ]
    for name in names[:: EVERY.get(package.name, 1)]:
        label = labels.get(name, name.replace("-", " "))
        file = f"{name}--{package.name}.png"
        try:
            content = svg_to_bytes(svg_string=svg(icons, name), width=SIDE, height=SIDE, skip_system_fonts=True)
        except ValueError as error:
            print(f"skipped {file}: {error}")
            continue
        write_image(Image.open(io.BytesIO(bytes(content))), out / file)
        yield Row(file, [label], source, licence, split_of(label, name))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def svg(icons: dict[str, Any], name: str) -> str:
    icon = {"left": 0, "top": 0, "width": 16, "height": 16} | icons | icons["icons"][name]
    box = f"{icon['left']} {icon['top']} {icon['width']} {icon['height']}"
    body = icon["body"].replace("currentColor", "#222")
    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return f'<svg {space} viewBox="{box}" width="{icon["width"]}" height="{icon["height"]}">{body}</svg>'


def split_of(*names: str) -> str:
    return "validation" if held_out("emoji").has(*names) else "train"


def write_image(image: Image.Image, path: Path) -> None:
    """On white, centred in a square."""
    image = image.convert("RGBA")
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    square = Image.new("RGBA", (SIDE, SIDE), "white")
    square.alpha_composite(image, ((SIDE - image.width) // 2, (SIDE - image.height) // 2))
    square.convert("RGB").save(path)


def without_copies(folder: Path, rows: list[Row]) -> list[Row]:
    """Of files with equal content the first; those of held-out content are deleted from the training split."""
    seen: set[str] = set()
    kept = []
    for row in sorted(rows, key=lambda row: row.split != "validation"):
        content = (folder / row.file_name).read_bytes()
        digest = hashlib.sha256(Image.open(folder / row.file_name).tobytes()).hexdigest()
        if digest in seen or (row.split == "train" and held_out("emoji").has_content(content)):
            (folder / row.file_name).unlink()
            continue
        seen.add(digest)
        kept.append(row)
    return kept


if __name__ == "__main__":
    main()
