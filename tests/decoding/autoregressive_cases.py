"""Cases of autoregressive decoding with a `MeshTransformer` of random weights, in fp64, for any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from quintet.common.rng import ItemRNG
from quintet.families.mesh_transformer.grammar import CanonicalCoordinates, whole_faces
from quintet.families.mesh_transformer.model import MeshTransformer
from quintet.sampling.autoregressive import Decoded, Legal, Sampling
from quintet.sampling.guidance import encode_prompts

CODES = 8
COORDINATES = 9
TEXTS = ("a cup", "", "a long table", "a chair", "two cups")
PROMPTS = ((), (1, 2, 3, 1, 2, 4, 1, 3, 4, 2), (5,), (0, 0, 1), (1, 2, 3, 1, 2, 4, 1, 3, 4))
CPU = torch.device("cpu")

GRAMMARS: Mapping[str, Legal | None] = {
    "none": None,
    "whole faces": partial(whole_faces, tokens_per_face=COORDINATES, num_codes=CODES),
    "strict": CanonicalCoordinates(CODES),
}


@dataclass(frozen=True)
class Case:
    settings: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "coarse_fine"
    grammar: str = "whole faces"
    prompts: Sequence[Sequence[int]] = ((),) * len(TEXTS)
    max_faces: int = 6

    def run(self, decode: Callable[..., Decoded], device: torch.device = CPU, spoilt: bool = False) -> Decoded:
        """The tokens; with `spoilt`, the model's logits are not numbers."""
        model = make(self.kind)
        if spoilt:
            model.to_logits.bias.data.fill_(torch.nan)
        model.to(device)
        lengths = torch.tensor([len(prompt) for prompt in self.prompts])
        prompts = torch.nn.utils.rnn.pad_sequence([torch.tensor(prompt).long() for prompt in self.prompts], True)
        cond, uncond = encode_prompts(model, TEXTS)
        return decode(
            model.begin,
            prompts.to(device),
            lengths.to(device),
            end_id=CODES,
            max_length=self.max_faces * COORDINATES,
            rng=ItemRNG(5, [0] * len(TEXTS), range(len(TEXTS))),
            settings=Sampling(**self.settings),
            cond=cond | model.faces(torch.tensor([3, 0, 6, 1, 2])),
            uncond=uncond,
            legal=GRAMMARS[self.grammar],
        )


def make(kind: str) -> MeshTransformer:
    torch.manual_seed(0)
    model = MeshTransformer(
        kind=kind,
        num_codes=CODES,
        tokens_per_face=COORDINATES,
        max_faces=8,
        face_buckets=4,
        dim=16,
        depth=2,
        fine_depth=1,
        heads=2,
        text_dim=16,
        text_depth=1,
        text_heads=2,
        text_length=16,
    )
    with torch.no_grad():
        model.to_logits.weight.mul_(4)
        model.to_logits.bias[CODES] += 1
    return model.double().eval().requires_grad_(False)


CASES: Mapping[str, Case] = {
    "plain": Case(),
    "flat": Case(kind="flat"),
    "no grammar": Case(grammar="none"),
    "strict grammar": Case(grammar="strict"),
    "strict grammar, flat": Case(grammar="strict", kind="flat", max_faces=8),
    "guidance": Case({"guidance_scale": 3.0}),
    "guidance, strict grammar, flat": Case({"guidance_scale": 2.0}, kind="flat", grammar="strict"),
    "projected guidance": Case({"guidance_scale": 3.0, "guidance_projection": True}),
    "top_k": Case({"top_k": 4}),
    "top_p": Case({"top_p": 0.8}),
    "top_k, top_p, temperature and guidance": Case(
        {"top_k": 0.7, "top_p": 0.9, "temperature": 1.5, "guidance_scale": 2.0}
    ),
    "greedy": Case({"temperature": 0.0}),
    "prompts": Case(prompts=PROMPTS),
    "prompts, flat, no grammar": Case(prompts=PROMPTS, kind="flat", grammar="none"),
    "prompts, guidance and strict grammar": Case({"guidance_scale": 2.0}, prompts=PROMPTS, grammar="strict"),
    "one face": Case(max_faces=1),
    "a prompt of the maximum length": Case(prompts=PROMPTS, max_faces=1, grammar="none"),
}


def as_lists(decoded: Decoded) -> list[Any]:
    parts: list[Tensor] = [*decoded]
    return [part.tolist() for part in parts]
