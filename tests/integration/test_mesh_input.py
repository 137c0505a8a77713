"""Mesh files of many kinds: the commands name unusable files, which never stop a run that has others."""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh
from safetensors.torch import load_file

from contract.cases import TINY_MESH_AUTOENCODER
from helpers import error_line, log_text, quintet, state, succeed

FORMATS = ("obj", "ply", "stl", "off", "glb", "gltf")
USABLE = 8
SIDE = 708
"""Squares along a side of the large mesh: two triangles each, a million in all."""

CORNERS = [(x, y, z) for x in (0, 1) for y in (0, 1) for z in (0, 1)]
QUADS = [(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)]
MIXED = [*QUADS[:5], (1, 5, 7), (1, 7, 3)]


# --- files of all kinds -------------------------------------------------------------------------------------------


def export(mesh: Any, path: Path) -> None:
    """Write a mesh with another program."""
    kind = path.suffix[1:]
    content = mesh.export(file_type=kind, **({"embed_buffers": True} if kind == "gltf" else {}))
    if isinstance(content, dict):
        (content,) = content.values()
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def with_faces(path: Path, faces: list[tuple[int, ...]], corners: list[tuple[float, ...]] | None = None) -> None:
    """A text file with faces of any number of corners."""
    rows = corners or CORNERS
    if path.suffix == ".obj":
        lines = [f"v {x} {y} {z}" for x, y, z in rows]
        lines += ["f " + " ".join(str(each + 1) for each in face) for face in faces]
    else:
        lines = ["OFF", f"{len(rows)} {len(faces)} 0"]
        if path.suffix == ".ply":
            lines = ["ply", "format ascii 1.0", f"element vertex {len(rows)}"]
            lines += [f"property float {axis}" for axis in "xyz"]
            lines += [f"element face {len(faces)}", "property list uchar int vertex_indices", "end_header"]
        lines += [f"{x} {y} {z}" for x, y, z in rows]
        lines += [f"{len(face)} " + " ".join(map(str, face)) for face in faces]
    path.write_text("\n".join(lines) + "\n")


def glb(header: Mapping[str, Any], binary: bytes) -> bytes:
    text = json.dumps({"asset": {"version": "2.0"}, **header}).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text + struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(body)) + body


def not_a_number(mesh: trimesh.Trimesh) -> trimesh.Trimesh:
    vertices = np.array(mesh.vertices)
    vertices[0, 1] = np.nan
    return trimesh.Trimesh(vertices, mesh.faces, process=False, validate=False)


def add_unusable(folder: Path) -> dict[str, str]:
    """Add unusable files; returns the expected reason for each."""
    box = trimesh.creation.box()
    reasons = {}
    for extension in FORMATS:
        (folder / f"empty.{extension}").touch()
        reasons[f"empty.{extension}"] = "empty file"
        (folder / f"words.{extension}").write_text("this is not a mesh")
        reasons[f"words.{extension}"] = "not a mesh"
    for extension in ("obj", "ply", "stl", "off", "glb"):
        export(not_a_number(box), folder / f"nan.{extension}")
        reasons[f"nan.{extension}"] = "not finite numbers"
        export(box, folder / f"cut.{extension}")
        content = (folder / f"cut.{extension}").read_bytes()
        (folder / f"cut.{extension}").write_bytes(content[:90])
        reasons[f"cut.{extension}"] = ""
    for extension in ("obj", "ply", "off"):
        with_faces(folder / f"points.{extension}", [])
        reasons[f"points.{extension}"] = "8 points and no faces"
    (folder / "points.glb").write_bytes(trimesh.Scene(trimesh.PointCloud(np.eye(3))).export(file_type="glb"))
    reasons["points.glb"] = "no faces in it"
    image = b"\x89PNG\r\n\x1a\n" + bytes(40)
    header = {"images": [{"bufferView": 0, "mimeType": "image/png"}], "textures": [{"source": 0}]}
    header |= {"bufferViews": [{"buffer": 0, "byteLength": 48}], "buffers": [{"byteLength": 48}]}
    (folder / "texture.glb").write_bytes(glb(header, image))
    reasons["texture.glb"] = "a glTF file without meshes"
    (folder / "picture.obj").write_bytes(image)
    reasons["picture.obj"] = "not a mesh"
    with_faces(folder / "line.obj", [(0, 1, 2)], [(0, 0, 0), (1, 1, 1), (2, 2, 2)])
    reasons["line.obj"] = "no face of it has an area"
    return reasons


