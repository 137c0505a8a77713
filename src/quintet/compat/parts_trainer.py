"""`PartsTrainer`: quintet's own trainer for the parts of a compat model."""

from __future__ import annotations

import sys
from typing import Any, ClassVar

from quintet.compat.model import TrainingParts
from quintet.training.python_trainer import PythonTrainer


class PartsTrainer(PythonTrainer):
    """quintet's trainer, for the parts of a compat model as `model`."""

    always: ClassVar[dict[str, Any]]
    """Keys that the original always has; keys of the model and of the call replace them."""
    parts: ClassVar[TrainingParts | None]
    repeats_items = True

    @classmethod
    def split_model(cls, model: Any) -> Any:
        return (cls.parts.model, cls.parts.frozen, cls.parts.modules) if cls.parts else super().split_model(model)

    @classmethod
    def keys_of(cls, model: Any) -> dict[str, Any]:
        return {**cls.always, **(cls.parts.keys if cls.parts else super().keys_of(model))}

    @property
    def last_step(self) -> int:
        """The originals go on after their last step, one `train_step()` at a time."""
        steps = self.config.train.steps
        return steps if self.step < steps else sys.maxsize

    def _init_state(self, init: Any) -> None:
        # The codebook of a model that was trained already is not initialised again.
        if init is None and self.parts is not None and self.parts.trained:
            init = {self.exported(): dict(self.unwrapped_model.state_dict())}
        super()._init_state(init)
