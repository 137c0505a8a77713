"""VQ-GAN: shapes, gradients of both phases, and the Python trainer."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from quintet import VQGanPipeline, VQGanVAE, VQGanVAETrainer, compat, config, runs
from quintet.common.batch import Batch
from quintet.common.rng import ItemRNG
from quintet.compat import muse_maskgit_pytorch
from quintet.errors import UsageError
from quintet.families.vqgan.config import VQGanConfig
from quintet.families.vqgan.task import VQGanTask
from quintet.nn.adversarial import hinge_generator_loss
from quintet.training.engine import Engine

TINY: dict[str, Any] = {"model.image_size": 16, "model.dim": 8, "model.layers": 2, "model.codebook_size": 256}


def make_task(**keys: Any) -> VQGanTask:
    overrides = {**TINY, "engine.precision": "fp64", "loss.discriminator_start": 0, "loss.discriminator_dim": 8, **keys}
    task = runs.make_task(config.build(VQGanConfig, overrides=overrides), {})
    assert isinstance(task, VQGanTask)
    Engine(task.config.engine).to_device(task.modules)
    return task


def make_batch(count: int = 3, size: tuple[int, int] = (16, 16)) -> Batch:
    images = torch.randint(0, 256, (count, 3, *size), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    names = tuple(f"image {number}" for number in range(count))
    return Batch({"images": images}, names, ItemRNG(0, [0] * count, range(count)), torch.float64)


@pytest.mark.parametrize("quantizer", ["vq", "lfq", "fsq"])
@pytest.mark.parametrize("levels", [1, 2])
def test_forward_equals_decode_of_encode(quantizer: str, levels: int) -> None:
    vae = VQGanVAE(
        image_size=16, dim=8, layers=2, codebook_size=256, quantizer=quantizer, num_quantizers=levels
    ).double()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    codes = vae.encode(images)
    assert codes.shape == ((2, 4, 4) if levels == 1 else (2, 4, 4, levels))
    assert 0 <= codes.min() <= codes.max() < vae.num_codes
    torch.testing.assert_close(vae.decode(codes), vae(images).images.clamp(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(32, 32), (16, 40), (64, 8)])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_any_divisible_size_and_channels(size: tuple[int, int], channels: int) -> None:
    task = make_task(**{"model.image_size": size, "model.layers": 3, "model.channels": channels})
    images = torch.randint(0, 256, (2, channels, *size), dtype=torch.uint8)
    batch = Batch({"images": images}, ("a", "b"), ItemRNG(0, [0, 0], [0, 1]), torch.float64)
    report = task.backward([batch], task.modules, Engine(task.config.engine), 0)
    assert report.metrics["discriminator/loss"].isfinite()
    assert task.model.encode(images.double() / 255).shape[1:] == (size[0] // 8, size[1] // 8)


def test_image_size_that_is_not_divisible_is_refused() -> None:
    with pytest.raises(UsageError, match="not divisible by 4"):
        VQGanVAE(image_size=16, dim=8, layers=2)(torch.rand(1, 3, 18, 16))


def plain_generator_gradients(task: VQGanTask, batch: Batch) -> dict[str, Tensor]:
    """Reference: both gradient norms by autograd at the last layer, one backward pass of the weighted sum."""
    output = task.forward(task.modules, batch, 0)
    result = output["result"]
    reconstruction, _ = task.reconstruction_loss(batch, output)
    adversarial = hinge_generator_loss(task.discriminator(result.images))
    last = task.model.last_layer.weight
    norms = [torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (reconstruction, adversarial)]
    weight = (
        (norms[0] / (norms[1] + 1e-6)).clamp(max=1e4).detach() * task.loss.adversarial * task.loss.adversarial_ramp(0)
    )
    total = reconstruction + weight * adversarial + result.loss
    names = dict(task.model.named_parameters())
    gradients = torch.autograd.grad(total, list(names.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(names, gradients, strict=True) if gradient is not None}


@pytest.mark.parametrize("quantizer", ["vq", "lfq", "fsq"])
def test_generator_gets_the_gradient_of_the_full_loss(quantizer: str) -> None:
    task = make_task(**{"model.quantizer": quantizer, "loss.discriminator_ramp": 4})
    batch = make_batch()
    expected = plain_generator_gradients(task, batch)
    loss = task.generator_loss(task.modules, batch, task.forward(task.modules, batch, 0), 0)
    loss.value.backward()
    for name, parameter in task.model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-9, atol=1e-12)
    parts = loss.parts
    full = parts["reconstruction"] + parts["quantizer"] + parts["adversarial_weight"] * parts["adversarial"]
    torch.testing.assert_close(loss.value, full)


def test_no_phase_leaves_a_gradient_in_the_other() -> None:
    task = make_task()
    batch = make_batch()
    output = task.forward(task.modules, batch, 0)
    task.generator_loss(task.modules, batch, output, 0).value.backward()
    assert all(parameter.grad is None for parameter in task.discriminator.parameters())
    assert all(parameter.requires_grad for parameter in task.discriminator.parameters())
    before = {
        name: parameter.grad.clone() for name, parameter in task.model.named_parameters() if parameter.grad is not None
    }
    task.discriminator_loss(task.modules, batch, output, 0).value.backward()
    assert all(torch.equal(dict(task.model.named_parameters())[name].grad, value) for name, value in before.items())
    assert all(parameter.grad is not None for parameter in task.discriminator.parameters())


def test_gradient_penalty_only_every_nth_step() -> None:
    task = make_task(**{"loss.gradient_penalty_every": 3})
    batch = make_batch()
    output = task.forward(task.modules, batch, 0)
    penalised = ["penalty" in task.discriminator_loss(task.modules, batch, output, step).parts for step in range(7)]
    assert penalised == [True, False, False, True, False, False, True]


def test_discriminator_starts_late_and_ramps_up() -> None:
    task = make_task(**{"loss.discriminator_start": 10, "loss.discriminator_ramp": 4})
    assert [task.loss.is_adversarial(step) for step in (9, 10)] == [False, True]
    assert [task.loss.adversarial_ramp(step) for step in (10, 11, 13, 50)] == [0.25, 0.5, 1.0, 1.0]
    batch = make_batch()
    output = task.forward(task.modules, batch, 9)
    assert "adversarial" not in task.generator_loss(task.modules, batch, output, 9).parts


def test_lecam_means_change_only_after_the_step() -> None:
    task = make_task(**{"loss.lecam": 0.1})
    report = task.backward([make_batch()], task.modules, Engine(task.config.engine), 0)
    assert task.discriminator.real_mean == 0
    task.after_step(report.statistics, 0)
    torch.testing.assert_close(task.discriminator.real_mean, report.metrics["discriminator/real"] * 0.01)


def test_export_and_from_pretrained_give_the_same_codes(tmp_path: Path) -> None:
    vae = VQGanVAE(image_size=16, dim=8, layers=2)
    vae.save_pretrained(tmp_path / "hub")
    again = VQGanVAE.from_pretrained(tmp_path / "hub")
    images = torch.rand(2, 3, 16, 16)
    assert torch.equal(vae.encode(images), again.encode(images))
    with pytest.raises(UsageError, match="not empty"):
        vae.save_pretrained(tmp_path / "hub")


def test_a_pipeline_encodes_and_decodes_from_an_exported_folder(tmp_path: Path) -> None:
    task = make_task(**{"engine.precision": "fp32"})
    VQGanPipeline(task.config, task.modules).save_pretrained(tmp_path / "hub")
    tokenizer = VQGanPipeline.from_pretrained(tmp_path / "hub")
    images = torch.rand(3, 3, 16, 16)
    codes = tokenizer.encode(images)
    assert codes.shape == (3, 4, 4)
    assert torch.equal(codes, task.model.eval().encode(images))
    assert tokenizer.decode(codes).shape == images.shape
    assert not tokenizer.decode(codes).requires_grad
    # An image's codes do not depend on its neighbours.
    assert torch.equal(tokenizer.encode(images[1:2]), codes[1:2])


# --- the trainer in Python ----------------------------------------------------------------------------------


class Images(Dataset[Any]):
    """Twelve images in one of the forms that datasets have."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        pixels = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(index))
        image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
        return {
            "tensor": pixels,
            "float tensor": pixels.float() / 255,
            "tuple": (pixels, "a caption"),
            "declared": ("a caption", pixels),
            "dictionary": {"image": image, "text": "a caption"},
            "image": image,
            "larger": image.resize((40, 50)),
        }[self.form]


