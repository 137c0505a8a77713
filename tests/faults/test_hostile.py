"""Files that somebody made to do harm: nothing in them is executed, nothing outside is touched, and the command says
in one sentence what is wrong, or passes over the file and goes on with the others."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from contract.cases import Case
from faults.conftest import Ledger
from faults.ledger import WHOLE
from helpers import copied, error_line, made_once, quintet, renew_sums, steps_saved, succeed, tree
from quintet import recipes

DEEP = 100_000
"""Levels of nesting: more than any recursive reader has stack for."""


# --- what a hostile file may reach for ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A folder for the commands, and one beside it that nothing may touch."""

    here: Path
    outside: Path

    @property
    def marker(self) -> Path:
        """Exists once something was executed."""
        return self.outside / "executed"

    @property
    def canary(self) -> Path:
        return self.outside / "canary.txt"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    place = Place(tmp_path / "here", tmp_path / "outside")
    place.here.mkdir()
    place.outside.mkdir()
    place.canary.write_text("SECRET outside\n")
    monkeypatch.chdir(place.here)
    return place


@contextmanager
def untouched(place: Place) -> Iterator[None]:
    """What is beside the commands' folder stays as it is."""
    before = tree(place.outside)
    beside = {path.name for path in place.outside.parent.iterdir()}
    yield
    assert tree(place.outside) == before
    assert {path.name for path in place.outside.parent.iterdir()} == beside


def refused(place: Place, *words: object) -> str:
    """The sentence of a command that must not do what it was told."""
    with untouched(place):
        outcome = quintet(*words)
    assert outcome.code in (1, 2), (words, outcome)
    sentence = error_line(outcome.errors)
    assert "unexpected" not in sentence
    assert "SECRET" not in outcome.errors + outcome.output
    assert len(sentence) < 3000
    return sentence


class Trials:
    """Counts what was tried, and goes on after a failure: one hostile file must not hide another."""

    def __init__(self) -> None:
        self.tried = 0
        self.failed: list[str] = []

    @contextmanager
    def of(self, *what: object) -> Iterator[None]:
        self.tried += 1
        try:
            yield
        except AssertionError as error:
            self.failed.append(f"{' | '.join(map(str, what))}: {' '.join(str(error).split())[:400]}")

    def count(self) -> int:
        assert not self.failed, "\n".join(self.failed)
        return self.tried


