"""Two gloo processes against one: collectives and their gradients, statistics, and the loop on a toy, in fp64.

One pair of processes does everything once; the tests look at what it left.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, multiprocessing, nn
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from toy import BucketedTask, points, saved_hashes, toy_trainer, trained, weights

from quintet.common import collectives
from quintet.common.statistics import Statistics
from quintet.common.weights import checkpoint, tensor_groups
from quintet.common.weights.checkpoint import Contents
from quintet.config import EngineConfig
from quintet.errors import CheckpointError, UsageError
from quintet.training.distributed import sharding
from quintet.training.engine import Engine
from quintet.training.muon import orthogonal_of_shards, orthogonal_over_ranks
from quintet.training.run_folder import Run

WORLD = 2
CPU = torch.device("cpu")
MASK = torch.arange(6) < torch.tensor([6, 5, 1, 0])[:, None]
"""Far fewer chosen values in the second half."""


def batch() -> Tensor:
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def mine(tensor: Tensor, rank: int, world: int) -> Tensor:
    return tensor[rank * len(tensor) // world : (rank + 1) * len(tensor) // world]


# --- what one process and each of two compute ---------------------------------------------------------------------


def with_gradient(loss: Callable[[Tensor], Tensor], rank: int, world: int) -> dict[str, Tensor]:
    """A loss of this rank's part of a linear layer's output, with the gradient that DDP would compute."""
    weight = torch.linspace(-1, 1, 36, dtype=torch.float64).view(6, 6).requires_grad_()
    value = loss(mine(batch(), rank, world) @ weight)
    value.backward()
    assert weight.grad is not None
    found = {"loss": value.detach().clone(), "gradient": weight.grad}
    if world > 1:
        for each in found.values():
            dist.all_reduce(each)
            each.div_(world)
    return found


def losses(rank: int, world: int) -> dict[str, Tensor]:
    def summed(made: Tensor) -> Tensor:
        return collectives.sum_over_ranks(made.sum(0)).sin().sum()

    def gathered(made: Tensor) -> Tensor:
        rows = collectives.gather_rows(made)
        return (rows @ rows.T).logsumexp(0).sum()

    def masked(made: Tensor) -> Tensor:
        return collectives.mean_over_ranks(made.square(), mine(MASK, rank, world))

    def nothing_chosen(made: Tensor) -> Tensor:
        return collectives.mean_over_ranks(made.square(), torch.zeros_like(made))

    return {
        f"{loss.__name__} {name}": value
        for loss in (summed, gathered, masked, nothing_chosen)
        for name, value in with_gradient(loss, rank, world).items()
    }


def statistics(rank: int, world: int) -> dict[str, Tensor]:
    """Three micro-batches of a global batch of twelve rows, each shared out over the ranks."""
    rows = torch.arange(24, dtype=torch.float64).view(12, 2)
    total = Statistics()
    for micro in rows.chunk(3):
        share = mine(micro, rank, world)
        total = total + Statistics(
            {"sum": share.sum(0), "count": torch.tensor(len(share))},
            {"rows": share, "some": share[share[:, 0] % 6 == 0]},
        ).with_prefix("part")
    whole = total.over_ranks().strip_prefix("part")
    return {**{f"sums {name}": value for name, value in whole.sums.items()}, **whole.rows}


def momenta() -> list[Tensor]:
    """Five matrices, one, and two of another shape, so that the ranks have different numbers of them and of rows."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((5, 4, 4), (1, 3, 8), (2, 9, 2))]


def orthogonalised() -> dict[str, Tensor]:
    return {f"orthogonal {len(found)}": found for found in orthogonal_over_ranks(momenta())}


def orthogonalised_shards(rank: int, world: int) -> dict[str, Tensor]:
    """The full matrices, from the rows that each rank has of them."""
    if world == 1:
        full = orthogonal_over_ranks(momenta())
    else:
        shards = orthogonal_of_shards([stack.chunk(world, 1)[rank] for stack in momenta()], [4, 3, 9])
        full = [collectives.gather_uneven_rows(shard.transpose(0, 1)).transpose(0, 1) for shard in shards]
    return {f"orthogonal shards {len(found)}": found.contiguous() for found in full}


