"""`MuLaNEmbedQuantizer` of musiclm-pytorch: conditioning vectors for other transformers; and `MusicLM`, refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quintet.compat.model import CompatModel, new_seed
from quintet.compat.musiclm_pytorch.mulan import MuLaN
from quintet.errors import UsageError
from quintet.nn.quantize import make_quantizer

DEAD_BELOW = 2.0
"""A code with fewer uses per step, in the moving average, is replaced."""


class MuLaNEmbedQuantizer(CompatModel):
    """Waveforms or texts to vectors (batch, rq_num_quantizers, conditioning dim) of a namespace.

    Embeddings of the MuLaN are quantized residually; each code has a learned vector in each namespace. In training
    mode the codebooks follow the embeddings, from k-means at the first call.
    """

    def __init__(
        self,
        mulan: MuLaN,
        conditioning_dims: Sequence[int],
        rq_num_quantizers: int = 8,
        rq_ema_decay: float = 0.9,
        codebook_size: int = 1024,
        namespaces: Sequence[str] = ("semantic", "coarse", "fine"),
    ) -> None:
        super().__init__()
        if not isinstance(mulan, MuLaN):
            raise UsageError(f"MuLaNEmbedQuantizer takes a MuLaN of this package, not a {type(mulan).__name__}")
        if not namespaces or len(conditioning_dims) != len(namespaces):
            raise UsageError(
                f"MuLaNEmbedQuantizer needs one of conditioning_dims for each of namespaces, not "
                f"{len(conditioning_dims)} for {len(namespaces)}"
            )
        self.mulan = mulan
        self.namespaces, self.conditioning_dims = tuple(namespaces), tuple(conditioning_dims)
        self.dim, self.num_codebooks, self.codebook_size = mulan.dim_latent, rq_num_quantizers, codebook_size
        # The embeddings get no gradient from the quantizer, so there is no commitment loss.
        self.rq = make_quantizer(
            "vq",
            self.dim,
            codebook_size,
            rq_num_quantizers,
            decay=rq_ema_decay,
            commitment_weight=0.0,
            revive_below=DEAD_BELOW,
        )
        self.cond_embeddings = nn.ParameterDict(
            {
                name: nn.Parameter(torch.randn(rq_num_quantizers * codebook_size, dim) * 0.02)
                for name, dim in zip(namespaces, conditioning_dims, strict=True)
            }
        )
        self.set_default_namespace(namespaces[0])

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Only the vectors of the namespaces: the MuLaN is frozen."""
        return self.cond_embeddings.parameters(recurse)

    def set_default_namespace(self, namespace: str) -> None:
        self._default_namespace = namespace

    def forward(self, wavs: Tensor | None = None, texts: Tensor | None = None, namespace: str | None = None) -> Tensor:
        """Vectors (batch, rq_num_quantizers, dim of the namespace) of waveforms or of token ids."""
        if (wavs is None) == (texts is None):
            raise UsageError("MuLaNEmbedQuantizer takes either wavs or texts")
        name = namespace or self._default_namespace
        if name not in self.namespaces:
            raise UsageError(f"the namespace {name!r} is not among {', '.join(self.namespaces)}")
        with torch.no_grad():
            self.mulan.eval()
            latents = self.mulan.get_text_latents(texts) if wavs is None else self.mulan.get_audio_latents(wavs)
            codes = self._codes(latents)
        offsets = torch.arange(self.num_codebooks, device=codes.device) * self.codebook_size
        return F.embedding(codes + offsets, self.cond_embeddings[name])

    def _codes(self, latents: Tensor) -> Tensor:
        """Codes (batch, quantizers); in training mode the codebooks are updated. No gradient depends on them."""
        rows = latents[None]
        if self.training and not self._initialised:
            self._initialised = True
            self.rq.init_from_data(latents, new_seed())
        codes: Tensor = self.rq.encode(rows)[0]
        if self.training:
            statistics = self.rq(latents[:, None], return_candidates=True).statistics
            self.rq.update(statistics.over_ranks(), new_seed())
        return codes if self.rq.code_axes else codes[:, None]


class AudioLM:
    """Refused: the model of audiolm-pytorch is not part of quintet."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        raise UsageError("AudioLM is refused: quintet does not have it; train a SoundStorm for audio")


class MusicLM:
    """Refused: it generates with AudioLM, which is not part of quintet."""

    def __init__(self, audio_lm: Any = None, mulan_embed_quantizer: Any = None) -> None:
        raise UsageError(
            "MusicLM is refused: it generates with AudioLM, which quintet does not have; train a SoundStorm with "
            "`condition=` a trained mulan for text to audio"
        )
