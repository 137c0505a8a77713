"""Animated emoji at 64 pixels and 12 frames a second: `video.py NODE_MODULES OUT`, from the Fluent emoji (MIT).

Emoji without skin tones, people in one gender only. Held-out names are the validation split.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageSequence

from held_out import held_out, slug
from images import points, read_subjects
from quintet.media.video_writing import write_video
from rows import Row, begin, checked_license, finish, package_source

PACKAGES = tuple(f"@lobehub/fluent-emoji-anim-{number}" for number in range(1, 5))
SIDE, RATE = 64, 12.0
EVERY_FRAME = 2
"""The files have 24 frames a second."""
MIN_FRAMES, FRAMES = 3, 34


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    subjects = read_subjects(arguments.packages / "emojibase-data")
    folder, rows = begin(arguments.out), []
    for name in PACKAGES:
        package = arguments.packages / name
        source = package_source(package)
        licence = checked_license("MIT" if "MIT" in (package / "README.md").read_text("utf-8") else "", source)
        found = [(path, subjects.get(points(path.stem))) for path in sorted((package / "assets").glob("*.webp"))]
        for path, subject in found:
            if subject is None or subject.gendered:
                continue
            clip = frames(path)
            if len(clip) < MIN_FRAMES:
                continue
            file = f"{slug(subject.label)}.mp4"
            write_video(clip, folder / file, RATE)
            is_held_out = held_out("animated-emoji").has(subject.label)
            rows.append(Row(file, [subject.label], source, licence, "validation" if is_held_out else "train"))
    finish(arguments.out, rows)


def frames(path: Path) -> npt.NDArray[np.uint8]:
    """(frames, height, width, 3), on white"""
    found = []
    with Image.open(path) as animation:
        for number, frame in enumerate(ImageSequence.Iterator(animation)):
            if number % EVERY_FRAME == 0 and len(found) < FRAMES:
                small = frame.convert("RGBA").resize((SIDE, SIDE), Image.Resampling.BOX)
                white = Image.new("RGBA", small.size, "white")
                white.alpha_composite(small)
                found.append(np.array(white.convert("RGB")))
    return np.stack(found)


if __name__ == "__main__":
    main()
