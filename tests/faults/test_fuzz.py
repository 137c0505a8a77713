"""Whatever bytes a reader is given, it gives a right answer or a clear error: no other exception, no wait, no trace.

Half of the inputs are noise, half are sound files that were spoilt: bits flipped, parts cut, repeated, put elsewhere.
`make fuzz` (tests/fuzz) changes the structure of media and metadata files instead, with limits on time and memory.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from contract.cases import Case
from faults.conftest import Ledger
from faults.ledger import WHOLE
from fuzz.limits import LONGEST_REASON
from helpers import copied, made_once, renew_sums, succeed, tree
from quintet import codes as codes_on_disk
from quintet import config as configs
from quintet import registry
from quintet.common.weights import checkpoint, pretrained, tensor_groups
from quintet.common.weights.loading import read_meta
from quintet.data.index.captions import parse_csv, parse_jsonl, read_caption
from quintet.data.index.folder import scan
from quintet.errors import QuintetError, UnreadableItem
from quintet.media import image as images
from quintet.pipelines.loading import open_pipeline

Read = Callable[[bytes], object]


def fuzzing(fast: int) -> settings:
    """So many examples, the same ones each time in the fast part; fewer of slow readers, which build a model."""
    whole = 2000 if fast >= 40 else 500
    return settings(
        max_examples=whole if WHOLE else fast,
        derandomize=not WHOLE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# --- what is fed to the readers ----------------------------------------------------------------------------------

MAGIC = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\n",
    b'"',
    b"{",
    b"[[[[",
    b"../" * 8,
    b"1e999",
    b"-1",
    b"9" * 50,
)


@st.composite
def mutations(draw: st.DrawFn, sound: bytes) -> bytes:
    """A valid file after a few random changes."""
    content = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("flip", "cut", "insert", "splice", "drop", "set")))
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from((1, 2, 4, 8, 64, 4096))))
        if kind == "flip" and begin < len(content):
            content[begin] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[begin:]
        elif kind == "drop":
            del content[begin:end]
        elif kind == "insert":
            content[begin:begin] = draw(st.one_of(st.sampled_from(MAGIC), st.binary(max_size=16)))
        elif kind == "splice":
            place = draw(st.integers(0, len(content)))
            content[place:place] = content[begin:end]
        elif kind == "set":
            content[begin:end] = draw(st.sampled_from(MAGIC))[: end - begin].ljust(end - begin, b"\xff")
    return bytes(content)


def spoilt(*sound: bytes) -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.binary(max_size=400), *(mutations(each) for each in sound), *(mutations(each) for each in sound)
    )


class Tried:
    """Feeds a reader, judges what comes back, and counts."""

    def __init__(self, read: Read) -> None:
        self.read = read
        self.count = 0

    def __call__(self, content: bytes) -> None:
        message = self._refusal(content)
        if message is not None:
            assert message.strip()
            assert len(message.splitlines()) == 1, message
            assert len(message) < LONGEST_REASON
        self.count += 1

    def _refusal(self, content: bytes) -> str | None:
        try:
            self.read(content)
            return None
        except (QuintetError, UnreadableItem) as error:
            return str(error)


def fuzz(read: Read, sound: tuple[bytes, ...], fast: int, outside: Path) -> int:
    """Feed a reader; nothing may appear beside its own folder. Returns how often."""
    tried = Tried(read)
    before = tree(outside)

    @fuzzing(fast)
    @given(spoilt(*sound))
    def run(content: bytes) -> None:
        tried(content)

    run()
    assert tree(outside) == before
    return tried.count


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that stays as it is."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "canary").write_text("outside")
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def written(path: Path, read: Callable[[], object]) -> Read:
    """A reader of a file."""

    def from_file(content: bytes) -> object:
        path.write_bytes(content)
        return read()

    return from_file


# --- configurations ----------------------------------------------------------------------------------------------


def test_configurations(recipe: str, here: Path, outside: Path, ledger: Ledger) -> None:
    schema = registry.find(recipe).config_class()
    sound = configs.build(schema, preset="debug")
    flat = "\n".join(
        f"{key}: {json.dumps(value)}" for key, value in configs.flatten(sound.model_dump(mode="json")).items()
    )
    tricks = b"a: &x [1, *x]\n? {b: !!int ''}\n: !!python/name:os.system\n<<: {c: 0x1F, d: 1:2:3, e: 2001-01-01}\n"
    path = here / "config.yaml"

    def read() -> None:
        built = configs.build(schema, file=path)
        assert configs.validate(schema, configs.read_yaml(_written(here, built.to_yaml()))) == built

    count = fuzz(written(path, read), (sound.to_yaml().encode(), flat.encode(), tricks), 100, outside)
    count += fuzz(written(path, lambda: registry.read_config(path)), (sound.to_yaml().encode(),), 30, outside)
    ledger("fuzz", count)


def _written(folder: Path, text: str) -> Path:
    path = folder / "again.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_keys_of_the_command(recipe: str, here: Path, outside: Path, ledger: Ledger) -> None:
    schema = registry.find(recipe).config_class()
    sound = tuple(
        f"{key}={json.dumps(value)}".encode()
        for key, value in configs.flatten(configs.build(schema).model_dump(mode="json")).items()
    )[::4]

    def read(content: bytes) -> None:
        words = content.decode("utf-8", "replace").split("\n")
        configs.build(schema, preset="debug", overrides=configs.parse_overrides(words)).to_yaml()

    ledger("fuzz", fuzz(read, sound, 100, outside))


# --- captions ----------------------------------------------------------------------------------------------------

JSONL = b'{"file_name": "a.png", "text": "one", "split": "train", "n": [1, 2.5e3, null]}\n{"file_name": "b/c.png"}\n'
CSV = b'file_name,text,split\na.png,"one, ""two""",train\nb/c.png,three,validation\n'


