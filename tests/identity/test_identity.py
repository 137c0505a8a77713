"""The comparison itself: a changed weight, loss, sample or missing file is found and named, and nothing else is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest

import quintet
from helpers import copied, flip_bit, succeed, train_tiny
from identity import driver, keys
from identity.__main__ import main
from identity.cases import GOLDEN, RECIPES, Case, all_cases, chosen_cases
from identity.compare import first_difference
from identity.driver import Comparison, DifferenceError
from identity.record import Record, Tensor, record
from identity.sides import CommandError, Processes, Side

NUMBER = "step 3: train/generator/loss"


# --- records of a real training -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case_folder(tmp_path_factory: pytest.TempPathFactory, pictures: Path) -> Path:
    """What a case leaves: a run, its metrics, samples and codes. Read only."""
    folder = tmp_path_factory.mktemp("case")
    train_tiny(pictures, folder / "run")
    succeed("eval", folder / "run")
    succeed("sample", folder / "run", "--num", 2, "--out", folder / "sample-0")
    succeed("encode", folder / "run", pictures, "--out", folder / "encode-1")
    return folder


@pytest.fixture
def changed(case_folder: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return copied(case_folder, tmp_path / "changed")


def difference(before: Path, after: Path) -> str:
    found = first_difference(record(before), record(after))
    assert found is not None
    return found


def test_a_copy_is_identical_and_everything_is_in_its_record(case_folder: Path, changed: Path) -> None:
    found = record(changed)
    assert first_difference(record(case_folder), found) is None
    assert {name.split("/")[0].split(".")[0].split(":")[0] for name in (tensor.name for tensor in found.tensors)} == {
        *("vae", "discriminator", "ema", "optim")
    }
    assert {name.split("/")[0] for name in found.files} == {"run", "sample-0", "encode-1"}
    assert NUMBER in found.numbers
    assert "eval.json: psnr" in found.numbers
    assert not [name for name in found.numbers if "time" in name or "per_second" in name]


def test_a_record_survives_being_kept(case_folder: Path) -> None:
    found = record(case_folder)
    assert Record.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_a_changed_weight_is_found_and_named(case_folder: Path, changed: Path) -> None:
    flip_bit(changed / "run" / "checkpoints" / "step-00000012" / "vae.safetensors")
    found = difference(case_folder, changed)
    assert found.startswith("tensor 'vae.safetensors: ")
    assert found.count("sha256") == 2


def test_changed_optimizer_state_is_found_and_named(case_folder: Path, changed: Path) -> None:
    flip_bit(changed / "run" / "checkpoints" / "step-00000012" / "optim" / "generator.safetensors")
    assert difference(case_folder, changed).startswith("tensor 'optim/generator.safetensors: ")


def test_a_loss_that_changed_in_its_last_bit_is_found_and_named(case_folder: Path, changed: Path) -> None:
    path = changed / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    row = next(row for row in rows if row["step"] == 3)
    before = row["train/generator/loss"]
    row["train/generator/loss"] = before * (1 + 2**-52)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    found = difference(case_folder, changed)
    assert found.startswith(f"number '{NUMBER}': base {before.hex()}")
    assert row["train/generator/loss"].hex() in found


def test_a_changed_metric_of_eval_is_found_and_named(case_folder: Path, changed: Path) -> None:
    path = changed / "run" / "eval.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "psnr": 1.0}), encoding="utf-8")
    assert difference(case_folder, changed).startswith("number 'eval.json: psnr'")


@pytest.mark.parametrize("name", ["sample-0/reconstructions.png", "run/samples/step-00000012/reconstructions.png"])
def test_a_changed_sample_is_found_and_named(case_folder: Path, changed: Path, name: str) -> None:
    flip_bit(changed / name)
    assert difference(case_folder, changed).startswith(f"file '{name}': base sha256 ")


def test_changed_codes_are_found_and_named(case_folder: Path, changed: Path) -> None:
    flip_bit(changed / "encode-1" / "codes.safetensors")
    assert difference(case_folder, changed).startswith("file 'encode-1/codes.safetensors: codes': base I32 ")


def test_a_missing_file_is_found_on_either_side(case_folder: Path, changed: Path) -> None:
    (changed / "sample-0" / "reconstructions.png").unlink()
    assert difference(case_folder, changed).endswith("working tree has none")
    assert "base has none" in difference(changed, case_folder)


def test_a_film_is_compared_by_its_form_because_its_encoder_is_not_deterministic(tmp_path: Path) -> None:
    for side, frames in (("base", 3), ("same", 3), ("longer", 4)):
        path = tmp_path / side / "sample-0" / "000.mp4"
        path.parent.mkdir(parents=True)
        with av.open(str(path), "w") as container:
            stream = container.add_stream("mpeg4", rate=8)
            for shade in range(frames):
                picture = np.full((16, 16, 3), shade + len(side), np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
            container.mux(stream.encode())
    assert first_difference(record(tmp_path / "base"), record(tmp_path / "same")) is None
    assert difference(tmp_path / "base", tmp_path / "longer").startswith("file 'sample-0/000.mp4': base mpeg4 ")


# --- tensors --------------------------------------------------------------------------------------------------


def tensors(**digests: str) -> Record:
    return Record(tensors=[Tensor(name, "F32", (2,), digest) for name, digest in digests.items()])


def test_a_renamed_tensor_is_the_same() -> None:
    assert first_difference(tensors(a="x", b="y"), tensors(c="y", d="x")) is None


def test_equal_tensors_are_counted() -> None:
    found = first_difference(tensors(a="x", b="x"), tensors(a="x"))
    assert found is not None
    assert found.startswith("tensor 'b': ")
    assert found.endswith("working tree has none of this content")
    assert first_difference(tensors(a="x"), tensors(a="x", b="x")) is not None


# --- names ----------------------------------------------------------------------------------------------------


def no_help(verb: str) -> str:
    raise AssertionError(f"the help of '{verb}' is not needed")


@pytest.mark.parametrize(
    ("word", "known", "translated"),
    [
        ("train.accumulate=2", "train.accumulate", "train.accumulate=2"),
        ("train.accumulate=2", "train.grad_accum_steps", "train.grad_accum_steps=2"),
        ("train.grad_accum_steps=2", "train.accumulate", "train.accumulate=2"),
        ("engine.shard=full", "engine.fsdp", "engine.fsdp=true"),
        ("engine.fsdp=true", "engine.shard", "engine.shard=full"),
        ("loss.order=moments", "loss.frame_autoregressive", "loss.frame_autoregressive=true"),
        ("loss.cond_drop_prob=0.3", "loss.drop_condition", "loss.drop_condition=0.3"),
        ("model.num_quantizers=2", "model.quantizer_levels", "model.quantizer_levels=2"),
    ],
)
def test_a_key_is_written_in_the_words_of_the_side(word: str, known: str, translated: str) -> None:
    assert keys.translate(("train", "muse", word), {known}, no_help) == ("train", "muse", translated)


def test_a_key_that_a_side_lacks_is_an_error_that_says_where_to_add_it() -> None:
    with pytest.raises(keys.UnknownKeyError, match=r"'train\.magic' .* tests/identity/keys\.py"):
        keys.translate_key("train.magic=1", {"train.steps"})


def test_an_option_is_written_in_the_words_of_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "OPTIONS", (("sample", "--prime", "--video"),))
    command = ("sample", "run", "--prime", "clip.mp4")
    assert keys.translate(command, (), lambda verb: "--video PATH") == ("sample", "run", "--video", "clip.mp4")
    assert keys.translate(command, (), lambda verb: "--prime PATH") == command


def test_renamed_settings_and_files_of_samples_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FILES", {"drawn.png": "generated.png"})
    for side, file, setting in (("old", "drawn.png", "guidance"), ("new", "generated.png", "guidance_scale")):
        folder = tmp_path / side / "sample-0"
        folder.mkdir(parents=True)
        (folder / file).write_bytes(b"picture")
        row = {"file": file, "model": side, "settings": {setting: 3.0}}
        (folder / "samples.jsonl").write_text(f"{json.dumps(row)}\n", encoding="utf-8")
    assert first_difference(record(tmp_path / "old"), record(tmp_path / "new")) is None


# --- the driver -----------------------------------------------------------------------------------------------


class Recorder:
    """Stands in for the command line of both sides: a few files, and a note of what was asked."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, str]] = []
        self.sample = {"base": b"same", "work": b"same"}

    def __call__(self, side: Side, words: Sequence[str], folder: Path, log: Path, processes: int = 1) -> None:
        self.commands.append((side.name, words[0]))
        if words[0] == "config":
            key = "grad_accum_steps" if side.name == "work" else "accumulate"
            Path(f"{log}.out").write_text(f"train:\n  {key}: 1  # Micro-batches.\n", encoding="utf-8")
        elif words[0] == "sample":
            (folder / "sample-0").mkdir()
            (folder / "sample-0" / "000.png").write_bytes(self.sample[side.name])
        else:
            key = "grad_accum_steps" if side.name == "work" else "accumulate"
            assert words[-1] == f"train.{key}=2"

    def of(self, side: str) -> list[str]:
        return [verb for name, verb in self.commands if name == side]


