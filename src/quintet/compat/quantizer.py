"""Options of the quantizers of vector-quantize-pytorch, which the originals pass on as dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from quintet.compat.model import refuse_unless
from quintet.errors import UsageError
from quintet.nn.quantize.codebook_free import LookupFreeQuantizer

LFQ_ATTRIBUTES = {
    "diversity_gamma": "diversity_gamma",
    "entropy_loss_weight": "entropy_weight",
    "commitment_loss_weight": "commitment_weight",
}
VQ_ATTRIBUTES = {
    "decay": "decay",
    "commitment_weight": "commitment_weight",
    "threshold_ema_dead_code": "revive_below",
}
VQ_WITHOUT_EFFECT = ("codebook_dim", "use_cosine_sim")


def set_options(owner: str, quantizer: nn.Module, options: Mapping[str, Any]) -> list[str]:
    """Set the losses of a quantizer; returns notices about options without effect.

    Weights of losses are attributes of the quantizer, not keys: they matter only in training.
    """
    is_lfq = isinstance(quantizer, LookupFreeQuantizer)
    attributes, without_effect = (LFQ_ATTRIBUTES, ()) if is_lfq else (VQ_ATTRIBUTES, VQ_WITHOUT_EFFECT)
    notices = []
    for name, value in options.items():
        if name in attributes:
            setattr(quantizer, attributes[name], float(value))
        elif name == "kmeans_init" and not is_lfq:
            refuse_unless(owner, name, value, (True,), "codes are always initialised by k-means; leave it out")
        elif name in without_effect:
            notices.append(f"{name} has no effect: codes are compared by distance, without a projection")
        else:
            known = ", ".join((*attributes, *without_effect))
            raise UsageError(f"{owner}: the quantizer option {name!r} is refused: quintet's quantizer has only {known}")
    return notices
