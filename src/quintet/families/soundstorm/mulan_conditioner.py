"""`MuLaNConditioner`: embeddings of a frozen MuLaN as conditioning, of clips in training and of texts in sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from quintet.common.batch import Batch
from quintet.common.device import numerics_of
from quintet.data.audio import pad_windows
from quintet.data.tokenized import TokenEncoder
from quintet.errors import UsageError
from quintet.pipelines.base import Embedder, Frozen, Pipeline


class MuLaNConditioner:
    """The pipeline `frozen["condition"]`, and the form of its embeddings for the generator (`model.condition_form`)."""

    def __init__(self, mulan: Pipeline[Any], form: str = "vector") -> None:
        if not isinstance(mulan, Embedder) or not hasattr(mulan, "embed_audio"):
            raise UsageError(
                f"--condition takes a run of recipe 'mulan'; {mulan.reference} is of recipe '{mulan.recipe}', which "
                "does not embed audio and text"
            )
        if form == "quantized" and "quantizer" not in mulan.modules:
            raise UsageError(
                f"model.condition_form=quantized, but {mulan.reference} has no quantizer: train it with "
                "model.num_quantizers above 0, or set model.condition_form=vector"
            )
        self.mulan: Any = mulan
        self.quantized = form == "quantized"

    @classmethod
    def of(cls, frozen: Frozen, form: str) -> MuLaNConditioner | None:
        """The conditioner of a run; None without --condition."""
        return cls(frozen["condition"], form) if "condition" in frozen else None

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        dim: int = self.mulan.model.latent_dim
        return dim

    def embed_audio(self, waves: Sequence[Tensor], rate: int) -> Tensor:
        """Unit embeddings (clips, dim) of clips (samples,) at the sampling rate `rate`."""
        vectors: Tensor = self.mulan.embed_audio(waves, rate)
        return vectors.float()

    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Unit embeddings (texts, dim) of texts."""
        vectors: Tensor = self.mulan.embed_texts(texts)
        return vectors.float()

    def conditioning(self, vectors: Tensor) -> Tensor:
        """Embeddings (rows, dim) in the form for the generator: unchanged, or quantized and decoded."""
        if not self.quantized:
            return vectors
        quantizer = self.mulan.modules["quantizer"]
        quantized: Tensor = quantizer.decode(quantizer.encode(vectors.float()))
        return quantized.to(vectors.dtype)

    def token_encoder(self, rate: int) -> TokenEncoder:
        """The encoder for the token cache: the embeddings of clips at this sampling rate, as the field `clip`."""

        def encode(batch: Batch) -> Tensor:
            # MuLaN hears the mean of the channels of stereo clips.
            mono = batch["wavs"] if batch["wavs"].ndim == 2 else batch["wavs"].mean(1)
            waves = [wave[:length] for wave, length in zip(mono, batch["lengths"].tolist(), strict=True)]
            return self.embed_audio(waves, rate)

        data = self.mulan.config.data
        windows = f"{data.seconds:g} s every {data.stride:g} s, {data.max_windows} at most, loudness {data.loudness}"
        digest = f"{self.mulan.digest} {windows}{numerics_of(self.mulan.device)}"
        return TokenEncoder(digest, pad_windows, encode, "clip", self.mulan.device)
