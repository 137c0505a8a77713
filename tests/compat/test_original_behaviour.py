"""What scripts of the originals rely on beyond the documented calls: averages on disk, few items, further steps, exact
splits, quiet construction and quick deletion."""

from __future__ import annotations

import gc
import warnings
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import random_split

from compat.trainers import (
    MAKERS,
    Items,
    make_autoencoder,
    make_cvivit,
    make_mulan,
    make_phenaki,
    make_soundstorm,
    make_vqgan,
    mesh,
    phenaki,
    vae,
)
from quintet.compat import CompatibilityNotice
from quintet.compat.tables import TRAINERS
from quintet.errors import UsageError


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


@pytest.mark.parametrize("make", [make_vqgan, make_cvivit], ids=["VQGanVAETrainer", "CViViTTrainer"])
def test_the_average_of_a_tokenizer_is_saved_for_the_model(make: Any, tmp_path: Path) -> None:
    trainer = make(tmp_path, num_train_steps=3, save_model_every=2, ema_beta=0.9)
    for _ in range(2):
        trainer.train_step()
    averaged = {name: value.clone() for name, value in trainer.ema_vae.ema_model.state_dict().items()}
    trainer.train_step()
    names = sorted(path.name for path in (tmp_path / "results").glob("*.pt"))
    assert names == ["vae.2.ema.pt", "vae.2.pt"]
    model = vae() if make is make_vqgan else phenaki().cvivit
    model.load(tmp_path / "results" / "vae.2.ema.pt")
    loaded = model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in averaged.items() if not name.startswith("discr"))


def test_without_an_average_there_is_no_folder_for_it(tmp_path: Path) -> None:
    make_vqgan(tmp_path, num_train_steps=1, save_model_every=1, use_ema=False).train()
    assert [path.name for path in (tmp_path / "results").glob("*.pt")] == ["vae.1.pt"]


def test_a_file_with_the_name_of_an_average_stays(tmp_path: Path) -> None:
    trainer = make_vqgan(tmp_path, num_train_steps=1, save_model_every=1)
    file = tmp_path / "results" / "vae.1.ema.pt"
    file.write_bytes(b"a pickle")
    trainer.train()
    assert file.read_bytes() == b"a pickle"


def test_a_micro_batch_that_fits_trains_on_fewer_items_than_a_step_has(tmp_path: Path) -> None:
    trainer = make_autoencoder(tmp_path, dataset=Items(mesh, 1), val_dataset=None, batch_size=1, grad_accum_every=2)
    trainer.train_step()
    assert trainer.own.step == 1


def test_a_micro_batch_larger_than_the_data_is_refused_by_the_keyword_of_the_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^batch_size=2 is larger than the training data of 1 items; use batch"):
        make_autoencoder(tmp_path, dataset=Items(mesh, 1), val_dataset=None)
    with pytest.raises(UsageError, match=r"^batch_size x grad_accum_every=4 is larger than the training data of 1 "):
        make_autoencoder(tmp_path, dataset=Items(mesh, 1), val_dataset=None, grad_accum_every=2)


@pytest.mark.parametrize("name", TRAINERS)
def test_steps_after_the_last_one_go_on(name: str, tmp_path: Path) -> None:
    steps = "train_num_steps" if name == "PhenakiTrainer" else "num_train_steps"
    trainer = MAKERS[name](tmp_path, **{steps: 1})
    for _ in range(3):
        trainer.train_step()
    assert trainer.own.step == 3
    assert getattr(trainer, steps) == 1
    trainer.train()  # as the original: all steps are done
    assert trainer.own.step == 3


def test_a_cosine_stays_at_its_end_after_the_last_step(tmp_path: Path) -> None:
    trainer = make_soundstorm(tmp_path, num_train_steps=2, num_warmup_steps=0)
    for _ in range(3):
        trainer.train_step()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train_step()
    assert trainer.optim.param_groups[0]["lr"] == 0.0
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(("count", "fraction"), [(100, 0.05), (40, 0.1), (7, 0.3)])
def test_a_data_set_is_split_as_in_the_original(count: int, fraction: float, tmp_path: Path) -> None:
    data = Items(lambda index: (torch.randn(1024), torch.randint(0, 300, (16,))), count)
    trainer = make_mulan(tmp_path, dataset=data, valid_frac=fraction, random_split_seed=3)
    size = int((1 - fraction) * count)
    train, valid = random_split(data, [size, count - size], torch.Generator().manual_seed(3))
    assert list(trainer.ds.indices) == list(train.indices)
    assert list(trainer.valid_ds.indices) == list(valid.indices)


def test_an_empty_side_of_a_split_is_not_possible(tmp_path: Path) -> None:
    data = Items(lambda index: (torch.randint(0, 5, (10,)), torch.randint(0, 9, (20, 3))), 1)
    trainer = make_soundstorm(tmp_path, dataset=data, valid_frac=0.05, batch_size=1)
    assert len(trainer.ds) == len(trainer.valid_ds) == 1


def test_the_fields_of_a_data_set_are_known_after_a_step(tmp_path: Path) -> None:
    trainer = make_phenaki(tmp_path)
    assert trainer.dataset_fields is None
    trainer.train_step()
    assert trainer.dataset_fields == ("videos", "texts")
    named = make_phenaki(tmp_path, dataset_fields=("videos", "texts"))
    assert named.dataset_fields == ("videos", "texts")


def test_a_deleted_trainer_ends_its_data_workers_at_once(tmp_path: Path) -> None:
    trainer = make_phenaki(tmp_path, train_num_steps=100, config={"data.num_workers": 2})
    trainer.train_step()
    workers = active_children()
    assert len(workers) == 2
    del trainer
    gc.collect()
    assert {worker.exitcode for worker in workers} == {-9}  # without waiting until they have read all batches


@pytest.mark.parametrize("name", TRAINERS)
def test_keywords_that_only_have_another_name_cause_no_warning(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        MAKERS[name](tmp_path)
    texts = [str(each.message) for each in caught]
    assert not [text for text in texts if text.startswith(name)]
