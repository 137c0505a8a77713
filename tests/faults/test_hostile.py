"""Files that somebody made to do harm: nothing in them is executed, nothing outside is touched, and the command says
in one sentence what is wrong, or passes over the file and goes on with the others."""

from __future__ import annotations

import gc
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load, save
from torch import Tensor

from contract.cases import Case
from faults.conftest import Ledger
from faults.ledger import WHOLE
from helpers import Outcome, copied, error_line, forked, made_once, quintet, renew_sums, steps_saved, succeed, tree
from quintet import registry
from quintet.common.outputs import OUTPUT_MARKER

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
    """Files outside of the folder of the commands do not change."""
    before = tree(place.outside)
    beside = {path.name for path in place.outside.parent.iterdir()}
    yield
    assert tree(place.outside) == before
    assert {path.name for path in place.outside.parent.iterdir()} == beside


def run_command(*words: object) -> Outcome:
    """The command. What a defect leaves open is closed here, and not in the middle of another test."""
    outcome = quintet(*words)
    if "unexpected" in outcome.errors:
        gc.collect()
    return outcome


def refused(place: Place, *words: object) -> str:
    """The error message of a command that must be refused."""
    with untouched(place):
        outcome = run_command(*words)
    assert outcome.code in (1, 2), (words, outcome)
    sentence = error_line(outcome.errors)
    assert "unexpected" not in sentence
    assert "SECRET" not in outcome.errors + outcome.output
    assert len(sentence) < 3000
    return sentence


class Trials:
    """Counts the trials, and continues after a failure: one hostile file must not hide another."""

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
    """A valid file, with each tensor changed."""
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
"""Content in place of a valid safetensors file; the path is that of the marker that nothing may write."""


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
"""Content that may replace any file that is read."""


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
    """All of them or, in the fast part, every n-th."""
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
    return f"ema/{registry.find(recipe).pipeline_class().exported}.safetensors"


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
    "step huge": {"step": HUGE},
    "step another": {"step": 5},
    "recipe of many lines": {"recipe": "a\nb\x1b[2J" * 10_000},
    "best in words": {"best_value": "good"},
    "best step in words": {"best_step": "first"},
}


def test_numbers_of_a_checkpoint(finished: Path, place: Place, ledger: Ledger) -> None:
    trials = Trials()
    meta = json.loads((finished / "checkpoints" / "step-00000012" / "meta.json").read_text())
    texts = {name: json.dumps({**meta, **value} if isinstance(value, dict) else value) for name, value in META.items()}
    texts |= {"nested": "[" * DEEP + "]" * DEEP, "a long number": json.dumps(meta)[:-1] + f', "step": {"9" * DEEP}}}'}
    for name, text in part(texts.items(), 2):
        shutil.rmtree(place.here / "run", ignore_errors=True)
        folder = one_checkpoint(finished, place)
        (folder / "meta.json").write_text(text)
        renew_sums(folder)
        with trials.of(name):
            assert str(folder) in refused(place, "resume", folder.parents[1], "train.steps=13")
    ledger("hostile-weights", trials.count())


@pytest.mark.parametrize("name", ["latest", "best"])
def test_pointers_that_lead_elsewhere(name: str, finished: Path, place: Place, ledger: Ledger) -> None:
    """Nothing is opened through them; a run with valid checkpoints needs no pointer."""
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


def optimizer_file(folder: Path) -> Path:
    return min(folder.glob("optim/*.safetensors"))


def first_matching(tensors: dict[str, Tensor], kind: str) -> str:
    return next(name for name in tensors if name.startswith(kind))