def small_vae() -> VQGanVAE:
    torch.manual_seed(0)
    return VQGanVAE(image_size=16, dim=8, layers=2)


QUICK: dict[str, Any] = {
    "data.num_workers": 0,
    "log.trackers": [],
    "data.flip": False,
    "eval.batches": 1,
    "sample.num": 2,
}


@pytest.mark.parametrize("form", ["tensor", "float tensor", "tuple", "declared", "dictionary", "image", "larger"])
def test_datasets_of_every_form_train(tmp_path: Path, form: str) -> None:
    declared = {"declared": ("texts", "images")} if form == "declared" else {}
    trainer = VQGanVAETrainer(
        small_vae(), data=Images(form), out=tmp_path / "run", steps=2, batch_size=4, config=QUICK, **declared
    )
    trainer.train()
    trainer.close()
    assert trainer.step == 2


def test_equal_images_in_other_forms_train_the_same(tmp_path: Path) -> None:
    trained = []
    for form in ("tensor", "float tensor", "dictionary"):
        trainer = VQGanVAETrainer(
            small_vae(), data=Images(form), out=tmp_path / form, steps=2, batch_size=4, config=QUICK
        )
        trainer.train()
        trainer.close()
        trained.append(trainer.unwrapped_model.state_dict())
    for other in trained[1:]:
        assert all(torch.equal(trained[0][name], other[name]) for name in other)


