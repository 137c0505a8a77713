"""Parts that presets of different recipes share: intervals of a run of a given size, and training of generators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quintet.config.tree import Tree, flatten


def preset(*common: Mapping[str, Any], **sections: Mapping[str, Any]) -> Tree:
    """Dotted keys of a preset. Later parts override earlier ones, and `sections` override all parts."""
    merged: Tree = {}
    for keys in (*common, sections):
        merged |= flatten(keys)
    return merged


def discriminator(start: int, ramp: int, dim: int) -> Tree:
    return {"loss.discriminator_start": start, "loss.discriminator_ramp": ramp, "loss.discriminator_dim": dim}


def _every(steps: int) -> Tree:
    return {f"{section}.every": steps for section in ("eval", "sample", "checkpoint")}


DEBUG = preset(_every(10), train={"steps": 20, "batch_size": 8}, log={"every": 5}, data={"num_workers": 0})
DEBUG_GENERATOR = preset(DEBUG, model={"dim": 32, "depth": 2, "heads": 2}, eval={"num_generated": 8}, sample={"num": 4})
DEBUG_GAN = preset(DEBUG, discriminator(10, ramp=5, dim=16))
DEBUG_TEXT = preset(model={"text_dim": 32, "text_depth": 1, "text_heads": 2})

# For a CPU: all items soon fit into memory, and workers would compete with the computation.
SMALL = preset(_every(500), train={"batch_size": 16}, data={"num_workers": 0})
MUON = preset(optim={"name": "muon", "lr": 3e-3, "muon_lr": 0.01, "warmup_steps": 150, "max_grad_norm": 1.0})
SMALL_GENERATOR = preset(
    SMALL,
    MUON,
    model={"dim": 128, "depth": 6, "heads": 4},
    eval={"every": 1000},
    sample={"every": 1000},
    engine={"precision": "auto"},
)

# For fine-tuning on a few hundred files: the model is that of --init. Small steps that keep what it knows, dropout and
# weight decay against learning the files by heart, all validation items (a tenth of the files) for every decision, and
# an end as soon as they no longer improve.
FEW = preset(
    _every(100),
    train={"steps": 2000, "batch_size": 16, "patience": 5},
    optim={"lr": 1e-4, "warmup_steps": 100, "max_grad_norm": 1.0, "weight_decay": 0.05},
    ema={"decay": 0.99},
    data={"num_workers": 0, "validation_fraction": 0.1},
    eval={"batches": None},
    checkpoint={"keep": 1},
    engine={"precision": "auto"},
)
FEW_GENERATOR = preset(FEW, model={"dropout": 0.1})
BASE = preset(
    _every(5000),
    train={"batch_size": 64, "grad_accum_steps": "auto"},
    ema={"decay": 0.9995},
    engine={"precision": "bf16", "compile": True},
    data={"num_workers": 8},
)
BASE_GENERATOR = preset(
    BASE,
    model={"dim": 1024, "depth": 24, "heads": 16},
    train={"steps": 500_000, "batch_size": 256},
    optim={"lr": 1e-4, "warmup_steps": 5000, "max_grad_norm": 1.0},
    ema={"decay": 0.9999},
    data={"num_workers": 4},
)
BASE_VOCABULARY = preset(loss={"logit_chunk": "auto"})
BASE_TEXT = preset(model={"text_dim": 512, "text_depth": 6})
