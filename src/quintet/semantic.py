"""Semantic tokens: k-means cluster indices of the hidden states of an audio model, one token per time step.

The clusters are fitted to the hidden states of the clips of a folder, with each dimension normalised to mean 0 and
standard deviation 1 (AudioLM, 2209.03143). They are saved with the tokens as `centroids.safetensors`, so that other
folders can be encoded with the same clusters.
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
from quintet.common.weights import checkpoint, tensor_groups
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
NUM_CLUSTERS = 256
NUM_SAMPLED = 2**17
"""Number of time steps for fitting clusters; a random fraction of the steps is used if there are more."""
OVERSAMPLING = 4
"""Encode up to OVERSAMPLING * NUM_SAMPLED steps and subsample them: neighbouring steps of a clip are similar."""


@dataclass(frozen=True)
class Centroids:
    """Clusters of the hidden states of one layer of one model."""

    centres: Tensor
    mean: Tensor
    deviation: Tensor
    layer: int
    rate: float
    """Tokens per second."""
    digest: str
    """SHA-256 of the model."""

    def tokens(self, states: Tensor) -> Tensor:
        """The cluster indices (steps,) of hidden states (steps, dim)."""
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
class EncodedFolder:
    """The result of `encode_folder`."""

    items: int
    rate: float
    lines: list[str]
    """Messages about the clusters."""


def encode_folder(
    reference: str,
    data: str,
    out: Path,
    *,
    layer: int | None = None,
    clusters: int | None = None,
    centroids: Path | None = None,
    seed: int = 0,
) -> EncodedFolder:
    """Encode every readable file of a folder as semantic tokens, with `centroids` or with newly fitted clusters."""
    refuse_existing(out)
    extractor = open_audio_features(reference)
    fitted = None if centroids is None else read_centroids(centroids)
    if fitted is not None:
        _check_centroids(fitted, extractor, reference, layer, clusters)
    folder = _folder(data, extractor)
    lines: list[str] = []
    if fitted is None:
        fitted, summary = fit_centroids(
            extractor, folder, _check_layer(layer, extractor, reference), clusters or NUM_CLUSTERS, seed
        )
        lines.append(summary)
    rows: list[dict[str, Any]] = []
    tokens: list[Tensor] = []
    for item in track(range(len(folder)), "encoded"):
        try:
            states = extractor.hidden_states(_wave(folder, item), fitted.layer)
        except UnreadableItem as problem:
            rows.append({"file": folder.name(item), "skipped": str(problem)})
            continue
        tokens.append(fitted.tokens(states)[None].cpu().to(torch.int32))
        rows.append({"file": folder.name(item), "row": len(tokens) - 1})
    if not tokens:
        raise UsageError(f"no file of {data} can be read; `quintet data check {data}` lists the reasons")
    contents = code_contents(tokens, rows)
    contents.tensors[CENTROIDS] = fitted.tensors()
    contents.json[CODES] = {
        "num_codes": len(fitted.centres),
        "rate": fitted.rate,
        "layer": fitted.layer,
        "model": reference,
        "model_hash": fitted.digest,
    }
    checkpoint.write_folder(out, contents)
    used = len(set(torch.cat([each[0] for each in tokens]).tolist()))
    lines.append(f"{used} of {len(fitted.centres)} tokens are in use")
    return EncodedFolder(len(tokens), fitted.rate, lines)


def open_audio_features(reference: str) -> AudioFeatureExtractor:
    """The feature extractor of a trained model with an audio tower, or of a speech model folder of `transformers`."""
    folder = Path(reference)
    if reference.startswith(PRETRAINED):
        folder = transformers_folder.find_folder(reference.removeprefix(PRETRAINED), "model")
    kind = transformers_folder.kind_of(folder)
    if kind is not None and is_audio_encoder(kind):
        return PretrainedAudioEncoder(folder, own_device(EngineConfig()))
    pipeline = open_pipeline(reference)
    if not hasattr(pipeline, "audio_features"):
        raise UsageError(f"recipe {pipeline.recipe} has no audio encoder layers; omit --layer")
    pipeline.to(own_device(pipeline.config.engine))
    features: AudioFeatureExtractor = pipeline.audio_features()
    return features


def fit_centroids(
    extractor: AudioFeatureExtractor, folder: AudioFolder, layer: int, clusters: int, seed: int
) -> tuple[Centroids, str]:
    """Fit clusters to the hidden states of a layer over a folder; returns them and a summary."""
    if clusters < 2:
        raise UsageError(f"--clusters {clusters} is too small; use at least 2")
    sampled = list(_sample_states(extractor, folder, layer, seed))
    vectors = torch.cat(sampled) if sampled else torch.empty(0, 1)
    if len(vectors) < clusters:
        raise UsageError(
            f"--clusters {clusters} is more than the {len(vectors)} time steps of the audio "
            f"({extractor.token_rate:g} per second); use fewer clusters, or add audio"
        )
    mean, deviation = vectors.mean(0), vectors.std(0, correction=0).clamp(min=1e-5)
    found = kmeans.fit((vectors - mean) / deviation, clusters, seed)
    summary = (
        f"{clusters} clusters of {len(vectors)} steps, after {found.rounds} iterations: "
        f"they explain {found.explained:.0%} of the variance"
    )
    return Centroids(found.centres, mean, deviation, layer, extractor.token_rate, extractor.digest), summary


def _sample_states(extractor: AudioFeatureExtractor, folder: AudioFolder, layer: int, seed: int) -> Iterator[Tensor]:
    """Hidden states (steps, dim) of random clips, at random time steps."""
    generator = torch.Generator().manual_seed(seed_from(seed, "clips"))
    chosen: list[int] = []
    steps = 0.0
    for item in torch.randperm(len(folder), generator=generator).tolist():
        if steps >= OVERSAMPLING * NUM_SAMPLED:
            break
        try:
            steps += folder.frames(item) / extractor.sample_rate * extractor.token_rate
        except UnreadableItem:
            continue  # reported when it is encoded
        chosen.append(item)
    fraction = min(1.0, NUM_SAMPLED / max(1.0, steps))
    for item in track(chosen, "sampled"):
        try:
            states = extractor.hidden_states(_wave(folder, item), layer).float().cpu()
        except UnreadableItem:
            continue
        yield states[ItemRNG(seed, [0], [item]).uniform("steps", len(states))[0] < fraction]


def read_centroids(path: Path) -> Centroids:
    """Read clusters from a folder that `encode_folder` wrote, or from the file itself."""
    file = path / f"{CENTROIDS}.safetensors" if path.is_dir() else path
    try:
        if file.suffix != ".safetensors":
            raise ValueError("not a safetensors file")
        checkpoint.verify_used(file.parent)
        tensors = tensor_groups.read_tensors(file.parent, file.stem)
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
            f"--centroids {path} does not contain clusters written by `quintet encode … --layer N` ({reason})"
        ) from None


def _check_centroids(
    centroids: Centroids, extractor: AudioFeatureExtractor, reference: str, layer: int | None, clusters: int | None
) -> None:
    """Raise UsageError if clusters are from another model, layer or number of clusters."""
    if centroids.digest != extractor.digest:
        raise UsageError(f"--centroids are from another model than {reference}, or from other weights of it")
    if layer not in (None, centroids.layer):
        raise UsageError(f"--layer {layer}, but the --centroids are from layer {centroids.layer}")
    if clusters not in (None, len(centroids.centres)):
        raise UsageError(f"--clusters {clusters}, but there are {len(centroids.centres)} --centroids")


def _check_layer(layer: int | None, extractor: AudioFeatureExtractor, reference: str) -> int:
    assert layer is not None, "without --centroids a layer is required"
    if not 1 <= layer <= extractor.depth:
        raise UsageError(f"--layer {layer} does not exist: {reference} has layers 1 to {extractor.depth}")
    return layer


def _folder(data: str, extractor: AudioFeatureExtractor) -> AudioFolder:
    """All clips of a folder at full length."""
    config = AudioDataConfig(path=data, validation_path=data, loudness=extractor.loudness, memory_megabytes=0)
    folder = audio_folder_splits(config, extractor.sample_rate).validation
    assert isinstance(folder, AudioFolder)
    return folder


def _wave(folder: AudioFolder, item: int) -> Tensor:
    """The waveform (samples,) of a clip."""
    wave: Tensor = folder.load(item, ItemRNG(0, [0], [item]))["wavs"][0]
    return wave