def everything(rank: int, world: int) -> dict[str, Tensor]:
    named = {f"statistics {key}": value for key, value in statistics(rank, world).items()}
    return {**losses(rank, world), **named, **orthogonalised(), **orthogonalised_shards(rank, world)}


# --- what only two processes can show -----------------------------------------------------------------------------

TEXTS = ["", "zwei: ü 漢字 🙂"]


def gradient_memory(engine: Engine) -> int:
    """The number of memory blocks that hold the gradients of a module with two parameters after a step."""
    net = nn.Linear(3, 2)
    wrapped = engine.wrap({"net": net}, find_unused_parameters=False)["net"]
    wrapped(torch.ones(1, 3)).sum().backward()
    return len(
        {parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters() if parameter.grad is not None}
    )


class NotingLinear(nn.Linear):
    """Remembers the data type of the weights that it computes with."""

    seen: torch.dtype | None = None

    def forward(self, input: Tensor) -> Tensor:
        self.seen = self.weight.dtype
        return super().forward(input)


def sharded_dtypes(precision: Any) -> list[str]:
    """The data types of gathered weights, of the shards and of their gradients."""
    engine = Engine(EngineConfig(device="cpu", fsdp=True, precision=precision))
    net = NotingLinear(3, 2)
    engine.shard({"net": net})
    with engine.autocast():
        loss = net(torch.ones(1, 3)).float().sum()
    loss.backward()
    assert net.weight.grad is not None
    return [str(dtype) for dtype in (net.seen, net.weight.dtype, net.weight.grad.dtype)]


def between_ranks(rank: int) -> dict[str, Any]:
    rows = torch.arange(3.0)[:, None] + 10 * rank if rank else torch.zeros(0, 1)
    replaced = collectives.broadcast(torch.full((2, 3), float(rank)).T)
    engine = Engine(EngineConfig(device="cpu"))
    with pytest.raises(UsageError) as refused:
        Engine(EngineConfig(device="cpu", world_size=3))
    return {
        "uneven rows": collectives.gather_uneven_rows(rows).tolist(),
        "no rows at all": list(collectives.gather_uneven_rows(torch.zeros(0, 4)).shape),
        "texts": collectives.gather_texts(TEXTS[rank], CPU),
        "no texts": collectives.gather_texts("", CPU),
        "broadcast": replaced.tolist(),
        "maximum": collectives.maximum_over_ranks(torch.tensor([rank, -rank])).tolist(),
        "flags": engine.any_rank(rank == 0, torch.tensor(rank == 1), False, torch.tensor(False)),
        "from main": engine.from_main(7 + rank),
        "place": [engine.rank, engine.world_size, engine.is_main, engine.is_distributed],
        "refused": str(refused.value),
        "gradient memory": gradient_memory(engine),
        "dtypes": {precision: sharded_dtypes(precision) for precision in ("fp32", "bf16")},
    }


def write_in_parts(rank: int, folder: Path) -> dict[str, Any]:
    """A checkpoint of which each process has a part; then another, in the way of which is one process's disk."""
    module = nn.Linear(3, 5, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.arange(15).view(5, 3))
    sharding.shard_modules({"net": module}, CPU)
    tied = {**module.state_dict(), "tied": module.weight, "plain": torch.tensor([True, False])}
    made = Contents({"net": tied, "deep/er": module.state_dict()}, {"meta": {"step": 1}}, {"note": "ü"})
    sharding.write(folder, 1, made, CPU)

    refused = ""
    (folder / "full").mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(sharding, "_local_hashes", no_space)
        try:
            sharding.write(folder / "full", 2, made, CPU)
        except OSError as error:
            refused = str(error)
    return {"refused": refused, "own rows": len(sharding.local_tensor(module.weight))}


def no_space(folder: Path) -> dict[str, str]:
    raise OSError(errno.ENOSPC, "No space left on device", str(folder / "a part"))