def test_ambiguous_item_is_an_error_that_lists_its_fields(tmp_path: Path) -> None:
    class Ambiguous(Images):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(3, 16, 16), torch.zeros(3, 16, 16)

    with pytest.raises(UsageError, match=r"fits a field twice.*the item is \(Tensor\(3, 16, 16\).*expected images"):
        VQGanVAETrainer(
            small_vae(), data=Ambiguous(""), out=tmp_path / "run", steps=2, batch_size=4, config=QUICK
        ).train()


def test_run_of_a_python_dataset_resumes_only_from_python(tmp_path: Path) -> None:
    out = tmp_path / "run"
    keys = {**QUICK, "optim.decay_steps": 4}
    trainer = VQGanVAETrainer(small_vae(), data=Images("tensor"), out=out, steps=2, batch_size=4, config=keys)
    trainer.train()
    trainer.close()
    with pytest.raises(UsageError, match="only be resumed from Python"):
        runs.resumed_trainer(out, {"train.steps": 4})
    again = VQGanVAETrainer(
        small_vae(), data=Images("tensor"), out=out, steps=4, batch_size=4, config=QUICK, resume=True
    )
    assert again.step == 2
    again.train()
    again.close()
    straight = VQGanVAETrainer(
        small_vae(), data=Images("tensor"), out=tmp_path / "straight", steps=4, batch_size=4, config=keys
    )
    straight.train()
    straight.close()
    for name, value in straight.unwrapped_model.state_dict().items():
        assert torch.equal(again.unwrapped_model.state_dict()[name], value), name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        pixels = Images("tensor")[number].permute(1, 2, 0).numpy()
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{number}.png")
    return tmp_path / "images"


