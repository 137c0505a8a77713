"""The original packages' trainers, with their positional arguments and keywords: one module for each package.

    from quintet.compat.muse_maskgit_pytorch import VQGanVAETrainer

Each trainer is quintet's own of the same name. What it is told is translated by the tables in `tables/`, with one
`CompatibilityNotice`, or refused with the reason. `docs/migration.md` lists every keyword. Nothing in quintet imports
this package, and torch is not loaded before a trainer is.
"""

from __future__ import annotations

from quintet.compat.translation import CompatibilityNotice, Translation, announce, translate

__all__ = ["CompatibilityNotice", "Translation", "announce", "translate"]
