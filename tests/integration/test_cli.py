"""The command line: help, every verb, and sequences of verbs."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

import quintet as package
from helpers import (
    TINY,
    copied,
    error_line,
    executed,
    metrics,
    python,
    quintet,
    state,
    step_folder,
    steps_saved,
    succeed,
    tensor_hashes,
    train_tiny,
    tree,
)
from quintet import registry

VERBS = (
    *("train", "resume", "eval", "sample", "encode", "decode", "embed", "search", "export", "config", "recipes"),
    *("doctor", "demo", "version", "data", "data make", "data check"),
)


# --- help --------------------------------------------------------------------------------------------------------


def test_help_does_not_wait_for_torch(tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from quintet.cli import main\n"
        "try:\n"
        "    main(sys.argv[1:])\n"
        "finally:\n"
        "    sys.stderr.write(f'torch imported: {\"torch\" in sys.modules}\\n')\n"
    )
    for words in (["--help"], ["train", "vqgan", "--help"], ["config", "vqgan"], ["train", "vqgan", "x", "no.key=1"]):
        with executed(python("-c", script, *words), tmp_path / "said") as process:
            process.end()
            assert "torch imported: False" in process.seen, words


def test_every_verb_is_named_in_the_help() -> None:
    text = succeed("--help").output
    assert all(re.search(rf"^  {verb}\b", text, re.MULTILINE) for verb in VERBS if " " not in verb)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    outcome = succeed(*verb.split(), "--help")
    assert f"Usage: quintet {verb}" in outcome.output
    assert not outcome.errors


def test_help_of_a_recipe_lists_its_keys() -> None:
    text = succeed("train", "vqgan", "--help").output
    assert "--out" in text
    assert re.search(r"^  batch_size: 16  # Global batch size", text, re.MULTILINE)
    assert re.search(r"^  quantizer: \w+  # .*vq, lfq, fsq", text, re.MULTILINE)


def test_no_arguments_print_help_and_fail() -> None:
    assert "Usage: quintet" in quintet().errors
    assert quintet().code == 2
    assert quintet("train").code == 2


def test_recipes_doctor_version() -> None:
    listed = succeed("recipes").output
    assert all(
        re.search(rf"^{name} .*{entry.trainer}", listed, re.MULTILINE) for name, entry in registry.RECIPES.items()
    )
    doctor = succeed("doctor").output
    assert all(word in doctor for word in ("quintet", "torch", "cpu", "cuda", "tensorboardX"))
    assert succeed("version").output.strip() == package.__version__


# --- configuration -----------------------------------------------------------------------------------------------


def test_a_printed_config_can_be_used(pictures: Path, tmp_path: Path) -> None:
    printed = succeed("config", "vqgan", "--preset", "debug", *TINY[2:], "train.steps=2", f"data.path={pictures}")
    file = tmp_path / "my.yaml"
    file.write_text(printed.output)

    # The folder is in the file, and a key on the command line takes precedence.
    succeed("train", "vqgan", "--config", file, "--out", tmp_path / "run", "optim.lr=1e-3")

    expected, used = yaml.safe_load(file.read_text()), yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert used["optim"].pop("lr") == 1e-3
    assert used["optim"].pop("decay_steps") == 2
    del expected["optim"]["lr"], expected["optim"]["decay_steps"]
    assert used == expected


def test_dotted_keys_in_a_file_and_scientific_numbers(pictures: Path, tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("train.steps: 1\noptim: {lr: 3e-3}\n")
    train_tiny_without_steps = [word for word in TINY if not word.startswith("train.steps")]
    succeed(
        "train", "vqgan", pictures, "--out", tmp_path / "run", *train_tiny_without_steps, "--config", file,
        "optim.decay_steps=1e2",
    )  # fmt: skip
    used = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (used["train"]["steps"], used["optim"]["decay_steps"], used["preset"]) == (1, 100, "debug")


# --- data --------------------------------------------------------------------------------------------------------


def test_data_check(pictures: Path, tmp_path: Path) -> None:
    text = succeed("data", "check", pictures).output
    assert "48 image files found, 48 usable" in text
    assert f"next: quintet train vqgan {pictures}" in text
    report = json.loads(succeed("data", "check", pictures, "--json").output)
    assert (report["found"], report["usable"], report["captions"]["present"]) == (48, 48, 48)


def test_data_check_without_usable_files_fails_with_a_report(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"not an image")
    outcome = quintet("data", "check", tmp_path, "--json")
    assert outcome.code == 1
    assert json.loads(outcome.output)["usable"] == 0
    assert quintet("data", "check", tmp_path).code == 1


def test_validation_groups_stay_together(pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number, path in enumerate(sorted((pictures / "images").iterdir())[:24]):
        shutil.copy(path, folder / f"drawing{number // 3}-view{number % 3}.png")
    group, fraction = r"data.validation_group='(drawing\d+)'", "data.validation_fraction=0.3"

    train_tiny(folder, tmp_path / "run", group, fraction, "train.steps=1")

    record = json.loads((tmp_path / "run" / "data.json").read_text())
    train, validation = ({name.split("-")[0] for name in record[side]} for side in ("train", "validation"))
    assert train
    assert validation
    assert not train & validation
    assert len(record["train"]) == 3 * len(train)


def test_a_separate_validation_folder(pictures: Path, tmp_path: Path) -> None:
    folder = tmp_path / "held-out"
    folder.mkdir()
    shutil.copy(pictures / "images" / "00003.png", folder / "only.png")

    train_tiny(pictures, tmp_path / "run", f"data.validation_path={folder}", "train.steps=1")

    record = json.loads((tmp_path / "run" / "data.json").read_text())
    assert record["validation"] == ["only.png"]
    # The validation items of the data are trained on; its other splits are not.
    splits = [json.loads(line)["split"] for line in (pictures / "metadata.jsonl").read_text().splitlines()]
    assert len(record["train"]) == splits.count("train") + splits.count("validation")


# --- training ----------------------------------------------------------------------------------------------------


def test_runs_without_a_name_are_numbered(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        outcome = succeed("train", "vqgan", pictures, *TINY, "train.steps=1")
        assert f"trained to step 1: runs/vqgan-{number}" in outcome.output
        assert f"next: quintet eval runs/vqgan-{number}" in outcome.output
    assert sorted(path.name for path in Path("runs").iterdir()) == ["vqgan-1", "vqgan-2"]


def test_length_in_epochs(pictures: Path, tmp_path: Path) -> None:
    train_tiny(pictures, tmp_path / "run", "train.epochs=0.5")
    items = len(json.loads((tmp_path / "run" / "data.json").read_text())["train"])
    steps = math.ceil(items / 2 / 4)
    assert state(tmp_path / "run")["step"] == steps
    used = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert used["train"]["steps"] == used["optim"]["decay_steps"] == steps


def test_resuming_a_finished_run_says_so(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path / "run")
    assert f"{run} is already at step 12; set train.steps=N to train longer\n" in succeed("resume", run).output
    shorter = quintet("resume", run, "train.steps=3")
    assert shorter.code == 2
    assert error_line(shorter.errors) == f"error: train.steps=3, but {run} is at step 12"
    assert state(run)["steps"] == 12


def test_the_next_command_can_be_pasted(pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for names with a space; and no proposed command would be refused."""
    monkeypatch.chdir(tmp_path)
    data = copied(pictures, tmp_path / "my data")
    output = succeed("data", "check", data.name).output
    for words in (("--out", "a run", *TINY, "train.steps=1"), ()):
        (command,) = [line.removeprefix("next: quintet ") for line in output.splitlines() if "next: " in line][:1]
        output = succeed(*shlex.split(command), *words).output
    assert "next: quintet export 'a run' hub/vqgan" in output
    succeed("export", "a run", "hub/vqgan")
    assert "next: quintet export" not in succeed("eval", "a run").output
    assert "next: quintet export" not in succeed("eval", "hub/vqgan").output


