"""Every mistake of a user gets one error message with the fix and the right exit code, and changes no file."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import quintet as package
from helpers import TINY, copied, error_line, flip_bit, quintet, renew_sums, step_folder, steps_saved, tree
from quintet.compat import muse_maskgit_pytorch
from quintet.errors import QuintetError, UsageError
from quintet.pipelines.loading import open_pipeline


@dataclass(frozen=True)
class Paths:
    """The paths of a row: the data, a finished run that must not change, and its own folder."""

    pictures: Path
    trained: Path
    here: Path

    @property
    def run(self) -> Path:
        """A copy of the finished run, if the row prepares one."""
        return self.here / "run"


# --- preparation of the mistakes ---------------------------------------------------------------------------------


def nothing(paths: Paths) -> None:
    pass


def a_run(paths: Paths) -> None:
    copied(paths.trained, paths.run)


def a_run_without_checkpoints(paths: Paths) -> None:
    a_run(paths)
    for step in steps_saved(paths.run):
        shutil.rmtree(step_folder(paths.run, step))


def a_run_of_damaged_checkpoints(paths: Paths) -> None:
    a_run(paths)
    for step in (4, 8):
        flip_bit(step_folder(paths.run, step) / "vae.safetensors")
    weights = step_folder(paths.run, 12) / "vae.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


def a_run_of_another_recipe(paths: Paths) -> None:
    a_run(paths)
    for step in (4, 8, 12):
        folder = step_folder(paths.run, step)
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, "recipe": "mesh-autoencoder"}))
        renew_sums(folder)


def a_run_on_other_data(paths: Paths) -> None:
    data = copied(paths.pictures, paths.here / "data")
    a_run(paths)
    path = paths.run / "config.yaml"
    path.write_text(path.read_text().replace(str(paths.pictures), str(data)))
    Image.new("RGB", (32, 32)).save(data / "images" / "00000.png")


def no_images(paths: Paths) -> None:
    (paths.here / "notes").mkdir()
    (paths.here / "notes" / "list.txt").write_text("not an image")


def unreadable_images(paths: Paths) -> None:
    (paths.here / "broken").mkdir()
    for number in range(6):
        (paths.here / "broken" / f"{number}.png").write_bytes(b"this is not an image")


def two_images(paths: Paths) -> None:
    folder = paths.here / "two"
    folder.mkdir()
    for number in range(2):
        Image.new("RGB", (32, 32)).save(folder / f"{number}.png")


def files_in_the_way(paths: Paths) -> None:
    (paths.here / "mine").mkdir()
    (paths.here / "mine" / "thesis.txt").write_text("do not lose this")


class Bomb:
    """Unpickling this leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.trace), "w")


def a_pickle(paths: Paths) -> None:
    bomb = pickle.dumps(Bomb(paths.here / "opened"))
    (paths.here / "vae.1000.pt").write_bytes(bomb)
    (paths.here / "results").mkdir()
    (paths.here / "results" / "vae.1000.pt").write_bytes(bomb)


def a_run_with_a_pickle_inside(paths: Paths) -> None:
    a_run(paths)
    for step in (4, 8, 12):
        folder = step_folder(paths.run, step)
        (folder / "vae.safetensors").write_bytes(pickle.dumps(Bomb(paths.here / "opened")))
        renew_sums(folder)


def configuration_files(paths: Paths) -> None:
    (paths.here / "other.yaml").write_text("recipe: soundstorm\n")
    (paths.here / "broken.yaml").write_text("train: [1, 2\n")
    (paths.here / "list.yaml").write_text("- train\n")
    (paths.here / "binary.yaml").write_bytes(b"\xff\xfe\x00\x01")


# --- the table ---------------------------------------------------------------------------------------------------

TRAIN = "train vqgan {pictures} --out {here}/new " + " ".join(TINY)


@dataclass(frozen=True)
class Row:
    """A mistake: the command, its exit code, the words its error message must contain, and the preparation."""

    name: str
    words: str
    code: int
    mentions: tuple[str, ...]
    prepare: Callable[[Paths], None] = nothing