def test_metadata(here: Path, outside: Path, ledger: Ledger) -> None:
    (here / "b").mkdir()
    for name in ("a.png", "b/c.png"):
        (here / name).write_bytes(b"not opened")

    def read(content: bytes, name: str) -> None:
        (here / name).write_bytes(content)
        found = scan(here, images.EXTENSIONS)
        assert {entry.file for entry in found.entries} == {"a.png", "b/c.png"}
        for entry in found.entries:
            json.dumps([entry.text, entry.split]).encode()
        for row in (parse_csv if name.endswith("csv") else parse_jsonl)(content).skipped:
            assert row[1]
        (here / name).unlink()

    count = fuzz(lambda content: read(content, "metadata.jsonl"), (JSONL,), 100, outside)
    count += fuzz(lambda content: read(content, "metadata.csv"), (CSV,), 100, outside)
    ledger("fuzz", count)


def test_captions(here: Path, outside: Path, ledger: Ledger) -> None:
    path = here / "a.txt"

    def read() -> None:
        for text in read_caption(path):
            assert text.strip()
            text.encode()

    ledger("fuzz", fuzz(written(path, read), ("a cat\nein Hündchen\n".encode(), "猫".encode("utf-16")), 100, outside))


# --- images ------------------------------------------------------------------------------------------------------


