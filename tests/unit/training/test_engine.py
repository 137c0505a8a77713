"""Rank, precision, activation checkpointing, and messages for failures of the machine."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from toy import toy_config

from quintet.common.device import choose_device, numerics_of, set_cuda_modes
from quintet.common.inference import inference_mode
from quintet.common.rank import RankInfo
from quintet.common.rng import seed_from
from quintet.config import EngineConfig
from quintet.errors import LostContactError, RunError, UsageError
from quintet.training.engine import Engine, explain_failure, group_arguments, may_be_restarted
from quintet.training.state import environment, environment_changes

CPU = EngineConfig(device="cpu")

# --- where the launcher put us ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, RankInfo(0, 0, 1)),
        ({"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, RankInfo(5, 1, 8)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, RankInfo(1, 1, 2)),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, RankInfo(0, 0, 1)),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, RankInfo(0, 0, 1)),  # sbatch without srun: one process
        (
            {
                "SLURM_STEP_NUM_TASKS": "4",
                "SLURM_PROCID": "3",
                "SLURM_LOCALID": "1",
                "MASTER_ADDR": "node1",
                "MASTER_PORT": "29500",
            },
            RankInfo(3, 1, 4),
        ),
        (  # torchrun inside an allocation of Slurm
            {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "RANK": "6", "LOCAL_RANK": "2", "WORLD_SIZE": "8"},
            RankInfo(6, 2, 8),
        ),
    ],
    ids=["alone", "torchrun", "no local rank", "slurm of one", "sbatch", "srun", "torchrun in slurm"],
)
def test_rank_info_from_the_environment(environment: dict[str, str], place: RankInfo) -> None:
    assert RankInfo.from_environment(environment) == place


@pytest.mark.parametrize("given", [{}, {"MASTER_ADDR": "node1"}, {"MASTER_PORT": "1"}])
def test_srun_without_master_address_is_refused(given: dict[str, str]) -> None:
    environment = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", **given}
    with pytest.raises(UsageError, match="under srun, set MASTER_ADDR and MASTER_PORT"):
        RankInfo.from_environment(environment)


def test_the_environment_is_that_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert RankInfo.from_environment() == RankInfo(3, 3, 4)


def test_a_world_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match=r"engine\.world_size=4, but the launcher started 1 process; .*_per_node 4"):
        Engine(EngineConfig(device="cpu", world_size=4))
    assert Engine(EngineConfig(device="cpu", world_size=1)).world_size == 1


def test_one_process_is_main_everywhere() -> None:
    engine = Engine(CPU)
    assert (engine.rank, engine.local_rank, engine.world_size) == (0, 0, 1)
    assert engine.is_main
    assert engine.is_local_main
    assert not engine.is_distributed
    engine.barrier()
    engine.close()
    assert engine.from_main(5) == 5


def test_a_missing_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)  # also where there is one
    with pytest.raises(UsageError, match=r"engine\.device=cuda, but torch finds no CUDA device"):
        choose_device("cuda")


def test_flags_of_any_kind() -> None:
    engine = Engine(CPU)
    assert engine.any_rank(True, False, torch.tensor(True), torch.tensor(False)) == [True, False, True, False]


def test_threads_are_set() -> None:
    Engine(EngineConfig(device="cpu", threads=1))
    assert torch.get_num_threads() == 1


def test_deterministic_on_cpu_always_and_nothing_filled() -> None:
    torch.use_deterministic_algorithms(False)
    Engine(CPU)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


# --- modules ------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    recomputable = True

    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.5)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append("forward")
        hidden: Tensor = self.dropout(self.linear(x).tanh())
        return x + hidden


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.blocks = nn.Sequential(Block(self.calls), Block(self.calls), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.blocks(x)
        return result


def gradients(recompute: bool) -> tuple[list[Tensor], Stack]:
    torch.manual_seed(0)
    engine = Engine(EngineConfig(device="cpu", activation_checkpointing=recompute, precision="fp64"), seed=4)
    stack = Stack()
    engine.to_device({"net": stack})
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    with engine.micro_batch({"net": stack}, step=3, number=0, synchronise=True):
        stack(x).square().sum().backward()
    return [parameter.grad for parameter in stack.parameters() if parameter.grad is not None], stack


def test_activation_checkpointing_gives_the_same_gradients_with_dropout() -> None:
    plain, once = gradients(recompute=False)
    recomputed, twice = gradients(recompute=True)
    assert len(once.calls) == 2
    assert len(twice.calls) == 4
    assert len(plain) == len(recomputed) == 6
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(plain, recomputed, strict=True))


def test_a_copy_of_a_checkpointed_module_uses_its_own_weights() -> None:
    """The moving average is such a copy."""
    _, stack = gradients(recompute=True)
    other = copy.deepcopy(stack).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    x = torch.ones(2, 4, dtype=torch.float64)
    assert (other(x) == 0).all()
    assert not (stack.eval()(x) == 0).all()


def test_activation_checkpointing_keeps_the_names_of_the_weights() -> None:
    assert gradients(recompute=True)[1].state_dict().keys() == gradients(recompute=False)[1].state_dict().keys()


def test_to_device_sets_precision_and_memory_format() -> None:
    convolution = nn.Conv2d(3, 4, 3)
    Engine(EngineConfig(device="cpu", precision="fp64")).to_device({"net": convolution})
    assert convolution.weight.dtype == torch.float64
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
    plain = nn.Conv2d(3, 4, 3)
    Engine(EngineConfig(device="cpu", channels_last=False)).to_device({"net": plain})
    assert plain.weight.is_contiguous()


def test_five_dimensional_tensors_keep_their_memory_format() -> None:
    module = nn.Conv2d(2, 3, 3)
    module.register_buffer("angles", torch.rand(2, 3, 4, 1, 8))
    Engine(CPU, 0).to_device({"module": module})
    assert module.weight.is_contiguous(memory_format=torch.channels_last)
    assert module.angles.is_contiguous()  # type: ignore[operator, union-attr]


def test_autocast_lowers_the_forward_pass_alone() -> None:
    layer = nn.Linear(2, 2)
    with Engine(EngineConfig(device="cpu", precision="bf16")).autocast():
        assert layer(torch.ones(1, 2)).dtype == torch.bfloat16
    assert layer.weight.dtype == torch.float32
    with Engine(CPU).autocast():
        assert layer(torch.ones(1, 2)).dtype == torch.float32


def test_dropout_follows_seed_step_and_micro_batch_alone() -> None:
    def mask(seed: int, step: int, number: int) -> Tensor:
        torch.rand(7)  # whatever was drawn before
        with Engine(CPU, seed).micro_batch({}, step, number, synchronise=True):
            return nn.functional.dropout(torch.ones(100))

    first = mask(1, 2, 3)
    assert torch.equal(first, mask(1, 2, 3))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not torch.equal(first, mask(*other))
    torch.manual_seed(seed_from(1, 2, 3, 0))
    assert torch.equal(first, nn.functional.dropout(torch.ones(100)))


# --- GPUs, as far as they can be tried without one ----------------------------------------------------------------


def test_nccl_knows_the_gpu_of_its_process() -> None:
    assert group_arguments(torch.device("cuda", 3)) == {"backend": "nccl", "device_id": torch.device("cuda", 3)}
    assert group_arguments(torch.device("cpu")) == {"backend": "gloo"}


@pytest.fixture
def _cuda_modes() -> Iterator[None]:
    """Restores the modes of CUDA, which are those of the process."""
    modes = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = modes


@pytest.mark.usefixtures("_cuda_modes")
@pytest.mark.parametrize("tf32", [False, True])
def test_fp32_is_one_precision_for_products_and_convolutions(tf32: bool) -> None:
    set_cuda_modes(EngineConfig(tf32=tf32))
    assert torch.backends.cuda.matmul.allow_tf32 == tf32
    assert torch.backends.cudnn.allow_tf32 == tf32
    assert numerics_of(torch.device("cuda")) == (" tf32" if tf32 else "")
    assert numerics_of(torch.device("cpu")) == ""


@pytest.mark.usefixtures("_cuda_modes")
def test_cudnn_times_its_kernels_unless_results_must_not_vary() -> None:
    set_cuda_modes(EngineConfig(cudnn_benchmark=True))
    assert torch.backends.cudnn.benchmark
    set_cuda_modes(EngineConfig(cudnn_benchmark=True, deterministic=True))
    assert not torch.backends.cudnn.benchmark


def test_a_change_of_gpu_is_a_change_of_the_environment() -> None:
    cpu = environment(torch.device("cpu"))
    assert not cpu.keys() & {"gpu", "cuda", "cudnn", "tf32"}
    gpu = {**cpu, "gpu": "NVIDIA A100", "cuda": "13.0", "cudnn": 91900, "tf32": False}
    assert environment_changes(cpu, cpu) == []
    assert environment_changes(gpu, {**gpu, "gpu": "NVIDIA H100", "tf32": True}) == [
        "gpu was NVIDIA A100 and is now NVIDIA H100",
        "tf32 was False and is now True",
    ]
    assert environment_changes(gpu, cpu)[0] == "gpu was NVIDIA A100 and is now None"
    assert environment_changes(cpu, gpu)[0] == "gpu was None and is now NVIDIA A100"


# --- sentences for failures ---------------------------------------------------------------------------------------


def out_of_memory() -> BaseException:
    """The real error of the real allocator."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        out_of_memory(),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB, other allocations: 384.00 KB)"),
        RuntimeError("NCCL error in: NCCLUtils.cpp:77\nLast error:\nCuda failure 'out of memory'"),
    ],
)
def test_out_of_memory_proposes_smaller_micro_batches(error: BaseException) -> None:
    failure = explain_failure(error, grad_accum_steps=2, micro_batch_size=8)
    assert isinstance(failure, RunError)
    assert "out of memory" in str(failure)
    assert "train.grad_accum_steps" in str(failure)
    assert "try 4" in str(failure)
    assert "\n" not in str(failure)


