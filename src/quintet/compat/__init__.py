"""Models and trainers with the names, arguments and defaults of the original packages: one package for each.

    from quintet.compat.muse_maskgit_pytorch import VQGanVAE, VQGanVAETrainer

Models are made of quintet's own modules (`model.py`), trainers of its own trainers (`trainer.py`). Keywords of trainers
are translated by the tables in `tables/`, with one `CompatibilityNotice`, or refused with the reason.
`docs/migration.md` lists everything. Nothing else in quintet imports this package. It does not import torch before a
model or a trainer is imported.
"""

from __future__ import annotations

from quintet.compat.translation import CompatibilityNotice, Translation, announce, translate

__all__ = ["CompatibilityNotice", "Translation", "announce", "translate"]
