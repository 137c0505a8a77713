"""Modules and attributes of the original packages below the public names: re-exported, or refused with a sentence."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from compat.usages.muse_maskgit_pytorch import tiny_vae
from compat.usages.phenaki_pytorch import tiny_cvivit
from quintet.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore::quintet.compat.CompatibilityNotice")

MODULES = {
    "phenaki_pytorch.phenaki_pytorch": "Phenaki CViViT MaskGit TokenCritic make_video",
    "phenaki_pytorch.cvivit": "CViViT",
    "phenaki_pytorch.cvivit_trainer": "CViViTTrainer",
    "phenaki_pytorch.phenaki_trainer": "PhenakiTrainer",
    "muse_maskgit_pytorch.vqgan_vae": "VQGanVAE",
    "muse_maskgit_pytorch.trainers": "VQGanVAETrainer",
    "muse_maskgit_pytorch.muse_maskgit_pytorch": "Transformer MaskGit Muse MaskGitTransformer TokenCritic",
    "musiclm_pytorch.musiclm_pytorch": "MuLaN MuLaNEmbedQuantizer AudioSpectrogramTransformer TextTransformer",
    "musiclm_pytorch.trainer": "MuLaNTrainer",
    "soundstorm_pytorch.soundstorm": "SoundStorm SoundStream ConformerWrapper Conformer",
    "soundstorm_pytorch.trainer": "SoundStormTrainer",
    "meshgpt_pytorch.meshgpt_pytorch": "MeshAutoencoder MeshTransformer",
    "meshgpt_pytorch.trainer": "MeshAutoencoderTrainer MeshTransformerTrainer",
    "meshgpt_pytorch.data": "DatasetFromTransforms",
}


@pytest.mark.parametrize("module", MODULES)
def test_names_are_importable_from_the_modules_of_the_original(module: str) -> None:
    package = importlib.import_module(f"quintet.compat.{module.partition('.')[0]}")
    found = importlib.import_module(f"quintet.compat.{module}")
    for name in MODULES[module].split():
        assert getattr(found, name) is getattr(package, name)


@pytest.mark.parametrize(
    ("module", "name", "sentence"),
    [
        ("phenaki_pytorch.t5", "t5_encode_text", "t5_name= a local folder"),
        ("phenaki_pytorch.attention", "Attention", "quintet.nn"),
        ("phenaki_pytorch.data", "VideoDataset", "folder="),
        ("phenaki_pytorch.optimizer", "get_optimizer", "torch.optim"),
        ("muse_maskgit_pytorch.t5", "t5_encode_text", "t5_name= a local folder"),
        ("muse_maskgit_pytorch.attend", "Attend", "quintet.nn"),
    ],
)
def test_names_without_a_counterpart_are_refused_with_a_sentence(module: str, name: str, sentence: str) -> None:
    with pytest.raises(ImportError, match=f"cannot import {name} from quintet.compat.{module}: .*{sentence}"):
        exec(f"from quintet.compat.{module} import {name}")


@pytest.mark.parametrize(
    ("make", "name", "sentence"),
    [
        (tiny_cvivit, "encode", "return_only_codebook_ids=True"),
        (tiny_cvivit, "vgg", "safetensors file of VGG-16"),
        (tiny_vae, "vgg", "safetensors file of VGG-16"),
    ],
)
def test_attributes_without_a_counterpart_are_refused_with_a_sentence(make: Any, name: str, sentence: str) -> None:
    model = make()
    with pytest.raises(AttributeError, match=f"has no '{name}': .*{sentence}"):
        getattr(model, name)


@pytest.mark.parametrize("make", [tiny_cvivit, tiny_vae])
def test_a_pickle_as_vgg_is_called_a_pickle(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "vgg.pt"
    torch.save({"features.0.weight": torch.zeros(64, 3, 3, 3)}, file)
    with pytest.raises(UsageError, match=r"vgg\.pt is a pickle, which quintet never opens; convert it to safetensors"):
        make(vgg=str(file))
