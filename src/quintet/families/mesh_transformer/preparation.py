"""`MeshTransformerPreparation`: texts, targets and random choices of a training batch, computed in the data workers.

On a GPU, finding the predicted positions would make every step wait for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quintet.common.batch import Batch
from quintet.families.mesh_transformer.config import MeshTransformerLossConfig, MeshTransformerModelConfig
from quintet.families.mesh_transformer.model import Targets, face_buckets, find_targets, valid_faces
from quintet.families.mesh_transformer.stages import Positions
from quintet.nn.preparation import check_vocabulary, prepared_texts
from quintet.nn.text import TextPreparation


@dataclass(frozen=True)
class MeshTransformerPreparation:
    """Called with a collated batch on the CPU. Returns the fields

    - `keep_text` (batch,): False where the text is dropped; `text` and `text_mask` of a text encoder that needs no
      weights to prepare texts;
    - `keep_points` (batch,): False where the point cloud is dropped, if there are any;
    - `face_buckets` (batch,): the conditioning on the face count, if the model has it;
    - `predicted_tokens`, `predicted_faces` and `targets` of `Targets`.
    """

    model: MeshTransformerModelConfig
    loss: MeshTransformerLossConfig
    prepare_texts: TextPreparation | None

    def __call__(self, batch: Batch) -> dict[str, Any]:
        rng, codes = batch.rng, batch["codes"]
        assert self.model.num_codes is not None
        codes_or_0 = codes.masked_fill(~valid_faces(codes, batch["lengths"]), 0)
        check_vocabulary(batch.names, codes_or_0, self.model.num_codes)
        states = batch.fields.get("states")
        targets = find_targets(self.model, codes, batch["lengths"], batch["begins"], batch["ends"], states)
        fields: dict[str, Any] = {
            **prepared_texts(self.prepare_texts, batch, rng.uniform("keep text") >= self.loss.cond_drop_prob),
            "predicted_tokens": targets.positions.tokens,
            "predicted_faces": targets.positions.faces,
            "targets": targets.codes,
        }
        if states is None and targets.positions.states is not None:
            fields["states"] = targets.positions.states
        if "points" in batch:
            fields["keep_points"] = rng.uniform("keep points") >= self.loss.point_drop_prob
        if self.model.face_buckets:
            keep = rng.uniform("keep faces") >= self.loss.face_count_drop_prob
            fields["face_buckets"] = face_buckets(self.model, batch["faces"], keep)
        return fields


def targets_of(batch: Batch) -> Targets:
    """The targets of a prepared batch."""
    states = batch.fields.get("states")
    return Targets(Positions(batch["predicted_tokens"], batch["predicted_faces"], states), batch["targets"])
