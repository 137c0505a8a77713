"""Writes the corpus of the fuzzer: small sound files of each format, which are in the repository.

`PYTHONPATH=src:tests python -m fuzz.make_corpus`
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from PIL import Image

from films import counted, write_film
from fuzz.__main__ import CORPUS
from quintet import config as configs
from quintet import registry
from quintet.media.video_writing import write_video

_OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n"
_OFF = "OFF\n4 4 6\n0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 2 1\n3 0 1 3\n3 1 2 3\n3 0 3 2\n"
_PLY = (
    "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    "element face 4\nproperty list uchar int vertex_indices\nend_header\n"
    "0 0 0\n1 0 0\n0 1 0\n0 0 1\n3 0 2 1\n3 0 1 3\n3 1 2 3\n3 0 3 2\n"
)
_CSV = 'file_name,text,split\na.png,"one, ""two""",train\n'
_JSONL = '{"file_name": "a.png", "text": ["one", "two"], "split": "train", "n": [1, 2.5e3, null]}\n'


def main() -> None:
    for name in ("image", "audio", "video", "mesh", "points", "captions", "metadata", "tar", "parquet", "config"):
        (CORPUS / name).mkdir(parents=True, exist_ok=True)
    _images(CORPUS / "image")
    _audio(CORPUS / "audio")
    _videos(CORPUS / "video")
    _meshes(CORPUS / "mesh")
    _points(CORPUS / "points")
    _texts()
    _shards()


def _images(folder: Path) -> None:
    image = Image.radial_gradient("L").resize((24, 20)).convert("RGB")
    options: Mapping[str, dict[str, object]] = {
        "a.png": {},
        "b.gif": {},
        "c.jpg": {"exif": Image.Exif()},
        "d.jpg": {"progressive": True},
        "e.webp": {},
        "f.webp": {"lossless": True},
        "g.tif": {},
        "h.tif": {"compression": "tiff_lzw"},
        "i.bmp": {},
        "j.avif": {},
    }
    for name, keys in options.items():
        image.save(folder / name, **keys)
    image.quantize(16).save(folder / "k.png", transparency=3)
    Image.fromarray((np.arange(480, dtype=np.uint16) * 100).reshape(20, 24)).save(folder / "l.png")


def _audio(folder: Path) -> None:
    wave = (0.3 * np.sin(np.arange(2000) / 9)).astype(np.float32)
    for extension in ("wav", "flac", "aiff", "au", "caf"):
        soundfile.write(folder / f"a.{extension}", wave[:1200], 8000)
    soundfile.write(folder / "a.ogg", wave, 8000, format="OGG", subtype="VORBIS")
    soundfile.write(folder / "a.mp3", wave, 16000, format="MP3")
    for name, codec in (("a.m4a", "aac"), ("a.mka", "aac"), ("a.aac", "aac")):
        with av.open(str(folder / name), "w", format="adts" if name.endswith("aac") else None) as container:
            stream = container.add_stream(codec, rate=16_000)
            frame = av.AudioFrame.from_ndarray(wave[None], "fltp", "mono")
            frame.rate = 16_000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())


def _videos(folder: Path) -> None:
    clip = counted(6, 32, 32)
    for extension in (".mp4", ".mkv", ".avi", ".webm"):
        write_film(folder / f"a{extension}", clip)
    write_film(folder / "b.mp4", clip, container_options={"movflags": "frag_keyframe+empty_moov"}, g="2")
    write_video(clip, folder / "a.gif")
    write_video(clip, folder / "a.webp")


def _meshes(folder: Path) -> None:
    import trimesh

    (folder / "a.obj").write_text(_OBJ)
    (folder / "a.off").write_text(_OFF)
    (folder / "a.ply").write_text(_PLY)
    solid = trimesh.load(io.BytesIO(_OFF.encode()), file_type="off")
    for extension in ("stl", "glb"):
        (folder / f"b.{extension}").write_bytes(solid.export(file_type=extension))
    (folder / "b.ply").write_bytes(solid.export(file_type="ply"))


def _points(folder: Path) -> None:
    rows = [(x / 2, y, z, 0.0, 0.0, 1.0) for x in range(3) for y in range(3) for z in range(3)]
    names = "".join(f"property float {name}\n" for name in ("x", "y", "z", "nx", "ny", "nz"))
    header = f"ply\nformat {{}} 1.0\nelement vertex {len(rows)}\n{names}end_header\n"
    text = "".join(" ".join(map(str, row)) + "\n" for row in rows)
    (folder / "a.ply").write_text(header.format("ascii") + text)
    content = header.format("binary_little_endian").encode() + np.array(rows, "<f4").tobytes()
    (folder / "b.ply").write_bytes(content)
    (folder / "a.xyz").write_text(f"# a comment\n{text}")
    (folder / "a.pts").write_text(f"{len(rows)}\n" + "".join(f"{x};{y};{z}\n" for x, y, z, *_ in rows))


def _texts() -> None:
    (CORPUS / "captions" / "a.txt").write_text("a cat\nein Hündchen\n", encoding="utf-8")
    (CORPUS / "captions" / "b.txt").write_text("猫", encoding="utf-16")
    (CORPUS / "metadata" / "metadata.jsonl").write_text(_JSONL)
    (CORPUS / "metadata" / "metadata.csv").write_text(_CSV)
    built = configs.build(registry.find("vqgan").config_class(), preset="debug", overrides={"data.path": "data"})
    (CORPUS / "config" / "config.yaml").write_text(built.to_yaml())


def _shards() -> None:
    image = (CORPUS / "image" / "a.png").read_bytes()
    members = {"0.png": image, "0.json": b'{"caption": "one", "n": 1}', "1.png": image, "1.txt": b"two"}
    for name, form in (("a.tar", tarfile.USTAR_FORMAT), ("b.tar", tarfile.PAX_FORMAT), ("c.tar", tarfile.GNU_FORMAT)):
        with tarfile.open(CORPUS / "tar" / name, "w", format=form) as tar:
            for member, content in members.items():
                about = tarfile.TarInfo(member if name == "a.tar" else "long-" * 30 + member)
                about.size = len(content)
                tar.addfile(about, io.BytesIO(content))
    rows = {"image": [{"bytes": image, "path": "a.png"}] * 3, "text": ["one", "two", None]}
    pq.write_table(pa.table(rows), CORPUS / "parquet" / "a.parquet", row_group_size=2)


if __name__ == "__main__":
    main()
