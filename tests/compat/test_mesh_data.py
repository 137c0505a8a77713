"""The mesh trainers take the meshes of a user's data set as they are, and read them at every step."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from compat.trainers import Items, make_autoencoder, make_phenaki, mesh
from compat.usages.meshgpt_pytorch import autoencoder, transformer
from quintet.common.rng import ItemRNG
from quintet.compat import CompatibilityNotice
from quintet.compat.meshgpt_pytorch import MeshTransformerTrainer
from quintet.errors import UsageError

VERTICES = torch.tensor([[-0.5, -0.5, 0.0], [0.5, -0.5, 0.0], [0.5, 0.5, 0.2], [-0.5, 0.5, 0.0]])
FACES = torch.tensor([[2, 3, 0], [1, 1, 2], [0, 1, 2], [2, 3, 0], [-1, -1, -1]])
"""Not sorted: a degenerate face, a duplicate and padding."""


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


def item_of(trainer: Any, item: int = 0) -> dict[str, Any]:
    loaded: dict[str, Any] = trainer.own.splits.train.load(item, ItemRNG(0, [0], [item]))
    return loaded


def rows(codes: Tensor, model: Any) -> Tensor:
    """Codes of `tokenize` without padding, one row for each face."""
    valid = codes[(codes != -1).all(-1)]
    return valid.reshape(-1, model.model.tokens_per_face)


def train_transformer(folder: Path, data: Any, model: Any) -> Any:
    settings: dict[str, Any] = {"num_train_steps": 2, "batch_size": 2, "grad_accum_every": 1}
    return MeshTransformerTrainer(model, data, **settings, checkpoint_folder=str(folder / "checkpoints"))


def test_an_autoencoder_gets_all_faces_in_the_order_of_the_user(tmp_path: Path) -> None:
    trainer = make_autoencoder(tmp_path, dataset=Items(lambda index: (VERTICES, FACES)), val_dataset=None)
    loaded = item_of(trainer)
    assert torch.equal(loaded["faces"], FACES[:4])
    assert torch.equal(loaded["vertices"], VERTICES)
    trainer.train_step()


def test_the_codes_of_the_training_are_those_of_tokenize(tmp_path: Path) -> None:
    model = transformer(max_seq_len=96)
    trainer = train_transformer(tmp_path, Items(lambda index: (VERTICES, FACES)), model)
    codes = model.autoencoder.tokenize(VERTICES, FACES)
    assert torch.equal(item_of(trainer)["codes"], rows(codes, model))
    trainer()


def test_face_edges_of_the_user_reach_the_model(tmp_path: Path) -> None:
    edges = torch.tensor([[0, 3], [3, 1], [1, 1], [-1, -1]])
    model = transformer(max_seq_len=96)
    trainer = train_transformer(tmp_path, Items(lambda index: (VERTICES, FACES, edges)), model)
    with_edges = rows(model.autoencoder.tokenize(VERTICES, FACES, edges), model)
    assert not torch.equal(with_edges, rows(model.autoencoder.tokenize(VERTICES, FACES), model))
    assert torch.equal(item_of(trainer)["codes"], with_edges)


def test_meshes_outside_of_the_range_are_trained_on_and_said_once(tmp_path: Path) -> None:
    data = Items(lambda index: (3 * torch.randn(121, 3), torch.randint(0, 121, (6, 3))), 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make_autoencoder(tmp_path, dataset=data, val_dataset=None, num_train_steps=2)
        trainer()
    said = [str(each.message) for each in caught if "outside of coor_continuous_range=(-1, 1)" in str(each.message)]
    assert len(said) == 1
    assert trainer.own.step == 2


def test_coordinates_have_the_range_of_the_autoencoder(tmp_path: Path) -> None:
    model = autoencoder(coor_continuous_range=(-2.0, 2.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make_autoencoder(
            tmp_path, model=model, dataset=Items(lambda index: (3 * VERTICES, FACES)), val_dataset=None
        )
    assert not [each for each in caught if "outside of" in str(each.message)]
    torch.testing.assert_close(item_of(trainer)["vertices"], 1.5 * VERTICES)


def test_another_pad_id_is_padding_too(tmp_path: Path) -> None:
    model = autoencoder(pad_id=-5)
    faces = FACES.masked_fill(FACES == -1, -5)
    trainer = make_autoencoder(tmp_path, model=model, dataset=Items(lambda index: (VERTICES, faces)), val_dataset=None)
    assert torch.equal(item_of(trainer)["faces"], FACES[:4])


class Random(Items):
    """A data set whose items are others whenever they are read, with captions that name them."""

    def __init__(self, make: Any) -> None:
        super().__init__(make, 4)
        self.reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.make(self.reads)


def test_a_random_data_set_of_meshes_is_read_and_encoded_at_every_step(tmp_path: Path) -> None:
    data = Random(lambda read: (*mesh(read % 8), None, f"box {read}"))
    model = transformer(max_seq_len=96, condition_on_text=True)
    trainer = train_transformer(tmp_path, data, model)
    first, second = item_of(trainer), item_of(trainer)
    assert first["texts"] != second["texts"]
    for item in (first, second):  # the codes and the caption are those of one reading
        read = int(item["texts"].split()[1])
        assert torch.equal(item["codes"], rows(model.autoencoder.tokenize(*mesh(read % 8)), model))
    before = data.reads
    trainer.train_step()
    assert data.reads == before + 2


def test_a_random_data_set_of_videos_is_read_and_encoded_at_every_step(tmp_path: Path) -> None:
    data = Random(
        lambda read: (torch.rand(3, 5, 16, 16, generator=torch.Generator().manual_seed(read)), f"clip {read}")
    )
    trainer = make_phenaki(tmp_path, dataset=data, train_num_steps=2)
    first, second = item_of(trainer), item_of(trainer)
    assert not torch.equal(first["codes"], second["codes"])
    assert first["texts"] != second["texts"]
    trainer.train()


def test_a_mesh_that_is_too_large_is_named_by_the_argument_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="12 faces, more than the 6 faces of max_seq_len"):
        train_transformer(tmp_path, Items(lambda index: mesh(0)), transformer(max_seq_len=36))()