def hills() -> trimesh.Trimesh:
    positions = np.arange(SIDE + 1) / SIDE
    x, z = np.meshgrid(positions, positions, indexing="ij")
    vertices = np.stack([x, np.sin(9 * x) * np.cos(7 * z) / 4, z], axis=-1).reshape(-1, 3)
    corner = np.arange(SIDE * (SIDE + 1)).reshape(SIDE, SIDE + 1)[:, :-1].reshape(-1)
    first = np.stack([corner, corner + 1, corner + SIDE + 1], axis=1)
    second = np.stack([corner + 1, corner + SIDE + 2, corner + SIDE + 1], axis=1)
    mesh = trimesh.Trimesh(vertices, np.concatenate([first, second]), process=False)
    assert len(mesh.faces) > 1_000_000
    return mesh


def add_unusual(folder: Path) -> set[str]:
    """Add unusual files that can be used; returns their names."""
    box = trimesh.creation.box()
    for extension in FORMATS:
        export(box, folder / f"box.{extension}")
        export(trimesh.Trimesh(np.eye(3), [[0, 1, 2]], process=False), folder / f"one-face.{extension}")
    for extension in ("obj", "ply", "off"):
        with_faces(folder / f"mixed.{extension}", MIXED)
    for content, name in (("stl", "obj"), ("obj", "glb"), ("glb", "ply"), ("off", "stl")):
        shutil.copy(folder / f"box.{content}", folder / f"{content}-called.{name}")
    odd = {f"{name}.{extension}" for name in ("box", "one-face") for extension in FORMATS}
    odd |= {f"mixed.{extension}" for extension in ("obj", "ply", "off")}
    return odd | {"stl-called.obj", "obj-called.glb", "glb-called.ply", "off-called.stl"}


@pytest.fixture
def folder(meshes: Path, tmp_path: Path) -> Path:
    """A few usable meshes without captions, to which tests add others."""
    target = tmp_path / "data"
    target.mkdir()
    for path in sorted((meshes / "meshes").iterdir())[:USABLE]:
        shutil.copy(path, target / f"a-{path.name}")
    return target


BRIEF = (
    *(*TINY_MESH_AUTOENCODER, "train.steps=2", "eval.every=2", "ema.enabled=false"),
    *("data.validation_fraction=0", "eval.batches=null"),
)
"""Two steps, and validation on all items, so that every file is read."""


def skipped_in(run: Path) -> dict[str, str]:
    record = json.loads((run / "data.json").read_text(encoding="utf-8"))
    return {name.removeprefix("validation: "): reason for name, reason in record["skipped"].items()}


# --- commands -----------------------------------------------------------------------------------------------------


def test_unusable_files_are_named_and_unusual_ones_are_used(folder: Path, tmp_path: Path) -> None:
    unusable, unusual = add_unusable(folder), add_unusual(folder)
    run = tmp_path / "run"

    checked = json.loads(succeed("data", "check", folder, "--json").output)
    succeed("train", "mesh-autoencoder", folder, "--out", run, *BRIEF)

    assert state(run)["status"] == "finished"
    for skipped in ({each["file"]: each["reason"] for each in checked["skipped"]}, skipped_in(run)):
        assert skipped.keys() == unusable.keys()
        for name, part in unusable.items():
            assert part in skipped[name], name
            assert "\n" not in skipped[name]
    assert checked["usable"] == USABLE + len(unusual)
    record = json.loads((run / "data.json").read_text())
    assert unusual <= {*record["train"]}


def test_meshes_with_too_many_faces_are_skipped_or_decimated(folder: Path, tmp_path: Path) -> None:
    balls = {f"ball.{extension}" for extension in FORMATS}
    for name in balls:
        export(trimesh.creation.icosphere(subdivisions=3), folder / name)
    skipping, reducing = tmp_path / "skipping", tmp_path / "reducing"

    checked = succeed("data", "check", folder).output
    skips = succeed("train", "mesh-autoencoder", folder, "--out", skipping, *BRIEF, "data.decimate=false").errors
    reduces = succeed("train", "mesh-autoencoder", folder, "--out", reducing, *BRIEF).errors

    many = "have more than data.max_faces=800 faces and are"
    assert f"{len(balls)} meshes have more than 800 faces (data.max_faces) and are decimated" in checked
    assert [line.count(f"{many} left out") for line in skips.splitlines() if "of the meshes (" in line] == [1]
    assert [line.count(f"{many} decimated") for line in reduces.splitlines() if "of the meshes (" in line] == [1]
    skipped = skipped_in(skipping)
    assert skipped.keys() == balls
    for reason in skipped.values():
        assert reason == "1280 faces, more than 800 (data.max_faces); data.decimate=true reduces it"
    text = log_text(skipping)
    assert text.count("unreadable item replaced: ball.") == 3, "some are named, and the others are counted"
    assert re.search(r"items replaced for such a reason so far: [456] \(1280 faces, more than 800 .*; data\.json", text)
    assert skipped_in(reducing) == {}
    assert state(reducing)["status"] == "finished"


