"""Image tokenizers of transformers and diffusers: their codes and images, from a local folder, under a generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contract.cases import TINY_MUSE
from helpers import error_line, quintet, succeed
from quintet.families.vqgan.pretrained import PretrainedVQ
from quintet.pipelines.loading import open_pipeline

SIZE = 16


def janus() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.JanusVQVAEConfig(
        embed_dim=4, num_embeddings=32, latent_channels=32, base_channels=32, channel_multiplier=[1, 1], num_patches=8,
        num_res_blocks=1, projection_dim=8, num_hidden_layers=1, image_token_embed_dim=8,
    )  # fmt: skip
    return transformers.JanusVQVAE(config)


def emu3() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.Emu3VQVAEConfig(
        codebook_size=32, embed_dim=4, latent_channels=4, base_channels=32, channel_multiplier=[1, 1],
        num_res_blocks=1, attn_resolutions=[], hidden_size=32,
    )  # fmt: skip
    return transformers.Emu3VQVAE(config)


def diffusers_vq(lookup: bool = False) -> Any:
    diffusers = pytest.importorskip("diffusers", reason="the optional package diffusers is not installed")
    return diffusers.VQModel(
        in_channels=3, out_channels=3, block_out_channels=(32, 32), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, num_vq_embeddings=32, norm_num_groups=8,
        lookup_from_codebook=lookup,
    )  # fmt: skip


def looked_up() -> Any:
    return diffusers_vq(lookup=True)


def library_codes(model: Any, images: Tensor) -> Tensor:
    """The codes as the library computes them, of images in [-1, 1]."""
    if type(model).__name__ == "VQModel":
        return model.quantize(model.encode(images).latents)[2][2].view(len(images), 8, 8)  # type: ignore[no-any-return]
    if type(model).__name__ == "Emu3VQVAE":
        return torch.stack(list(model.encode(images, torch.tensor([[SIZE, SIZE]] * len(images))).image_tokens))
    return model.encode(images).image_tokens.view(len(images), 8, 8)  # type: ignore[no-any-return]


def library_images(model: Any, codes: Tensor) -> Tensor:
    if type(model).__name__ == "VQModel":
        shape = (*codes.shape, 4)
        known = (
            codes if model.config.lookup_from_codebook else model.quantize.get_codebook_entry(codes.flatten(), shape)
        )
        return model.decode(known, force_not_quantize=True, shape=shape).sample  # type: ignore[no-any-return]
    return model.decode(codes if type(model).__name__ == "Emu3VQVAE" else codes.flatten(1))  # type: ignore[no-any-return]


def saved(make: Callable[[], Any], folder: Path) -> Any:
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():  # codes that differ from each other
        model.quantize.embedding.weight.normal_()
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": SIZE, "width": SIZE}}))
    return model


@pytest.mark.parametrize("make", [janus, emu3, diffusers_vq, looked_up])
def test_codes_and_images_are_those_of_the_library(make: Callable[[], Any], tmp_path: Path) -> None:
    model = saved(make, tmp_path / "model")
    tokenizer: Any = open_pipeline(tmp_path / "model")
    images = torch.rand(2, 3, SIZE, SIZE)
    codes = tokenizer.encode(images)
    assert torch.equal(codes, library_codes(model, images * 2 - 1))
    assert codes.unique().numel() > 1
    expected = ((library_images(model, codes) + 1) / 2).clamp(0, 1)
    assert torch.equal(tokenizer.decode(codes), expected)
    assert (tokenizer.model.code_shape, tokenizer.model.num_codes, tokenizer.model.config.size) == (
        (8, 8),
        32,
        (16, 16),
    )


@pytest.mark.parametrize("make", [janus, diffusers_vq])
def test_a_generator_is_trained_on_them_and_exported_with_them(
    make: Callable[[], Any], pictures: Path, tmp_path: Path
) -> None:
    saved(make, tmp_path / "model")
    words = [word for word in TINY_MUSE if not word.startswith("tokenizer=")]
    more = ("train.steps=2", "loss.codebook_smoothing=1.0")
    run = tmp_path / "run"
    succeed("train", "muse", pictures, "--tokenizer", tmp_path / "model", "--out", run, *words, *more)
    succeed("export", run, tmp_path / "hub")
    own, copied = (open_pipeline(each) for each in (tmp_path / "model", tmp_path / "hub" / "tokenizer"))
    assert own.digest == copied.digest
    succeed("sample", tmp_path / "hub", "--text", "a red circle", "--num", 1, "--out", tmp_path / "out")
    assert list((tmp_path / "out").rglob("*.png"))


def test_other_settings_of_the_same_weights_are_another_tokenizer(tmp_path: Path) -> None:
    saved(janus, tmp_path / "model")
    before = open_pipeline(tmp_path / "model").digest
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**settings, "dropout": 0.5}))
    assert open_pipeline(tmp_path / "model").digest != before


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"model_type": "chameleon_vqgan"}, "is a transformers model of type chameleon_vqgan; supported types: janus_"),
        ({"_class_name": "AutoencoderKL", "_diffusers_version": "0.34.0"}, "is a diffusers model of type Autoencoder"),
    ],
)
def test_a_folder_of_another_kind_is_refused(
    settings: dict[str, str], expected: str, pictures: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    words = ("train", "muse", pictures, "--tokenizer", tmp_path / "model", "--out", tmp_path / "run")
    outcome = quintet(*words)
    assert outcome.code == 2
    assert expected in error_line(outcome.errors)


def test_weights_in_a_pickle_are_refused(pictures: Path, tmp_path: Path) -> None:
    model = saved(janus, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")
    outcome = quintet("train", "muse", pictures, "--tokenizer", tmp_path / "model", "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "has no safetensors weights, and quintet reads no pickle" in error_line(outcome.errors)


def test_a_model_without_the_configuration_of_its_library_is_refused() -> None:
    from quintet.errors import UsageError

    with pytest.raises(UsageError, match=r"needs model\.pretrained_config"):
        PretrainedVQ(image_size=SIZE)
