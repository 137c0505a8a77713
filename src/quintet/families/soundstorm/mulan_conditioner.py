"""`MuLaNConditioner`: conditioning vectors of a frozen MuLaN, of clips in training and of texts in sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.common.batch import Batch
from quintet.data.audio import pad_windows
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError
from quintet.pipelines.base import Embedder, Frozen, Pipeline


class MuLaNConditioner:
    """The pipeline `frozen["condition"]`, and the form in which a generator sees its vectors (`model.condition_form`)."""

    def __init__(self, mulan: Pipeline[Any], form: str = "vector") -> None:
        if not isinstance(mulan, Embedder) or not hasattr(mulan, "embed_audio"):
            raise UsageError(
                f"--condition takes a run of mulan; {mulan.reference} is of recipe '{mulan.recipe}', which has no "
                "vectors of sounds and texts"
            )
        if form == "quantized" and "quantizer" not in mulan.modules:
            raise UsageError(
                f"model.condition_form=quantized, but {mulan.reference} has no quantizer: train it with model.num_quantizers, "
                "or use model.condition_form=vector"
            )
        self.mulan: Any = mulan
        self.quantized = form == "quantized"

    @classmethod
    def of(cls, frozen: Frozen, form: str) -> MuLaNConditioner | None:
        return cls(frozen["condition"], form) if "condition" in frozen else None

    @property
    def dim(self) -> int:
        dim: int = self.mulan.model.latent_dim
        return dim

    def embed_audio(self, waves: Sequence[Tensor], rate: int) -> Tensor:
        """Vectors (clips, dim), of length one, of clips (samples,)."""
        vectors: Tensor = self.mulan.embed_audio(waves, rate)
        return vectors.float()

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Vectors (texts, dim), of length one."""
        vectors: Tensor = self.mulan.embed_texts(texts)
        return vectors.float()

    def conditioning(self, vectors: Tensor) -> Tensor:
        """What the generator sees of vectors (rows, dim): they themselves, or the nearest that codes stand for."""
        if not self.quantized:
            return vectors
        quantizer = self.mulan.modules["quantizer"]
        nearest: Tensor = quantizer.decode(quantizer.encode(vectors.float()))
        return nearest.to(vectors.dtype)

    def token_encoder(self, rate: int) -> TokenEncoder:
        """For the cache of the field `clip`: the vectors of clips at a rate."""

        def encode(batch: Batch) -> Tensor:
            waves = [wave[:length] for wave, length in zip(batch["wavs"], batch["lengths"].tolist(), strict=True)]
            return self.embed_audio(waves, rate)

        data = self.mulan.config.data
        windows = f"{data.seconds:g} s every {data.stride:g} s, {data.max_windows} at most, loudness {data.loudness}"
        return TokenEncoder(f"{self.mulan.digest} {windows}", pad_windows, encode, "clip")
