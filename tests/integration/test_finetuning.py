"""Fine-tuning by the command: adapters, frozen parts, learning rates by name, early stopping, other sizes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contract.cases import TINY_MUSE
from helpers import TINY, error_line, made_once, quintet, step_folder, steps_saved, succeed, tensor_hashes, train_tiny
from quintet.common.rng import ItemRNG
from quintet.common.weights import tensor_groups
from quintet.common.weights.lora import merged
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config

STILL = ("train.steps=1", "optim.lr=1e-30", "ema.start=100")
"""So small a learning rate changes no weight in fp32, so the last checkpoint has the initial weights."""


@pytest.fixture(scope="module")
def muse(shared: Path, pictures: Path) -> Path:
    """A trained generator. Read only."""
    return made_once(
        shared, "muse-to-tune", lambda folder: succeed("train", "muse", pictures, "--out", folder, *TINY_MUSE)
    )


@pytest.fixture(scope="module")
def adapted(shared: Path, pictures: Path, muse: Path) -> Path:
    """A run that trains adapters of rank 4. Read only."""
    words = ("train", "muse", pictures, *TINY_MUSE, "--init", muse, "train.lora=4")
    return made_once(shared, "adapted", lambda folder: succeed(*words, "--out", folder))


def saved(run: Path, name: str, step: int = 12) -> dict[str, torch.Tensor]:
    return load_file(step_folder(run, step) / f"{name}.safetensors")


# --- adapters -------------------------------------------------------------------------------------------------


def test_adapters_learn_and_the_weights_below_them_stay(muse: Path, adapted: Path) -> None:
    before, after = saved(muse, "ema/maskgit"), saved(adapted, "maskgit")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    adapters = {name: tensor for name, tensor in after.items() if name not in before}
    assert {name.rpartition(".")[2] for name in adapters} == {"lora_a", "lora_b"}
    assert all(tensor.any() for tensor in adapters.values())
    moments = {name.partition("maskgit.")[2] for name in saved(adapted, "optim/generator")}
    assert moments == adapters.keys()


def test_a_run_with_adapters_says_how_much_it_trains(adapted: Path) -> None:
    assert "trained parameters: 2," in (adapted / "log.txt").read_text()
    assert "adapters of rank 4)" in (adapted / "log.txt").read_text()


def test_an_export_has_merged_weights_and_no_adapters(muse: Path, adapted: Path, tmp_path: Path) -> None:
    succeed("export", adapted, tmp_path / "hub")
    exported = load_file(tmp_path / "hub" / "model.safetensors")
    assert exported.keys() == saved(muse, "maskgit").keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in merged(saved(adapted, "ema/maskgit")).items())
    changed = [name for name, tensor in saved(muse, "ema/maskgit").items() if not torch.equal(tensor, exported[name])]
    assert changed
    assert all(".blocks." in name for name in changed)


def test_a_run_with_adapters_is_sampled_and_can_be_tuned_again(adapted: Path, pictures: Path, tmp_path: Path) -> None:
    succeed("sample", adapted, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    succeed("train", "muse", pictures, "--out", tmp_path / "again", *TINY_MUSE, "--init", adapted, *STILL)
    again = saved(tmp_path / "again", "maskgit", 1)
    torch.testing.assert_close(again, merged(saved(adapted, "ema/maskgit")), rtol=0, atol=0)


def test_a_run_with_adapters_resumes_to_the_same_bytes(adapted: Path, tmp_path: Path) -> None:
    run = shutil.copytree(adapted, tmp_path / "run")
    shutil.rmtree(step_folder(run, 12))
    succeed("resume", run)
    assert tensor_hashes(run, 12) == tensor_hashes(adapted, 12)


@pytest.mark.parametrize("more", [(), ("engine.fsdp=true",)], ids=["DDP", "FSDP"])
def test_two_processes_train_adapters_like_one(
    more: tuple[str, ...], muse: Path, pictures: Path, shared: Path, tmp_path: Path
) -> None:
    words = ("train", "muse", pictures, *TINY_MUSE, "--init", muse, "train.lora=4", "engine.precision=fp64")
    words = (*words, "train.steps=4", "optim.decay_steps=12", 'train.freeze=["text_encoder"]')
    one = made_once(shared, "adapted-fp64", lambda folder: succeed(*words, "--out", folder))
    succeed(*words, "--out", tmp_path / "two", "engine.launch=2", *more)
    for group in ("maskgit", "ema/maskgit", "optim/generator"):
        ours, theirs = (tensor_groups.read_tensors(step_folder(run, 4), group) for run in (tmp_path / "two", one))
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


# --- frozen parts ---------------------------------------------------------------------------------------------


def test_frozen_parameters_do_not_move_and_have_no_optimizer_state(muse: Path, pictures: Path, tmp_path: Path) -> None:
    words = ("train.freeze=[text_encoder, '*.feed_forward.to_out']", "optim.weight_decay=0.1", "train.steps=2")
    succeed("train", "muse", pictures, "--out", tmp_path / "run", *TINY_MUSE, "--init", muse, *words)
    before, after = saved(muse, "ema/maskgit"), saved(tmp_path / "run", "maskgit", 2)
    frozen = {name for name in before if name.startswith("text_encoder.") or ".feed_forward.to_out." in name}
    assert len(frozen) > 4
    assert {name for name in before if torch.equal(before[name], after[name])} >= frozen
    assert not torch.equal(before["to_logits.weight"], after["to_logits.weight"])
    moments = {name.partition("maskgit.")[2] for name in saved(tmp_path / "run", "optim/generator", 2)}
    assert moments == before.keys() - frozen


def test_the_codebook_of_a_frozen_quantizer_does_not_move(pictures: Path, tmp_path: Path) -> None:
    vq = ("model.quantizer=vq", "model.codebook_size=32")
    train_tiny(pictures, tmp_path / "first", *vq, "train.steps=2")
    words = (*vq, "--init", tmp_path / "first", "train.freeze=[quantizer, discriminator]", "train.steps=5")
    train_tiny(pictures, tmp_path / "run", *words)
    before, after = saved(tmp_path / "first", "ema/vae", 2), saved(tmp_path / "run", "vae", 5)
    for name in ("codebook", "cluster_size", "vector_sums"):
        assert torch.equal(before[f"quantizer.{name}"], after[f"quantizer.{name}"])
    assert not torch.equal(before["encoder.1.weight"], after["encoder.1.weight"])
    first, last = (saved(tmp_path / run, "discriminator", step) for run, step in (("first", 2), ("run", 5)))
    torch.testing.assert_close(first, last, rtol=0, atol=0)
    assert not (step_folder(tmp_path / "run", 5) / "optim" / "discriminator.safetensors").exists()


# --- learning rates -------------------------------------------------------------------------------------------


def test_scaled_rates_move_their_parameters_less(muse: Path, pictures: Path, tmp_path: Path) -> None:
    words = ("train.steps=1", "optim.name=lion", "optim.lr_scale={text_encoder: 0.5}", "optim.layer_decay=0.5")
    words = (*words, "optim.schedule=constant", "optim.weight_decay=0")
    succeed("train", "muse", pictures, "--out", tmp_path / "run", *TINY_MUSE, "--init", muse, *words)
    before, after = saved(muse, "ema/maskgit"), saved(tmp_path / "run", "maskgit", 1)

    def largest_change(name: str) -> float:
        return float((before[name] - after[name]).abs().max())

    # Lion moves every weight by its learning rate.
    rate = largest_change("to_logits.weight")
    assert largest_change("transformer.blocks.0.attention.to_out.weight") == pytest.approx(rate / 2, rel=1e-3)
    assert largest_change("text_encoder.embedding.weight") == pytest.approx(rate / 2 / 8, rel=1e-2)


# --- early stopping -------------------------------------------------------------------------------------------


def test_a_run_without_improvement_ends_early_and_goes_on_exactly(pictures: Path, tmp_path: Path) -> None:
    words = ("optim.lr=1e-30", "loss.discriminator=false", "eval.every=2")
    train_tiny(pictures, tmp_path / "long", *words)
    outcome = train_tiny(pictures, tmp_path / "run", *words, "train.patience=2")
    state = json.loads((tmp_path / "run" / "state.json").read_text())
    assert (state["status"], state["step"], steps_saved(tmp_path / "run")[-1]) == ("finished", 6, 6)
    assert "psnr has not improved in the last 2 validations (train.patience=2)" in outcome.errors
    assert json.loads((step_folder(tmp_path / "run", 6) / "meta.json").read_text())["best_age"] == 2

    again = succeed("resume", tmp_path / "run")
    assert "ended at step 6" in again.errors
    assert steps_saved(tmp_path / "run")[-1] == 6
    succeed("resume", tmp_path / "run", "train.patience=null")
    assert tensor_hashes(tmp_path / "run", 12) == tensor_hashes(tmp_path / "long", 12)


def test_patience_counts_on_after_a_resume(pictures: Path, tmp_path: Path) -> None:
    words = ("optim.lr=1e-30", "loss.discriminator=false", "eval.every=2", "train.patience=3")
    train_tiny(pictures, tmp_path / "run", *words)
    shutil.rmtree(step_folder(tmp_path / "run", 8))
    succeed("resume", tmp_path / "run")  # from step 4, at which one validation had not been better
    assert steps_saved(tmp_path / "run")[-1] == 8


# --- other sizes ----------------------------------------------------------------------------------------------


def test_what_fits_is_taken_and_what_does_not_is_named(pictures: Path, tmp_path: Path) -> None:
    vq = ("model.quantizer=vq", "model.codebook_size=32")
    train_tiny(pictures, tmp_path / "first", *vq, "train.steps=2")
    larger = ("model.quantizer=vq", "model.codebook_size=64", "model.image_size=32", "--init", tmp_path / "first")
    outcome = train_tiny(pictures, tmp_path / "run", *larger, *STILL)
    assert "start anew: vae.quantizer.codebook, vae.quantizer.cluster_size, vae.quantizer.vector_sums" in outcome.errors
    before, after = saved(tmp_path / "first", "ema/vae", 2), saved(tmp_path / "run", "vae", 1)
    assert torch.equal(before["encoder.1.weight"], after["encoder.1.weight"])
    # The new codebook is made of the vectors of the old encoder, not of noise.
    vae = open_pipeline(tmp_path / "first").model
    splits = open_pipeline(tmp_path / "run").splits()  # type: ignore[attr-defined]
    images = (
        torch.stack([splits.train.load(item, ItemRNG(0, [0], [item]))["images"] for item in range(8)]).float() / 255
    )
    latents = vae.latents(images)
    distances = torch.cdist(after["quantizer.codebook"], latents).min(1).values
    assert distances.median() < latents.std()


# --- the sizes of the model, and the preset for few files --------------------------------------------------------


def test_sizes_that_are_not_named_are_those_of_the_trained_model(trained: Path, pictures: Path, tmp_path: Path) -> None:
    succeed("export", trained, tmp_path / "hub")
    for number, start in enumerate((trained, f"{trained}@8", tmp_path / "hub")):
        run = tmp_path / str(number)
        words = ("--preset", "few", "--init", start, "train.steps=1", "train.batch_size=4", "log.trackers=[]")
        succeed("train", "vqgan", pictures, "--out", run, *words, "loss.discriminator_dim=8")
        config = read_config(run / "config.yaml")
        assert config.model == read_config(trained / "config.yaml").model
        assert (config.train.patience, config.eval.batches) == (5, None)


def test_the_preset_for_few_files_asks_for_trained_weights(pictures: Path, tmp_path: Path) -> None:
    words = ("model.dim=8", "model.image_size=16", "train.steps=1", "train.batch_size=4", "log.trackers=[]")
    outcome = succeed("train", "vqgan", pictures, "--out", tmp_path / "run", "--preset", "few", *words)
    assert "preset few is for fine-tuning: name trained weights with --init RUN" in outcome.errors


# --- bad input ------------------------------------------------------------------------------------------------

REFUSED = [
    (("train.freeze=[text_encodr]",), "'text_encodr' matches no parameter; the nearest names are text_encoder"),
    (("train.freeze=['*']",), "freezes everything that phase 'generator' trains"),
    (("optim.lr_scale={logits_to: 0.5}",), "optim.lr_scale: 'logits_to' matches no parameter; the nearest names are"),
    (("optim.lr_scale={to_logits: -1}",), "optim.lr_scale: input should be greater than 0"),
    (("train.lora=4",), "train.lora=4 adapts trained weights: name them with --init RUN"),
    (("train.lora=16", "--init", "{muse}"), "train.lora=16 is no low rank for this model"),
    (
        ("train.lora=4", "--init", "{muse}", "model.self_critic=true"),
        "this run would leave them at random values: maskgit.to_score",
    ),
    (("train.freeze=[transformer]", "--init", "{muse}", "model.depth=2"), "at random values: maskgit.transformer.blo"),
]


@pytest.mark.parametrize(("words", "expected"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_cannot_be_tuned_is_one_sentence(
    words: tuple[str, ...], expected: str, muse: Path, pictures: Path, tmp_path: Path
) -> None:
    filled = [word.format(muse=muse) if word == "{muse}" else word for word in words]
    outcome = quintet("train", "muse", pictures, "--out", tmp_path / "run", *TINY_MUSE, *filled)
    assert outcome.code == 2
    assert expected in error_line(outcome.errors)
    assert not (tmp_path / "run").exists()


def test_adapters_and_layer_rates_need_blocks_of_matrices(pictures: Path, trained: Path, tmp_path: Path) -> None:
    for words, expected in (
        (("train.lora=4", "--init", trained), "train.lora=4 adapts the linear layers inside of blocks, and this vqgan"),
        (("optim.layer_decay=0.9",), "optim.layer_decay=0.9 needs a model of blocks, which this vqgan is not"),
    ):
        outcome = quintet("train", "vqgan", pictures, "--out", tmp_path / "run", *TINY, *words)
        assert outcome.code == 2
        assert expected in error_line(outcome.errors)
