"""Empty modules for unused imports of the public audio packages; import this module before them.

fairseq does not build, wandb is only for logging, torchvision is for another part of x-clip, and of torchaudio only the
compiled extension is replaced: its transforms are Python.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any


def stand_in(name: str, **contents: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
    module.__path__ = []
    vars(module).update(contents)
    sys.modules[name] = module
    return module


stand_in(
    "torchaudio._extension",
    _IS_TORCHAUDIO_EXT_AVAILABLE=False,
    _IS_ALIGN_AVAILABLE=False,
    fail_if_no_align=lambda function: function,
    _check_cuda_version=lambda: None,
    _load_lib=lambda name: False,
)
stand_in("fairseq", checkpoint_utils=stand_in("fairseq.checkpoint_utils"))
stand_in("torchvision", transforms=stand_in("torchvision.transforms"))
stand_in("wandb")
