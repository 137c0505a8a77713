"""Muse: masking and dropping in training, compatibility with tokenizers, inpainting, critics and super-resolution."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from contract.cases import GOLDEN, TINY_MUSE
from contract.worlds import make_task
from helpers import error_line, metrics, quintet, step_folder, succeed
from quintet import config as configs
from quintet.common.batch import Batch
from quintet.common.inference import inference_mode
from quintet.common.rng import ItemRNG
from quintet.errors import UsageError
from quintet.families.muse.config import MuseConfig, MuseOptions
from quintet.families.muse.model import Canvas
from quintet.families.muse.task import MuseTask
from quintet.families.muse.trainer import MuseTrainer
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.pipeline import VQGanPipeline
from quintet.media.image import read_image, resize_and_crop, to_tensor, write_image
from quintet.nn.maskgit import MaskGit, TokenCritic
from quintet.pipelines.base import Pipeline
from quintet.pipelines.loading import open_pipeline
from quintet.registry import read_config
from quintet.sampling.guidance import encode_prompts
from quintet.synthetic.shapes import make_shapes
from quintet.synthetic.shapes_judge import ShapesJudge
from text_models import make_folder

TOKENIZER = GOLDEN / "vqgan-format-1" / "hub"


@pytest.fixture
def recipe(pictures: Path) -> MuseTask:
    task = make_task("muse", pictures, TINY_MUSE)
    assert isinstance(task, MuseTask)
    return task


def batch_of(recipe: MuseTask, items: range, epoch: int = 0) -> Batch:
    split = recipe.splits().train
    rngs = [ItemRNG(0, [epoch], [item]) for item in items]
    fields = recipe.collate([split.load(item, rng) for item, rng in zip(items, rngs, strict=True)])
    return Batch(fields, tuple(split.name(item) for item in items), ItemRNG(0, [epoch] * len(items), list(items)))


def test_fraction_of_dropped_texts_follows_the_key(recipe: MuseTask) -> None:
    recipe.config = recipe.config.changed({"loss.cond_drop_prob": 0.3})  # type: ignore[assignment]
    batch = batch_of(recipe, range(20))
    dropped = 0
    for epoch in range(100):
        repeated = Batch(batch.fields, batch.names, ItemRNG(0, [epoch] * 20, list(range(20))))
        output = recipe.forward(recipe.modules, repeated, step=0)
        dropped += int((~output["conditioning"]["text_mask"].any(1)).sum())
    assert dropped / 2000 == pytest.approx(0.3, abs=0.03)


def test_only_masked_tokens_are_hidden_and_predicted(recipe: MuseTask) -> None:
    inputs: list[torch.Tensor] = []
    hook = recipe.maskgit.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    output = recipe.forward(recipe.modules, batch_of(recipe, range(6)), step=0)
    hook.remove()
    hidden, codes = output["hidden"], output["codes"]
    assert torch.equal(inputs[0] == recipe.maskgit.mask_id, hidden)
    assert torch.equal(inputs[0][~hidden], codes[~hidden])
    assert hidden.any(1).all()
    assert output["logits"].shape == (int(hidden.sum()), recipe.maskgit.mask_id)


def test_same_seed_gives_same_images_and_another_seed_does_not(recipe: MuseTask) -> None:
    def generate(seed: int, texts: list[str]) -> torch.Tensor:
        with inference_mode(recipe.modules):
            return recipe.pipeline(recipe.modules).muse()(texts, seed=seed)

    texts = ["a red circle", "two blue squares", "a green star on the left"]
    assert torch.equal(generate(1, texts), generate(1, texts))
    assert not torch.equal(generate(1, texts), generate(2, texts))


def test_samples_record_text_seed_and_settings(recipe: MuseTask) -> None:
    with inference_mode(recipe.modules):
        options = MuseOptions(num=2, seed=7)
        grid, *single = recipe.pipeline(recipe.modules).files(["a red circle", "a blue star"], options)
    assert grid.file == "grid.png"
    assert [artifact.metadata["text"] for artifact in single] == ["a red circle"] * 2 + ["a blue star"] * 2
    assert {artifact.metadata["seed"] for artifact in single} == {7}
    assert single[0].metadata["settings"]["guidance_scale"] == 3.0


def test_tokenizer_that_does_not_fit_is_named_with_the_key(pictures: Path) -> None:
    for key, value in {"model.grid": "[8,8]", "model.num_codes": "77"}.items():
        with pytest.raises(UsageError, match=rf"{key}=.*but the tokenizer .*hub has"):
            make_task("muse", pictures, (*TINY_MUSE, f"{key}={value}"))


def test_two_models_with_the_same_weights_have_the_same_digest(tmp_path: Path) -> None:
    copy = shutil.copytree(TOKENIZER, tmp_path / "copy")
    original, copied, changed = (open_pipeline(str(folder)) for folder in (TOKENIZER, copy, copy))
    next(changed.model.parameters()).data += 1
    assert original.digest == copied.digest != changed.digest


def test_public_models_are_made_from_keywords() -> None:
    keys: dict[str, Any] = {"grid": (2, 3), "num_codes": 5, "dim": 16, "depth": 1, "heads": 2, "text": "none"}
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5]])
    assert MaskGit(**keys)(tokens, {}).shape == (1, 6, 5)
    assert TokenCritic(**keys)(tokens, {}).shape == (1, 6)
    with pytest.raises(UsageError, match=r"model\.grid and model\.num_codes"):
        MaskGit(dim=16)


# --- critics --------------------------------------------------------------------------------------------------------


def test_a_self_critic_is_trained_with_its_generator(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*words(pictures, run, "model.self_critic=true"))
    assert all("generator/self_critic" in row for row in metrics(run) if "generator/loss" in row)
    assert load_file(step_folder(run, 12) / "maskgit.safetensors")["to_score.weight"].any()
    succeed("sample", run, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Tensors of all modules in a folder, by module and name."""
    files = [folder / f"{name}.safetensors" for name in ("maskgit", "critic")]
    loaded = {file.stem: load_file(file) for file in files if file.exists()}
    return {f"{module}/{name}": tensor for module, state in loaded.items() for name, tensor in state.items()}


