"""Files in memory are read like the same files on disk."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import trimesh
from PIL import Image

from films import counted, write_film
from quintet.errors import UnreadableItem
from quintet.media.audio import probe_audio, read_audio
from quintet.media.files import Blob
from quintet.media.image import EXTENSIONS, probe_image, read_image
from quintet.media.mesh import probe_mesh, read_mesh
from quintet.media.video import probe_video, read_video


def in_memory(path: Path) -> Blob:
    return Blob(path.name, path.read_bytes())


@pytest.mark.parametrize("extension", sorted(EXTENSIONS))
def test_images(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{extension}"
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    assert probe_image(in_memory(path)) == probe_image(path)
    assert np.array_equal(read_image(in_memory(path), side=8), read_image(path, side=8))


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg", "aiff", "m4a"])
def test_audio(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    samples = np.sin(np.arange(40_000) * np.linspace(0.01, 0.3, 40_000)).astype(np.float32) / 2
    if kind == "m4a":
        with av.open(str(path), "w", format="mp4") as container:
            stream = container.add_stream("aac", rate=16_000, layout="mono")
            for start in range(0, len(samples), 1024):
                part = samples[None, start : start + 1024].copy()
                frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
                frame.sample_rate, frame.pts = 16_000, start
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    else:
        soundfile.write(path, samples, 16_000)
    assert probe_audio(in_memory(path)) == probe_audio(path)
    for start, frames in ((0, None), (9_000, 4_000)):
        read = [read_audio(file, 11_025, start=start, frames=frames) for file in (in_memory(path), path)]
        assert np.array_equal(*read)


@pytest.mark.parametrize("extension", [".mp4", ".webm", ".avi", ".gif", ".webp"])
def test_videos(extension: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{extension}"
    if extension in (".gif", ".webp"):
        first, *rest = (Image.fromarray(frame) for frame in counted(6))
        first.save(path, save_all=True, append_images=rest, duration=100)
    else:
        write_film(path, counted(6))
    assert probe_video(in_memory(path)) == probe_video(path)
    assert np.array_equal(read_video(in_memory(path), [1, 4]), read_video(path, [1, 4]))


@pytest.mark.parametrize("kind", ["obj", "ply", "stl", "off", "glb"])
def test_meshes(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    trimesh.creation.icosphere(1).export(path)
    assert probe_mesh(in_memory(path)) == probe_mesh(path)
    one, other = read_mesh(in_memory(path)), read_mesh(path)
    assert np.array_equal(one.vertices, other.vertices)
    assert np.array_equal(one.faces, other.faces)


def test_a_mesh_with_an_external_buffer_is_refused(tmp_path: Path) -> None:
    for name, content in trimesh.Scene(trimesh.creation.box()).export(file_type="gltf").items():
        (tmp_path / name).write_bytes(content)
    assert any("uri" in buffer for buffer in json.loads((tmp_path / "model.gltf").read_text())["buffers"])
    with pytest.raises(UnreadableItem, match=r"is another file, which a shard does not hold; save it as GLB"):
        read_mesh(in_memory(tmp_path / "model.gltf"))


@pytest.mark.parametrize("read", [read_image, read_audio, read_video, read_mesh])
@pytest.mark.parametrize(("content", "reason"), [(b"", "empty file"), (b"words " * 50, "not a")])
def test_invalid_media_are_refused(read: object, content: bytes, reason: str) -> None:
    assert callable(read)
    with pytest.raises(UnreadableItem, match=reason):
        read(Blob("a.png", content))