def _picture(file_format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.radial_gradient("L").resize((24, 20)).convert("RGB").save(stream, file_format, **options)
    return stream.getvalue()


PICTURES: Mapping[str, bytes] = {
    "png": _picture("PNG"),
    "gif": _picture("GIF"),
    "bmp": _picture("BMP"),
    "jpeg": _picture("JPEG", exif=Image.Exif()),
    "progressive": _picture("JPEG", progressive=True),
    "webp": _picture("WEBP"),
    "tiff": _picture("TIFF"),
    "tiff-lzw": _picture("TIFF", compression="tiff_lzw"),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_images(kind: str, here: Path, outside: Path, ledger: Ledger) -> None:
    path = here / "picture.png"

    def read() -> None:
        facts = images.probe_image(path)
        assert min(facts.width, facts.height) >= images.MIN_SIDE
        pixels = images.resize_and_crop(images.read_image(path, truncated="use", side=16), 16, 16)
        assert pixels.shape == (16, 16, 3)

    ledger("fuzz", fuzz(written(path, read), (PICTURES[kind],), 60, outside))


# --- checkpoints, models, codes ----------------------------------------------------------------------------------


@pytest.fixture
def saved(finished: Path, here: Path) -> Path:
    """The last checkpoint of a run, with none other beside it."""
    run = copied(finished, here / "run")
    folder = run / "checkpoints" / "step-00000012"
    for path in run.glob("checkpoints/step-*"):
        if path != folder:
            shutil.rmtree(path)
    return folder


def sealed(folder: Path, read: Callable[[], object]) -> Callable[[], object]:
    """As if the writer had meant it."""

    def after_sealing() -> object:
        renew_sums(folder)
        return read()

    return after_sealing


def test_weights_of_a_checkpoint(recipe: str, saved: Path, here: Path, outside: Path, ledger: Ledger) -> None:
    path = saved / "ema" / f"{registry.find(recipe).pipeline_class().exported}.safetensors"
    sound = path.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    header_only = sound[: length + 64]
    read = sealed(saved, lambda: open_pipeline(saved.parents[1]))
    count = fuzz(written(path, read), (sound, header_only), 20, outside)
    count += fuzz(
        written(path, lambda: tensor_groups.read_tensors(path.parent, path.stem)), (sound, header_only), 60, outside
    )
    ledger("fuzz", count)


def test_numbers_of_a_checkpoint(recipe: str, saved: Path, outside: Path, ledger: Ledger) -> None:
    path = saved / "meta.json"

    def read() -> None:
        checkpoint.verify(saved)
        read_meta(saved, recipe)

    ledger("fuzz", fuzz(written(path, sealed(saved, read)), (path.read_bytes(),), 60, outside))


def test_manifests(saved: Path, outside: Path, ledger: Ledger) -> None:
    path = saved / checkpoint.MANIFEST
    *lines, _ = path.read_text().splitlines(keepends=True)

    def read(content: bytes) -> None:
        """Half of them carry the hash of what they say."""
        own = f"# sha256 of the lines above: {hashlib.sha256(content).hexdigest()}\n".encode()
        path.write_bytes(content + own if len(content) % 2 else content)
        checkpoint.verify(saved)

    ledger("fuzz", fuzz(read, ("".join(lines).encode(),), 60, outside))


@pytest.fixture
def model(recipe: str, finished: Path, shared: Path, here: Path) -> Path:
    whole = made_once(shared, f"exported-{recipe}", lambda folder: succeed("export", finished, folder))
    return copied(whole, here / "model")


def test_settings_of_an_exported_model(recipe: str, model: Path, outside: Path, ledger: Ledger) -> None:
    path = model / pretrained.CONFIG
    schema = registry.find(recipe).config_class()

    def read() -> None:
        found = pretrained.read_settings(model)
        configs.validate(schema, found.get("run"))

    ledger("fuzz", fuzz(written(path, read), (path.read_bytes(),), 60, outside))


def test_weights_of_an_exported_model(model: Path, outside: Path, ledger: Ledger) -> None:
    path = model / f"{pretrained.WEIGHTS}.safetensors"
    ledger("fuzz", fuzz(written(path, lambda: open_pipeline(model)), (path.read_bytes(),), 20, outside))


def test_codes(
    recipe: str, case: Case, finished: Path, data: Path, shared: Path, here: Path, outside: Path, ledger: Ledger
) -> None:
    if not case.tokenizer:
        pytest.skip(f"{recipe} makes no codes")
    whole = made_once(shared, f"codes-{recipe}", lambda folder: succeed("encode", finished, data, "--out", folder))
    folder = copied(whole, here / "codes")
    trained = open_pipeline(finished)
    out = here / "decoded"

    def read() -> None:
        shutil.rmtree(out, ignore_errors=True)
        codes_on_disk.decode_folder(trained, folder, out)

    items = (folder / codes_on_disk.ITEMS).read_bytes().splitlines(keepends=True)
    (folder / codes_on_disk.ITEMS).write_bytes(b"".join(items[:2]))
    weights = folder / "codes.safetensors"
    sound = weights.read_bytes()
    count = fuzz(written(weights, read), (sound,), 40, outside)
    weights.write_bytes(sound)
    count += fuzz(written(folder / codes_on_disk.ITEMS, read), (b"".join(items[:2]),), 40, outside)
    ledger("fuzz", count)