def test_a_model_card_has_the_metrics_of_the_model(trained: Path, pictures: Path, tmp_path: Path) -> None:
    """Not those of another step, of another folder, or of the live weights."""
    run = copied(trained, tmp_path / "run")
    succeed("eval", run)
    measured = json.loads((run / "eval.json").read_text())
    assert measured["step"] == 12
    succeed("eval", run, "--data", pictures)
    assert json.loads((run / "eval.json").read_text()) == measured
    assert json.loads((run / f"eval-{pictures.name}.json").read_text())["psnr"] != measured["psnr"]
    for reference, known in ((run, True), (f"{run}@8", False)):
        succeed("export", reference, tmp_path / f"hub-{known}")
        card = (tmp_path / f"hub-{known}" / "README.md").read_text()
        assert ("| psnr |" in card) == known
        assert "live/" not in card


def test_a_longer_run_by_resuming(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path / "run")
    succeed("resume", run, "train.steps=14", "log.every=2")
    assert steps_saved(run)[-1] == 14
    assert yaml.safe_load((run / "config.yaml").read_text())["train"]["steps"] == 14
    # The rows of the first part are still there, each once.
    assert [row["step"] for row in metrics(run) if "train/lr" in row] == [*range(1, 13), 14]


def test_a_longer_run_stretches_a_schedule_that_has_ended(trained: Path, tmp_path: Path) -> None:
    run, broken = copied(trained, tmp_path / "run"), copied(trained, tmp_path / "broken")
    more = ("train.steps=16", "checkpoint.every=2", "checkpoint.keep=100")
    said = succeed("resume", run, *more).errors
    assert "the learning rate schedule, which ended at step 12, is stretched to step 16" in said
    rates = [row["train/lr"] for row in metrics(run) if "train/lr" in row]
    assert [rate > 0 for rate in rates] == [True] * 16
    assert rates[12] > rates[13] > rates[14] > rates[15]

    # It is resumed as exactly as before, and a second time; each part is reproduced, and so is the whole.
    succeed("resume", broken, *more)
    for step in (14, 16):
        shutil.rmtree(step_folder(broken, step))
    succeed("resume", broken)
    assert tensor_hashes(broken, 16) == tensor_hashes(run, 16)
    succeed("resume", run, "train.steps=18")
    assert yaml.safe_load((run / "config.yaml").read_text())["optim"]["decay_extensions"] == [[12, 16], [16, 18]]
    for words, steps in (((), "16 to 18"), (("--from", 0), "0 to 18"), (("--from", 8, "--to", 14), "8 to 14")):
        assert f"reproduced: steps {steps}," in succeed("verify", run, *words).output