@pytest.mark.parametrize(("accumulate", "micro_batch", "proposed"), [(1, 3, 3), (4, 5, 20), (1, 9, 3), (3, 2, 6)])
def test_the_proposal_divides_the_batch(accumulate: int, micro_batch: int, proposed: int) -> None:
    assert f"try {proposed})" in str(explain_failure(MemoryError(), accumulate, micro_batch))
    toy_config(train__batch_size=accumulate * micro_batch, train__grad_accum_steps=proposed)


def test_out_of_memory_with_single_items_proposes_something_else() -> None:
    failure = str(explain_failure(MemoryError(), grad_accum_steps=16, micro_batch_size=1))
    assert "smaller model" in failure
    assert "train.grad_accum_steps" not in failure


@pytest.mark.parametrize(
    "text",
    [
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:24041",
        "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited\nlong trace",
    ],
)
def test_a_lost_process_is_one_sentence(text: str) -> None:
    failure = explain_failure(RuntimeError(text), 1, 8)
    assert isinstance(failure, RunError)
    assert "lost contact with another process" in str(failure)
    assert "\n" not in str(failure)


def test_two_processes_on_one_gpu_are_one_sentence() -> None:
    text = "NCCL error in: NCCLUtils.cpp:77\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000"
    failure = explain_failure(RuntimeError(text), 1, 8)
    assert str(failure) == "two processes of this run use the same GPU; start one process per GPU"
    assert not isinstance(failure, LostContactError)


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3) ran for 8001 milliseconds before timing out.",
    ],
)
def test_a_process_that_does_not_answer_is_one_sentence(text: str) -> None:
    failure = explain_failure(RuntimeError(text), 1, 8)
    assert isinstance(failure, LostContactError)
    assert "did not answer within engine.timeout_seconds" in str(failure)


