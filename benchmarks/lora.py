"""LoRA against fine-tuning of all weights: CPU time of a step, and bytes of what a training holds besides the weights.

python benchmarks/lora.py muse DATA [KEY=VALUE …] --init RUN

Both trainings are made with the same keys, and their steps alternate in one process with one thread. The times are CPU
seconds of the process, which other jobs on the machine change little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from quintet import config as configs
from quintet import registry, runs
from quintet.common.weights.run_reader import model_keys
from quintet.training.trainer import Trainer

WARM_UP = 2


def made(recipe: str, keys: dict[str, Any], out: Path) -> Trainer:
    """A trainer whose sizes are those of `--init`."""
    schema = registry.find(recipe).config_class()
    base = model_keys(str(keys["init"]), recipe, schema)
    return runs.new_trainer(configs.build(schema, base=base, preset="small", overrides=keys), out, silent=True)


def held(trainer: Trainer) -> dict[str, int]:
    """Bytes between two steps: gradients, optimizer state, and averaged weights that the model does not have itself."""
    phases, ema = trainer.state.phases, trainer.state.ema
    trained = [parameter for phase in phases for parameter in phase.parameters.values()]
    moments = [
        value for phase in phases for state in phase.optimizer.state.values() for value in state.values()
        if isinstance(value, torch.Tensor)
    ]  # fmt: skip
    weights = {each.data_ptr() for module in trainer.task.modules.values() for each in module.parameters()}
    averaged = [each for module in (ema.modules if ema else {}).values() for each in module.parameters()]
    return {
        "trained": sum(each.numel() for each in trained),
        "gradients": sum(each.nbytes for each in trained),
        "optimizer": sum(each.nbytes for each in moments),
        "ema": sum(each.nbytes for each in averaged if each.data_ptr() not in weights),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("data")
    parser.add_argument("--init", required=True)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keys = {"data.path": configs.data_path(options.data), "init": options.init, "log.trackers": []}
    keys |= configs.parse_overrides(options.keys)
    with tempfile.TemporaryDirectory() as folder:
        trainers = {
            "full": made(options.recipe, keys, Path(folder) / "full"),
            "lora": made(options.recipe, {**keys, "train.lora": options.rank}, Path(folder) / "lora"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(WARM_UP + options.steps):
            for name, trainer in trainers.items():
                before = time.process_time()
                trainer.train_step()
                seconds[name].append(time.process_time() - before)
        for name, trainer in trainers.items():
            milliseconds = 1000 * statistics.median(seconds[name][WARM_UP:])
            print(f"{name}: {milliseconds:.0f} ms of CPU per step, {held(trainer)}")
            trainer.close()


if __name__ == "__main__":
    main()