CASE = Case("tried", "muse", "shapes", (("train", "muse", "train.accumulate=2"), ("sample", "run")))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def comparison(tmp_path: Path, recorder: Recorder) -> Comparison:
    return compared_again(tmp_path, recorder)


def compared_again(folder: Path, recorder: Recorder) -> Comparison:
    base, work = (Side(name, folder / name / "src", folder / name) for name in ("base", "work"))
    return Comparison(base, work, recorder, say=lambda line: None)


def test_both_sides_run_a_case_in_their_own_words(comparison: Comparison, recorder: Recorder) -> None:
    totals = comparison.compare_all([CASE], jobs=2)
    assert (totals.cases, totals.files) == (1, 1)
    assert recorder.of("base") == recorder.of("work") == ["config", "train", "sample"]


def test_results_of_the_base_are_reused_and_those_of_the_working_tree_never(
    tmp_path: Path, comparison: Comparison, recorder: Recorder
) -> None:
    comparison.compare_all([CASE], jobs=1)
    recorder.commands.clear()
    recorder.sample["work"] = b"other"
    with pytest.raises(DifferenceError, match=r"^case tried: file 'sample-0/000\.png': base sha256 "):
        compared_again(tmp_path, recorder).compare_all([CASE], jobs=1)
    assert recorder.of("base") == ["config"]
    assert recorder.of("work") == ["config", "train", "sample"]


