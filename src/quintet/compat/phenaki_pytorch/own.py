"""quintet's own trainer of Phenaki, which reads and encodes the items of a user's data set at every step.

It has the name of quintet's trainer, which messages show.
"""

from __future__ import annotations

from quintet.families.phenaki.trainer import PhenakiTrainer as OwnPhenakiTrainer


class PhenakiTrainer(OwnPhenakiTrainer):
    """quintet's trainer; the videos of a Python data set are read and encoded at every step."""

    caches_codes = False
