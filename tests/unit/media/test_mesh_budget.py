"""Reading a mesh takes linear time and bounded memory, whatever its bytes are."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintet.errors import UnreadableItem
from quintet.media.budget import READ_BUDGET_BYTES
from quintet.media.mesh import read_mesh

TRIANGLE = "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 3\n"
pytestmark = pytest.mark.fault("damaged-media")

FACET = "facet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 0 1 0\nendloop\nendfacet\n"

PEAK = """
import sys
from pathlib import Path

from quintet.errors import UnreadableItem
from quintet.media.mesh import probe_mesh


def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


probe_mesh(sys.argv[1])
before = peak()
try:
    result = f"{probe_mesh(sys.argv[2]).faces} faces"
except UnreadableItem as problem:
    result = str(problem)
print(peak() - before)
print(result)
"""


def measured(path: Path) -> tuple[int, str]:
    """The bytes that a new process needed to read a file, and its faces or the reason why it was not read."""
    small = path.with_name("small.obj")
    small.write_text(TRIANGLE)
    done = subprocess.run([sys.executable, "-c", PEAK, small, path], capture_output=True, text=True, check=True)
    number, result = done.stdout.splitlines()
    return int(number), result


# --- time -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["obj", "off", "stl"])
def test_a_boxed_comment_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"boxed.{suffix}"
    path.write_text("# made by hand #\n" * 400 + TRIANGLE)
    assert len(read_mesh(path).faces) == 1
    path.write_text("# made by hand #\n" * 400 + "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    assert len(read_mesh(path).faces) == 1


@pytest.mark.parametrize("space", [b" ", b"\n", b"\r", b" \n", b"\t"])
def test_white_space_costs_no_more_than_other_bytes(tmp_path: Path, space: bytes) -> None:
    blank = space * 600_000
    path = tmp_path / "blank.obj"
    path.write_bytes(blank[:50_000] + TRIANGLE.encode() + blank)
    assert len(read_mesh(path).faces) == 1
    path.write_bytes(b"solid a\n" + FACET.encode() + blank + b"endsolid a" + blank)
    assert len(read_mesh(path).faces) == 1
    path.write_bytes(b"solid a\nendsolid" + blank + b".")
    with pytest.raises(UnreadableItem):
        read_mesh(path)


def test_a_text_is_read_across_blocks_and_line_ends(tmp_path: Path) -> None:
    side = 120
    points = "".join(f"v {x} {y} {x * y % 7}\n" for x in range(side) for y in range(side))
    faces = "".join(f"f {n}/1 \\\n{n + 1} {n + side}\n" for n in range(1, side * (side - 1)))
    wanted = None
    for ending in ("\n", "\r\n"):
        path = tmp_path / "grid.obj"
        path.write_bytes((points * 2 + faces).replace("\n", ending).encode())
        found = len(read_mesh(path, bins=512).faces)
        assert found == (wanted or found) > 10_000
        wanted = found


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long.obj").write_bytes(TRIANGLE.encode() + b"f " + b"1 " * 2**20)
    with pytest.raises(UnreadableItem, match="a line of more than 1 MiB"):
        read_mesh(tmp_path / "long.obj")
    (tmp_path / "long.obj").write_bytes(TRIANGLE.encode() + b"f 1 \\\n" * 2**20)
    with pytest.raises(UnreadableItem, match="a line of more than 1 MiB"):
        read_mesh(tmp_path / "long.obj")


def test_nodes_in_a_circle_and_in_a_chain(tmp_path: Path) -> None:
    """Each node is used once, and a chain of nodes has a limit."""
    path = tmp_path / "nodes.gltf"
    path.write_text(json.dumps(_gltf(nodes=[{"mesh": 0, "children": [1]}, {"mesh": 0, "children": [0, 1]}])))
    assert len(read_mesh(path).faces) == 1
    path.write_text(json.dumps(_gltf(nodes=[{"mesh": 0, "children": [each + 1]} for each in range(999)] + [{}])))
    with pytest.raises(UnreadableItem, match="more than 256 levels"):
        read_mesh(path)


# --- memory -----------------------------------------------------------------------------------------------------


def _gltf(**changes: Any) -> dict[str, Any]:
    numbers = "AAAAAAAAAAAAAAAAAACAPwAAAAAAAAAAAAAAAAAAgD8AAAAA"  # (0, 0, 0), (1, 0, 0), (0, 1, 0)
    return {
        "asset": {"version": "2.0"},
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}}]}],
        "accessors": [{"bufferView": 0, "componentType": 5126, "count": 3, "type": "VEC3"}],
        "bufferViews": [{"buffer": 0, "byteLength": 36}],
        "buffers": [{"byteLength": 36, "uri": f"data:;base64,{numbers}"}],
        **changes,
    }


def _many_faces(path: Path, count: int) -> None:
    """A binary STL of a rough surface."""
    faces = np.zeros(count, np.dtype([("normal", "<f4", 3), ("vertices", "<f4", (3, 3)), ("attributes", "<u2")]))
    faces["vertices"] = np.random.default_rng(0).random((count, 3, 3), np.float32)
    path.write_bytes(bytes(80) + struct.pack("<I", count) + faces.tobytes())


def test_a_mesh_of_a_million_faces_is_read_within_the_budget(tmp_path: Path) -> None:
    _many_faces(tmp_path / "scan.stl", 1_000_000)
    needed, result = measured(tmp_path / "scan.stl")
    assert result.endswith(" faces")
    assert needed < READ_BUDGET_BYTES
    _many_faces(tmp_path / "scan.stl", 2_500_000)
    needed, result = measured(tmp_path / "scan.stl")
    assert result == "a mesh of 7500000 vertices and 2500000 faces needs 620 MB of memory, more than 512 MB"
    assert needed < 2**26


def test_a_long_obj_is_read_within_the_budget(tmp_path: Path) -> None:
    rows = "".join(f"v {x % 97} {x % 89} {x % 83}\n" for x in range(1, 300_000))
    (tmp_path / "long.obj").write_text(rows + "f 1 50 99\n" * 900_000)
    needed, result = measured(tmp_path / "long.obj")
    assert result == "1 faces"
    assert needed < 2**27, "five times the size of the file, not twenty"


@pytest.mark.parametrize("sparse", [False, True])
def test_a_few_bytes_of_gltf_take_little_memory(tmp_path: Path, sparse: bool) -> None:
    """Numbers that are in no buffer, and numbers that a thousand parts share."""
    huge = {"componentType": 5126, "count": 50_000_000, "type": "VEC3"}
    small = {"componentType": 5126, "count": 3, "type": "VEC3", "bufferView": 0}
    primitive = {"attributes": {"POSITION": 0, "_OTHER": 1}, "indices": 1}
    changes: dict[str, Any] = {"accessors": [small, huge], "meshes": [{"primitives": [primitive] * 2}]}
    if sparse:
        huge["sparse"] = {"count": 0}
    (tmp_path / "few.gltf").write_text(json.dumps(_gltf(**changes)))
    needed, result = measured(tmp_path / "few.gltf")
    assert result.startswith("its numbers are sparse or in no buffer")
    assert needed < 2**26


def test_json_of_many_small_objects_is_refused(tmp_path: Path) -> None:
    (tmp_path / "objects.gltf").write_text(json.dumps(_gltf(extras=[{}])).replace("[{}]", "[" + "{}," * 2**21 + "{}]"))
    needed, result = measured(tmp_path / "objects.gltf")
    assert result.startswith("its JSON needs")
    assert needed < 2**26


def test_a_face_of_a_million_vertices_is_counted_as_its_triangles(tmp_path: Path) -> None:
    head = "ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
    head += "property float z\nelement face 1\nproperty list uint uchar vertex_indices\nend_header\n"
    count = 20_000_000
    (tmp_path / "one.ply").write_bytes(head.encode() + bytes(12) + struct.pack("<I", count) + bytes(count))
    needed, result = measured(tmp_path / "one.ply")
    assert result.startswith(f"a mesh of 1 vertices and {count} faces needs")
    assert needed < 2**26
