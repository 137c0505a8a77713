"""Mesh files of every format, valid and damaged."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trimesh

from quintet.errors import UnreadableItem
from quintet.media import budget
from quintet.media.mesh import Mesh, edge_counts, read_mesh

FORMATS = ("obj", "ply", "stl", "off", "glb", "gltf")
CUBE = """
v 0 0 0
v 1 0 0
v 1 1 0
v 0 1 0
v 0 0 1
v 1 0 1
v 1 1 1
v 0 1 1
"""
QUADS = [(4, 3, 2, 1), (5, 6, 7, 8), (1, 2, 6, 5), (2, 3, 7, 6), (3, 4, 8, 7), (4, 1, 5, 8)]
MIXED = [*QUADS[:4], (3, 4, 8), (3, 8, 7), (4, 1, 5, 8)]


def export(mesh: Any, path: Path) -> Path:
    """Write with trimesh."""
    content = mesh.export(file_type=path.suffix[1:])
    if isinstance(content, dict):
        for name, data in content.items():
            (path.parent / (path.name if name == "model.gltf" else name)).write_bytes(data)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def reason(path: Path, **options: Any) -> str:
    with pytest.raises(UnreadableItem) as caught:
        read_mesh(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def is_closed(mesh: Mesh) -> bool:
    return bool((edge_counts(mesh.faces) == 2).all())


def ply(vertices: str, faces: list[tuple[int, ...]], order: str | None) -> bytes:
    """A PLY of numbered vertices, in text or in bytes of an order, with a colour beside each face."""
    rows = [tuple(map(float, line.split()[1:])) for line in vertices.split("\n") if line]
    layout = {None: "ascii", "<": "binary_little_endian", ">": "binary_big_endian"}[order]
    head = f"ply\nformat {layout} 1.0\ncomment by hand\nelement vertex {len(rows)}\nproperty float x\n"
    head += "property float y\nproperty float z\n"
    head += f"element face {len(faces)}\nproperty list uchar int vertex_indices\nproperty uchar red\nend_header\n"
    if order is None:
        body = "".join(f"{x} {y} {z}\n" for x, y, z in rows)
        body += "".join(f"{len(face)} {' '.join(str(each - 1) for each in face)} 255\n" for face in faces)
        return (head + body).encode()
    data = b"".join(struct.pack(f"{order}3f", *row) for row in rows)
    for face in faces:
        data += struct.pack(f"{order}B{len(face)}iB", len(face), *(each - 1 for each in face), 255)
    return head.encode() + data


def glb(header: dict[str, Any], binary: bytes = b"") -> bytes:
    text = json.dumps({"asset": {"version": "2.0"}, **header}).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<I4s", len(text), b"JSON") + text
    if binary:
        body += struct.pack("<I4s", len(binary), b"BIN\0") + binary
    return struct.pack("<4sII", b"glTF", 2, 12 + len(body)) + body


def triangle_header(**changes: Any) -> dict[str, Any]:
    """A glTF of one triangle in a buffer of 36 bytes."""
    return {
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}],
        "bufferViews": [{"buffer": 0, "byteLength": 36}],
        "buffers": [{"byteLength": 36}],
        **changes,
    }


TRIANGLE = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], "<f4").tobytes()


# --- valid files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", FORMATS)
def test_a_file_of_each_format_is_the_same_mesh(tmp_path: Path, extension: str) -> None:
    sphere = trimesh.creation.icosphere(subdivisions=2)
    mesh = read_mesh(export(sphere, tmp_path / f"sphere.{extension}"))
    assert (mesh.vertices.shape, mesh.faces.shape) == ((162, 3), (320, 3))
    assert (mesh.vertices.dtype, mesh.faces.dtype) == (np.float64, np.int64)
    assert is_closed(mesh)
    corners = mesh.vertices[mesh.faces]
    volume = np.einsum("ij,ij->i", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6
    assert 0.9 * 4.19 * 0.98**3 < volume < 4.19 * 0.98**3, "faces look outwards"


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize("named", ["obj", "stl", "glb"])
def test_a_wrong_extension_does_not_matter(tmp_path: Path, extension: str, named: str) -> None:
    path = export(trimesh.creation.box(), tmp_path / f"box.{extension}")
    wrong = path.rename(tmp_path / f"wrong.{named}")
    assert len(read_mesh(wrong).faces) == 12


def test_text_stl(tmp_path: Path) -> None:
    (tmp_path / "box.stl").write_text(trimesh.creation.box().export(file_type="stl_ascii"))
    assert is_closed(read_mesh(tmp_path / "box.stl"))


@pytest.mark.parametrize("faces", [QUADS, MIXED, [*MIXED[:3], (2, 3, 7, 6), (3, 4, 8, 7), (1, 5, 8, 4)]])
def test_quads_and_triangles_may_be_mixed(tmp_path: Path, faces: list[tuple[int, ...]]) -> None:
    obj = CUBE + "".join(f"f {' '.join(map(str, face))}\n" for face in faces)
    off = f"OFF\n8 {len(faces)} 0\n{CUBE.replace('v ', '')}"
    off += "".join(f"{len(face)} {' '.join(str(each - 1) for each in face)}\n" for face in faces)
    (tmp_path / "cube.obj").write_text(obj)
    (tmp_path / "cube.off").write_text(off)
    for name, order in (("text", None), ("little", "<"), ("big", ">")):
        (tmp_path / f"{name}.ply").write_bytes(ply(CUBE.strip(), faces, order))
    for path in tmp_path.iterdir():
        mesh = read_mesh(path)
        assert len(mesh.faces) == 12, path.name
        assert is_closed(mesh), path.name


def test_other_lines_of_an_obj_are_ignored(tmp_path: Path) -> None:
    """Groups, missing materials, textures, normals, pentagons, indices counted from the end, long lines."""
    text = "# by hand\nmtllib ../../elsewhere.mtl\no thing\nusemtl red\nvt 0 0\nvn 0 0 1\n"
    text += "v 0 0 0 1 0 0\nv 2 0 0 1 0 0\nv 3 1 0\nv 1 2 0\nv 0 1 0\nf 1/1/1 2/1/1 3//1 \\\n 4/1 5\n"
    text += "g other\nv 0 0 1\nv 1 0 1\nv 0 1 1\nf -3 -2 -1\nv 9 9 9\ns off\nl 1 2\nf 1 2\n"
    (tmp_path / "thing.obj").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    mesh = read_mesh(tmp_path / "thing.obj")
    assert (len(mesh.vertices), len(mesh.faces)) == (8, 4)
    flat = mesh.vertices[mesh.faces][:, :, 2]
    assert sorted(np.ptp(flat, axis=1).tolist()) == [0, 0, 0, 0], "no face reaches from one sheet to the other"


def test_a_scene_is_one_mesh_with_transforms_applied(tmp_path: Path) -> None:
    scene = trimesh.Scene()
    part = trimesh.creation.box((1, 1, 1))
    scene.add_geometry(part, geom_name="part", transform=trimesh.transformations.translation_matrix((0, 0, 0)))
    scene.add_geometry(part, geom_name="part", transform=trimesh.transformations.translation_matrix((3, 0, 0)))
    mirror = np.diag([1.0, -2.0, 1.0, 1.0])
    scene.add_geometry(part, geom_name="part", transform=mirror @ trimesh.transformations.translation_matrix((6, 0, 0)))
    path = tmp_path / "scene.glb"
    path.write_bytes(scene.export(file_type="glb"))
    mesh = read_mesh(path)
    assert len(mesh.faces) == 36
    assert np.ptp(mesh.vertices, axis=0) == pytest.approx([1.96, 1.96 * 2 / 7, 1.96 / 7])
    corners = mesh.vertices[mesh.faces]
    volumes = np.einsum("ij,ij->i", corners[:, 0], np.cross(corners[:, 1], corners[:, 2]))
    assert volumes.sum() / 6 == pytest.approx(4 * 0.28**3), "a mirrored part keeps its outside outside"


def test_a_gltf_of_triangles_without_numbers_and_without_a_scene(tmp_path: Path) -> None:
    header = triangle_header()
    del header["scenes"], header["nodes"]
    (tmp_path / "one.glb").write_bytes(glb(header, TRIANGLE))
    assert len(read_mesh(tmp_path / "one.glb").faces) == 1


def test_a_gltf_reads_buffers_beside_it(tmp_path: Path) -> None:
    header = triangle_header(buffers=[{"byteLength": 36, "uri": "my%20numbers.bin"}])
    (tmp_path / "one.gltf").write_text(json.dumps({"asset": {"version": "2.0"}, **header}))
    (tmp_path / "my numbers.bin").write_bytes(TRIANGLE)
    assert len(read_mesh(tmp_path / "one.gltf").faces) == 1


# --- bad files --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", FORMATS)
def test_empty_files(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"empty.{extension}"
    path.touch()
    assert reason(path) == "empty file"


def test_special_files_are_refused(tmp_path: Path) -> None:
    assert reason(tmp_path / "gone.obj") == "cannot be opened: No such file or directory"
    assert reason(tmp_path) == "not a regular file"
    os.mkfifo(tmp_path / "pipe.obj")
    assert reason(tmp_path / "pipe.obj") == "not a regular file"


@pytest.mark.parametrize("extension", FORMATS)
@pytest.mark.parametrize(
    "content", [b"hello\n", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4, b"<html></html>", b"\0" * 500]
)
def test_files_that_are_not_meshes(tmp_path: Path, extension: str, content: bytes) -> None:
    path = tmp_path / f"photo.{extension}"
    path.write_bytes(content)
    assert reason(path).startswith(("not a mesh", "truncated or damaged: its header"))


def test_points_only(tmp_path: Path) -> None:
    (tmp_path / "points.obj").write_text(CUBE)
    (tmp_path / "points.off").write_text(f"OFF\n8 0 0\n{CUBE.replace('v ', '')}")
    (tmp_path / "points.ply").write_bytes(ply(CUBE.strip(), [], "<"))
    for path in tmp_path.iterdir():
        assert reason(path) == "8 points and no faces in it"
    cloud = trimesh.PointCloud(np.eye(3))
    (tmp_path / "cloud.glb").write_bytes(trimesh.Scene(cloud).export(file_type="glb"))
    (tmp_path / "cloud.ply").write_bytes(cloud.export(file_type="ply"))
    assert "no faces in it" in reason(tmp_path / "cloud.glb")
    assert reason(tmp_path / "cloud.ply") == "3 points and no faces in it"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
def test_coordinates_that_are_not_finite(tmp_path: Path, number: str) -> None:
    (tmp_path / "bad.obj").write_text(CUBE.replace("v 1 1 1", f"v 1 {number} 1") + "f 1 2 7\n")
    (tmp_path / "bad.ply").write_bytes(ply(CUBE.replace("v 1 1 1", f"v 1 {number} 1").strip(), [(1, 2, 7)], "<"))
    for path in tmp_path.iterdir():
        assert reason(path) == "some of its coordinates are not finite numbers"
    (tmp_path / "unused.obj").write_text(CUBE.replace("v 1 1 1", f"v 1 {number} 1") + "f 1 2 3\n")
    assert len(read_mesh(tmp_path / "unused.obj").faces) == 1


def test_coordinates_too_far_apart(tmp_path: Path) -> None:
    (tmp_path / "far.obj").write_text("v -1e308 0 0\nv 1e308 0 0\nv 0 1e308 0\nf 1 2 3\n")
    assert reason(tmp_path / "far.obj") == "its coordinates are too far apart"
    (tmp_path / "away.obj").write_text("v 1e30 0 0\nv 2e30 0 0\nv 1e30 1e30 0\nf 1 2 3\n")
    assert len(read_mesh(tmp_path / "away.obj").faces) == 1


def test_faces_without_area(tmp_path: Path) -> None:
    (tmp_path / "line.obj").write_text("v 0 0 0\nv 1 1 1\nv 2 2 2\nf 1 2 3\nf 1 1 2\n")
    assert reason(tmp_path / "line.obj") == "no face of it has an area at 128 bins a side"
    (tmp_path / "point.obj").write_text("v 1 1 1\nv 1 1 1\nv 1 1 1\nf 1 2 3\n")
    assert reason(tmp_path / "point.obj") == "all of its vertices lie in one point"


def test_a_face_of_missing_vertices(tmp_path: Path) -> None:
    for number, face in enumerate(("f 1 2 9", "f 0 1 2", "f 1 2 -9")):
        (tmp_path / f"{number}.obj").write_text(f"{CUBE}{face}\n")
        assert "names a vertex that is not among its 8" in reason(tmp_path / f"{number}.obj")


def test_a_glb_of_a_texture_alone(tmp_path: Path) -> None:
    image = b"\x89PNG\r\n\x1a\n" + bytes(40)
    header = {"images": [{"bufferView": 0, "mimeType": "image/png"}], "textures": [{"source": 0}]}
    header |= {"bufferViews": [{"buffer": 0, "byteLength": 48}], "buffers": [{"byteLength": 48}]}
    (tmp_path / "texture.glb").write_bytes(glb(header, image))
    assert reason(tmp_path / "texture.glb") == "no faces in it: a glTF file without meshes"


def test_a_compressed_gltf(tmp_path: Path) -> None:
    header = triangle_header(extensionsRequired=["KHR_draco_mesh_compression"])
    (tmp_path / "draco.glb").write_bytes(glb(header, TRIANGLE))
    assert reason(tmp_path / "draco.glb").startswith("compressed (KHR_draco_mesh_compression)")


@pytest.mark.parametrize(
    "uri", ["../secret.bin", "link.bin", "file:///etc/hostname", "http://127.0.0.1:9/x", "%2e%2e/secret.bin"]
)
def test_buffers_outside_the_folder_are_not_read(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_, **__: pytest.fail("the network was asked"))
    folder = tmp_path / "data"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(TRIANGLE)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    header = triangle_header(buffers=[{"byteLength": 36, "uri": uri}])
    (folder / "one.gltf").write_text(json.dumps({"asset": {"version": "2.0"}, **header}))
    (folder / "one.glb").write_bytes(glb(header))
    for name in ("one.gltf", "one.glb"):
        assert reason(folder / name).startswith("takes its numbers from outside of its folder")


def test_an_absolute_buffer_and_a_missing_one(tmp_path: Path) -> None:
    for uri, expected in (("/etc/hostname", "takes its numbers from outside"), ("gone.bin", "its buffer 'gone.bin'")):
        header = triangle_header(buffers=[{"byteLength": 36, "uri": uri}])
        (tmp_path / "one.gltf").write_text(json.dumps({"asset": {"version": "2.0"}, **header}))
        assert reason(tmp_path / "one.gltf").startswith(expected)


def test_an_obj_reads_no_material(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.obj").write_text(f"mtllib secret.mtl\n{CUBE}f 1 2 3\n")
    (tmp_path / "secret.mtl").write_text("newmtl x\n")
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *more: (opened.append(Path(path).name), real(path, *more))[1])
    read_mesh(tmp_path / "one.obj")
    assert opened == ["one.obj"]


def test_sizes_that_a_few_bytes_declare(tmp_path: Path) -> None:
    accessor = {"componentType": 5126, "count": 10**12, "type": "VEC3"}
    (tmp_path / "accessor.glb").write_bytes(glb(triangle_header(accessors=[accessor]), TRIANGLE))
    assert reason(tmp_path / "accessor.glb").startswith("its numbers are sparse or in no buffer")
    accessor |= {"bufferView": 0}
    (tmp_path / "accessor.glb").write_bytes(glb(triangle_header(accessors=[accessor]), TRIANGLE))
    assert reason(tmp_path / "accessor.glb").startswith("a mesh of 1000000000000 vertices and 333333333333 faces needs")
    accessor |= {"count": 4}
    (tmp_path / "accessor.glb").write_bytes(glb(triangle_header(accessors=[accessor]), TRIANGLE))
    assert reason(tmp_path / "accessor.glb") == "truncated: its numbers are not all in its buffer"
    nodes = [{"mesh": 0}] * 20_000
    crowd = triangle_header(nodes=nodes, scenes=[{"nodes": list(range(20_000))}])
    (tmp_path / "nodes.glb").write_bytes(glb(crowd, TRIANGLE))
    assert reason(tmp_path / "nodes.glb").startswith("a scene of 20000 nodes")
    header = "ply\nformat {} 1.0\nelement vertex {}\nproperty float x\nproperty float y\nproperty float z\n"
    header += "element face {}\nproperty list uint int vertex_indices\nend_header\n"
    for layout in ("ascii", "binary_little_endian"):
        (tmp_path / "one.ply").write_bytes(header.format(layout, 10**15, 1).encode() + bytes(64))
        assert reason(tmp_path / "one.ply").startswith(("truncated", "damaged: a vertex with fewer than three numbers"))
    (tmp_path / "one.ply").write_bytes(header.format("binary_little_endian", 0, 10**15).encode() + b"\xff" * 64)
    assert "truncated" in reason(tmp_path / "one.ply")
    (tmp_path / "one.ply").write_bytes(header.format("binary_little_endian", 0, 1).encode() + b"\xff" * 64)
    assert "damaged" in reason(tmp_path / "one.ply")
    (tmp_path / "one.off").write_text("OFF\n1000000000000 1 0\n0 0 0\n")
    assert reason(tmp_path / "one.off").startswith("truncated")
    (tmp_path / "one.stl").write_bytes(bytes(80) + struct.pack("<I", 2**32 - 1) + bytes(50))
    assert reason(tmp_path / "one.stl") == "truncated or damaged: its header promises 4294967295 faces"


def test_a_scene_with_too_many_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [{"mesh": 0, "translation": [position, 0, 0]} for position in range(200)]
    crowd = triangle_header(nodes=nodes, scenes=[{"nodes": list(range(200))}])
    (tmp_path / "crowd.glb").write_bytes(glb(crowd, TRIANGLE))
    assert len(read_mesh(tmp_path / "crowd.glb", bins=1024).faces) == 200
    monkeypatch.setattr(budget, "READ_BUDGET_BYTES", 2**15)
    assert reason(tmp_path / "crowd.glb") == "its JSON needs 1 MB of memory, more than 0 MB"
    monkeypatch.undo()
    crowd["meshes"] = [{"primitives": triangle_header()["meshes"][0]["primitives"] * 1000}]
    (tmp_path / "crowd.glb").write_bytes(glb(crowd, TRIANGLE))
    assert reason(tmp_path / "crowd.glb") == "a scene of more than 100000 parts; join its meshes first"


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = export(trimesh.creation.box(), tmp_path / "box.stl")
    monkeypatch.setattr(budget, "READ_BUDGET_BYTES", 1000)
    assert reason(path) == "a mesh of 36 vertices and 12 faces needs 1 MB of memory, more than 0 MB"
    with path.open("r+b") as stream:  # a sparse file
        stream.truncate(2**30)
    assert reason(path) == "1024 MiB, more than 512; reduce the mesh first"


@pytest.mark.parametrize("extension", FORMATS)
def test_a_truncated_file_is_a_mesh_or_named_never_an_error(tmp_path: Path, extension: str) -> None:
    content = export(trimesh.creation.icosphere(subdivisions=1), tmp_path / f"a.{extension}").read_bytes()
    cut = tmp_path / f"cut.{extension}"
    named = 0
    for length in range(1, len(content) - 4, max(1, len(content) // 60)):
        cut.write_bytes(content[:length])
        named += _is_named(cut)
    assert named > (10 if extension == "obj" else 45), "an OBJ says nowhere how long it is"


def _damages(content: bytes, rng: np.random.Generator) -> Callable[[], bytes]:
    def damaged() -> bytes:
        data = bytearray(content)
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        return bytes(data)

    return damaged


@pytest.mark.parametrize("extension", FORMATS)
def test_damaged_bytes_are_a_mesh_or_named_never_an_error(tmp_path: Path, extension: str) -> None:
    mesh = trimesh.creation.box() if extension == "gltf" else trimesh.creation.icosphere(subdivisions=1)
    content = export(mesh, tmp_path / f"a.{extension}").read_bytes()
    damaged = _damages(content, np.random.default_rng(0))
    path = tmp_path / f"damaged.{extension}"
    for _ in range(150):
        path.write_bytes(damaged())
        _is_named(path)


def _is_named(path: Path) -> bool:
    try:
        read_mesh(path)
    except UnreadableItem as problem:
        return bool(str(problem)) and "\n" not in str(problem)
    return False
