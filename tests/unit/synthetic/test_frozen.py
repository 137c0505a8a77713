"""Synthetic datasets and their judges are frozen: hashes of their output are pinned, not of their source.

A hash covers media, captions, splits and metadata of the first hundred items of a dataset, or the findings of a judge
in mixtures of them. Results are comparable only while these hold: a change that breaks one needs a new `VERSION` of
the dataset and a new hash here. Media are hashed as integers, coarse enough to hide rounding differences between
processors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from quintet.media.mesh import Mesh
from quintet.synthetic import motions, motions_judge, shapes, shapes_judge, solids, solids_judge, sounds, sounds_judge

ITEMS = 100
MIXTURES = 20

Hashed = tuple[list[Any], dict[str, Any]]
"""Integer arrays, and metadata."""


@cache
def shape(index: int) -> shapes.ShapesItem:
    return shapes.draw_item(0, index, 32)


@cache
def solid(index: int) -> solids.SolidItem:
    return solids.draw_item(0, index)


@cache
def sound(index: int) -> sounds.SoundItem:
    return sounds.draw_item(0, index)


@cache
def motion(index: int) -> motions.MotionItem:
    return motions.draw_item(0, index, 32)


def shape_item(index: int) -> Hashed:
    image, caption, objects = shape(index)
    return [image], {"text": caption, "split": shapes.split_of(caption, objects), "objects": objects}


def solid_item(index: int) -> Hashed:
    mesh, caption, kind, proportions = solid(index)
    row = {"text": caption, "split": solids.split_of(caption), "class": kind, "proportions": proportions}
    return [np.rint(mesh.vertices * 1e6), mesh.faces], row


def sound_item(index: int) -> Hashed:
    wave, caption, record = sound(index)
    return [np.rint(wave[::10] * 32767)], {"text": caption, "split": sounds.split_of(caption, record), "sound": record}


def motion_item(index: int) -> Hashed:
    clip, caption, record = motion(index)
    return [clip], {"text": caption, "split": motions.split_of(caption, record), "motion": record}


def shape_finding(index: int) -> list[Any]:
    mixed = (shape(index).image // 3 + shape(index + 1).image // 3 * 2).astype(np.uint8)
    return [[found.shape, found.colour, found.position, found.size] for found in shapes_judge.judge(mixed)]


def solid_finding(index: int) -> list[Any]:
    mesh, other = solid(index).mesh, solid(index + 1).mesh
    found = solids_judge.judge(solids.joined(mesh, Mesh(other.vertices * 0.7, other.faces)))
    return [found.kind, found.proportions()]


def sound_finding(index: int) -> list[Any]:
    wave, other = sound(index).wave, sound(index + 1).wave
    length = min(len(wave), len(other))
    found = sounds_judge.judge(wave[:length] + 0.5 * other[:length])
    return [found.timbre, found.register, found.tempo, found.direction, found.loudness]


def motion_finding(index: int) -> list[Any]:
    mixed = (motion(index).clip // 3 + motion(index + 1).clip // 3 * 2).astype(np.uint8)
    found = motions_judge.judge(mixed)
    return [found.shape, found.colour, found.motion]


def hash_of(parts: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def item_bytes(item: Callable[[int], Hashed]) -> Iterator[bytes]:
    for index in range(ITEMS):
        arrays, row = item(index)
        for array in arrays:
            yield f"{array.shape}".encode() + np.ascontiguousarray(array, "<i4").tobytes()
        yield json.dumps(row, sort_keys=True).encode() + b"\n"


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (shape_item, "0f537e4214f22a5d3ce9ac04e38836ef392c579423ea7b7eff8c42af722410a6"),
        (solid_item, "6ce311c95360495f4dfef868be5c28941e50c69323c0cd8b5744c16c4c7bbfa7"),
        (sound_item, "aaa1e1319deb47fe58837a595f02329fe4b908d3581a58cdb33ff66e67b071e0"),
        (motion_item, "229468ee690cae546ebd6d061f7dc717be1f0e573f7879bf4d4cea1162981999"),
    ],
)
def test_items_of_a_dataset_never_change_within_a_version(item: Callable[[int], Hashed], expected: str) -> None:
    assert hash_of(item_bytes(item)) == expected


@pytest.mark.parametrize(
    ("finding", "expected"),
    [
        (shape_finding, "94793f43aa5f9dbb84e41b3478d62f5e695ef411d19774f86b764fa463d3f606"),
        (solid_finding, "61a1cc7500da46f90a30f1035f5ae17687c664d2d8408709a1ddbd132e2e5583"),
        (sound_finding, "455ba2c61d7d42968530ce79096c4504028ab15be9f21c54cfa8bf11302f37b8"),
        (motion_finding, "c694605d34d4bc9da8ff07ff6f137790d17886877b5cc95e6b97af22b43c2267"),
    ],
)
def test_findings_of_a_judge_never_change_within_a_version(finding: Callable[[int], list[Any]], expected: str) -> None:
    assert hash_of(json.dumps(finding(index)).encode() + b"\n" for index in range(MIXTURES)) == expected