OPTIMIZERS: Mapping[str, Callable[[dict[str, Tensor]], dict[str, Tensor]]] = {
    "a name without a kind": lambda tensors: {"strange": torch.ones(1)},
    "an unknown kind": lambda tensors: {**tensors, f"strange/{next(iter(tensors)).partition('/')[2]}": torch.ones(1)},
    "other shapes": lambda tensors: {name: each[..., None] for name, each in tensors.items()},
    "shapes that broadcast": lambda tensors: {name: each.flatten()[:1] for name, each in tensors.items()},
    "every second one": lambda tensors: dict([*tensors.items()][::2]),
    "many steps in one": lambda tensors: {**tensors, first_matching(tensors, "step/"): torch.ones(5)},
    "integers": lambda tensors: {name: each.to(torch.int32) for name, each in tensors.items()},
}
"""What an optimizer cannot go on from."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_state(name: str, finished: Path, place: Place, ledger: Ledger) -> None:
    folder = one_checkpoint(finished, place)
    path = optimizer_file(folder)
    changed = OPTIMIZERS[name](load(path.read_bytes()))
    path.write_bytes(save({key: tensor.contiguous() for key, tensor in changed.items()}))
    renew_sums(folder)
    refused(place, "resume", folder.parents[1], "train.steps=13")
    ledger("hostile-weights", 1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
def test_weights_of_another_type(dtype: torch.dtype, recipe: str, finished: Path, place: Place, ledger: Ledger) -> None:
    folder = one_checkpoint(finished, place)
    path = folder / weights_of(recipe)
    path.write_bytes(with_tensors(path.read_bytes(), lambda tensor: tensor.to(dtype)))
    renew_sums(folder)
    assert str(path) in refused(place, "eval", folder.parents[1], "--out", "figures.json")
    ledger("hostile-weights", 1)


WRITTEN = ("lock", "log.txt", "metrics.jsonl")
if WHOLE:
    WRITTEN += ("config.yaml", "curves.png", "data.json", "eval.json", "state.json")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_whose_files_are_links_writes_nothing_outside(
    name: str, finished: Path, place: Place, ledger: Ledger
) -> None:
    """A run that somebody gave away, with its log leading to the start-up file of a shell."""
    run = copied(finished, place.here / "run")
    victim = place.outside / "victim"
    victim.write_bytes((run / name).read_bytes() + b"\n" if (run / name).exists() else b"")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(victim)
    answered(place, "resume", run, "train.steps=13")
    answered(place, "eval", run)
    ledger("hostile-weights", 2)


def test_a_linked_checkpoint_is_not_deleted_at_its_target(finished: Path, place: Place, ledger: Ledger) -> None:
    """People put checkpoints on other disks; pruning takes the link away, not what it leads to."""
    run = copied(finished, place.here / "run")
    last = run / "checkpoints" / "step-00000012"
    shutil.move(last, place.outside / "elsewhere")
    last.symlink_to(place.outside / "elsewhere")
    answered(place, "resume", run, "train.steps=20", "checkpoint.keep=1")
    ledger("hostile-weights", 1)


@pytest.mark.parametrize(
    "which",
    [
        *("../..", "12/../x", "-1", "+12", "1_2", " 12", "\u0663", "\u00b2", "9" * 5000),
    ],
    ids=lambda which: ascii(which)[:20],
)
def test_names_of_checkpoints(which: str, finished: Path, place: Place, ledger: Ledger) -> None:
    refused(place, "eval", f"{finished}@{which}")
    ledger("hostile-text", 1)


# --- media -------------------------------------------------------------------------------------------------------

ALLOWED = 700 * 2**20
"""Bytes beyond what the start takes: enough for a tiny training, a fraction of what these files ask for."""
PATIENCE = 60
"""Seconds for a folder of hostile images; some of them would take hours."""


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ALLOWED
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def zeros(size: int) -> bytes:
    """So many zeros, compressed a thousandfold."""
    compressor = zlib.compressobj(9)
    block = bytes(2**20)
    return b"".join([*(compressor.compress(block) for _ in range(size // 2**20)), compressor.flush()])


def png(width: int, height: int, data: bytes, *extra: bytes) -> bytes:
    """A black and white image, with further chunks before its pixels."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(extra) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def small_png(*extra: bytes) -> bytes:
    return png(16, 16, zlib.compress(bytes(3 * 16)), *extra)