def test_a_million_faces_are_skipped_or_decimated(folder: Path, tmp_path: Path) -> None:
    export(hills(), folder / "hills.glb")

    checked = succeed("data", "check", folder).output
    succeed("encode", "coordinates:64", folder, "--out", tmp_path / "codes")
    succeed("train", "mesh-autoencoder", folder, "--out", tmp_path / "run", *BRIEF)
    skipping = tmp_path / "skipping"
    succeed("train", "mesh-autoencoder", folder, "--out", skipping, *BRIEF, "data.decimate=false")

    # The count after quantization, which is all that a model could see.
    count = int(re.search(r"1 meshes have more than 800 faces .*: hills\.glb \((\d+)\)", checked)[1])  # type: ignore[index]
    assert 10_000 < count < 1_000_000
    rows = [json.loads(line) for line in (tmp_path / "codes" / "items.jsonl").read_text().splitlines()]
    assert [row for row in rows if "skipped" in row] == []
    assert skipped_in(tmp_path / "run") == {}
    assert re.match(r"\d+ faces, more than 800 ", skipped_in(skipping)["hills.glb"])


def test_readable_files_are_encoded(folder: Path, tmp_path: Path) -> None:
    unusable, unusual = add_unusable(folder), add_unusual(folder)
    succeed("encode", "coordinates", folder, "--out", tmp_path / "codes")
    rows = [json.loads(line) for line in (tmp_path / "codes" / "items.jsonl").read_text().splitlines()]
    # Empty files are skipped before anything is read.
    assert {row["file"] for row in rows if "skipped" in row} == {name for name in unusable if "empty" not in name}
    assert len([row for row in rows if "row" in row]) == USABLE + len(unusual)


def test_only_unusable_files_are_an_error_before_training(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    add_unusable(folder)
    run = tmp_path / "run"

    assert quintet("data", "check", folder).code == 1
    outcome = quintet("train", "mesh-autoencoder", folder, "--out", run, *BRIEF)

    assert outcome.code == 2
    assert "items can be read" in error_line(outcome.errors)
    assert not run.exists()


def test_a_quad_model_uses_quad_files(folder: Path, tmp_path: Path) -> None:
    quads = set()
    for number, extension in enumerate(("obj", "ply", "off") * 2):
        name = f"quads-{number}.{extension}"
        with_faces(folder / name, QUADS, [(x, y * (number + 2) / 4, z) for x, y, z in CORNERS])
        quads.add(name)
    with_faces(folder / "mixed.obj", MIXED)
    run = tmp_path / "run"

    succeed("train", "mesh-autoencoder", folder, "--out", run, *BRIEF, "model.vertices_per_face=4")
    succeed("encode", run, folder, "--out", tmp_path / "codes")
    succeed("decode", run, tmp_path / "codes", "--out", tmp_path / "decoded")

    skipped = skipped_in(run)
    assert {path.name for path in folder.iterdir()} - quads == skipped.keys()
    assert skipped["mixed.obj"] == "its faces have 3 and 4 vertices; model.vertices_per_face=4 takes no others"
    assert skipped["a-00000.obj"] == "its faces have 3 vertices; model.vertices_per_face=4 takes no others"
    # Six faces of four vertices with two codes each.
    assert load_file(tmp_path / "codes" / "codes.safetensors")["codes"].shape == (6, 6, 8)
    assert len(list((tmp_path / "decoded").glob("[!.]*"))) == 6

    generator = tmp_path / "generator"
    brief = (
        "train.steps=2",
        "train.batch_size=2",
        "eval.every=2",
        "sample.every=2",
        "data.allow_missing_captions=true",
        "data.validation_fraction=0",
    )
    succeed("train", "mesh-transformer", folder, "--tokenizer", run, "--out", generator, "--preset", "debug", *brief)
    assert skipped_in(generator).keys() == skipped.keys()
    succeed("sample", generator, "--text", "a box", "--out", tmp_path / "samples")
    assert (tmp_path / "samples" / "000.glb").exists()
