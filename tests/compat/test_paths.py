"""The modules of the original packages have their public names, and messages name the arguments of the user."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
import torch

from compat.usages.meshgpt_pytorch import transformer
from compat.usages.soundstorm_pytorch import wrapper
from quintet.compat import CompatibilityNotice
from quintet.compat.meshgpt_pytorch.data import custom_collate, derive_face_edges_from_faces
from quintet.compat.musiclm_pytorch.distributed import AllGather
from quintet.compat.soundstorm_pytorch import SoundStorm
from quintet.compat.soundstorm_pytorch.attend import Attend
from quintet.errors import UsageError


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("musiclm_pytorch.musiclm_pytorch", "MuLaN MuLaNEmbedQuantizer MusicLM AudioSpectrogramTransformer"),
        ("musiclm_pytorch.musiclm_pytorch", "TextTransformer SigmoidContrastiveLearning SoftmaxContrastiveLearning"),
        ("musiclm_pytorch.trainer", "MuLaNTrainer"),
        ("musiclm_pytorch.distributed", "AllGather"),
        ("meshgpt_pytorch.meshgpt_pytorch", "MeshAutoencoder MeshTransformer"),
        ("meshgpt_pytorch.trainer", "MeshAutoencoderTrainer MeshTransformerTrainer"),
        ("meshgpt_pytorch.data", "DatasetFromTransforms cache_text_embeds_for_dataset cache_face_edges_for_dataset"),
        ("soundstorm_pytorch.soundstorm", "SoundStorm SoundStream ConformerWrapper Conformer"),
        ("soundstorm_pytorch.trainer", "SoundStormTrainer"),
        ("soundstorm_pytorch.attend", "Attend"),
    ],
)
def test_a_module_of_an_original_package_has_its_names(path: str, names: str) -> None:
    module = importlib.import_module(f"quintet.compat.{path}")
    package = importlib.import_module(f"quintet.compat.{path.partition('.')[0]}")
    for name in names.split():
        assert getattr(module, name) is getattr(package, name, getattr(module, name))


def test_neighbours_of_faces_share_an_edge_or_a_vertex() -> None:
    faces = torch.tensor([[0, 1, 2], [2, 1, 3], [3, 4, 5], [-1, -1, -1]])
    assert derive_face_edges_from_faces(faces).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [2, 2]]
    assert derive_face_edges_from_faces(faces, include_self=False).tolist() == [[0, 1], [1, 0]]
    by_vertex = derive_face_edges_from_faces(faces, neighbor_if_share_one_vertex=True, include_self=False)
    assert by_vertex.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    batch = derive_face_edges_from_faces(torch.stack([faces, faces.roll(1, 0).masked_fill(faces == 5, -1)]))
    assert batch.shape == (2, 5, 2)


def test_items_of_different_lengths_are_padded() -> None:
    items = [{"faces": torch.ones(size, 3), "texts": f"mesh {size}"} for size in (2, 3)]
    batch = custom_collate(items)
    assert batch["texts"] == ["mesh 2", "mesh 3"]
    assert batch["faces"].shape == (2, 3, 3)
    assert (batch["faces"][0, 2] == -1).all()
    tensors, texts = custom_collate([tuple(item.values()) for item in items], pad_id=-2)
    assert (tensors[0, 2] == -2).all()
    assert texts == ["mesh 2", "mesh 3"]


def test_a_single_process_gathers_its_own_rows() -> None:
    x = torch.randn(3, 2)
    assert AllGather(dim=0)(x) == (x, None)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_ignores_masked_and_later_keys(causal: bool) -> None:
    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    mask = torch.arange(5) < torch.tensor([5, 3])[:, None]
    out = Attend(causal=causal)(q, k, v, mask=mask)
    changed = v.clone()
    changed[1, 3:] += 1
    assert torch.equal(Attend(causal=causal, flash=True)(q, k, changed, mask=mask), out)
    changed[:, 2] += 1
    later = Attend(causal=causal)(q, k, changed, mask=mask)
    assert torch.equal(later[:, :, :2], out[:, :, :2]) == causal


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda model: model(codes=torch.zeros(1, 48, dtype=torch.long)), r"48 codes .* max_seq_len=36"),
        (lambda model: model.generate(torch.zeros(1, 48, dtype=torch.long)), r"prompt of 48 codes .* max_seq_len=36"),
        (lambda model: model.generate(torch.full((1, 6), 64)), r"code 64, with codebook_size=64"),
        (lambda model: model.generate(max_seq_len=48), r"max_seq_len=48 is not between 6"),
    ],
)
def test_a_mesh_transformer_names_the_argument_of_the_user(use: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        use(transformer(max_seq_len=36))


def test_codes_outside_of_the_codebook_are_named_by_the_argument_of_the_user() -> None:
    with pytest.raises(UsageError, match="codes up to 64, with codebook_size=64"):
        SoundStorm(wrapper())(torch.full((2, 8, 3), 64))
