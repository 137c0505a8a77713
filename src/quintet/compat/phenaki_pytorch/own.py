"""quintet's own trainer of Phenaki, which reads and encodes the items of a user's data set at every step.

It has the name of quintet's trainer, which messages show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quintet.data.splits import Splits
from quintet.families.phenaki.data import python_clip_splits
from quintet.families.phenaki.task import PhenakiTask
from quintet.families.phenaki.trainer import PhenakiTrainer as OwnPhenakiTrainer
from quintet.training.task import Task


class PhenakiTrainer(OwnPhenakiTrainer):
    """quintet's trainer; the videos of a Python data set are read and encoded at every step."""

    @classmethod
    def splits_of(cls, task: Task[Any], data: Any, validation: Any, declared: Sequence[str] | None) -> Splits:
        assert isinstance(task, PhenakiTask)
        return python_clip_splits(
            data,
            task.config,
            task.tokenizer,
            validation=validation,
            declared=declared,
            cache=False,
            unclamped=cls.unclamped,
            projects_embeddings=cls.projects_embeddings,
        )
