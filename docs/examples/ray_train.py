"""quintet under Ray Train: `python docs/examples/ray_train.py WORKERS OUT RECIPE DATA [KEY=VALUE]…`

Ray creates the process group and starts this function in every worker; quintet joins the existing group. If Ray
restarts a run because a worker or its machine was lost, the run resumes from its newest checkpoint.
"""

import sys
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def work(config: dict) -> None:
    from quintet.cli import call

    exists = Path(config["out"], "config.yaml").is_file()
    call(["resume", config["out"]] if exists else ["train", *config["words"], "--out", config["out"]])


if __name__ == "__main__":
    workers, out, recipe, data, *words = sys.argv[1:]
    out, data = (str(Path(each).resolve()) for each in (out, data))  # folders that all machines can access
    ray.init()
    TorchTrainer(
        work,
        train_loop_config={"out": out, "words": [recipe, data, *words]},
        scaling_config=ScalingConfig(num_workers=int(workers), use_gpu="engine.device=cpu" not in words),
        run_config=RunConfig(name="quintet", storage_path=f"{out}-ray", failure_config=FailureConfig(max_failures=3)),
    ).fit()
