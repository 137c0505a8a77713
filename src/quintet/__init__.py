"""quintet: train and sample discrete-token generative models of images, video, audio and meshes on your own files.

The classes of all families can be imported from here; each is loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what `__getattr__` finds in the registry, for editors and type checkers
    from quintet.families.audio_codec.model import AudioCodec as AudioCodec
    from quintet.families.audio_codec.model import PretrainedCodec as PretrainedCodec
    from quintet.families.audio_codec.pipeline import AudioCodecPipeline as AudioCodecPipeline
    from quintet.families.audio_codec.trainer import AudioCodecTrainer as AudioCodecTrainer
    from quintet.families.cvivit.model import CViViT as CViViT
    from quintet.families.cvivit.pipeline import CViViTPipeline as CViViTPipeline
    from quintet.families.cvivit.trainer import CViViTTrainer as CViViTTrainer
    from quintet.families.mesh_autoencoder.model import CoordinateTokenizer as CoordinateTokenizer
    from quintet.families.mesh_autoencoder.model import MeshAutoencoder as MeshAutoencoder
    from quintet.families.mesh_autoencoder.model import WovenTokenizer as WovenTokenizer
    from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline as MeshAutoencoderPipeline
    from quintet.families.mesh_autoencoder.trainer import MeshAutoencoderTrainer as MeshAutoencoderTrainer
    from quintet.families.mesh_transformer.model import MeshTransformer as MeshTransformer
    from quintet.families.mesh_transformer.pipeline import MeshTransformerPipeline as MeshTransformerPipeline
    from quintet.families.mesh_transformer.trainer import MeshTransformerTrainer as MeshTransformerTrainer
    from quintet.families.mulan.model import AudioSpectrogramTransformer as AudioSpectrogramTransformer
    from quintet.families.mulan.model import MuLaN as MuLaN
    from quintet.families.mulan.model import MuLaNEmbedQuantizer as MuLaNEmbedQuantizer
    from quintet.families.mulan.model import TextTransformer as TextTransformer
    from quintet.families.mulan.pipeline import MuLaNPipeline as MuLaNPipeline
    from quintet.families.mulan.trainer import MuLaNTrainer as MuLaNTrainer
    from quintet.families.muse.model import MaskGit as MaskGit
    from quintet.families.muse.model import Muse as Muse
    from quintet.families.muse.model import Stage as Stage
    from quintet.families.muse.model import TokenCritic as TokenCritic
    from quintet.families.muse.pipeline import MusePipeline as MusePipeline
    from quintet.families.muse.trainer import MuseTrainer as MuseTrainer
    from quintet.families.phenaki.model import Phenaki as Phenaki
    from quintet.families.phenaki.pipeline import PhenakiPipeline as PhenakiPipeline
    from quintet.families.phenaki.trainer import PhenakiTrainer as PhenakiTrainer
    from quintet.families.soundstorm.model import ConformerWrapper as ConformerWrapper
    from quintet.families.soundstorm.model import SoundStorm as SoundStorm
    from quintet.families.soundstorm.pipeline import SoundStormPipeline as SoundStormPipeline
    from quintet.families.soundstorm.trainer import SoundStormTrainer as SoundStormTrainer
    from quintet.families.vqgan.model import VQGanVAE as VQGanVAE
    from quintet.families.vqgan.pipeline import VQGanPipeline as VQGanPipeline
    from quintet.families.vqgan.trainer import VQGanVAETrainer as VQGanVAETrainer
    from quintet.training.objective import Objective as Objective

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "Objective":
        return import_module("quintet.training.objective").Objective
    if name[0].isupper():
        for _, entry in import_module("quintet.registry").entries():
            if name in entry.public_names():
                return getattr(import_module(entry.public_names()[name]), name)
    if name == "runs":  # named in errors and docs
        return import_module("quintet.runs")
    raise AttributeError(f"module 'quintet' has no attribute '{name}'")


def __dir__() -> list[str]:
    entries = dict(import_module("quintet.registry").entries()).values()
    return sorted([*globals(), "Objective", *(name for entry in entries for name in entry.public_names())])