@pytest.mark.parametrize("keys", ["optim.schedule=constant", "optim.final_lr=1e-5"])
def test_a_longer_run_keeps_a_schedule_that_goes_on(keys: str, pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train_tiny(pictures, run, keys, "train.steps=2")
    assert "stretched" not in succeed("resume", run, "train.steps=3").errors
    assert yaml.safe_load((run / "config.yaml").read_text())["optim"]["decay_extensions"] == []


def test_a_run_that_ends_before_its_discriminator_starts_is_warned_about(pictures: Path, tmp_path: Path) -> None:
    said = train_tiny(pictures, tmp_path / "run", "train.steps=2", "ema.start=7").errors
    assert "warning: loss.discriminator_start=4, and the run ends at step 2 (train.steps): the discriminator is" in said
    assert "warning: ema.start=7" in said
    assert "warning" not in succeed("resume", tmp_path / "run", "train.steps=8").errors


def test_resuming_a_finished_run_changes_nothing(trained: Path, tmp_path: Path) -> None:
    run = copied(trained, tmp_path / "run")
    before = tree(run / "checkpoints")
    assert "is already at step 12" in succeed("resume", run).output
    assert tree(run / "checkpoints") == before


def test_an_older_checkpoint_replaces_a_damaged_one(trained: Path, tmp_path: Path) -> None:
    undamaged = tensor_hashes(trained, 12)
    for number, name in enumerate(("vae.safetensors", "optim/generator.safetensors", "meta.json", "SHA256SUMS")):
        run = copied(trained, tmp_path / str(number))
        victim = run / "checkpoints" / "step-00000012" / name
        content = victim.read_bytes()
        flipped = bytes([content[-1] ^ 1])
        victim.write_bytes(content[: len(content) // 2] if number % 2 else content[:-1] + flipped)

        evaluated = quintet("eval", run)
        assert evaluated.code == 0
        assert "step 8" in evaluated.output
        assert str(victim.parent) in evaluated.errors

        resumed = succeed("resume", run)
        assert "damaged checkpoint skipped" in resumed.errors
        assert str(victim.parent) in resumed.errors
        assert f"resumed from {run}/checkpoints/step-00000008" in resumed.errors
        assert tensor_hashes(run, 12) == undamaged


def test_fine_tuning_starts_from_the_weights_in_a_new_run(pictures: Path, trained: Path, tmp_path: Path) -> None:
    before = tree(trained)
    hub, run, other = tmp_path / "hub", tmp_path / "run", tmp_path / "other"
    succeed("export", trained, hub)
    # So small a learning rate changes no weight in fp32, so the last checkpoint has the initial weights.
    still = ("train.steps=1", "optim.lr=1e-30", "ema.start=100")
    train_tiny(pictures, run, "--init", trained, *still)
    train_tiny(pictures, other, "--init", hub, *still)

    averaged = (trained / "checkpoints" / "step-00000012" / "ema" / "vae.safetensors").read_bytes()
    for new in (run, other):
        assert (new / "checkpoints" / "step-00000001" / "vae.safetensors").read_bytes() == averaged
        assert state(new)["step"] == 1
    assert yaml.safe_load((run / "config.yaml").read_text())["init"] == f"{trained}@12"
    assert tree(trained) == before


def test_fine_tuning_can_drop_a_module(pictures: Path, trained: Path, tmp_path: Path) -> None:
    train_tiny(pictures, tmp_path / "run", "--init", trained, "loss.discriminator=false", "train.steps=1")
    assert not list((tmp_path / "run").rglob("discriminator.*"))


def test_fine_tuning_refuses_weights_of_another_shape(pictures: Path, trained: Path, tmp_path: Path) -> None:
    outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, "--init", trained, "model.dim=16")
    assert outcome.code in (1, 2)
    assert "shape" in outcome.errors
    assert not (tmp_path / "run").exists()


def test_trackers(pictures: Path, trained: Path, tmp_path: Path) -> None:
    assert not (trained / "tensorboard").exists()
    train_tiny(pictures, tmp_path / "run", "log.trackers=[tensorboard]", "train.steps=2")
    (events,) = (tmp_path / "run" / "tensorboard").iterdir()
    content = events.read_bytes()
    assert b"train/generator/loss" in content
    assert b"validation/psnr" in content


# --- inference ---------------------------------------------------------------------------------------------------


def test_samples_are_never_overwritten(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for _ in range(2):
        succeed("sample", trained, "--num", 3, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        *("reconstructions-2.png", "reconstructions.png", "samples.jsonl")
    ]
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == ["reconstructions.png", "reconstructions-2.png"]


def test_eval_of_one_step_and_of_other_data(pictures: Path, trained: Path, tmp_path: Path) -> None:
    before = tree(trained)
    succeed("eval", f"{trained}@4", "--out", tmp_path / "4.json")
    succeed("eval", f"{trained}@best", "--out", tmp_path / "best.json")
    outcome = succeed("eval", trained, "--data", pictures / "images", "--out", tmp_path / "all.json")
    assert "48 items" in outcome.output
    results = [json.loads((tmp_path / f"{name}.json").read_text()) for name in ("4", "best", "all")]
    assert len({each["psnr"] for each in results}) == 3
    assert tree(trained) == before


def test_encode_skips_unreadable_files(pictures: Path, trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    shutil.copy(pictures / "images" / "00000.png", data / "a.png")
    (data / "b.png").write_bytes(b"not an image")
    shutil.copy(pictures / "images" / "00001.png", data / "c.png")

    assert "2 items encoded" in succeed("encode", trained, data, "--out", tmp_path / "codes").output
    assert "2 items decoded" in succeed("decode", trained, tmp_path / "codes", "--out", tmp_path / "decoded").output

    rows = [json.loads(line) for line in (tmp_path / "codes" / "items.jsonl").read_text().splitlines()]
    assert [row["file"] for row in rows] == ["a.png", "b.png", "c.png"]
    assert "skipped" in rows[1]
    assert sorted(path.name for path in (tmp_path / "decoded").glob("[!.]*")) == ["00000-a.png", "00001-c.png"]