def test_only_a_launcher_that_may_restart_says_so() -> None:
    assert may_be_restarted({"TORCHELASTIC_MAX_RESTARTS": "3"})
    assert not may_be_restarted({"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_RESTART_COUNT": "0"})
    assert not may_be_restarted({})


def test_other_errors_are_not_explained_away() -> None:
    assert explain_failure(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), 1, 8) is None
    assert explain_failure(ValueError("gloo"), 1, 8) is None
    assert explain_failure(RunError("out of memory while the model is built; use smaller sizes"), 1, 8) is None


# --- looking ------------------------------------------------------------------------------------------------------


def mixed() -> nn.Module:
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.1)), nn.Linear(2, 2)).train()
    module[1].eval()
    module[1][1].train()
    return module


def test_inference_mode_restores_the_mode_of_every_submodule() -> None:
    modules = {"one": mixed(), "two": nn.Dropout().eval()}
    parts = [part for module in modules.values() for part in module.modules()]
    before = [part.training for part in parts]
    assert len(set(before)) == 2
    with inference_mode(modules):
        assert not any(part.training for part in parts)
        assert not torch.is_grad_enabled()
    assert [part.training for part in parts] == before
    assert torch.is_grad_enabled()


def test_inference_mode_restores_modes_after_a_failure() -> None:
    module = mixed()
    before = [part.training for part in module.modules()]
    with pytest.raises(ZeroDivisionError), inference_mode({"net": module}):
        raise ZeroDivisionError
    assert [part.training for part in module.modules()] == before
    assert torch.is_grad_enabled()
