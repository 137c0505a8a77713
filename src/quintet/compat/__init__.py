"""Trainers with the positional arguments and keywords of the original packages: one module for each package.

    from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer

Each trainer is a subclass of quintet's trainer of the same name. Its keywords are translated by the tables in
`tables/`, with one `CompatibilityNotice`, or refused with the reason. `docs/migration.md` lists all keywords. Nothing
else in quintet imports this package. It does not import torch before a trainer is imported.
"""

from __future__ import annotations

from quintet.compat.translation import CompatibilityNotice, Translation, announce, translate

__all__ = ["CompatibilityNotice", "Translation", "announce", "translate"]