# --- the loop on a toy --------------------------------------------------------------------------------------------

LOOP: dict[str, Any] = {
    "engine__precision": "fp64",
    "train__grad_accum_steps": 2,
    "train__batch_size": 8,
    "model__critic": True,
    "model__critic_start": 2,
    "eval__every": 2,
    "eval__batch_size": 3,
    "sample__every": 3,
    "train__steps": 6,
}
POISONED = {"num": 24, "poisoned": frozenset({5}), "broken": frozenset({7})}
"""One item of the 24 is NaN and one cannot be read, whichever rank gets it."""


def train_toys(folder: Path) -> dict[str, dict[str, Tensor]]:
    found = {}
    for name, options in {
        "plain": LOOP,
        "poisoned": {**LOOP, "data": points(**POISONED)},
        "bucketed": {**LOOP, "kind": BucketedTask},
        "sharded": {**LOOP, "engine__fsdp": True, "data": points(**POISONED)},
    }.items():
        trainer = toy_trainer(folder / name, **options)
        trainer.train()
        found[name] = weights(trainer)
        order = getattr(trainer.task, "order", [])
        found[name]["order"] = torch.tensor([int(point.split("-")[1]) for point in order])
        trainer.close()
    return found


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=WORLD)
    try:
        save_file(everything(rank, WORLD), f"{folder}/everything-{rank}.safetensors")
        parts = write_in_parts(rank, Path(folder) / "parts")
        Path(f"{folder}/parts-{rank}.json").write_text(json.dumps(parts), encoding="utf-8")
        Path(f"{folder}/between-{rank}.json").write_text(json.dumps(between_ranks(rank)), encoding="utf-8")
        for name, tensors in train_toys(Path(folder) / "runs").items():
            own = {key: value.contiguous().clone() for key, value in tensors.items()}
            save_file(own, f"{folder}/{name}-{rank}.safetensors")
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(work, (str(folder),), nprocs=WORLD)
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Tensor]]]:
    """The same runs in this process."""
    folder = tmp_path_factory.mktemp("alone")
    return folder, train_toys(folder)


# --- collectives --------------------------------------------------------------------------------------------------


def test_losses_gradients_and_statistics_are_those_of_one_process(ranks: Path) -> None:
    one = everything(0, 1)
    for rank in range(WORLD):
        two = load_file(ranks / f"everything-{rank}.safetensors")
        assert two.keys() == one.keys()
        for name, value in one.items():
            torch.testing.assert_close(
                two[name], value, rtol=1e-13, atol=1e-13, msg=lambda text, n=name: f"{n}: {text}"
            )
    assert one["gathered gradient"].abs().max() > 1e-3
    assert one["masked gradient"].abs().max() > 1e-3


def test_rows_are_in_the_order_of_the_global_batch(ranks: Path) -> None:
    two = load_file(ranks / "everything-1.safetensors")
    assert two["statistics rows"][:, 0].tolist() == list(range(0, 24, 2))
    assert two["statistics some"][:, 0].tolist() == [0, 6, 12, 18]
    assert two["statistics sums count"] == 12


def test_gradients_are_views_of_the_bucket_that_is_reduced(ranks: Path) -> None:
    for rank in range(WORLD):
        assert json.loads((ranks / f"between-{rank}.json").read_text())["gradient memory"] == 1


def test_sharded_weights_are_gathered_in_bf16_and_kept_in_fp32(ranks: Path) -> None:
    found = json.loads((ranks / "between-0.json").read_text())["dtypes"]
    assert found == {"fp32": ["torch.float32"] * 3, "bf16": ["torch.bfloat16", "torch.float32", "torch.float32"]}


