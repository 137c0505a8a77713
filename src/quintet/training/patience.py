"""Early stopping (`train.patience`): a run ends when its validations no longer improve."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quintet.config import RunConfig
from quintet.training.run_folder import resume_command
from quintet.training.state import Progress
from quintet.training.task import Task


def is_exhausted(config: RunConfig, progress: Progress) -> bool:
    """Whether the last `train.patience` validations were no better than one before."""
    return config.train.patience is not None and progress.best_age >= config.train.patience


def message(task: Task[Any], progress: Progress, folder: Path) -> str:
    """Why the run ended, and how it goes on."""
    best = f"the best checkpoint is that of step {progress.best_step}"
    return (
        f"ended at step {progress.step}: {task.traits.best[0]} has not improved in the last {progress.best_age} "
        f"validations (train.patience={task.config.train.patience}), and "
        f"{'in none of them was it finite' if progress.best_step is None else best}; "
        f"continue with `{resume_command(folder, 'train.patience=N')}`"
    )