@pytest.mark.parametrize("critic", ["loss.critic=true", "model.self_critic=true"])
def test_only_the_critic_is_trained(critic: str, pictures: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    succeed(*words(pictures, first, critic, "loss.train_only=generator"))
    succeed(*words(pictures, second, critic, "loss.train_only=critic", "--init", first))
    # A new run starts from the averaged weights.
    before, after = tensors(step_folder(first, 12) / "ema"), tensors(step_folder(second, 12))
    changed = {name for name, tensor in after.items() if not torch.equal(before[name], tensor)}
    assert changed
    assert all(name.startswith(("critic/", "maskgit/to_score")) for name in changed)
    if "maskgit/to_score.weight" in before:
        assert not before["maskgit/to_score.weight"].any(), "training only the generator leaves its critic unchanged"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("loss.critic=true", "model.self_critic=true"), "exclude each other"),
        (("loss.train_only=critic",), "needs a critic"),
        (("loss.train_only=critic", "loss.critic=true"), "--init RUN"),
    ],
)
def test_contradicting_critics_are_refused(keys: tuple[str, ...], message: str, pictures: Path, tmp_path: Path) -> None:
    outcome = quintet(*words(pictures, tmp_path / "run", *keys))
    assert outcome.code == 2
    assert message in error_line(outcome.errors)


# --- super-resolution -----------------------------------------------------------------------------------------------

BASE = GOLDEN / "muse-format-1" / "hub"


def muse_over(pictures: Path, base: Pipeline[Any] | None, **model: Any) -> MuseTask:
    """A muse task with an untrained tokenizer of the given shape."""
    torch.manual_seed(0)
    keys = {f"model.{key}": value for key, value in {"layers": 3, "codebook_size": 16, **model}.items()}
    config = configs.build(VQGanConfig, preset="debug", overrides=keys)
    tokenizer = VQGanPipeline(config, VQGanPipeline.build_modules(config, {}))
    _, preset, *keys = TINY_MUSE
    overrides = configs.parse_overrides([*keys, f"data.path={pictures}"])
    muse_config = configs.build(MuseConfig, preset=preset, overrides=overrides)
    return MuseTask(muse_config, {"tokenizer": tokenizer, **({} if base is None else {"base": base})})


