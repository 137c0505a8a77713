"""The facts about the original trainers: their every keyword, its default, and where it goes. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping

from quintet.compat.rules import OriginalTrainer
from quintet.compat.tables.meshgpt_pytorch import MESH_AUTOENCODER_TRAINER, MESH_TRANSFORMER_TRAINER
from quintet.compat.tables.muse_maskgit_pytorch import VQGAN_TRAINER
from quintet.compat.tables.musiclm_pytorch import MULAN_TRAINER
from quintet.compat.tables.phenaki_pytorch import PHENAKI_TRAINER
from quintet.compat.tables.soundstorm_pytorch import SOUNDSTORM_TRAINER

TRAINERS: Mapping[str, OriginalTrainer] = {
    trainer.name: trainer
    for trainer in (
        MULAN_TRAINER,
        SOUNDSTORM_TRAINER,
        VQGAN_TRAINER,
        PHENAKI_TRAINER,
        MESH_AUTOENCODER_TRAINER,
        MESH_TRANSFORMER_TRAINER,
    )
}
