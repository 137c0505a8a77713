"""Every recipe that FSDP can shard: weights that are computed after sharding are byte for byte those of a model that is
built at once, and they are computed a tensor at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contract.cases import CASES, case_of
from contract.worlds import make_task
from quintet import registry
from quintet.training.distributed import deferred
from quintet.training.distributed.deferred import recording
from quintet.training.finetuning import choose_parameters
from quintet.training.task import Task

CPU = torch.device("cpu")
SHARDABLE = [name for name in CASES if registry.find(name).task_class().traits.shardable]
FURTHER: dict[str, tuple[tuple[str, ...], ...]] = {
    "muse": (("model.text=words", "model.code_patch_size=[2, 2]"), ("model.text=classes",), ("train.lora=2",)),
    "phenaki": (("model.text=words", "loss.critic=true"),),
    "soundstorm": (("model.position_embedding=false", "train.lora=2"),),
    "mesh-transformer": (("model.text=words", "model.face_buckets=4"), ("model.text=none", "train.lora=2")),
}
"""Keys that build other modules than the trainings of the contract do."""
BUILDS = [
    (recipe, keys) for recipe in SHARDABLE for keys in (*case_of(recipe).worlds.values(), *FURTHER.get(recipe, ()))
]


def sharded_task(recipe: str, data: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Task[Any]:
    """The task as one of two processes builds it, before its modules are sharded."""
    with monkeypatch.context() as patch:
        for name, value in {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}.items():
            patch.setenv(name, value)
        return make_task(recipe, data, (*words, "engine.fsdp=true"))


def tensors(task: Task[Any]) -> dict[str, Tensor]:
    return {f"{name}.{path}": tensor for name, module in task.modules.items() for path, tensor in all_of(module)}


def all_of(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Parameters and buffers, also those that are not saved."""
    return [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]


def fill(task: Task[Any]) -> None:
    """Compute the weights, of which one process keeps all."""
    assert task.deferred is not None
    task.deferred.shard(task.modules.values(), CPU, lambda: None)


def test_these_are_the_recipes_that_can_be_sharded() -> None:
    assert {"muse", "phenaki", "soundstorm", "mesh-transformer"} == {*SHARDABLE}


@pytest.mark.parametrize(
    ("recipe", "keys"), BUILDS, ids=lambda value: value if isinstance(value, str) else " ".join(value)
)
def test_weights_are_those_of_one_process(
    recipe: str, keys: tuple[str, ...], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*case_of(recipe).tiny, *keys)
    whole, task = make_task(recipe, data, words), sharded_task(recipe, data, words, monkeypatch)
    choose_parameters(whole)
    with recording(task):
        choose_parameters(task)
    assert all(parameter.is_meta for module in task.modules.values() for parameter in module.parameters())
    fill(task)
    expected, found = tensors(whole), tensors(task)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].stride() == tensor.stride(), name
        assert torch.equal(found[name], tensor), name
        assert found[name].requires_grad == tensor.requires_grad


@pytest.mark.parametrize("recipe", SHARDABLE)
def test_a_block_is_finished_before_the_next_is_begun(recipe: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*case_of(recipe).tiny, "model.depth=24", "model.text=none")
    task = sharded_task(recipe, data, words, monkeypatch)
    parameters = [parameter for module in task.modules.values() for parameter in module.parameters()]
    total, largest = (function(parameter.nbytes for parameter in parameters) for function in (sum, max))
    held: list[int] = []
    run = deferred._Memory.run

    def watched(memory: deferred._Memory, step: Any) -> None:
        run(memory, step)
        held.append(sum(tensor.nbytes for _, tensor in memory._made.values()))

    monkeypatch.setattr(deferred._Memory, "run", watched)
    fill(task)
    assert max(held) < max(4 * largest, total / 8)