TABLE = (
    Row("unknown recipe", "train vqgam {pictures}", 2, ("vqgam", "'vqgan'", "quintet recipes")),
    Row("unknown recipe of help", "config vqgam", 2, ("vqgam", "'vqgan'")),
    Row("unknown key", TRAIN + " train.step=5", 2, ("'train.step'", "'train.steps'")),
    Row("a key as an option", TRAIN + " --steps 5", 2, ("--steps", "key=value", "train.steps=")),
    Row("unknown section", TRAIN + " trian.steps=5", 2, ("'trian.steps'", "'train.steps'")),
    Row("a base for what has none", TRAIN + " --base {trained}", 2, ("'vqgan' does not take --base",)),
    Row("a tokenizer for what has none", TRAIN + " --tokenizer {trained}", 2, ("'vqgan' does not take --tokenizer",)),
    Row(
        "a negative text for a tokenizer", "sample {trained} --negative grey", 2, ("'vqgan' does not take --negative",)
    ),
    Row("a mask for a tokenizer", "sample {trained} --mask {here}/mask.png", 2, ("'vqgan' does not take --mask",)),
    Row("unknown preset", "train vqgan {pictures} --preset huge", 2, ("huge", "debug", "small", "base")),
    Row("a key that is no key", TRAIN + " train.steps", 2, ("'train.steps'", "key=value")),
    Row("a value of another type", TRAIN + " train.steps=many", 2, ("train.steps", "many")),
    Row("a value YAML cannot read", TRAIN + " model.image_size=[64", 2, ("model.image_size", "[64")),
    Row("missing folder", "train vqgan {here}/nowhere --out {here}/new", 2, ("{here}/nowhere", "does not exist")),
    Row("no folder at all", "train vqgan --out {here}/new", 2, ("folder", "quintet train vqgan DATA")),
    Row("a file for a folder", "train vqgan {pictures}/metadata.jsonl --out {here}/new", 2, ("metadata.jsonl", "file")),
    Row(
        "folder without images",
        "train vqgan {here}/notes --out {here}/new",
        2,
        ("{here}/notes", ".png", "1 .txt"),
        no_images,
    ),
    Row(
        "only unreadable images",
        "train vqgan {here}/broken --out {here}/new --preset debug train.batch_size=2",
        2,
        ("items can be read", ".png"),
        unreadable_images,
    ),
    Row(
        "missing validation folder",
        TRAIN + " data.validation_path={here}/nowhere",
        2,
        ("{here}/nowhere", "does not exist"),
    ),
    Row("--out is a run", TRAIN + " --out {here}/run", 2, ("{here}/run", "quintet resume", "--out"), a_run),
    Row("--out holds other files", TRAIN + " --out {here}/mine", 2, ("{here}/mine", "--out"), files_in_the_way),
    Row(
        "--out is a file",
        TRAIN + " --out {here}/mine/thesis.txt",
        2,
        ("thesis.txt", "--out"),
        files_in_the_way,
    ),
    Row(
        "--out is below a file",
        TRAIN + " --out {here}/mine/thesis.txt/new",
        2,
        ("thesis.txt/new", "cannot write"),
        files_in_the_way,
    ),
    Row("batch larger than the data", TRAIN + " train.batch_size=64", 2, ("train.batch_size=64", "39 items")),
    Row("no steps", TRAIN + " train.steps=0", 2, ("train.steps", "greater than 0")),
    Row("negative steps", TRAIN + " train.steps=-5", 2, ("train.steps", "-5")),
    Row("negative minutes", TRAIN + " train.minutes=-1", 2, ("train.minutes", "-1")),
    Row("image size not divisible", TRAIN + " model.image_size=30", 2, ("model.image_size=30", "32")),
    Row("rectangle not divisible", TRAIN + " model.image_size=[64,30]", 2, ("model.image_size", "30", "[64, 32]")),
    Row(
        "batch not divisible",
        TRAIN + " train.grad_accum_steps=3",
        2,
        ("train.batch_size=4", "train.grad_accum_steps=3"),
    ),
    Row(
        "impossible codebook",
        TRAIN + " model.quantizer=lfq model.codebook_size=100",
        2,
        ("codebook_size", "100", "power of two"),
    ),
    Row("device that is not there", TRAIN + " engine.device=mps", 2, ("engine.device=mps", "engine.device=cpu")),
    Row("parts of what has none", TRAIN + " engine.fsdp=true", 2, ("engine.fsdp=true", "generators", "vqgan")),
    *(
        Row(f"a launch of {number} processes", TRAIN + f" engine.launch={number}", 2, ("engine.launch", "1 to 1024"))
        for number in (0, -1, "two", "10_000")
    ),
    Row("a batch for three processes", TRAIN + " engine.launch=3", 2, ("train.batch_size=", "3 processes")),
    Row("a launch that contradicts", TRAIN + " engine.launch=2 engine.world_size=4", 2, ("=4", "2 processes")),
    Row("processes that are not there", TRAIN + " engine.world_size=2", 2, ("engine.world_size=2", "torchrun")),
    Row(
        "tracker that is not there",
        TRAIN + " log.trackers=[trackio]",
        2,
        ("log.trackers", "trackio", "pip install"),
    ),
    Row(
        "perceptual weights that are not there",
        TRAIN + " loss.perceptual_weights={here}/vgg.safetensors",
        2,
        ("{here}/vgg.safetensors",),
    ),
    Row(
        "validation set smaller than a batch",
        TRAIN + " eval.batch_size=40",
        2,
        ("eval.batch_size=40", "data.validation_fraction"),
    ),
    Row(
        "validation folder smaller than a batch",
        TRAIN + " data.validation_path={here}/two eval.batch_size=3",
        2,
        ("eval.batch_size=3", "2 items"),
        two_images,
    ),
    Row(
        "bad regular expression",
        "train vqgan {here}/two --out {here}/new --preset debug train.batch_size=1 data.validation_group=(",
        2,
        ("data.validation_group", "regular expression"),
        two_images,
    ),
    Row("configuration file missing", TRAIN + " --config {here}/nothing.yaml", 2, ("{here}/nothing.yaml", "No such")),
    Row("configuration file a folder", TRAIN + " --config {here}", 2, ("{here}", "directory")),
    Row("configuration no YAML", TRAIN + " --config {here}/broken.yaml", 2, ("broken.yaml",), configuration_files),
    Row("configuration binary", TRAIN + " --config {here}/binary.yaml", 2, ("binary.yaml",), configuration_files),
    Row("configuration a list", TRAIN + " --config {here}/list.yaml", 2, ("list.yaml", "mapping"), configuration_files),
    Row(
        "configuration of another recipe",
        TRAIN + " --config {here}/other.yaml",
        2,
        ("recipe", "soundstorm"),
        configuration_files,
    ),
    Row("resume nothing", "resume {here}/nowhere", 2, ("{here}/nowhere", "does not exist")),
    Row("resume a data folder", "resume {pictures}", 2, ("{pictures}", "config.yaml")),
    Row(
        "resume when the checkpoints are gone",
        "resume {here}/run",
        2,
        ("{here}/run", "step-00000012", "--out"),
        a_run_without_checkpoints,
    ),
    Row("eval without a checkpoint", "eval {here}/run", 2, ("{here}/run", "no checkpoint"), a_run_without_checkpoints),
    Row("eval of a step not saved", "eval {trained}@5", 2, ("'5'", "4, 8, 12")),
    Row(
        "export without a checkpoint", "export {here}/run {here}/hub", 2, ("no checkpoint",), a_run_without_checkpoints
    ),
    Row(
        "resume with only damaged checkpoints",
        "resume {here}/run",
        1,
        ("every checkpoint in", "step-00000012/vae.safetensors", "step-00000004/vae.safetensors"),
        a_run_of_damaged_checkpoints,
    ),
    Row(
        "eval with only damaged checkpoints",
        "eval {here}/run",
        1,
        ("every checkpoint in", "step-00000012/vae.safetensors"),
        a_run_of_damaged_checkpoints,
    ),
    Row(
        "eval of a damaged step",
        "eval {here}/run@8",
        1,
        ("step-00000008/vae.safetensors", "damaged"),
        a_run_of_damaged_checkpoints,
    ),
    Row(
        "resume a checkpoint of another recipe",
        "resume {here}/run",
        1,
        ("step-00000012", "'mesh-autoencoder'", "'vqgan'"),
        a_run_of_another_recipe,
    ),
    Row(
        "eval a checkpoint of another recipe",
        "eval {here}/run",
        1,
        ("step-00000012", "'mesh-autoencoder'", "'vqgan'"),
        a_run_of_another_recipe,
    ),
    Row("resume a pickle", "resume {here}/vae.1000.pt", 2, ("vae.1000.pt", "docs/migration.md"), a_pickle),
    Row("eval a pickle", "eval {here}/vae.1000.pt", 2, ("vae.1000.pt", "docs/migration.md"), a_pickle),
    Row(
        "encode with a pickle",
        "encode {here}/vae.1000.pt {pictures} --out {here}/codes",
        2,
        ("migration.md",),
        a_pickle,
    ),
    Row("--init a pickle", TRAIN + " --init {here}/vae.1000.pt", 2, ("vae.1000.pt", "docs/migration.md"), a_pickle),
    Row("eval a folder of pickles", "eval {here}/results", 2, ("{here}/results", "docs/migration.md"), a_pickle),
    Row(
        "a pickle in place of weights",
        "resume {here}/run",
        1,
        ("step-00000012/vae.safetensors",),
        a_run_with_a_pickle_inside,
    ),
    Row(
        "resume with another key",
        "resume {here}/run model.dim=16 optim.lr=0.1",
        2,
        ("model.dim: 8 -> 16", "optim.lr: 0.0003 -> 0.1", "--init"),
        a_run,
    ),
    Row("resume with an unknown key", "resume {here}/run train.stepz=5", 2, ("'train.steps'",), a_run),
    Row(
        "resume on changed data",
        "resume {here}/run",
        2,
        ("data changed", "--init {here}/run", "--force"),
        a_run_on_other_data,
    ),
    Row("export over files", "export {trained} {here}/mine", 2, ("{here}/mine", "exists"), files_in_the_way),
    Row("encode over files", "encode {trained} {pictures} --out {here}/mine", 2, ("{here}/mine",), files_in_the_way),
    Row("decode what are no codes", "decode {trained} {here}/mine --out {here}/new", 2, ("mine",), files_in_the_way),
    Row("eval on no pictures", "eval {trained} --data {here}/notes", 2, ("{here}/notes",), no_images),
    Row("make data over files", "data make shapes {here}/mine --num 2", 2, ("{here}/mine",), files_in_the_way),
    Row("check a missing folder", "data check {here}/nowhere", 2, ("{here}/nowhere", "does not exist")),
)


