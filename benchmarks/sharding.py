"""Memory per process and time of a checkpoint, with and without FSDP: part of `make scale`.

`torchrun --nproc_per_node 2 benchmarks/sharding.py data/solids runs/fsdp --fsdp true`. The first process prints the
results of all processes as one line of JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from quintet import config, runs
from quintet.common import collectives
from quintet.families.mesh_transformer.config import MeshTransformerConfig
from quintet.training.distributed.sharding import local_tensor
from quintet.training.engine import exit_process
from worker import count_parameters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="folder of meshes, from `quintet data make solids`")
    parser.add_argument("out", type=Path, help="new run folder")
    parser.add_argument("--fsdp", choices=("false", "true"), default="false", help="value of engine.fsdp")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--ema", choices=("false", "true"), default="true", help="value of ema.enabled")
    options = parser.parse_args()
    keys = {
        "tokenizer": "coordinates:32",
        "model.dim": options.dim,
        "model.depth": options.depth,
        "train.batch_size": 4,
        "train.steps": options.steps,
        "engine.fsdp": options.fsdp == "true",
        "engine.threads": 1,
        "ema.enabled": options.ema == "true",
        "data.path": str(options.data.resolve()),
        "data.num_workers": 0,
        "log.trackers": [],
    }
    importlib.import_module("torch.distributed.fsdp")  # what it takes is no part of the model
    before = peak_memory()
    settings = config.build(MeshTransformerConfig, preset="debug", overrides=keys)
    trainer = runs.new_trainer(settings, options.out, silent=True)
    start_peak = trainer.engine.memory_in_use()
    parameters = sum(map(count_parameters, trainer.task.modules.values()))
    steps = [_cpu_seconds(trainer.train_step) for _ in range(options.steps)]
    start = time.perf_counter()
    trainer.save()
    save_seconds = time.perf_counter() - start
    state_bytes = sum(
        local_tensor(value).nbytes for group in trainer.state.tensors().values() for value in group.values()
    )
    own = {
        "state_megabytes": round(state_bytes / 2**20, 1),
        "before_the_model_megabytes": round(before / 2**20),
        "start_peak_megabytes": round(start_peak / 2**20),
        "peak_megabytes": round(trainer.engine.memory_in_use() / 2**20),
        "cpu_seconds_of_a_step": round(statistics.median(steps), 3),
    }
    texts = collectives.gather_texts(json.dumps(own), trainer.device)
    if trainer.is_main:
        folder = trainer.run.checkpoints / f"step-{trainer.step:08d}"
        sizes = [path.stat().st_size for path in folder.rglob("*.safetensors")]
        results = {"fsdp": options.fsdp == "true", "processes": trainer.engine.world_size, "parameters": parameters}
        results["save_seconds"] = round(save_seconds, 2)
        results |= {"files": len(sizes), "checkpoint_megabytes": round(sum(sizes) / 2**20, 1)}
        print(json.dumps({**results, "each": [json.loads(text) for text in texts]}))
    trainer.close()
    trainer.engine.close()
    exit_process(0)


def peak_memory() -> int:
    """Peak memory of this process in bytes (Linux)."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _cpu_seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


if __name__ == "__main__":
    main()