def original_call(images: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Every keyword of VQGanVAETrainer in muse-maskgit-pytorch 0.3.5."""
    return {
        "folder": str(images),
        "num_train_steps": 2,
        "batch_size": 4,
        "image_size": 16,
        "lr": 3e-4,
        "grad_accum_every": 1,
        "max_grad_norm": 1.0,
        "discr_max_grad_norm": 1.0,
        "save_results_every": 1,
        "save_model_every": 1,
        "results_folder": str(out),
        "valid_frac": 0.2,
        "random_split_seed": 42,
        "use_ema": True,
        "ema_beta": 0.9,
        "ema_update_after_step": 0,
        "ema_update_every": 1,
        "apply_grad_penalty_every": 4,
        "accelerate_kwargs": {"mixed_precision": "no"},
        **changes,
    }


def test_all_keywords_of_the_original_trainer_train(folder: Path, tmp_path: Path) -> None:
    call = original_call(folder, tmp_path / "run")
    trainer = muse_maskgit_pytorch.VQGanVAETrainer(small_vae(), **call)
    settings = trainer.config
    assert (settings.train.steps, settings.ema.decay, settings.optim.max_grad_norm, settings.checkpoint.every) == (
        2,
        0.9,
        1.0,
        1,
    )
    logs: list[dict[str, Any]] = []
    trainer.train(log_fn=logs.append)
    trainer.close()
    assert len(logs) == 2
    assert all({"loss", "discr_loss"} <= log.keys() for log in logs)
    assert logs[-1]["reconstructions"].ndim == 3
    assert (tmp_path / "run" / "vqgan-1" / "samples" / "step-00000002" / "reconstructions.png").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_train_steps": 0}, "num_train_steps"),
        ({"batch_size": -1}, "batch_size"),
        ({"valid_frac": 1.5}, "valid_frac"),
        ({"lr": -1.0}, "lr"),
        ({"ema_beta": 2.0}, "ema_beta"),
        ({"image_size": 24}, "image_size=24"),
        ({"num_train_step": 3}, "num_train_steps"),
        ({"folder": "does-not-exist"}, "does-not-exist"),
    ],
)
def test_invalid_values_of_the_original_keywords_are_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    call = original_call(folder, tmp_path / "run", **change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", compat.CompatibilityNotice)
        with pytest.raises(UsageError, match=message):
            muse_maskgit_pytorch.VQGanVAETrainer(small_vae(), **call)
    assert not (tmp_path / "run").exists()


def test_the_readme_form_gives_no_notice(folder: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = VQGanVAETrainer(small_vae(), data=str(folder), out=tmp_path / "run", steps=1, batch_size=4)
    trainer.close()


# --- the shortcut ---------------------------------------------------------------------------------------------------


def two_halves(count: int) -> Tensor:
    """Images with two degrees of freedom: a gray level, and a step between the halves of each patch of 4 pixels."""
    gray, height = torch.rand(2, count, 1, 1, 1, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    edge = (torch.arange(16) % 4 < 2).double() - 0.5
    return (0.25 + gray / 2 + edge * height / 4).expand(count, 3, 16, 16)


def test_shortcut_starts_as_the_principal_components_of_the_first_images() -> None:
    task = make_task(**{"model.shortcut": True, "model.codebook_size": 16})
    images = two_halves(64)
    batches = [
        Batch({"images": part}, tuple(map(str, range(16))), ItemRNG(0, [0] * 16, range(16)), torch.float64)
        for part in (images * 255).round().to(torch.uint8).split(16)
    ]
    task.init_from_data(task.modules, batches, Engine(task.config.engine))
    model, fresh = task.model, two_halves(4)
    with torch.no_grad():
        latents = model.latent_map(fresh)
        decoded = model.decode_vectors(latents.flatten(2).mT, latents.shape[-2:])
        torch.testing.assert_close(decoded, fresh, rtol=0, atol=0.01)
        assert (model.decode(model.encode(images)) - images).abs().mean() < 0.05
    assert make_task(**{"model.shortcut": False}).num_init_batches == 1
    assert task.num_init_batches > 1