@pytest.mark.parametrize("rank", range(WORLD))
def test_collectives_between_ranks(ranks: Path, rank: int) -> None:
    found = json.loads((ranks / f"between-{rank}.json").read_text(encoding="utf-8"))
    assert found["uneven rows"] == [[10], [11], [12]]
    assert found["no rows at all"] == [0, 4]
    assert found["texts"] == TEXTS
    assert found["no texts"] == ["", ""]
    assert found["broadcast"] == [[0, 0], [0, 0], [0, 0]]
    assert found["maximum"] == [1, 0]
    assert found["flags"] == [True, True, False, False]
    assert found["from main"] == 7
    assert found["place"] == [rank, 2, rank == 0, True]
    assert "engine.world_size=3, but the launcher started 2 processes" in found["refused"]


# --- the loop -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "poisoned", "bucketed", "sharded"])
def test_two_processes_end_in_the_weights_of_one(ranks: Path, alone: tuple[Path, dict[str, Any]], name: str) -> None:
    one = alone[1][name]
    left, right = (load_file(ranks / f"{name}-{rank}.safetensors") for rank in range(WORLD))
    assert left.keys() == right.keys() == one.keys()
    for key, value in one.items():
        assert torch.equal(left[key], right[key]), key
        torch.testing.assert_close(left[key], value, rtol=1e-12, atol=1e-12, msg=key)


def metrics(folder: Path) -> list[dict[str, Any]]:
    return Run(folder).read_metrics()


@pytest.mark.parametrize("name", ["plain", "poisoned", "bucketed", "sharded"])
def test_two_processes_log_and_validate_as_one(ranks: Path, alone: tuple[Path, dict[str, Any]], name: str) -> None:
    one, two = metrics(alone[0] / name), metrics(ranks / "runs" / name)
    assert [row.keys() for row in one] == [row.keys() for row in two]
    checked = 0
    for mine, theirs in zip(one, two, strict=True):
        for key, value in mine.items():
            if key.startswith(("validation/", "train/fit", "train/critic", "train/lr", "train/bad")):
                assert theirs[key] == pytest.approx(value, rel=1e-6), key
                checked += 1
    assert checked > 20


def test_the_bad_item_is_named_alone_whichever_rank_and_micro_batch_had_it(
    ranks: Path, alone: tuple[Path, dict[str, Any]]
) -> None:
    for folder in (alone[0], ranks / "runs"):
        named = [set(row["items"]) for row in metrics(folder / "poisoned") if "items" in row]
        assert named == [{"point-5"}] * len(named)
        assert named


def test_the_main_process_alone_writes(ranks: Path, alone: tuple[Path, dict[str, Any]]) -> None:
    def files(folder: Path) -> set[str]:
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        return {name for name in found if not name.startswith("sharded/checkpoints/step-")}

    assert files(ranks / "runs") == files(alone[0])
    data = json.loads((ranks / "runs" / "poisoned" / "data.json").read_text(encoding="utf-8"))
    assert data["skipped"] == {"point-7": "point 7 is broken"}


def test_a_run_of_two_processes_resumes_in_one(ranks: Path, tmp_path: Path) -> None:
    assert saved_hashes(ranks / "runs" / "plain", 6)
    resumed = trained(ranks / "runs" / "plain", resume=True, train__steps=8)
    straight = trained(tmp_path / "run", **{**LOOP, "train__steps": 8, "optim__decay_steps": 6})
    for key, value in weights(straight).items():
        torch.testing.assert_close(weights(resumed)[key], value, rtol=1e-12, atol=1e-12)


# --- checkpoints in parts -----------------------------------------------------------------------------------------


def test_a_sharded_run_resumes_in_one_process(ranks: Path, tmp_path: Path) -> None:
    data = {"data": points(**POISONED)}
    saved = checkpoint.folder_of(ranks / "runs" / "sharded" / "checkpoints", 6)
    assert tensor_groups.is_sharded(saved, "ema/net")
    resumed = trained(ranks / "runs" / "sharded", resume=True, train__steps=8, **data)
    straight = trained(tmp_path / "run", **{**LOOP, **data, "train__steps": 8, "optim__decay_steps": 6})
    for key, value in weights(straight).items():
        torch.testing.assert_close(weights(resumed)[key], value, rtol=1e-12, atol=1e-12)


