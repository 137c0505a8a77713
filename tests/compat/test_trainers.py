"""Trainers of the original packages: what is written where, logs, loading, and resuming exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import lr_scheduler

from compat.trainers import MAKERS, Items, make_autoencoder, make_mulan, make_phenaki, make_vqgan, mesh, vae
from helpers import DEADLINE
from quintet.common.processes import is_alive
from quintet.compat import CompatibilityNotice, muse_maskgit_pytorch
from quintet.compat.tables import TRAINERS
from quintet.errors import QuintetError, UsageError

STEPS = {name: "train_num_steps" if name == "PhenakiTrainer" else "num_train_steps" for name in TRAINERS}
SAVES = {
    **dict.fromkeys(("MuLaNTrainer", "SoundStormTrainer", "VQGanVAETrainer", "CViViTTrainer"), "save_model_every"),
    "PhenakiTrainer": "save_and_sample_every",
    **dict.fromkeys(("MeshAutoencoderTrainer", "MeshTransformerTrainer"), "checkpoint_every"),
}


@pytest.fixture(autouse=True)
def no_notices() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CompatibilityNotice)
        yield


def weights(trainer: Any) -> dict[str, Tensor]:
    groups = trainer.own.state.contents(1, "").tensors
    return {f"{group}/{name}": value.clone() for group, tensors in groups.items() for name, value in tensors.items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def make(name: str, folder: Path, **options: Any) -> Any:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    return MAKERS[name](folder, **{STEPS[name]: 4, SAVES[name]: 2, **options})


@pytest.mark.parametrize("name", TRAINERS)
def test_steps_in_a_loop_equal_the_whole_training_and_its_files(name: str, tmp_path: Path) -> None:
    whole, by_hand = make(name, tmp_path / "whole"), make(name, tmp_path / "by-hand")
    whole.train()
    for _ in range(4):
        by_hand.train_step()
    assert equal(weights(whole), weights(by_hand))
    files = [
        sorted(path.relative_to(trainer.own.run.folder).as_posix() for path in trainer.own.run.folder.rglob("*"))
        for trainer in (whole, by_hand)
    ]
    assert files[0] == files[1]
    assert {"checkpoints/step-00000002", "checkpoints/step-00000004", "metrics.jsonl"} <= set(files[0])
    assert json.loads((by_hand.own.run.folder / "state.json").read_text(encoding="utf-8"))["status"] == "finished"


@pytest.mark.parametrize("name", TRAINERS)
def test_a_checkpoint_has_its_original_name_and_continues_exactly(name: str, tmp_path: Path) -> None:
    straight = make(name, tmp_path / "straight")
    straight.train()
    link = straight._results / straight.checkpoint_name.format(step=2, number=1)
    assert link.is_symlink()
    other = make(name, tmp_path / "other")
    other.train_step()
    if name == "PhenakiTrainer":
        super(type(other), other).load(link)
    else:
        other.load(link)
    assert other.own.step == 2
    other.train()
    assert equal(weights(other), weights(straight))


@pytest.mark.parametrize("name", TRAINERS)
def test_saving_to_a_path_and_loading_it(name: str, tmp_path: Path) -> None:
    trainer = make(name, tmp_path / "run")
    trainer.train_step()
    path: Any = 7 if name == "PhenakiTrainer" else tmp_path / "mine.pt"
    trainer.save(path)
    saved = weights(trainer)
    trainer.train_step()
    trainer.save(8 if name == "PhenakiTrainer" else tmp_path / "later.pt")
    trainer.load(path)
    assert equal(weights(trainer), saved)
    trainer.save(path)  # replaces what it wrote before
    folder = trainer.results_folder / "model-7.pt" if name == "PhenakiTrainer" else path
    assert (folder / "meta.json").is_file()
    trainer.load(path, restore_optimizer=False)
    assert trainer.own.step == 0
    loaded = weights(trainer)
    assert not [key for key in loaded if key.startswith("optim/")]
    assert all(torch.equal(value, saved[key]) for key, value in loaded.items())


@pytest.mark.parametrize("name", TRAINERS)
def test_a_pickle_is_neither_opened_nor_replaced(name: str, tmp_path: Path) -> None:
    trainer = make(name, tmp_path / "run")
    results = getattr(trainer, trainer.results_attribute)
    file = results / "model-5.pt" if name == "PhenakiTrainer" else tmp_path / "old.pt"
    file.write_bytes(b"a pickle")
    for method in (trainer.load, trainer.save):
        with pytest.raises(UsageError, match=file.name):
            method(5 if name == "PhenakiTrainer" else file)
    assert file.read_bytes() == b"a pickle"


SCHEDULES: list[dict[str, Any]] = [
    {"scheduler": lr_scheduler.StepLR, "scheduler_kwargs": {"step_size": 2, "gamma": 0.5}},
    {"scheduler": lr_scheduler.LambdaLR, "scheduler_kwargs": {"lr_lambda": lambda step: 1 / (step + 1)}},
    {},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["StepLR", "LambdaLR", "none"])
def test_an_interrupted_run_resumes_exactly(schedule: dict[str, Any], tmp_path: Path) -> None:
    options = {**schedule, "optimizer_kwargs": {"amsgrad": True}, "warmup_steps": 2, "weight_decay": 0.1}
    straight = make("MeshAutoencoderTrainer", tmp_path / "straight", **options)
    straight.train()
    interrupted = make("MeshAutoencoderTrainer", tmp_path / "run", **options)
    for _ in range(3):
        interrupted.train_step()
    interrupted.close()
    torch.manual_seed(5)  # another seed of the script changes nothing
    resumed = make_autoencoder(tmp_path / "run", num_train_steps=4, checkpoint_every=2, resume=True, **options)
    assert resumed.own.step == 2
    resumed.train()
    assert equal(weights(resumed), weights(straight))
    rates = [straight.warmup(step) for step in range(4)]
    assert rates == [resumed.warmup(step) for step in range(4)]
    assert (rates[3] < 1e-4) == ("scheduler" in schedule)


def test_the_scheduler_is_recorded_in_the_configuration(tmp_path: Path) -> None:
    trainer = make("MeshAutoencoderTrainer", tmp_path, **SCHEDULES[0])
    text = (trainer.own.run.folder / "config.yaml").read_text(encoding="utf-8")
    assert "scheduler: StepLR(step_size=2, gamma=0.5)" in text


def test_a_seed_of_torch_makes_a_script_reproducible(tmp_path: Path) -> None:
    losses = [make("MuLaNTrainer", tmp_path / name).train_step()["loss"] for name in ("one", "two")]
    assert losses[0] == losses[1]
    torch.manual_seed(1)
    assert make_mulan(tmp_path / "two").train_step()["loss"] != losses[0]


def test_each_trainer_of_a_folder_has_its_own_run(tmp_path: Path) -> None:
    folders = [make_vqgan(tmp_path).own.run.folder for _ in range(2)]
    assert [folder.name for folder in folders] == ["vqgan-1", "vqgan-2"]
    with pytest.raises(UsageError, match="has no run to resume"):
        make_mulan(tmp_path, resume=True)


def test_a_model_that_was_trained_keeps_its_codebook(tmp_path: Path) -> None:
    model = vae(lookup_free_quantization=False)
    images = torch.rand(2, 3, 16, 16)
    model(images, return_loss=True).backward()
    model.training_parts()  # applies the statistics of the last pass
    before = {name: value.clone() for name, value in model.model.quantizer.state_dict().items()}
    options = {"folder": str(tmp_path / "photos"), "image_size": 16, "batch_size": 2, "num_train_steps": 2}
    make_vqgan(tmp_path)  # makes the pictures
    trainer = muse_maskgit_pytorch.VQGanVAETrainer(model, results_folder=str(tmp_path / "other"), **options)
    after = trainer.vae.model.quantizer.state_dict()
    assert all(torch.equal(value, before[name]) for name, value in after.items())
    trainer.train()
    trainer.vae(images, return_loss=True).backward()


FORMS: dict[str, Any] = {
    "two values": mesh,
    "a dictionary": lambda index: dict(zip(("vertices", "faces"), mesh(index), strict=True)),
    "with face edges": lambda index: (*mesh(index), torch.tensor([[0, 1], [1, 0]])),
    "with a text that is ignored": lambda index: (*mesh(index), torch.tensor([[0, 1]]), "a box"),
}


@pytest.mark.parametrize("form", FORMS)
def test_items_of_meshes_are_routed_as_in_the_original(form: str, tmp_path: Path) -> None:
    trainer = make_autoencoder(tmp_path, dataset=Items(FORMS[form]), val_dataset=None, num_train_steps=1)
    trainer()
    assert trainer.step == 1


def test_the_names_of_the_data_set_take_precedence(tmp_path: Path) -> None:
    data: Any = Items(lambda index: mesh(index)[::-1])
    data.data_kwargs = ["faces", "vertices"]
    make_autoencoder(tmp_path, dataset=data, val_dataset=None, num_train_steps=1)()
    swapped = Items(lambda index: mesh(index)[::-1])
    make_autoencoder(
        tmp_path, dataset=swapped, val_dataset=None, data_kwargs=["faces", "vertices"], num_train_steps=1
    )()
    with pytest.raises(QuintetError):
        make_autoencoder(tmp_path, dataset=swapped, val_dataset=None, num_train_steps=1)()


def test_fields_of_videos_by_name(tmp_path: Path) -> None:
    data = Items(lambda index: ("a clip", torch.rand(3, 5, 16, 16)))
    trainer = make_phenaki(tmp_path, dataset=data, dataset_fields=("texts", "videos"), train_num_steps=1)
    trainer.train()
    assert trainer.data_tuple_to_kwargs(["text", 3]) == {"texts": "text", "videos": 3}
    with pytest.raises(UsageError, match="dataset_fields are different names of videos, texts"):
        make_phenaki(tmp_path, dataset=data, dataset_fields=("texts", "clips"))


ENDS_EARLY = """
import sys
from multiprocessing import active_children
from pathlib import Path
from compat.trainers import make_phenaki

trainer = make_phenaki(Path(sys.argv[1]), config={"data.num_workers": 2})
trainer.train_step()
print(*(child.pid for child in active_children()))
"""


def test_a_script_that_ends_between_two_steps_exits_without_workers(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", ENDS_EARLY, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    workers = [int(word) for word in done.stdout.split()]
    assert len(workers) == 2
    assert not [worker for worker in workers if is_alive(worker)]
