"""`MeshAutoencoder` of meshgpt-pytorch: quintet's `MeshAutoencoder` with padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from quintet.compat.meshgpt_pytorch.folder import Rebuildable, plain
from quintet.compat.meshgpt_pytorch.given import to_own_range
from quintet.compat.meshgpt_pytorch.padded import Padded
from quintet.compat.model import TrainingParts, notify, refuse_unless
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.features import bin_centres, coordinate_bins
from quintet.families.mesh_autoencoder.model import MeshAutoencoder as OwnMeshAutoencoder
from quintet.families.mesh_autoencoder.model import Reconstruction
from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline
from quintet.families.mesh_autoencoder.task import MeshAutoencoderTask
from quintet.nn.graph import Packing

NAME = "MeshAutoencoder"
BINS = 128
MAX_FACES = 2**20
RQ_DEFAULTS = {"quantize_dropout": True, "quantize_dropout_cutoff_index": 1, "quantize_dropout_multiple_of": 1}
RVQ_DEFAULTS = {"kmeans_init": True, "threshold_ema_dead_code": 2}
RLFQ_DEFAULTS = {
    "frac_per_sample_entropy": 1.0,
    "soft_clamp_input_value": 10.0,
    "experimental_softplus_entropy_loss": True,
}
SAGE_DEFAULTS = {"normalize": True, "project": True}
LOCAL_DEFAULTS = {"dim_head": 32, "heads": 8}
LINEAR_DEFAULTS = {"dim_head": 8, "heads": 16}


class MeshAutoencoder(Rebuildable):
    """Faces of meshes to codes (batch, faces * vertices per face, quantizers) and back.

    `vertices` (batch, vertices, 3) and `faces` (batch, faces, 3 or 4) are padded; faces of `pad_id` are padding.
    `forward` returns the loss of quintet's recipe `mesh-autoencoder`.
    """

    config_class = MeshAutoencoderConfig
    task_class = MeshAutoencoderTask

    def __init__(
        self,
        num_discrete_coors: int = BINS,
        coor_continuous_range: tuple[float, float] = (-1.0, 1.0),
        dim_coor_embed: int = 64,
        num_discrete_area: int = BINS,
        dim_area_embed: int = 16,
        num_discrete_normals: int = BINS,
        dim_normal_embed: int = 64,
        num_discrete_angle: int = BINS,
        dim_angle_embed: int = 16,
        encoder_dims_through_depth: Sequence[int] = (64, 128, 256, 256, 576),
        init_decoder_conv_kernel: int = 7,
        decoder_dims_through_depth: Sequence[int] = (128,) * 4 + (192,) * 4 + (256,) * 6 + (384,) * 3,
        dim_codebook: int = 192,
        num_quantizers: int = 2,
        codebook_size: int = 16384,
        use_residual_lfq: bool = True,
        rq_kwargs: Mapping[str, Any] = RQ_DEFAULTS,
        rvq_kwargs: Mapping[str, Any] = RVQ_DEFAULTS,
        rlfq_kwargs: Mapping[str, Any] = RLFQ_DEFAULTS,
        rvq_stochastic_sample_codes: bool = True,
        sageconv_kwargs: Mapping[str, Any] = SAGE_DEFAULTS,
        commit_loss_weight: float = 0.1,
        bin_smooth_blur_sigma: float = 0.4,
        attn_encoder_depth: int = 0,
        attn_decoder_depth: int = 0,
        local_attn_kwargs: Mapping[str, Any] = LOCAL_DEFAULTS,
        local_attn_window_size: int = 64,
        linear_attn_kwargs: Mapping[str, Any] = LINEAR_DEFAULTS,
        use_linear_attn: bool = True,
        pad_id: int = -1,
        flash_attn: bool = True,
        attn_dropout: float = 0.0,
        ff_dropout: float = 0.0,
        resnet_dropout: float = 0.0,
        checkpoint_quantizer: bool = False,
        quads: bool = False,
    ) -> None:
        arguments = plain(locals())
        super().__init__()
        self.arguments = arguments
        for name, value, default in (
            ("rq_kwargs", rq_kwargs, RQ_DEFAULTS),
            ("rvq_kwargs", rvq_kwargs, RVQ_DEFAULTS),
            ("rlfq_kwargs", rlfq_kwargs, RLFQ_DEFAULTS),
            ("sageconv_kwargs", sageconv_kwargs, SAGE_DEFAULTS),
        ):
            refuse_unless(NAME, name, dict(value), ({}, default), "quintet's model has no such settings; leave it out")
        attention = attn_encoder_depth + attn_decoder_depth > 0
        self.model = OwnMeshAutoencoder(
            vertices_per_face=4 if quads else 3,
            bins=num_discrete_coors,
            coordinate_dim=dim_coor_embed,
            angle_dim=dim_angle_embed,
            area_dim=dim_area_embed,
            normal_dim=dim_normal_embed,
            encoder_dims=tuple(encoder_dims_through_depth),
            encoder_attention=attn_encoder_depth,
            code_dim=dim_codebook,
            quantizer="lfq" if use_residual_lfq else "vq",
            codebook_size=codebook_size,
            num_quantizers=num_quantizers,
            decoder_dims=tuple(decoder_dims_through_depth),
            decoder_attention=attn_decoder_depth,
            attention_window=local_attn_window_size,
            attention_head_dim=int(local_attn_kwargs.get("dim_head", LOCAL_DEFAULTS["dim_head"])),
            dropout=_dropout(attn_dropout, ff_dropout, resnet_dropout, attention),
        )
        self.num_vertices_per_face = self.model.vertices_per_face
        self.num_discrete_coors = num_discrete_coors
        self.coor_continuous_range = (float(coor_continuous_range[0]), float(coor_continuous_range[1]))
        self.codebook_size, self.num_quantizers = codebook_size, num_quantizers
        self.commit_loss_weight, self.bin_smooth_blur_sigma = commit_loss_weight, bin_smooth_blur_sigma
        self.pad_id = pad_id
        derived = {
            "num_discrete_area": num_discrete_area,
            "num_discrete_normals": num_discrete_normals,
            "num_discrete_angle": num_discrete_angle,
        }
        for name, bins in derived.items():
            refuse_unless(NAME, name, bins, (BINS, num_discrete_coors), "all features have num_discrete_coors bins")
        notify(
            NAME,
            "all quantizers are always used, and codes are not sampled (rq_kwargs, rvq_stochastic_sample_codes)",
            "convolutions of the decoder have a kernel of 3 faces (init_decoder_conv_kernel)",
            "neighbours of a face are averaged without a projection of their own (sageconv_kwargs)",
            *([f"all features have {num_discrete_coors} bins"] if num_discrete_coors != BINS else ()),
            *(
                ["attention is local, without linear attention, and the heads follow from dim_head"]
                if attention
                else ()
            ),
        )

    def training_parts(self) -> TrainingParts:
        self.apply_statistics()
        keys = {
            "loss.quantizer": self.commit_loss_weight,
            "loss.bin_blur_sigma": max(0.0, self.bin_smooth_blur_sigma),
            # The original does not change the meshes of a data set, and takes them of any size.
            "data.augment": False,
            "data.max_faces": MAX_FACES,
        }
        return TrainingParts(self.model, keys=keys, trained=self._initialised)

    def pipeline(self) -> MeshAutoencoderPipeline:
        """quintet's frozen pipeline of this tokenizer."""
        self.apply_statistics()
        config = MeshAutoencoderConfig.model_validate({"model": self.model.config.model_dump(mode="json")})
        return MeshAutoencoderPipeline(config, {"autoencoder": self.model}).freeze()

    # --- the whole model ----------------------------------------------------------------------------------------

    def forward(
        self,
        *,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        return_codes: bool = False,
        return_loss_breakdown: bool = False,
        return_recon_faces: bool = False,
        only_return_recon_faces: bool = False,
        rvq_sample_codebook_temp: float = 1.0,
    ) -> Any:
        """The loss; or codes (batch, faces * vertices, quantizers), or reconstructed faces (batch, faces, vertices, 3).

        With `return_recon_faces` and `return_loss_breakdown` a tuple: faces, loss, (reconstruction, quantizer loss).
        """
        refuse_unless(
            NAME, "rvq_sample_codebook_temp", rvq_sample_codebook_temp, (1.0, 1), "codes are not sampled; leave it out"
        )
        padded = self._padded(vertices, faces, face_edges)
        if return_codes:
            if return_recon_faces or only_return_recon_faces:
                raise UsageError(f"{NAME}: return_codes and reconstructed faces are exclusive; call it once for each")
            return self._flat_codes(padded, self.model.encode(padded.meshes))
        forward_pass = self.forward_pass(padded.fields(), len(faces))
        result: Reconstruction = forward_pass.output["result"]
        recon = (
            self._coordinates(padded, result.logits.argmax(-1))
            if return_recon_faces or only_return_recon_faces
            else None
        )
        if only_return_recon_faces:
            return recon
        loss = self.phase_loss("autoencoder", forward_pass)
        returned = [] if recon is None else [recon]
        returned.append(loss.value)
        if return_loss_breakdown:
            return (*returned, (loss.parts["reconstruction"], loss.parts["quantizer"]))
        return tuple(returned) if recon is not None else loss.value

    @torch.no_grad()
    def tokenize(self, vertices: Tensor, faces: Tensor, face_edges: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Codes (batch, faces * vertices, quantizers), `pad_id` in padding; of one mesh without the batch axis."""
        if kwargs:
            raise UsageError(f"{NAME}.tokenize has no argument '{next(iter(kwargs))}'")
        single = faces.ndim == 2
        inputs = [None if each is None else each[None] if single else each for each in (vertices, faces, face_edges)]
        training = self.training
        self.eval()
        try:
            assert inputs[0] is not None
            assert inputs[1] is not None
            codes: Tensor = self(vertices=inputs[0], faces=inputs[1], face_edges=inputs[2], return_codes=True)
        finally:
            self.train(training)
        return codes[0] if single else codes

    # --- its parts ----------------------------------------------------------------------------------------------

    def encode(
        self,
        *,
        vertices: Tensor,
        faces: Tensor,
        face_edges: Tensor | None = None,
        face_mask: Tensor | None = None,
        face_edges_mask: Tensor | None = None,
        return_face_coordinates: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Vectors of the faces (batch, faces, dim); and their coordinate bins (batch, faces, coordinates)."""
        if face_mask is not None:
            faces = faces.masked_fill(~face_mask[..., None], self.pad_id)
        if face_edges is not None and face_edges_mask is not None:
            face_edges = face_edges.masked_fill(~face_edges_mask[..., None], self.pad_id)
        padded = self._padded(vertices, faces, face_edges)
        encoded = padded.pad(self.model.face_vectors(padded.meshes))
        bins = coordinate_bins(padded.meshes.corners.flatten(1), self.num_discrete_coors)
        return (encoded, padded.pad(bins)) if return_face_coordinates else encoded

    def quantize(
        self,
        *,
        faces: Tensor,
        face_mask: Tensor,
        face_embed: Tensor,
        pad_id: int | None = None,
        rvq_sample_codebook_temp: float = 1.0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Quantized vectors (batch, faces, vertices * dim), codes (batch, faces * vertices, quantizers), and a loss."""
        refuse_unless(NAME, "rvq_sample_codebook_temp", rvq_sample_codebook_temp, (1.0, 1), "codes are not sampled")
        faces = faces.masked_fill(~face_mask[..., None], self.pad_id)
        points = faces.new_zeros(len(faces), int(faces.max()) + 1, 3).to(self.dtype)
        padded = self._padded(points, faces, None)
        meshes = padded.meshes
        quantized = self.model.quantizer(*self.model.vertex_vectors(meshes, face_embed[padded.face_mask]))
        vectors = F.embedding(meshes.faces, meshes.by_vertex.unpad(quantized.vectors)).flatten(1)
        codes = meshes.by_vertex.unpad(quantized.codes)[meshes.faces].flatten(1)
        self.collect(quantized.statistics.with_prefix("quantizer"))
        return padded.pad(vectors), self._flat_codes(padded, codes), quantized.loss

    def decode(self, quantized: Tensor, face_mask: Tensor) -> Tensor:
        """Vectors (batch, faces, dim) of quantized vectors; `to_coor_logits` makes logits of them."""
        rows = Packing(tuple(face_mask.sum(1).tolist()), quantized.device)
        hidden = self.model.decoder.hidden(quantized[face_mask], rows)
        out = hidden.new_zeros(*face_mask.shape, hidden.shape[-1])
        return out.masked_scatter(face_mask[..., None], hidden)

    def to_coor_logits(self, decoded: Tensor) -> Tensor:
        """Logits (batch, faces, coordinates, bins) of the output of `decode`."""
        logits = self.model.decoder.logits(decoded.flatten(0, 1))
        return logits.view(*decoded.shape[:2], *logits.shape[1:])

    @torch.no_grad()
    def decode_from_codes_to_faces(
        self, codes: Tensor, face_mask: Tensor | None = None, return_discrete_codes: bool = False
    ) -> tuple[Tensor, ...]:
        """Coordinates (batch, faces, vertices, 3), NaN in padding; their bins if they are wanted; and the mask."""
        per_face = self.model.tokens_per_face
        flat = codes.flatten(1)
        if flat.shape[1] % per_face:
            raise UsageError(f"{flat.shape[1]} codes of a mesh are not a multiple of the {per_face} codes of a face")
        rows = rearrange(flat, "b (f t) -> b f t", t=per_face)
        mask = (rows != self.pad_id).all(-1) if face_mask is None else face_mask
        bins = torch.zeros(*mask.shape, self.num_vertices_per_face, 3, dtype=torch.int64, device=codes.device)
        if mask.any():
            corners = self.model.decode_from_codes(rows[mask], mask.sum(1).tolist())
            found = coordinate_bins(corners, self.num_discrete_coors)
            bins = bins.masked_scatter(mask[..., None, None], found)
        coordinates = self._to_range(bin_centres(bins, self.num_discrete_coors))
        coordinates = coordinates.masked_fill(~mask[..., None, None], torch.nan)
        return (coordinates, bins, mask) if return_discrete_codes else (coordinates, mask)

    # --- shared -------------------------------------------------------------------------------------------------

    def _padded(self, vertices: Tensor, faces: Tensor, face_edges: Tensor | None) -> Padded:
        scaled = to_own_range(vertices.to(self.device, self.dtype), self.coor_continuous_range)
        return Padded.of(scaled, faces.to(self.device), face_edges, self.pad_id)

    def _to_range(self, coordinates: Tensor) -> Tensor:
        low, high = self.coor_continuous_range
        return coordinates if (low, high) == (-1.0, 1.0) else (coordinates + 1) * ((high - low) / 2) + low

    def _coordinates(self, padded: Padded, bins: Tensor) -> Tensor:
        """Coordinates (batch, faces, vertices, 3) of bins (faces, coordinates), NaN in padding."""
        centres = self._to_range(bin_centres(bins, self.num_discrete_coors))
        return rearrange(padded.pad(centres, torch.nan), "b f (v c) -> b f v c", c=3)

    def _flat_codes(self, padded: Padded, codes: Tensor) -> Tensor:
        """Codes (faces, tokens) as (batch, faces * vertices, quantizers)."""
        return rearrange(padded.pad(codes, self.pad_id), "b f (v q) -> b (f v) q", q=self.num_quantizers)


def _dropout(attention: float, feed_forward: float, blocks: float, has_attention: bool) -> float:
    """quintet's model has one probability for all layers."""
    if has_attention and len({attention, feed_forward, blocks}) > 1:
        raise UsageError(f"{NAME}: attn_dropout, ff_dropout and resnet_dropout must be the same here")
    return float(blocks)