@pytest.fixture
def paths(pictures: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    monkeypatch.chdir(tmp_path)
    return Paths(pictures, trained, tmp_path)


def filled(text: str, paths: Paths) -> str:
    return (
        text.replace("{pictures}", str(paths.pictures))
        .replace("{trained}", str(paths.trained))
        .replace("{here}", str(paths.here))
    )


def contents(paths: Paths) -> dict[str, str]:
    """The hashes of all files that must not change, which excludes the lock file."""
    files = {str(root): tree(root) for root in (paths.pictures, paths.trained, paths.here)}
    return {
        f"{root}/{name}": value for root, names in files.items() for name, value in names.items() if name != "run/lock"
    }


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_mistake(row: Row, paths: Paths) -> None:
    row.prepare(paths)
    words = [filled(word, paths) for word in row.words.split()]
    before = contents(paths)

    outcome = quintet(*words)

    sentence = error_line(outcome.errors)
    assert outcome.code == row.code, sentence
    for mention in row.mentions:
        assert filled(mention, paths) in sentence
    assert "unexpected" not in sentence
    assert "{" not in sentence, "no dictionaries in messages"
    assert "next:" not in outcome.output
    assert contents(paths) == before

    debugged = quintet(*words, "--debug")

    assert debugged.code == row.code
    assert "Traceback" in debugged.errors
    assert contents(paths) == before


# --- in Python ---------------------------------------------------------------------------------------------------

ORIGINAL = {"num_train_steps": 4, "batch_size": 4, "results_folder": "new"}
"""The required arguments of the original VQ-GAN trainer."""

IMPOSSIBLE = (
    ({"num_train_steps": 0}, ("num_train_steps=0", "train.steps")),
    ({"num_train_steps": "many"}, ("num_train_steps='many'", "train.steps")),
    ({"batch_size": -4}, ("batch_size=-4", "train.batch_size")),
    ({"batch_size": 64}, ("batch_size=64", "39 items")),
    ({"grad_accum_every": 0}, ("grad_accum_every=0", "train.grad_accum_steps")),
    ({"lr": -1.0}, ("lr=-1.0", "optim.lr")),
    ({"valid_frac": 1.5}, ("valid_frac=1.5", "data.validation_fraction")),
    ({"random_split_seed": "x"}, ("random_split_seed='x'", "data.split_seed")),
    ({"ema_beta": 2.0}, ("ema_beta=2.0", "ema.decay")),
    ({"save_model_every": 0}, ("save_model_every=0", "checkpoint.every")),
    ({"image_size": 64}, ("image_size=64", "image_size=16")),
    ({"folder": "nowhere"}, ("nowhere", "does not exist")),
    ({"vae": "a string"}, ("VQGanVAE", "str")),
    ({"num_steps": 5}, ("num_steps", "num_train_steps")),
)


@pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")
@pytest.mark.parametrize(("keywords", "mentions"), IMPOSSIBLE, ids=lambda value: str(value)[:40])
def test_original_keywords_with_impossible_values(
    keywords: dict[str, Any], mentions: tuple[str, ...], paths: Paths
) -> None:
    vae = package.VQGanVAE(image_size=16, dim=8, layers=2, codebook_size=16)
    with pytest.raises(UsageError) as caught:
        muse_maskgit_pytorch.VQGanVAETrainer(**{"vae": vae, "folder": str(paths.pictures), **ORIGINAL, **keywords})
    for mention in mentions:
        assert mention in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (paths.here / "new").exists()


def test_python_never_opens_a_pickle_either(paths: Paths) -> None:
    a_pickle(paths)
    pickled = paths.here / "vae.1000.pt"
    vae = package.VQGanVAE(image_size=16, dim=8, layers=2, codebook_size=16)
    trainer = package.VQGanVAETrainer(vae, data=paths.pictures, out=paths.here / "new", steps=1, batch_size=4)
    for opened in (package.VQGanVAE.from_pretrained, trainer.load, open_pipeline):
        with pytest.raises(QuintetError, match=r"vae\.1000\.pt.*docs/migration\.md"):
            opened(pickled)
    trainer.close()
    assert not (paths.here / "opened").exists()


# --- invalid commands --------------------------------------------------------------------------------------------

MISUSES = (
    ("nonsense", "nonsense"),
    ("eval", "run"),
    ("resume", "run"),
    ("data check", "folder"),
    ("eval --nope", "--nope"),
    ("sample {trained} --num 0", "--num"),
    ("sample {trained} --num many", "--num"),
    ("data make circles {here}/new", "circles"),
    ("demo juggling", "juggling"),
)


@pytest.mark.parametrize(("words", "mention"), MISUSES)
def test_misuse_of_a_verb(words: str, mention: str, paths: Paths) -> None:
    before = contents(paths)

    outcome = quintet(*(filled(word, paths) for word in words.split()))

    sentence = error_line(outcome.errors)
    assert outcome.code == 2, sentence
    assert mention in sentence.lower()
    assert "unexpected" not in sentence
    assert contents(paths) == before