@pytest.fixture
def superres(pictures: Path) -> MuseTask:
    """A super-resolution task: 8 x 8 codes, with a base model of 4 x 4 codes of another tokenizer."""
    return muse_over(pictures, open_pipeline(str(BASE)), image_size=64)


def test_super_resolution_model_gets_low_res_codes_of_the_same_image(superres: MuseTask, pictures: Path) -> None:
    assert superres.config.model.low_res_grid == (4, 4)
    assert superres.config.model.grid == (8, 8)
    batch = batch_of(superres, range(3))
    base_split = make_task("muse", pictures, TINY_MUSE).splits().train
    for row, name in enumerate(batch.names):
        (item,) = (number for number in range(len(base_split)) if base_split.name(number) == name)
        assert torch.equal(batch["low"][row], base_split.load(item, ItemRNG(0, [0], [item]))["codes"])


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("shape", ["rectangle", "super-resolution"])
def test_rectangles_quantizers_and_bases_train_and_inpaint(shape: str, levels: int, pictures: Path) -> None:
    base, size = (None, (32, 64)) if shape == "rectangle" else (open_pipeline(str(BASE)), (64, 64))
    recipe = muse_over(pictures, base, image_size=size, quantizer="vq", num_quantizers=levels)
    batch = batch_of(recipe, range(3))
    grid = (size[0] // 8, 8)
    assert batch["codes"].shape == ((3, *grid) if levels == 1 else (3, *grid, 2))
    output = recipe.forward(recipe.modules, batch, step=0)
    assert recipe.generator_loss(recipe.modules, batch, output, step=0).value.isfinite()
    mask = torch.zeros(size, dtype=torch.bool)
    mask[:, 40:] = True
    image = torch.rand(3, *size)
    with inference_mode(recipe.modules):
        generated = recipe.pipeline(recipe.modules).muse()(["a red circle"], canvas=Canvas(image, mask))
    assert generated.shape == (1, 3, *size)
    assert torch.equal(generated[0, :, :, :40], image[:, :, :40])


def test_base_with_another_aspect_ratio_is_refused(pictures: Path) -> None:
    with pytest.raises(UsageError, match=r"generates 16 x 16 pixels .* has 32 x 64 pixels"):
        muse_over(pictures, open_pipeline(str(BASE)), image_size=(32, 64))


def test_base_generates_without_dropout(pictures: Path, tmp_path: Path) -> None:
    succeed(*words(pictures, tmp_path / "base", "model.dropout=0.5"))
    superres = muse_over(pictures, open_pipeline(str(tmp_path / "base")).freeze(), image_size=64)
    muse = superres.pipeline(superres.modules).muse()
    rng = ItemRNG(0, [0, 0], [0, 1])
    first, second = (muse.base.generate_tokens(["a red circle", "x"], rng) for _ in range(2))
    assert torch.equal(first, second)
    assert not any(parameter.requires_grad for parameter in muse.base.parameters())


def test_super_resolution_depends_on_the_base_codes(superres: MuseTask) -> None:
    torch.nn.init.normal_(superres.maskgit.to_logits.weight)
    with inference_mode(superres.modules):
        muse = superres.pipeline(superres.modules).muse()
        assert muse(["a red circle"]).shape == (1, 3, 64, 64)
        rng = ItemRNG(0, [0, 0], [0, 0])
        low = torch.stack([torch.zeros(4, 4, dtype=torch.int64), torch.ones(4, 4, dtype=torch.int64)])
        first, second = muse.last.generate_tokens(["a red circle"] * 2, rng, low=low)
    assert not torch.equal(first, second)


def test_super_resolution_run_stores_its_base_and_both_tokenizers(pictures: Path, tmp_path: Path) -> None:
    base = shutil.copytree(BASE, tmp_path / "base")
    succeed(*words(pictures, tmp_path / "run", "--base", base))
    shutil.rmtree(base)
    run, hub = tmp_path / "run", tmp_path / "hub"
    succeed("export", run, hub)
    assert (hub / "base" / "tokenizer" / "config.json").is_file()
    for model in (run, hub):
        succeed("sample", model, "--text", "a red circle", "--num", 2, "--out", tmp_path / "out" / model.name)
    images = [(tmp_path / "out" / name / "000.png").read_bytes() for name in ("run", "hub")]
    assert images[0] == images[1]
    outcome = quintet(*words(pictures, tmp_path / "third", "--base", run))
    assert outcome.code == 2
    assert "is a super-resolution model" in error_line(outcome.errors)
    weights = run / "base" / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    (weights.parent / "SHA256SUMS").unlink()
    outcome = quintet("sample", run, "--text", "a red circle", "--out", tmp_path / "fourth")
    assert outcome.code == 2
    assert "base_hash=" in error_line(outcome.errors)


def test_a_base_of_another_family(pictures: Path, tmp_path: Path) -> None:
    outcome = quintet(*words(pictures, tmp_path / "run", "--base", TOKENIZER))
    assert outcome.code == 2
    assert f"{TOKENIZER} is a run of recipe 'vqgan'" in error_line(outcome.errors)


# --- inpainting -----------------------------------------------------------------------------------------------------


def canvas(tmp_path: Path, mask_size: tuple[int, int] = (16, 16)) -> tuple[Path, Path]:
    """An image of noise, and a mask whose right half is white."""
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    mask = np.zeros(mask_size, np.uint8)
    mask[:, mask_size[1] // 2 :] = 255
    paths = tmp_path / "image.png", tmp_path / "mask.png"
    write_image(noise, paths[0])
    write_image(mask, paths[1])
    return paths


def test_pixels_outside_the_mask_are_preserved(tmp_path: Path) -> None:
    image, mask = canvas(tmp_path)
    succeed(
        *("sample", BASE, "--image", image, "--mask", mask, "--text", "a red circle"),
        *("--num", 2, "--seed", 3, "--out", tmp_path / "out"),
    )
    original = np.asarray(read_image(image))
    for number in range(2):
        generated = np.asarray(read_image(tmp_path / "out" / f"{number:03d}.png"))
        assert np.array_equal(generated[:, :8], original[:, :8])
        assert not np.array_equal(generated[:, 8:], original[:, 8:])
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert rows[1]["mask"] == str(mask)


def test_codes_outside_the_mask_are_those_of_the_image(recipe: MuseTask) -> None:
    image = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(16, 16, dtype=torch.bool)
    mask[:, 9] = True  # a line within the third column of codes
    with inference_mode(recipe.modules):
        stage = recipe.pipeline(recipe.modules).muse().base
        generated = stage.generate_tokens(["x"], ItemRNG(0, [0], [0]), canvas=Canvas(image, mask))
        known = recipe.tokenizer.model.encode(Canvas(image, mask).scaled((16, 16)).image[None])
    differs = (generated != known)[0].any(0)
    assert not differs[[0, 1, 3]].any()


def test_masked_pixels_do_not_leak() -> None:
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[8:20, 8:20] = True
    first = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
    second = torch.where(mask, 1 - first, first)
    for size in ((32, 32), (16, 16)):
        one, other = (Canvas(image, mask).scaled(size) for image in (first, second))
        assert torch.equal(one.image, other.image)


def test_mask_of_another_size_is_refused(tmp_path: Path) -> None:
    image, mask = canvas(tmp_path, mask_size=(16, 14))
    outcome = quintet("sample", BASE, "--image", image, "--mask", mask, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "14 x 16 pixels" in error_line(outcome.errors)
    assert "must have the same size" in error_line(outcome.errors)


def test_invalid_image_or_mask_names_its_option(tmp_path: Path) -> None:
    image, mask = canvas(tmp_path)
    note = tmp_path / "note.png"
    note.write_text("no picture")
    for pair, message in (
        ((tmp_path / "gone.png", mask), f"--image {tmp_path / 'gone.png'}: cannot be opened"),
        ((image, note), f"--mask {note}: not a picture"),
    ):
        outcome = quintet("sample", BASE, "--image", pair[0], "--mask", pair[1], "--out", tmp_path / "out")
        assert outcome.code == 2
        assert message in error_line(outcome.errors)


def test_image_without_mask_and_empty_mask_are_refused(tmp_path: Path) -> None:
    image, mask = canvas(tmp_path)
    outcome = quintet("sample", BASE, "--image", image, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "--image and --mask require each other" in error_line(outcome.errors)
    write_image(np.zeros((16, 16), np.uint8), mask)
    outcome = quintet("sample", BASE, "--image", image, "--mask", mask, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "selects nothing to generate" in error_line(outcome.errors)


# --- text conditioning ----------------------------------------------------------------------------------------------


def test_classes_are_the_captions_of_the_data(pictures: Path, tmp_path: Path) -> None:
    data = shutil.copytree(pictures, tmp_path / "data")
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = ("cat", "dog")[number % 2]
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = tmp_path / "run"
    succeed(*words(data, run, "model.text=classes"))
    assert read_config(run / "config.yaml").model.classes == ("cat", "dog")  # type: ignore[attr-defined]
    succeed("sample", run, "--text", "dog", "--num", 1, "--out", tmp_path / "out")
    outcome = quintet("sample", run, "--text", "dig", "--num", 1, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "dog" in error_line(outcome.errors)


def test_frozen_encoder_is_read_from_a_folder_and_its_outputs_cached(pictures: Path, tmp_path: Path) -> None:
    encoder, cache, run = make_folder(tmp_path / "t5"), tmp_path / "cache", tmp_path / "run"
    succeed(*words(pictures, run, f"model.text=hf:{encoder}", f"data.cache_dir={cache}"))
    assert list((cache / "text").rglob("*.safetensors"))
    assert not any("shared" in name for name in load_file(step_folder(run, 12) / "maskgit.safetensors"))
    succeed("sample", run, "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")


def test_captions_that_are_not_classes_are_refused(pictures: Path, tmp_path: Path) -> None:
    keys = ("model.text=classes", "model.classes=[cat, dog]")
    outcome = quintet(*words(pictures, tmp_path / "run", *keys))
    assert outcome.code == 2
    assert "captions are not among the 2 classes" in error_line(outcome.errors)
    data = shutil.copytree(pictures, tmp_path / "data")
    rows = [json.loads(line) for line in (data / "metadata.jsonl").read_text().splitlines()]
    for number, row in enumerate(rows):
        row["text"] = ("cat", "dog", "")[number % 3]
    (data / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    succeed(*words(data, tmp_path / "run", *keys))  # data.allow_missing_captions allows empty captions


def test_empty_caption_is_unconditional_in_training_and_sampling(recipe: MuseTask) -> None:
    batch = batch_of(recipe, range(2))
    batch.fields["texts"] = ["", "a red circle"]
    trained = recipe.conditioning(batch)["text_mask"].any(1)
    sampled = encode_prompts(recipe.maskgit, ["", "a red circle"], None)[0]["text_mask"].any(1)
    assert trained.tolist() == sampled.tolist() == [False, True]


def test_negative_prompt_replaces_the_unconditional_text(recipe: MuseTask) -> None:
    cond, uncond = encode_prompts(recipe.maskgit, ["a red circle"], "a blue star")
    assert torch.equal(uncond["text"], recipe.maskgit.texts(["a red circle", "a blue star"])["text"][1:])
    assert uncond["text_mask"].any()
    assert not torch.equal(cond["text"], uncond["text"])
    assert not encode_prompts(recipe.maskgit, ["a red circle"], None)[1]["text_mask"].any()


def test_unconditional_model_samples_without_data_or_text(pictures: Path, tmp_path: Path) -> None:
    data = shutil.copytree(pictures, tmp_path / "data")
    run, hub = tmp_path / "run", tmp_path / "hub"
    succeed(*words(data, run, "model.text=none"))
    succeed("export", run, hub)
    shutil.rmtree(data)
    outcome = succeed("sample", hub, "--num", 2, "--seed", 5, "--out", tmp_path / "out")
    assert "warning" not in outcome.errors
    assert (tmp_path / "out" / "001.png").is_file()
    for option in ("--text", "--negative"):
        assert quintet("sample", hub, option, "a red circle", "--out", tmp_path / "out").code == 2


def test_export_samples_with_the_critic_of_its_run(pictures: Path, tmp_path: Path) -> None:
    run, hub = tmp_path / "run", tmp_path / "hub"
    succeed(*words(pictures, run, "loss.critic=true"))
    succeed("export", run, hub)
    for model in (run, hub):
        succeed("sample", model, "--text", "a red circle", "--num", 2, "--out", tmp_path / "out" / model.name)
    images = [(tmp_path / "out" / name / "grid.png").read_bytes() for name in ("run", "hub")]
    assert images[0] == images[1]
    assert "critic" in open_pipeline(str(hub)).modules


def test_init_from_a_run_with_another_tokenizer_is_refused(pictures: Path, tmp_path: Path) -> None:
    first, other = tmp_path / "first", shutil.copytree(TOKENIZER, tmp_path / "other")
    succeed(*words(pictures, first))
    weights = other / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    (weights.parent / "SHA256SUMS").unlink()
    outcome = quintet(*words(pictures, tmp_path / "second", "--init", first, "--tokenizer", other))
    assert outcome.code == 2
    assert "was trained with another tokenizer" in error_line(outcome.errors)


def test_codes_are_those_of_the_item_whatever_the_split(pictures: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(pictures / "images", data)  # without a split column, so that fraction and seed decide
    for keys in ((), ("data.validation_fraction=0.4",), ("data.split_seed=1", "data.validation_fraction=0.4")):
        task = make_task("muse", data, (*TINY_MUSE, "data.allow_missing_captions=true", *keys))
        assert isinstance(task, MuseTask)
        splits = task.splits()
        for split in (splits.train, splits.validation):
            for item in (0, len(split) - 1):
                pixels = to_tensor(resize_and_crop(read_image(data / split.name(item)), 16, 16))
                codes = split.load(item, ItemRNG(0, [0], [item]))["codes"]
                assert torch.equal(codes, task.tokenizer.model.encode(pixels[None])[0])


def test_changed_image_is_encoded_again(pictures: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        write_image(np.full((16, 16, 3), 60 * number, np.uint8), data / f"{number}.bmp")

    def codes() -> torch.Tensor:
        splits = make_task("muse", data, (*TINY_MUSE, "data.allow_missing_captions=true")).splits()
        return torch.stack([splits.train.load(item, ItemRNG(0, [0], [item]))["codes"] for item in range(3)])

    before = codes()
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    for number in range(4):
        (data / f"{number}.bmp").unlink()
        write_image(noise, data / f"{number}.bmp")
    assert not torch.equal(codes(), before)


def test_judge_recognizes_its_own_data(tmp_path: Path) -> None:
    make_shapes(tmp_path, 150, 32, 0)
    rows = [json.loads(line) for line in (tmp_path / "metadata.jsonl").read_text().splitlines()]
    for split in ("validation", "withheld"):
        chosen = [row for row in rows if row["split"] == split]
        images = [to_tensor(np.asarray(read_image(tmp_path / row["file_name"]))) for row in chosen]
        for name, values in ShapesJudge().metrics(images, chosen, split).items():
            assert values.tolist() == [1.0] * len(chosen), name
        recolored = [{"objects": [{**shape, "colour": "no colour"} for shape in row["objects"]]} for row in chosen]
        wrong = ShapesJudge().metrics(images, recolored, "validation")
        assert (wrong["match_colour"].sum(), wrong["match_shape"].mean()) == (0, 1)


def test_python_trainer_is_deterministic(pictures: Path, tmp_path: Path) -> None:
    _, _, _, *keys = TINY_MUSE
    config = {**configs.parse_overrides(keys), "sample.steps": 2, "data.num_workers": 0}

    def trainer(out: str, **more: Any) -> MuseTrainer:
        return MuseTrainer(
            tokenizer=open_pipeline(str(TOKENIZER)), data=pictures, out=tmp_path / out, config={**config, **more}
        )

    first, second = trainer("first"), trainer("second")
    for each in (first, second):
        each.train()
        each.close()
    weights = [load_file(step_folder(tmp_path / out, 12) / "maskgit.safetensors") for out in ("first", "second")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(UsageError, match="pass a model with loaded weights"):
        trainer("third", init=str(tmp_path / "first"))


def test_evaluation_suggests_the_sample_command(pictures: Path, tmp_path: Path) -> None:
    outcome = succeed("eval", BASE, "eval.num_generated=0", "--data", pictures, "--out", tmp_path / "eval.json")
    assert f'next: quintet sample {BASE} --text "…" --out out/' in outcome.output
    outcome = quintet("sample", BASE, "--negative", "grey", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "--negative requires --text" in error_line(outcome.errors)


def test_another_tokenizer_of_the_same_shape_is_refused(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*words(pictures, run))
    weights = run / "tokenizer" / "model.safetensors"
    save_file({name: tensor * 2 for name, tensor in load_file(weights).items()}, weights)
    (weights.parent / "SHA256SUMS").unlink()
    outcome = quintet("sample", run, "--text", "a red circle", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "tokenizer_hash=" in error_line(outcome.errors)


def test_withheld_images_are_judged_and_never_trained_on(recipe: MuseTask, finished_muse: Path) -> None:
    splits = recipe.splits()
    assert set(splits.extra_splits) == {"withheld"}
    names = {splits.train.name(item) for item in range(len(splits.train))}
    withheld = splits.extra_splits["withheld"]
    assert names.isdisjoint(withheld.name(item) for item in range(len(withheld)))
    results = json.loads((finished_muse / "eval.json").read_text())
    kinds = ("match_colour", "match_shape", "match_position", "match_withheld")
    assert {f"{kind}{of}" for kind in kinds for of in ("", "_reconstruction")} <= results.keys()


def test_sampling_keys_can_be_changed_for_one_evaluation(finished_muse: Path, tmp_path: Path) -> None:
    out = tmp_path / "other.json"
    succeed("eval", finished_muse, "eval.num_generated=0", "sample.steps=1", "--out", out)
    assert "match_colour" not in json.loads(out.read_text())
    outcome = quintet("eval", finished_muse, "model.dim=32", "--out", out)
    assert outcome.code == 2
    assert "keys of eval.* and sample.*" in error_line(outcome.errors)


@pytest.fixture
def finished_muse(pictures: Path, tmp_path: Path) -> Path:
    succeed(*words(pictures, tmp_path / "run"))
    succeed("eval", tmp_path / "run")
    return tmp_path / "run"


# --- invalid input --------------------------------------------------------------------------------------------------


def words(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("train", "muse", data, "--out", out, *TINY_MUSE, *more)


def test_only_keys_of_sampling_change_a_sample(finished_muse: Path, tmp_path: Path) -> None:
    outcome = quintet("sample", finished_muse, "model.dim=3", "--text", "x", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "model.dim" in error_line(outcome.errors)


def test_text_for_a_model_without_text_is_refused(pictures: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    succeed(*words(pictures, run, "model.text=none"))
    outcome = quintet("sample", run, "--text", "a red circle", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "trained without text" in error_line(outcome.errors)


def test_text_for_a_tokenizer_is_refused(trained: Path, tmp_path: Path) -> None:
    outcome = quintet("sample", trained, "--text", "a red circle", "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "not a generator" in error_line(outcome.errors)


def test_a_moved_run_needs_neither_tokenizer_nor_cache(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = shutil.copytree(TOKENIZER, tmp_path / "tokenizer")
    succeed(*words(pictures, tmp_path / "run", "--tokenizer", tokenizer))
    shutil.rmtree(tokenizer)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another cache"))
    run = (tmp_path / "run").rename(tmp_path / "moved")
    succeed("resume", run, "train.steps=14")
    assert "reproduced" in succeed("verify", run).output
    succeed("sample", run, "--text", "a red circle", "--num", 2, "--out", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"grid.png", "000.png", "001.png", "samples.jsonl"}
