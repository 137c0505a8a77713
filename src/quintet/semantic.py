"""Semantic tokens: the hidden states of a layer of an audio model, step by step, each as the number of its cluster.

Clusters are found by k-means over the states of a folder's clips, each dimension brought to mean 0 and deviation 1
first (AudioLM, 2209.03143). They lie beside the tokens as `centroids.safetensors`, so that other folders can be given
the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quintet.common import files
from quintet.common.device import own_device
from quintet.common.files import refuse_existing
from quintet.common.logging import track
from quintet.common.rng import ItemRNG, seed_from
from quintet.common.weights import checkpoint
from quintet.config import AudioDataConfig, EngineConfig
from quintet.config.text import PRETRAINED
from quintet.data.audio import AudioFolder, audio_folder_splits
from quintet.data.token_files import CODES, code_contents
from quintet.errors import CheckpointError, UnreadableItem, UsageError
from quintet.nn import kmeans, transformers_folder
from quintet.nn.kmeans import nearest
from quintet.nn.pretrained_audio import PretrainedAudioEncoder, is_audio_encoder
from quintet.pipelines.audio_features import AudioFeatureExtractor
from quintet.pipelines.loading import open_pipeline

CENTROIDS = "centroids"
CLUSTERS = 256
SAMPLE = 2**17
"""Steps that clusters are found in; of more sound a share is drawn."""
SPREAD = 4
"""Of long clips neighbouring steps are alike: so many times the steps are heard, and each is taken less often."""


@dataclass(frozen=True)
class Centroids:
    """Clusters of what one layer of one model hears."""

    centres: Tensor
    mean: Tensor
    deviation: Tensor
    layer: int
    rate: float
    """Tokens a second."""
    digest: str
    """Of the model."""

    def tokens(self, states: Tensor) -> Tensor:
        """The clusters (steps) that vectors (steps, dim) are in."""
        scaled = (states.float() - self.mean.to(states.device)) / self.deviation.to(states.device)
        return nearest(scaled, self.centres.to(states.device))

    def tensors(self) -> dict[str, Tensor]:
        return {
            "centres": self.centres,
            "mean": self.mean,
            "deviation": self.deviation,
            "layer": torch.tensor(self.layer),
            "rate": torch.tensor(self.rate, dtype=torch.float64),
            "digest": torch.tensor(list(bytes.fromhex(self.digest)), dtype=torch.uint8),
        }


@dataclass(frozen=True)
class Made:
    """What came of a folder."""

    items: int
    rate: float
    lines: list[str]
    """What a person may want to know of the clusters."""


def encode_folder(
    reference: str,
    data: str,
    out: Path,
    *,
    layer: int | None = None,
    clusters: int | None = None,
    centroids: Path | None = None,
    seed: int = 0,
) -> Made:
    """Semantic tokens of every readable file of a folder. Clusters are those given, or found in this folder."""
    refuse_existing(out)
    extractor = open_audio_features(reference)
    given = None if centroids is None else read_centroids(centroids)
    if given is not None:
        _refuse_unfit(given, extractor, reference, layer, clusters)
    folder = _folder(data, extractor)
    lines: list[str] = []
    if given is None:
        given, told = find_centroids(
            extractor, folder, _checked(layer, extractor, reference), clusters or CLUSTERS, seed
        )
        lines.append(told)
    rows: list[dict[str, Any]] = []
    tokens: list[Tensor] = []
    for item in track(range(len(folder)), "encoded"):
        try:
            states = extractor.hidden_states(_wave(folder, item), given.layer)
        except UnreadableItem as problem:
            rows.append({"file": folder.name(item), "skipped": str(problem)})
            continue
        tokens.append(given.tokens(states)[None].cpu().to(torch.int32))
        rows.append({"file": folder.name(item), "row": len(tokens) - 1})
    if not tokens:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` says why")
    contents = code_contents(tokens, rows)
    contents.tensors[CENTROIDS] = given.tensors()
    contents.json[CODES] = {
        "num_codes": len(given.centres),
        "rate": given.rate,
        "layer": given.layer,
        "model": reference,
        "model_hash": given.digest,
    }
    checkpoint.write_folder(out, contents)
    used = len(set(torch.cat([each[0] for each in tokens]).tolist()))
    lines.append(f"{used} of {len(given.centres)} tokens are in use")
    return Made(len(tokens), given.rate, lines)


def open_audio_features(reference: str) -> AudioFeatureExtractor:
    """Of a trained model with an audio tower, or of the folder of a speech model of `transformers`."""
    folder = Path(reference)
    if reference.startswith(PRETRAINED):
        folder = transformers_folder.find_folder(reference.removeprefix(PRETRAINED), "model")
    kind = transformers_folder.kind_of(folder)
    if kind is not None and is_audio_encoder(kind):
        return PretrainedAudioEncoder(folder, own_device(EngineConfig()))
    pipeline = open_pipeline(reference)
    if not hasattr(pipeline, "audio_features"):
        raise UsageError(f"recipe {pipeline.recipe} has no layers that hear sound; leave --layer out")
    pipeline.to(own_device(pipeline.config.engine))
    features: AudioFeatureExtractor = pipeline.audio_features()
    return features


def find_centroids(
    extractor: AudioFeatureExtractor, folder: AudioFolder, layer: int, clusters: int, seed: int
) -> tuple[Centroids, str]:
    """Clusters of what a layer hears of a folder, and a sentence about them."""
    if clusters < 2:
        raise UsageError(f"--clusters {clusters}: there must be at least 2")
    heard = list(_sampled(extractor, folder, layer, seed))
    vectors = torch.cat(heard) if heard else torch.empty(0, 1)
    if len(vectors) < clusters:
        raise UsageError(
            f"--clusters {clusters} cannot be found in {len(vectors)} steps of sound, {extractor.token_rate:g} a "
            "second; ask for fewer, or add sound"
        )
    mean, deviation = vectors.mean(0), vectors.std(0, correction=0).clamp(min=1e-5)
    found = kmeans.fit((vectors - mean) / deviation, clusters, seed)
    summary = (
        f"{clusters} clusters of {len(vectors)} steps, after {found.rounds} rounds: "
        f"{found.explained:.0%} of the variance is between them"
    )
    return Centroids(found.centres, mean, deviation, layer, extractor.token_rate, extractor.digest), summary


def _sampled(extractor: AudioFeatureExtractor, folder: AudioFolder, layer: int, seed: int) -> Iterator[Tensor]:
    """What is heard of clips, at steps that are drawn for each."""
    generator = torch.Generator().manual_seed(seed_from(seed, "clips"))
    chosen: list[int] = []
    steps = 0.0
    for item in torch.randperm(len(folder), generator=generator).tolist():
        if steps >= SPREAD * SAMPLE:
            break
        try:
            steps += folder.frames(item) / extractor.sample_rate * extractor.token_rate
        except UnreadableItem:
            continue  # it is named where it is to be encoded
        chosen.append(item)
    share = min(1.0, SAMPLE / max(1.0, steps))
    for item in track(chosen, "heard"):
        try:
            states = extractor.hidden_states(_wave(folder, item), layer).float().cpu()
        except UnreadableItem:
            continue
        yield states[ItemRNG(seed, [0], [item]).uniform("steps", len(states))[0] < share]


def read_centroids(path: Path) -> Centroids:
    """Those of a folder that `encode_folder` wrote, or of the file itself."""
    file = path / f"{CENTROIDS}.safetensors" if path.is_dir() else path
    try:
        if file.suffix != ".safetensors":
            raise ValueError("not a safetensors file")
        tensors = checkpoint.read_tensors(file.parent, file.stem)
        centres, mean, deviation = (tensors[name].float() for name in ("centres", "mean", "deviation"))
        if centres.ndim != 2 or len(centres) < 2 or not mean.shape == deviation.shape == centres.shape[1:]:
            raise ValueError(f"centres of shape {tuple(centres.shape)}")
        if not (deviation > 0).all():
            raise ValueError("a deviation of 0")
        layer, rate = int(tensors["layer"]), float(tensors["rate"])
        digest = bytes(tensors["digest"].tolist()).hex()
        return Centroids(centres, mean, deviation, layer, rate, digest)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, CheckpointError) as error:
        reason = files.one_line(error)
        raise UsageError(
            f"--centroids {path}: these are not clusters that `quintet encode … --layer N` wrote ({reason})"
        ) from None


def _refuse_unfit(
    given: Centroids, extractor: AudioFeatureExtractor, reference: str, layer: int | None, clusters: int | None
) -> None:
    """Clusters mean something in one layer of one model alone."""
    if given.digest != extractor.digest:
        raise UsageError(f"--centroids are of another model than {reference}, or of other weights of it")
    if layer not in (None, given.layer):
        raise UsageError(f"--layer {layer}, but the --centroids are of layer {given.layer}")
    if clusters not in (None, len(given.centres)):
        raise UsageError(f"--clusters {clusters}, but there are {len(given.centres)} --centroids")


def _checked(layer: int | None, extractor: AudioFeatureExtractor, reference: str) -> int:
    assert layer is not None, "without --centroids a layer is asked for"
    if not 1 <= layer <= extractor.depth:
        raise UsageError(f"--layer {layer}: {reference} has the layers 1 to {extractor.depth}")
    return layer


def _folder(data: str, extractor: AudioFeatureExtractor) -> AudioFolder:
    """All clips of a folder, each whole."""
    config = AudioDataConfig(path=data, validation_path=data, loudness=extractor.loudness, memory_megabytes=0)
    folder = audio_folder_splits(config, extractor.sample_rate).validation
    assert isinstance(folder, AudioFolder)
    return folder


def _wave(folder: AudioFolder, item: int) -> Tensor:
    wave: Tensor = folder.load(item, ItemRNG(0, [0], [item]))["wavs"][0]
    return wave