class Bomb:
    """Unpickling this leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.trace), "w")


# --- weights -----------------------------------------------------------------------------------------------------


def packed(header: bytes, data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def unpacked(content: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(content: bytes, change: Callable[[dict[str, Any], str], object]) -> bytes:
    """The file with its header changed; `change` is given the header and the name of the first tensor."""
    header, data = unpacked(content)
    change(header, next(name for name in header if name != "__metadata__"))
    return packed(json.dumps(header).encode(), data)


def with_first(content: bytes, **values: Any) -> bytes:
    """The file with another entry for its first tensor."""
    return with_header(content, lambda header, name: header[name].update(values))


def with_tensors(content: bytes, change: Callable[[Tensor], Tensor]) -> bytes:
    """A sound file, with each tensor changed."""
    return save({name: change(tensor).contiguous() for name, tensor in load(content).items()})


def twice_the_first(content: bytes) -> bytes:
    header, data = unpacked(content)
    name = next(iter(header.keys() - {"__metadata__"}))
    other = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    return packed(f"{json.dumps(header)[:-1]}, {json.dumps(name)}: {json.dumps(other)}}}".encode(), data)


def overlapping(content: bytes) -> bytes:
    header, data = unpacked(content)
    for entry in header.values():
        if "data_offsets" in entry:
            begin, end = entry["data_offsets"]
            entry["data_offsets"] = [0, end - begin]
    return packed(json.dumps(header).encode(), data) + bytes(8)


def not_a_number(tensor: Tensor) -> Tensor:
    return torch.full_like(tensor, torch.nan, dtype=torch.float32)


BYTES: Mapping[str, Callable[[bytes, Path], bytes]] = {
    "a pickle": lambda content, marker: pickle.dumps(Bomb(marker)),
    "a pickle behind a header's length": lambda content, marker: struct.pack("<Q", 2) + pickle.dumps(Bomb(marker)),
    "nothing": lambda content, marker: b"",
    "seven bytes": lambda content, marker: content[:7],
    "a header of no bytes": lambda content, marker: packed(b"", content, 0),
    "a header of 2^63 bytes": lambda content, marker: packed(b"{}", b"", 2**63),
    "a header of 2^64 - 1 bytes": lambda content, marker: packed(b"{}", b"", 2**64 - 1),
    "a header longer than the file": lambda content, marker: packed(content[8:], b"", len(content)),
    "a header of 100 MB that is not there": lambda content, marker: packed(b"{}", b"", 10**8),
    "a header that is no JSON": lambda content, marker: packed(b"import os; os.abort()", b""),
    "a header that is a list": lambda content, marker: packed(b"[]", b""),
    "a header that is no UTF-8": lambda content, marker: packed(b'{"\xff\xfe": {}}', b""),
    "a deeply nested header": lambda content, marker: packed(b'{"a":' * DEEP + b"1" + b"}" * DEEP, b""),
    "deeply nested metadata": lambda content, marker: packed(
        b'{"__metadata__":' + b"[" * DEEP + b"]" * DEEP + b"}", b""
    ),
    "no tensors": lambda content, marker: packed(b"{}", b""),
    "a name twice": lambda content, marker: twice_the_first(content),
    "overlapping tensors": lambda content, marker: overlapping(content),
    "negative offsets": lambda content, marker: with_first(content, data_offsets=[-4, 0]),
    "offsets the wrong way round": lambda content, marker: with_first(content, data_offsets=[8, 0]),
    "offsets beyond the end": lambda content, marker: with_first(content, data_offsets=[0, 2**62]),
    "offsets of 2^64": lambda content, marker: with_first(content, data_offsets=[2**64 - 4, 2**64]),
    "three offsets": lambda content, marker: with_first(content, data_offsets=[0, 4, 8]),
    "a shape that overflows": lambda content, marker: with_first(content, shape=[2**32, 2**32, 2**32]),
    "a shape whose product is the right one modulo 2^64": lambda content, marker: with_first(
        content, shape=[2**63, 2, 1]
    ),
    "a negative shape": lambda content, marker: with_first(content, shape=[-1, -1]),
    "a shape of 100,000 ones": lambda content, marker: with_first(content, shape=[1] * DEEP),
    "a shape in words": lambda content, marker: with_first(content, shape="many"),
    "an unknown type": lambda content, marker: with_first(content, dtype="PICKLE"),
    "a type that is a list": lambda content, marker: with_first(content, dtype=["F32"]),
    "bytes after the last tensor": lambda content, marker: content + bytes(1000),
    "a byte too few": lambda content, marker: content[:-1],
    "numbers that are not finite": lambda content, marker: with_tensors(content, not_a_number),
    "complex numbers": lambda content, marker: with_tensors(content, lambda tensor: tensor.to(torch.complex64)),
    "numbers of eight bits": lambda content, marker: with_tensors(
        content, lambda tensor: tensor.float().to(torch.float8_e4m3fn)
    ),
    "tensors without elements": lambda content, marker: with_tensors(content, lambda tensor: tensor.flatten()[:0]),
    "tensors of another shape": lambda content, marker: with_tensors(
        content, lambda tensor: tensor.reshape(*tensor.shape, 1)
    ),
    "scalars": lambda content, marker: with_tensors(content, lambda tensor: tensor.flatten()[:1].sum()),
    "other names": lambda content, marker: save({f"{name}\n\x1b[2J": each for name, each in load(content).items()}),
}
"""Content in place of a sound safetensors file; the path is that of the marker that nothing may write."""


def a_pipe(path: Path, place: Place) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path, place: Place) -> None:
    path.unlink()
    path.mkdir()


def a_link_out(path: Path, place: Place) -> None:
    """To the very content, so that nothing but the link is wrong."""
    target = place.outside / path.name
    if not target.exists():
        shutil.move(path, target)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def a_link_to_a_secret(path: Path, place: Place) -> None:
    path.unlink()
    path.symlink_to(place.canary)


def a_link_to_itself(path: Path, place: Place) -> None:
    path.unlink()
    path.symlink_to(path)


def a_device(path: Path, place: Place) -> None:
    """Zeros without end."""
    path.unlink()
    path.symlink_to("/dev/zero")


KINDS: Mapping[str, Callable[[Path, Place], None]] = {
    "a pipe": a_pipe,
    "a folder": a_folder,
    "a link to a secret": a_link_to_a_secret,
    "a link to itself": a_link_to_itself,
    "a link to a device": a_device,
}
"""What may stand in the place of any file that is read."""


@contextmanager
def unblocked(folder: Path, within: float = 20) -> Iterator[None]:
    """Whoever waits at a pipe in the folder is let go after a while, and the test fails instead of hanging."""
    waited = threading.Event()

    def let_go() -> None:
        waited.set()
        for path in folder.rglob("*"):
            if path.is_fifo():
                os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    timer = threading.Timer(within, let_go)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    assert not waited.is_set(), f"something waited for more than {within} s, at a pipe perhaps"


@pytest.fixture
def exported(recipe: str, finished: Path, shared: Path) -> Path:
    """The model of the finished run. Read only."""
    return made_once(shared, f"exported-{recipe}", lambda folder: succeed("export", finished, folder))


@pytest.fixture
def codes(case: Case, recipe: str, finished: Path, data: Path, shared: Path) -> Path:
    """Codes of the data by the finished run. Read only."""
    if not case.tokenizer:
        pytest.skip(f"{recipe} makes no codes")
    return made_once(shared, f"codes-{recipe}", lambda folder: succeed("encode", finished, data, "--out", folder))


@dataclass(frozen=True)
class Uses:
    """The commands that open a model."""

    recipe: str
    case: Case
    data: Path
    codes: Path | None

    def of(self, model: Path, is_run: bool) -> list[tuple[object, ...]]:
        commands: list[tuple[object, ...]] = [
            ("eval", model, "--out", "figures.json"),
            ("sample", model, "--out", "samples"),
            ("export", model, "hub"),
            ("train", self.recipe, self.data, "--out", "new", *self.case.tiny, "--init", model),
        ]
        if is_run:
            commands += [("resume", model, "train.steps=13"), ("eval", f"{model}@12"), ("eval", f"{model}@best")]
        if self.codes:
            commands += [
                ("encode", model, self.data, "--out", "new-codes"),
                ("decode", model, self.codes, "--out", "decoded"),
            ]
        return commands


@pytest.fixture
def uses(recipe: str, case: Case, data: Path, request: pytest.FixtureRequest) -> Uses:
    return Uses(recipe, case, data, request.getfixturevalue("codes") if case.tokenizer else None)


def part(names: Iterable[Any], every: int) -> list[Any]:
    """All of them, or, in the fast part, one of so many."""
    return list(names) if WHOLE else list(names)[::every]


def chosen(commands: list[tuple[object, ...]], number: int) -> list[tuple[object, ...]]:
    """All of them, or, in the fast part, one in turn."""
    return commands if WHOLE else [commands[number % len(commands)]]


def one_checkpoint(finished: Path, place: Place) -> Path:
    """The last checkpoint of a copied run, called the best, without others to turn to."""
    run = copied(finished, place.here / "run")
    *others, last = steps_saved(run)
    for step in others:
        shutil.rmtree(run / "checkpoints" / f"step-{step:08d}")
    (run / "checkpoints" / "best").write_text(f"step-{last:08d}\n")
    return run / "checkpoints" / f"step-{last:08d}"


def weights_of(recipe: str) -> str:
    return f"{recipes.find(recipe).recipe_class().exported}.safetensors"


def test_weights_of_a_run(recipe: str, finished: Path, uses: Uses, place: Place, ledger: Ledger) -> None:
    folder = one_checkpoint(finished, place)
    path = folder / weights_of(recipe)
    sound = path.read_bytes()
    trials = Trials()
    for number, (name, spoil) in enumerate(BYTES.items()):
        path.write_bytes(spoil(sound, place.marker))
        renew_sums(folder)
        for command in chosen(uses.of(folder.parents[1], is_run=True), number):
            with trials.of(name, *command[:2]):
                assert str(path) in refused(place, *command)
    ledger("hostile-weights", trials.count())


def test_weights_of_an_exported_model(exported: Path, uses: Uses, place: Place, ledger: Ledger) -> None:
    folder = copied(exported, place.here / "model")
    path = folder / "model.safetensors"
    sound = path.read_bytes()
    trials = Trials()
    for number, (name, spoil) in enumerate(part(BYTES.items(), 3)):
        path.write_bytes(spoil(sound, place.marker))
        for command in chosen(uses.of(folder, is_run=False), number):
            with trials.of(name, *command[:2]):
                assert str(path) in refused(place, *command)
    ledger("hostile-weights", trials.count())


def test_weights_of_codes(codes: Path, finished: Path, place: Place, ledger: Ledger) -> None:
    folder = copied(codes, place.here / "codes")
    path = folder / "codes.safetensors"
    sound = path.read_bytes()
    trials = Trials()
    for name, spoil in part(BYTES.items(), 3):
        path.write_bytes(spoil(sound, place.marker))
        with trials.of(name):
            assert str(folder) in refused(place, "decode", finished, folder, "--out", f"decoded {name}")
            assert not (place.here / f"decoded {name}").exists()
    ledger("hostile-weights", trials.count())


def test_codes_that_are_not_of_the_model(codes: Path, finished: Path, place: Place, ledger: Ledger) -> None:
    folder = copied(codes, place.here / "codes")
    sound = load((folder / "codes.safetensors").read_bytes())["codes"]
    trials = Trials()
    for strange in (
        sound + 10**6,
        sound - 10**6,
        sound.long() * 2**40,
        sound.float(),
        sound.bool(),
        sound.flatten(),
        sound[..., None, None, None],
        sound[:, :0],
    ):
        (folder / "codes.safetensors").write_bytes(save({"codes": strange.contiguous()}))
        with trials.of(strange.dtype, tuple(strange.shape)):
            refused(place, "decode", finished, folder, "--out", f"decoded {trials.tried}")
            assert not (place.here / f"decoded {trials.tried}").exists()
    ledger("hostile-weights", trials.count())


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_no_files_where_a_checkpoint_has_files(finished: Path, uses: Uses, place: Place, ledger: Ledger) -> None:
    sound = one_checkpoint(finished, place)
    kept = copied(sound, place.here / "kept")
    trials = Trials()
    for place_in_list, name in enumerate(files_of(kept)):
        kinds = [*KINDS.items(), ("a link out", a_link_out)]
        for number, (kind, put) in enumerate(kinds if WHOLE else [kinds[place_in_list % len(kinds)]]):
            shutil.rmtree(sound)
            copied(kept, sound)
            put(sound / name, place)
            for command in chosen(uses.of(sound.parents[1], is_run=True), number):
                with trials.of(name, kind, *command[:2]), unblocked(sound):
                    assert str(sound) in refused(place, *command)
    ledger("hostile-weights", trials.count())


def test_no_files_where_models_and_codes_have_files(
    exported: Path, finished: Path, uses: Uses, place: Place, ledger: Ledger
) -> None:
    trials = Trials()
    for whole, names in (
        (exported, ("model.safetensors", "config.json")),
        (uses.codes, ("codes.safetensors", "items.jsonl")),
    ):
        if whole is None:
            continue
        for name in names:
            for number, (kind, put) in enumerate(part(KINDS.items(), 2)):
                folder = place.here / "folder"
                shutil.rmtree(folder, ignore_errors=True)
                copied(whole, folder)
                put(folder / name, place)
                decode: list[tuple[object, ...]] = [("decode", finished, folder, "--out", "decoded")]
                for command in chosen(uses.of(folder, is_run=False), number) if whole == exported else decode:
                    with trials.of(name, kind, *command[:2]), unblocked(folder):
                        assert str(folder) in refused(place, *command)
    ledger("hostile-weights", trials.count())


def manifest(*lines: str) -> str:
    text = "".join(f"{line}\n" for line in lines)
    return f"{text}# sha256 of the lines above: {hashlib.sha256(text.encode()).hexdigest()}\n"


def test_manifests_that_lie(finished: Path, uses: Uses, place: Place, ledger: Ledger) -> None:
    folder = one_checkpoint(finished, place)
    *lines, _ = (folder / "SHA256SUMS").read_text().splitlines()
    secret = "0" * 64
    cases = {
        "a path upwards": [*lines, f"{secret}  ../../../../outside/canary.txt"],
        "an absolute path": [*lines, f"{secret}  /etc/passwd"],
        "the canary": [*lines, f"{secret}  {place.canary}"],
        "a name twice": [*lines, lines[0]],
        "a name twice, the other hash": [f"{secret}  {lines[0].partition('  ')[2]}", *lines],
        "nothing": [],
        "words": ["hello"],
        "a name of escapes": [*lines, f"{secret}  \x1b[2J\x07"],
        "a long name": [*lines, f"{secret}  {'x' * 10**6}"],
    }
    trials = Trials()
    for number, (name, hostile) in enumerate(cases.items()):
        (folder / "SHA256SUMS").write_text(manifest(*hostile))
        for command in chosen(uses.of(folder.parents[1], is_run=True), number):
            with trials.of(name, *command[:2]):
                assert str(folder) in refused(place, *command)
    ledger("hostile-weights", trials.count())


HUGE = 10**30
META: Mapping[str, Any] = {
    "a list": [],
    "a text": "step",
    "step in words": {"step": "twelve"},
    "step negative": {"step": -12},
    "step true": {"step": True},
    "step broken": {"step": 12.5},
    "step none": {"step": None},
    "items in words": {"items_seen": "all"},
    "bad steps a list": {"bad_steps": [1]},
    "format a list": {"format": [1]},
    "format huge": {"format": HUGE},
    "recipe a list": {"recipe": ["vqgan"]},
}
UNCHECKED: Mapping[str, Any] = {
    "step huge": {"step": HUGE},
    "step another": {"step": 5},
    "recipe of many lines": {"recipe": "a\nb\x1b[2J" * 10_000},
    "best in words": {"best_value": "good"},
    "best step in words": {"best_step": "first"},
}


def refuse_numbers(values: Mapping[str, Any], finished: Path, place: Place) -> int:
    trials = Trials()
    meta = json.loads((finished / "checkpoints" / "step-00000012" / "meta.json").read_text())
    texts = {
        name: json.dumps({**meta, **value} if isinstance(value, dict) else value) for name, value in values.items()
    }
    texts |= {"nested": "[" * DEEP + "]" * DEEP, "a long number": json.dumps(meta)[:-1] + f', "step": {"9" * DEEP}}}'}
    for name, text in part(texts.items(), 2):
        shutil.rmtree(place.here / "run", ignore_errors=True)
        folder = one_checkpoint(finished, place)
        (folder / "meta.json").write_text(text)
        renew_sums(folder)
        with trials.of(name):
            assert str(folder) in refused(place, "resume", folder.parents[1], "train.steps=13")
    return trials.count()


def test_numbers_of_a_checkpoint(finished: Path, place: Place, ledger: Ledger) -> None:
    ledger("hostile-weights", refuse_numbers(META, finished, place))


@pytest.mark.xfail(reason="core/state.py does not look at these numbers yet", strict=True)
def test_unchecked_numbers_of_a_checkpoint(finished: Path, place: Place, ledger: Ledger) -> None:
    ledger("hostile-weights", refuse_numbers(UNCHECKED, finished, place))


@pytest.mark.parametrize("name", ["latest", "best"])
def test_pointers_that_lead_elsewhere(name: str, finished: Path, place: Place, ledger: Ledger) -> None:
    """Nothing is opened through them; a run with sound checkpoints needs no pointer."""
    run = copied(finished, place.here / "run")
    elsewhere = copied(run / "checkpoints" / "step-00000012", place.outside / "step-00000099")
    (elsewhere / "meta.json").write_text("SECRET")
    pointer = run / "checkpoints" / name
    hostile = (
        "../../outside/step-00000099",
        f"../../../outside/{elsewhere.name}",
        str(elsewhere),
        "..",
        "",
        "step-00000012/../../../../outside/step-00000099",
        "a\0b",
        "x" * 10**6,
        "step-00000012\nstep-00000008",
    )
    for text in hostile:
        pointer.write_text(text)
        with untouched(place):
            outcome = quintet("eval", f"{run}@{name}")
        if name == "best":
            assert "no checkpoint 'best'" in error_line(outcome.errors)
        else:
            assert outcome.code == 0, outcome.errors
    pointer.unlink()
    os.mkfifo(pointer)
    with unblocked(run):
        assert quintet("eval", f"{run}@{name}").code == (2 if name == "best" else 0)
    ledger("hostile-weights", len(hostile) + 1)