def test_a_case_that_is_defined_otherwise_is_run_again_by_the_base(
    tmp_path: Path, comparison: Comparison, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    comparison.compare_all([CASE], jobs=1)
    for change in ("machine", "input"):
        recorder.commands.clear()
        case = Case(CASE.name, CASE.recipe, CASE.data, CASE.commands, {"mask.png": b"x"} if change == "input" else {})
        if change == "machine":
            monkeypatch.setattr(driver, "machine", lambda: ["another"])
        compared_again(tmp_path, recorder).compare_all([case], jobs=1)
        assert recorder.of("base") == ["config", "train", "sample"]


def test_the_first_difference_ends_the_comparison(comparison: Comparison, recorder: Recorder) -> None:
    recorder.sample["work"] = b"other"
    stopped: list[bool] = []
    with pytest.raises(DifferenceError):
        comparison.compare_all([CASE], jobs=1, stop=lambda: stopped.append(True))
    assert stopped == [True]


# --- the command ----------------------------------------------------------------------------------------------


def test_a_command_runs_with_the_source_of_its_side_and_with_no_other(tmp_path: Path) -> None:
    source, processes = Path(quintet.__file__).parents[1], Processes()
    processes(Side("right", source, tmp_path), ["version"], tmp_path, tmp_path / "right")
    assert (tmp_path / "right.out").read_text(encoding="utf-8").strip() == quintet.__version__
    with pytest.raises(CommandError, match="on the side of wrong with exit code 1: error: quintet was imported from"):
        processes(Side("wrong", tmp_path, tmp_path), ["version"], tmp_path, tmp_path / "wrong")


def test_a_command_that_fails_is_named_with_its_error(tmp_path: Path) -> None:
    side = Side("abc", Path(quintet.__file__).parents[1], tmp_path)
    with pytest.raises(CommandError, match="`quintet config nonsense` failed on the side of abc with exit code 2: err"):
        Processes()(side, ["config", "nonsense"], tmp_path, tmp_path / "log")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for words in (("init", "--quiet"), ("commit", "--quiet", "--allow-empty", "--message", "first")):
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--base", "nonsense"), "error: 'nonsense' is no revision of this repository; give BASE=REV\n"),
        (("--base", "HEAD", "--recipes", "muse nonsense"), "error: recipe 'nonsense' has no case; choose from vqgan, "),
        (("--base", "HEAD", "--jobs", "0"), "error: --jobs 0: give at least 1\n"),
    ],
)
def test_wrong_usage_is_one_sentence(
    repository: Path, words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words, repository) == 2
    said = capsys.readouterr().err
    assert said.startswith(sentence)
    assert said.count("\n") == 1


# --- the cases ------------------------------------------------------------------------------------------------


def test_every_recipe_has_cases_of_both_precisions_and_of_two_processes(recipe: str) -> None:
    names = {case.name for case in all_cases() if case.recipe == recipe}
    assert {f"{recipe}-fp32", f"{recipe}-fp64", f"{recipe}-two-processes"} <= names


def test_chosen_recipes_bring_their_data_along() -> None:
    cases = chosen_cases(["phenaki"])
    assert cases[0].name == "data-motions"
    assert {case.recipe for case in cases[1:]} == {"phenaki"}
    assert len({case.name for case in all_cases()}) == len(all_cases()) == len(chosen_cases([]))


def test_models_that_cases_build_on_are_there() -> None:
    words = [word for recipe in RECIPES.values() for word in recipe.links if word.startswith(str(GOLDEN))]
    assert words
    assert all(Path(word).is_dir() for word in words)