def test_a_sharded_checkpoint_is_complete(ranks: Path) -> None:
    folder = checkpoint.folder_of(ranks / "parts", 1)
    checkpoint.verify(folder)
    files = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        *(f"{group}/{file}" for group in ("net", "deep/er") for file in files),
        *("meta.json", "note", "SHA256SUMS"),
    }
    assert [json.loads((ranks / f"parts-{rank}.json").read_text())["own rows"] for rank in range(WORLD)] == [3, 2]
    net = tensor_groups.read_tensors(folder, "net")
    assert torch.equal(net["weight"], torch.arange(15.0, dtype=torch.float64).view(5, 3))
    assert torch.equal(net["tied"], net["weight"])
    assert net["plain"].tolist() == [True, False]
    assert tensor_groups.sharded_shapes(folder, "net") == {
        "weight": (5, 3),
        "bias": (5,),
        "tied": (5, 3),
        "plain": (2,),
    }


def test_torch_joins_the_shards_to_the_same_tensors(ranks: Path, tmp_path: Path) -> None:
    folder = checkpoint.folder_of(ranks / "parts", 1)
    consolidate_safetensors_files(str(folder / "deep" / "er"), str(tmp_path), {"weight": 1, "bias": 1})
    joined = load_file(tmp_path / "model-00001-of-00001.safetensors")
    for key, value in tensor_groups.read_tensors(folder, "deep/er").items():
        assert torch.equal(joined[key], value)


@pytest.mark.parametrize("rank", range(WORLD))
def test_no_checkpoint_is_left_when_one_process_cannot_write(ranks: Path, rank: int) -> None:
    assert "No space left on device" in json.loads((ranks / f"parts-{rank}.json").read_text())["refused"]
    assert list((ranks / "parts" / "full").iterdir()) == []


def test_a_missing_shard_is_noticed(ranks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(checkpoint.folder_of(ranks / "parts", 1), tmp_path / "step-00000001")
    (folder / "net" / "shard-00001-model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        checkpoint.verify(folder)
    with pytest.raises(CheckpointError, match="do not cover the tensor"):
        tensor_groups.read_tensors(folder, "net")


def write_shards(folder: Path, *shards: tuple[Tensor, object]) -> None:
    (folder / "net").mkdir()
    for number, (values, offsets) in enumerate(shards):
        info = json.dumps({"weight": {"saved_offsets": offsets}})
        save_file({"weight": values}, folder / "net" / f"shard-{number}.safetensors", {"DCP_SHARDING_INFO": info})


def test_shards_that_overlap_or_differ_in_dtype_are_refused(tmp_path: Path) -> None:
    """The sizes add up, but a third of the tensor was never written."""
    for name, starts in (("overlap", (0, 0, 4)), ("dtypes", (0, 2, 4))):
        (tmp_path / name).mkdir()
        values = [torch.ones(2), torch.ones(2, dtype=torch.float64 if name == "dtypes" else None), torch.ones(2)]
        write_shards(tmp_path / name, *((each, [start]) for each, start in zip(values, starts, strict=True)))
    for read in (tensor_groups.read_tensors, tensor_groups.sharded_shapes):
        with pytest.raises(CheckpointError, match="overlap"):
            read(tmp_path / "overlap", "net")
    with pytest.raises(CheckpointError, match="different dtypes"):
        tensor_groups.read_tensors(tmp_path / "dtypes", "net")


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([2**40, 0], "do not cover the tensor"),
        ([-1, 0], "negative offset"),
        ([0], "different numbers of dimensions"),
        (["0", 0], "different numbers of dimensions"),
        (None, "cannot read"),
    ],
)
def test_a_shard_with_a_wrong_offset_is_refused(offsets: object, message: str, tmp_path: Path) -> None:
    write_shards(tmp_path, (torch.ones(2, 3), offsets))
    for read in (tensor_groups.read_tensors, tensor_groups.sharded_shapes):
        with pytest.raises(CheckpointError, match=message):
            read(tmp_path, "net")