def drawn(format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.radial_gradient("L").resize((32, 32)).convert("RGB").save(stream, format, **options)
    return stream.getvalue()


def patched(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


def large_jpeg(side: int, scans: int = 0) -> bytes:
    """A progressive JPEG that claims to be large, and passes over itself again and again."""
    content = drawn("JPEG", progressive=True)
    content = patched(content, content.index(b"\xff\xc2") + 5, struct.pack(">HH", side, side))
    last = content.rindex(b"\xff\xda")
    (length,) = struct.unpack(">H", content[last + 2 : last + 4])
    return content[:-2] + content[last : last + 2 + length] * scans + b"\xff\xd9"


def tiff(**tags: int) -> bytes:
    """A small TIFF with other values in its first directory: by number of the tag, and `next` for the pointer."""
    content = drawn("TIFF")
    (first,) = struct.unpack("<I", content[4:8])
    (count,) = struct.unpack("<H", content[first : first + 2])
    for place in range(first + 2, first + 2 + 12 * count, 12):
        (tag,) = struct.unpack("<H", content[place : place + 2])
        if f"tag{tag}" in tags:
            content = patched(content, place + 2, struct.pack("<HII", 4, 1, tags[f"tag{tag}"]))
        if f"count{tag}" in tags:
            content = patched(content, place + 4, struct.pack("<I", tags[f"count{tag}"]))
    return patched(content, first + 2 + 12 * count, struct.pack("<I", first)) if "loop" in tags else content


def many_frames(count: int) -> bytes:
    stream = io.BytesIO()
    frames = [Image.new("L", (16, 16), shade % 250) for shade in range(count)]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue()


def exif(content: bytes) -> bytes:
    return drawn("JPEG", exif=b"Exif\x00\x00" + content)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n(%pipe%touch executed) (w) file\nshowpage\n"
BOMB = (2**31 if WHOLE else 2**26) + 2**20
"""Bytes that a compressed text in an image grows to."""


@cache
def useless_media() -> dict[str, bytes]:
    """Files that must be skipped."""
    webp, bmp, gif, jpeg = drawn("WEBP", lossless=True), drawn("BMP"), drawn("GIF"), drawn("JPEG")
    return {
        "claims.png": png(2**31 - 1, 2**31 - 1, zlib.compress(b"")),
        "large.png": png(20_000, 20_000, zeros(20_000 * 2501)),
        "larger-than-allowed.png": png(11_000, 11_000, zeros(11_000 * 1376)),
        "wide.png": png(2**31 - 1, 4, zlib.compress(bytes(100))),
        "text.png": small_png(chunk(b"zTXt", b"Comment\0\0" + zeros(BOMB))),
        "international.png": small_png(chunk(b"iTXt", b"Comment\0\1\0\0\0" + zeros(BOMB))),
        "profile.png": small_png(chunk(b"iCCP", b"ICC\0\0" + zeros(BOMB))),
        "lengths.png": small_png()[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT" + bytes(100),
        "claims.gif": patched(gif, 6, struct.pack("<HH", 65_535, 65_535)),
        "claims.bmp": patched(bmp, 18, struct.pack("<ii", 2**31 - 1, 2**31 - 1)),
        "negative.bmp": patched(bmp, 18, struct.pack("<ii", -(2**31), -(2**31))),
        "claims.webp": patched(webp, 21, struct.pack("<I", 2**28 - 1)),
        "claims.tiff": tiff(tag256=2**31, tag257=2**31),
        "strip.tiff": tiff(tag279=2**32 - 1, tag273=2**32 - 1),
        "count.tiff": tiff(count273=2**32 - 1, count279=2**32 - 1),
        "claims.jpg": large_jpeg(65_535),
        "scans.jpg": large_jpeg(6000, 100_000),
        "claims-baseline.jpg": patched(jpeg, jpeg.index(b"\xff\xc0") + 5, struct.pack(">HH", 65_535, 65_535)),
        "words.png": b"not a picture at all",
        "picture.svg.png": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "page.jpg": b"<html><script>fetch('file:///etc/passwd')</script></html>",
        "postscript.png": POSTSCRIPT,
        "postscript-dos.jpg": struct.pack("<IIIIIIIH", 0xC6D3D0C5, 32, len(POSTSCRIPT), 0, 0, 0, 0, 65535) + POSTSCRIPT,
        "program.gif": b"#!/bin/sh\ntouch executed\n",
        "archive.webp": b"PK\x03\x04" + bytes(100),
        "pickle.bmp": pickle.dumps(Bomb(Path("executed"))),
    }


@cache
def unusual_media() -> dict[str, bytes]:
    """Files that look suspicious but are valid images."""
    return {
        "frames.gif": many_frames(3000),
        "loop.tiff": tiff(loop=1),
        "exif-nothing.jpg": exif(b""),
        "exif-noise.jpg": exif(bytes(range(256)) * 100),
        "exif-loop.jpg": exif(b"II*\x00\x08\x00\x00\x00\x01\x00\x69\x87\x04\x00\x01\x00\x00\x00\x08\x00\x00\x00"),
        "exif-turned.jpg": exif(b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\xff\xff\x00\x00"),
        "chunks.png": small_png(*[chunk(b"tEXt", b"Comment\0" + bytes([65 + n % 26])) for n in range(20_000)]),
    }


@pytest.fixture
def hostile_pictures(pictures: Path, place: Place) -> Path:
    """Sixteen valid images, and everything above."""
    folder = place.here / "data"
    folder.mkdir()
    for path in sorted((pictures / "images").iterdir())[:16]:
        shutil.copy(path, folder / f"good-{path.name}")
    for name, content in {**useless_media(), **unusual_media()}.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def lurking(place: Place) -> str:
    """A search path on which every program that Pillow might start leaves the marker instead."""
    programs = place.here / "programs"
    programs.mkdir()
    for name in ("gs", "gswin32c", "djpeg", "cjpeg", "ppmtogif", "xv", "display"):
        (programs / name).write_text(f"#!/bin/sh\ntouch {place.marker}\n")
        (programs / name).chmod(0o755)
    return f"{programs}:{os.environ['PATH']}"


def test_images_are_checked(hostile_pictures: Path, lurking: str, place: Place, ledger: Ledger) -> None:
    words = ("data", "check", hostile_pictures, "--json")
    with untouched(place), forked(words, place.here / "said", limit_memory, PATH=lurking) as process:
        assert process.end(PATIENCE) == 0, process.seen

    checked = json.loads(process.seen)
    skipped = {each["file"]: each["reason"] for each in checked["skipped"]}
    assert skipped.keys() == useless_media().keys()
    assert all(reason and "\n" not in reason and len(reason) < 200 for reason in skipped.values()), skipped
    assert not list(Path.cwd().rglob("executed"))
    ledger("hostile-media", len(checked["skipped"]) + len(unusual_media()))


def test_images_are_trained_on(
    recipe: str, case: Case, hostile_pictures: Path, lurking: str, place: Place, ledger: Ledger
) -> None:
    if case.data != "pictures":
        pytest.skip(f"{recipe} is not trained on pictures")
    run = place.here / "run"
    words = ("train", recipe, hostile_pictures, "--out", run, *case.tiny, "data.validation_fraction=0")
    taken = forked([*words, "train.steps=30"], place.here / "said", limit_memory, PATH=lurking)
    with untouched(place), taken as process:
        assert process.end(PATIENCE) == 0, process.seen

    record = json.loads((run / "data.json").read_text())
    useless = useless_media().keys()
    skipped = {name.removeprefix("validation: "): reason for name, reason in record["skipped"].items()}
    assert skipped.keys() == useless
    assert not list(Path.cwd().rglob("executed"))
    ledger("hostile-media", len(useless) + len(unusual_media()))


# --- text --------------------------------------------------------------------------------------------------------


def answered(place: Place, *words: object) -> Outcome:
    """A command that may succeed or refuse, but does either in order and touches nothing outside."""
    with untouched(place):
        outcome = run_command(*words)
    assert "SECRET" not in outcome.errors + outcome.output
    if outcome.code:
        assert outcome.code in (1, 2)
        assert "unexpected" not in error_line(outcome.errors)
        assert len(error_line(outcome.errors)) < 3000
    return outcome


@pytest.fixture
def captioned(pictures: Path, place: Place) -> Path:
    """Sixteen images in a folder next to an image without read permission."""
    folder = place.here / "data"
    folder.mkdir()
    for path in sorted((pictures / "images").iterdir())[:16]:
        shutil.copy(path, folder / path.name)
    shutil.copy(path, place.outside / "SECRET.png")
    return folder


def escapes(place: Place) -> list[str]:
    """Names that lead out of a data folder."""
    secret = place.outside / "SECRET.png"
    return [
        "../../outside/SECRET.png",
        "../../../../../../../../etc/passwd",
        str(secret),
        f"file://{secret}",
        f"./.././../outside/{secret.name}",
        "..\\..\\outside\\SECRET.png",
        "C:\\Windows\\win.ini",
        "//server/share/SECRET.png",
        "~/SECRET.png",
        "$HOME/SECRET.png",
        "a\0b.png",
        "\x1b[2J\x07.png",
        "",
        ".",
        "..",
        "/",
        "x" * 10_000,
    ]


def hostile_lines(place: Place) -> list[bytes]:
    """Lines of a metadata.jsonl none of which may do anything."""
    rows = [json.dumps({"file_name": name, "text": "SECRET"}).encode() for name in escapes(place)]
    return [
        *rows,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
        b'{"file_name": "00002.png", "number": ' + b"9" * DEEP + b"}",
        b'{"file_name": 1e999}',
        b'{"file_name": ["00003.png"]}',
        b'{"file_name": {"__class__": "os.system"}}',
        b'{"file_name": "00003.png\\ud800"}',
        b"\xff\xfe\x00\x00",
        b"null",
        b'"text"',
        b"\0" * 1000,
        b"x" * (50 * 2**20 if WHOLE else 2**22),
    ]


def unusual_lines() -> dict[str, bytes]:
    """File to a line that is taken as it is."""
    return {
        "00004.png": b'{"file_name": "00004.png", "text": 1e999}',
        "00005.png": b'{"file_name": "00005.png", "text": "keys that are not read", "x": "../../etc/passwd", "x": 1}',
        "00006.png": b'\xef\xbb\xbf{"file_name": "00006.png", "text": "a mark amid the file"}',
        "00007.png": b'{"file_name": "00007.png", "text": "' + b"long " * (10**7 if WHOLE else 10**5) + b'"}',
        "00008.png": b'{"file_name": "00008.png", "text": ["a", null, [], {}, 1, NaN]}',
        "00009.png": b'{"file_name": "./00009.png", "text": "\\ud800 half"}',
        "00010.png": b'{"file_name": "00010.png", "text": "latin \xe9"}',
        "00011.png": b'{"file_name": "00011.png", "split": {"train": 1}, "text": "\x1b[31mred"}'.replace(
            b"\x1b", b"\\u001b"
        ),
    }


def test_rows_of_jsonl(captioned: Path, place: Place, ledger: Ledger) -> None:
    hostile, unusual = hostile_lines(place), unusual_lines()
    sound = b'{"file_name": "00000.png", "text": "sound"}'
    (captioned / "metadata.jsonl").write_bytes(b"\n".join([*hostile, *unusual.values(), sound]))

    with untouched(place):
        checked = json.loads(succeed("data", "check", captioned, "--json").output)
        shown = succeed("data", "check", captioned).output

    reasons = [each["reason"] for each in checked["skipped"] if each["file"] == "metadata.jsonl"]
    assert len(reasons) == len(hostile) + 1, reasons  # and the one with the mark
    assert checked["usable"] == 16
    assert checked["captions"]["present"] == len(unusual) + 0
    assert "sound" in shown
    assert "SECRET" not in shown.replace("SECRET.png", "")
    assert "\x1b" not in shown
    assert "\0" not in shown
    ledger("hostile-text", len(hostile) + len(unusual))


def test_rows_of_csv(captioned: Path, place: Place, ledger: Ledger) -> None:
    cells = [name.replace('"', '""') for name in escapes(place)]
    hostile = [f'"{name}","SECRET"'.encode() for name in cells if name]
    hostile += [
        b'"00001.png","' + b"x" * 10 * 2**20 + b'"',
        b"00002.png,\"=cmd|' /C calc'!A0\",extra,fields",
        b"\xff\xfe\x00,\xff",
    ]
    formula = b'00003.png,=HYPERLINK("file:///etc/passwd")'
    lines = [b"file_name,text", *hostile, formula, b'00000.png,"sound"']
    (captioned / "metadata.csv").write_bytes(b"\n".join(lines))

    with untouched(place):
        checked = json.loads(succeed("data", "check", captioned, "--json").output)

    assert checked["usable"] == 16
    assert "sound" in checked["captions"]["examples"]
    assert not any("SECRET" in example for example in checked["captions"]["examples"])
    ledger("hostile-text", len(hostile))


def test_a_folder_of_traps_is_trained_on(
    recipe: str, case: Case, captioned: Path, place: Place, ledger: Ledger
) -> None:
    """Links, pipes and names that are no names, beside rows that lead outside."""
    if case.data != "pictures":
        pytest.skip(f"{recipe} is not trained on pictures")
    sound = b'{"file_name": "00000.png", "text": "sound"}'
    (captioned / "metadata.jsonl").write_bytes(b"\n".join([*hostile_lines(place), sound]))
    (captioned / "link.png").symlink_to(place.outside / "SECRET.png")
    (captioned / "folder").symlink_to(place.outside)
    (captioned / "loop.png").symlink_to(captioned / "loop.png")
    (captioned / "device.png").symlink_to("/dev/zero")
    (captioned / "00001.txt").symlink_to(place.canary)
    (captioned / "metadata.csv").symlink_to(place.canary)
    (captioned / "line\nerror: break.png").write_bytes((captioned / "00000.png").read_bytes())
    (captioned / "\x1b[2Jclear.png").write_bytes((captioned / "00000.png").read_bytes())
    os.mkfifo(captioned / "pipe.png")
    os.mkfifo(captioned / "00002.txt")
    (captioned / "sparse").mkdir()
    with (captioned / "sparse" / "metadata.jsonl").open("wb") as sparse:
        sparse.truncate(2**40)

    with untouched(place), unblocked(captioned):
        succeed("train", recipe, captioned, "--out", "run", *case.tiny)

    skipped = json.loads(Path("run/data.json").read_text())["skipped"]
    traps = {"link.png", "folder", "loop.png", "device.png", "00001.txt", "metadata.csv", "pipe.png", "00002.txt"}
    assert traps | {"line\\nerror: break.png", "\\x1b[2Jclear.png", "sparse/metadata.jsonl"} <= skipped.keys()
    assert "SECRET outside" not in Path("run/data.json").read_text()
    ledger("hostile-text", len(traps) + 3)


LAUGHS = "".join(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * 10)}]\n" for level in range(1, 30))
LOUD_LAUGHS = "".join(
    f"l{level}: &l{level} {{{', '.join(f'k{n}: *l{level - 1}' for n in range(10))}}}\n" for level in range(1, 30)
)


def configurations(place: Place) -> dict[str, bytes]:
    """Configurations that must be refused, whoever reads them."""
    touch = f"touch {place.marker}"
    texts = {
        "a call": f"!!python/object/apply:os.system ['{touch}']",
        "a call in a value": f"train:\n  steps: !!python/object/apply:os.system ['{touch}']",
        "a module": "train: !!python/module:os",
        "a name": "train: !!python/name:os.system",
        "a new object": f"train: !!python/object/new:os.system ['{touch}']",
        "a class of quintet": "train: !!python/object:quintet.config.TrainConfig {steps: 5}",
        "a tag of its own": "train: !steps 5",
        "laughs": f"l0: &l0 lol\n{LAUGHS}train: *l29",
        "laughs in sections": f"l0: &l0 {{a: 1}}\n{LOUD_LAUGHS}train: *l29",
        "laughs merged": f"l0: &l0 {{a: 1}}\n{LOUD_LAUGHS}train: {{<<: *l29}}",
        "itself": "train: &a [*a]",
        "deep lists": "train: " + "[" * DEEP + "]" * DEEP,
        "deep sections": "{a: " * DEEP + "1" + "}" * DEEP,
        "deep lines": "".join(" " * level + "a:\n" for level in range(1000)),
        "a deep key": ".".join(["train"] * DEEP) + ": 1",
        "a long number": "train:\n  steps: " + "9" * DEEP,
        "a long number in base 16": "train:\n  steps: 0x" + "f" * DEEP,
        "a long number in base 60": "train:\n  steps: 1" + ":59" * DEEP,
        "a number of 65 bits": f"train:\n  steps: {2**64}",
        "infinity": "optim:\n  lr: 1e999",
        "no number": "optim:\n  lr: .nan",
        "zero bytes": "train:\0\n  steps: 5",
        "tabs": "train:\n\tsteps: 5",
        "a tag that does not fit": "train:\n  steps: !!int ''",
        "another": "train:\n  steps: !!float ''",
        "a truth that is none": "train:\n  steps: !!bool maybe",
        "a time that is none": "train:\n  steps: !!timestamp soon",
        "a set": "train: !!set {a, b}",
        "binary": "train: !!binary '*'",
        "two documents": "train: {}\n---\ntrain: {}",
        "a key of many lines": '"a\\nb\\e[2J": 1',
        "a list as a key": "? [a, b]\n: 1",
        "a long text": "train:\n  steps: " + "x" * 10**6,
        "a long key": "x" * 10**6 + ": 1",
        "a recipe of many lines": 'recipe: "a\\nb\\e[2J"',
        "a list of recipes": "recipe: [vqgan]",
        "many megabytes": "# " + "x" * (2**23),
        "nothing": "",
    }
    return {name: text.encode() for name, text in texts.items()} | {
        "no UTF-8": b"train:\n  steps: \xff\xfe",
        "UTF-16": "train:\n  steps: many".encode("utf-16"),
        "a picture": drawn("PNG"),
    }


def test_configurations(recipe: str, case: Case, data: Path, finished: Path, place: Place, ledger: Ledger) -> None:
    """As `--config`, and as the configuration of a run that somebody gave away."""
    trials = Trials()
    file = place.here / "hostile.yaml"
    run = copied(finished, place.here / "run")
    for number, (name, content) in enumerate(configurations(place).items()):
        file.write_bytes(content)
        (run / "config.yaml").write_bytes(content)
        commands = [
            ("train", recipe, data, "--out", "new", "--config", file, *case.tiny[:2]),
            ("resume", run),
        ]
        for words in commands if WHOLE else [commands[number % 2]]:
            with trials.of(name, words[0]):
                refused(place, *words)
    assert not Path("new").exists()
    ledger("hostile-text", trials.count())


def test_keys_of_the_command(recipe: str, data: Path, place: Place, ledger: Ledger) -> None:
    trials = Trials()
    for key in (
        f"train.steps=!!python/object/apply:os.system ['touch {place.marker}']",
        "train.steps=" + "[" * DEEP,
        "train.steps=0x" + "f" * DEEP,
        "train.steps=&a [*a]",
        "train.steps=!!int ''",
        "a\nb=1",
        "a\x1b[2J=1",
        "a" * 10**5 + "=1",
        ".".join("a" * 10**4) + "=1",
        "=".join("a" * 10**4),
        "train.steps=1\n2",
        "train={steps: {a: 1}}",
        "train=5",
        ".=1",
        "train.=1",
        ".train=1",
    ):
        with trials.of(key[:40]):
            refused(place, "train", recipe, data, "--out", "new", key)
    assert not Path("new").exists()
    ledger("hostile-text", trials.count())


def test_items_of_codes(codes: Path, finished: Path, place: Place, ledger: Ledger) -> None:
    folder = copied(codes, place.here / "codes")
    rows = len(load((folder / "codes.safetensors").read_bytes())["codes"])
    trials = Trials()
    refusable = [
        b'{"file": "a.png", "row": -1}',
        b'{"file": "a.png", "row": %d}' % rows,
        b'{"file": "a.png", "row": 1e999}',
        b'{"file": "a.png", "row": ' + b"9" * 4000 + b"}",
        b'{"file": "a.png", "row": ' + b"9" * DEEP + b"}",
        b'{"file": "a.png", "row": "0"}',
        b'{"file": "a.png", "row": true}',
        b'{"file": "a.png", "row": 0.0}',
        b'{"file": "a.png", "row": null}',
        b'{"file": "a.png", "row": [0]}',
        b'{"file": ["a.png"], "row": 0}',
        b'{"row": 0}',
        b'["row"]',
        b'"row"',
        b"0",
        b"[" * DEEP + b"]" * DEEP,
        b"\xff\xfe",
        b"not JSON",
        b"\0",
    ]
    for line in refusable:
        (folder / "items.jsonl").write_bytes(line)
        with trials.of(line[:40]):
            assert str(folder) in refused(place, "decode", finished, folder, "--out", "decoded")
            assert not Path("decoded").exists()
    for name in escapes(place):
        (folder / "items.jsonl").write_text(json.dumps({"file": name, "row": 0}))
        with trials.of(name[:40]), untouched(place):
            shutil.rmtree("decoded", ignore_errors=True)
            succeed("decode", finished, folder, "--out", "decoded")
            assert len([name for name in files_of(Path("decoded")) if name != OUTPUT_MARKER]) == 1
    ledger("hostile-text", trials.count())


SETTINGS: Mapping[str, Any] = {
    "a list": [],
    "a class elsewhere": {"class": "os.system", "recipe": "os.system"},
    "a recipe upwards": {"recipe": "../../outside"},
    "a recipe that is a list": {"recipe": ["vqgan"]},
    "no model": {"model": None},
    "a model in words": {"model": "large", "run": {"model": "large"}},
    "a run in words": {"run": "fast"},
    "a run that is a list": {"run": [1]},
    "a run of strange keys": {"run": {"__class__": "os.system", "a\nb\x1b[2J": 1}},
    "numbers that are none": {"run": {"train": {"steps": float("nan")}, "optim": {"lr": float("inf")}}},
    "numbers that are long": {"run": {"train": {"steps": -(10**4000)}}},
}


def test_settings_of_an_exported_model(exported: Path, uses: Uses, place: Place, ledger: Ledger) -> None:
    folder = copied(exported, place.here / "model")
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    texts = {
        name: json.dumps({**settings, **value} if isinstance(value, dict) else value)
        for name, value in SETTINGS.items()
    }
    texts |= {"nested": "[" * DEEP + "]" * DEEP, "nothing": "", "a long number": f'{{"model": {"9" * DEEP}}}'}
    trials = Trials()
    for number, (name, text) in enumerate(texts.items()):
        path.write_text(text)
        for command in chosen(uses.of(folder, is_run=False), number):
            with trials.of(name, command[0]):
                refused(place, *command)
    ledger("hostile-text", trials.count())


RECORDS: Mapping[str, bytes] = {
    "nothing": b"",
    "no JSON": b"import os",
    "nested": b"[" * DEEP + b"]" * DEEP,
    "a list": b"[]",
    "a list of lists": b"[[1], [2]]",
    "a number": b"7",
    "a long number": b"9" * DEEP,
    "null": b"null",
    "no UTF-8": b"\xff\xfe\x00",
    "zero bytes": bytes(1000),
    "strange types": b'{"step": "x", "status": [], "fingerprint": 5, "skipped": [], "train": 7, "validation": null}',
    "a step in words": b'{"step": "many", "train/loss": "x"}\n{"step": null}\n{"step": [], "validation/psnr": {}}\n',
    "a huge step": b'{"step": 1e999, "train/loss": 1e999}\n{"step": -5, "train/loss": 1}\n',
    "a huge figure": b'{"step": 1, "train/loss": ' + b"9" * 400 + b'}\n{"step": 2, "train/loss": 1}\n',
    "a figure without a step": b'{"train/loss": 1}\n{"train/loss": 2}\n',
}


def answer_records(file: str, names: Iterable[str], finished: Path, place: Place, patience: float) -> int:
    trials = Trials()
    words = ("export", "run", "hub") if file == "eval.json" else ("resume", "run", "train.steps=13")
    for name in names:
        for folder in ("run", "hub"):
            shutil.rmtree(folder, ignore_errors=True)
        run = copied(finished, place.here / "run")
        (run / file).write_bytes(RECORDS.get(name, b""))
        if name in KINDS:
            KINDS[name](run / file, place)
        with trials.of(file, name), unblocked(run, patience):
            answered(place, *words)
    return trials.count()


@pytest.mark.parametrize("file", ["data.json", "state.json", "metrics.jsonl", "eval.json"])
def test_records_of_a_run(file: str, finished: Path, place: Place, ledger: Ledger) -> None:
    kinds = KINDS.keys() - {"a link to a device"}  # only the owner of a run can put that into it
    ledger("hostile-text", answer_records(file, part([*RECORDS, *sorted(kinds)], 3), finished, place, patience=20))
