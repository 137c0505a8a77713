"""meshgpt-pytorch's autoencoder and transformer as workers, in the peer's environment.

`mesh_peer.py autoencoder EDGES PRECISION`, EDGES `given` or `derived`; `mesh_peer.py transformer PRECISION`;
`mesh_peer.py generate BATCH`; `mesh_peer.py loss CODES RATE SECONDS`; `mesh_peer.py adjacency`.

Changes to the peer: an empty module replaces open_clip, which its text encoders need, because no text is used. Its
losses are trained with the optimizer and clipping of its trainers; its progress bar is off; the end token is forbidden
in generation, so that both sides generate the same number of tokens.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import loss_task
import mesh_task as task
from worker import TimedTraining, serve

warnings.filterwarnings("ignore")
sys.modules["open_clip"] = ModuleType("open_clip")

from meshgpt_pytorch import MeshAutoencoder, MeshTransformer, meshgpt_pytorch  # noqa: E402
from meshgpt_pytorch.data import derive_face_edges_from_faces  # noqa: E402

PACKAGES = ("meshgpt-pytorch", "x-transformers", "vector-quantize-pytorch")


def make_autoencoder() -> Any:
    torch.manual_seed(0)
    return MeshAutoencoder(
        num_discrete_coors=task.BINS,
        dim_coor_embed=task.COORDINATE_DIM,
        dim_normal_embed=task.NORMAL_DIM,
        dim_area_embed=task.SMALL_DIM,
        dim_angle_embed=task.SMALL_DIM,
        encoder_dims_through_depth=task.ENCODER,
        decoder_dims_through_depth=task.DECODER,
        dim_codebook=task.CODE_DIM,
        num_quantizers=task.LEVELS,
        codebook_size=task.CODES,
    )


def make_transformer(max_faces: int = task.MAX_FACES) -> Any:
    return MeshTransformer(
        make_autoencoder(),
        dim=task.DIM,
        attn_depth=task.DEPTH,
        fine_attn_depth=task.FINE_DEPTH,
        attn_heads=task.HEADS,
        attn_dim_head=task.DIM // task.HEADS,
        max_seq_len=max_faces * task.TOKENS_PER_FACE,
    )


def trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def about(name: str, model: Any, layers: str) -> dict[str, Any]:
    return {"parameters": {name: sum(parameter.numel() for parameter in trained(model))}, "layers": layers}


def about_transformer(model: Any) -> dict[str, Any]:
    layers = f"{task.DEPTH} over faces, {task.FINE_DEPTH} within a face; 2 gate loops before each"
    return about("transformer", model, layers)


def autocast(precision: str) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


# --- a step -------------------------------------------------------------------------------------------------------


def serve_autoencoder(edges: str, precision: str) -> None:
    model = make_autoencoder().train()
    optimizer = torch.optim.Adam(trained(model), lr=1e-4, betas=task.BETAS)
    vertices, faces = task.meshes()
    inputs = {"face_edges": derive_face_edges_from_faces(faces)} if edges == "given" else {}

    def step() -> None:
        with autocast(precision):
            loss = model(vertices=vertices, faces=faces, **inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    layers = f"{len(task.ENCODER)} graph convolutions, {len(task.DECODER)} residual blocks"
    serve(step, about("autoencoder", model, layers), PACKAGES)


def make_step(model: Any, optimizer: Any, precision: str = "fp32") -> Callable[[Tensor], None]:
    parameters = trained(model)

    def step(codes: Tensor) -> None:
        with autocast(precision):
            loss = model.forward_on_codes(codes)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, task.CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def serve_transformer(precision: str) -> None:
    model = make_transformer().train()
    step = make_step(model, torch.optim.Adam(trained(model), lr=2e-4, betas=task.BETAS), precision)
    codes = task.random_codes()
    serve(lambda: step(codes), about_transformer(model), PACKAGES)


# --- generation ---------------------------------------------------------------------------------------------------


def serve_generation(batch: str) -> None:
    model = make_transformer().eval()
    meshgpt_pytorch.tqdm = lambda steps, **_: steps
    length = task.GENERATED_FACES * task.TOKENS_PER_FACE

    def endless(logits: Tensor) -> Tensor:
        logits[:, -1] = -torch.finfo(logits.dtype).max
        return logits

    def step() -> dict[str, float]:
        codes = model.generate(
            batch_size=int(batch),
            max_seq_len=length,
            filter_logits_fn=endless,
            temperature=0.0,
            return_codes=True,
        )
        return {"tokens": codes.numel()}

    serve(step, about_transformer(model), PACKAGES)


# --- training for a fixed time --------------------------------------------------------------------------------------


def serve_training(path: str, rate: str, seconds: str) -> None:
    data = task.read_task(Path(path))
    model = make_transformer(max(data.train.shape[1], data.held_out.shape[1]))
    optimizer = torch.optim.Adam(trained(model), lr=float(rate), betas=task.BETAS)
    batches = data.batches()

    def predict(codes: Tensor) -> Tensor:
        logits: Tensor = model.forward_on_codes(codes, return_loss=False, append_eos=False)
        return logits

    def measure() -> dict[str, float]:
        model.eval()
        metrics = task.validation_loss(predict, data)
        model.train()
        return metrics

    step = loss_task.with_warmup(make_step(model, optimizer), optimizer, float(rate))
    training = TimedTraining(step, measure, float(seconds), lambda: next(batches))
    serve(training.next_slice, {**about_transformer(model), "task": data.digest}, PACKAGES)


# --- a large mesh -------------------------------------------------------------------------------------------------


def serve_adjacency() -> None:
    """Edges and discretized features; neither embedding nor projection."""
    model = make_autoencoder()
    vertices, faces = task.large_mesh()

    def step() -> None:
        derive_face_edges_from_faces(faces[None])
        corners = vertices[faces][None]
        features = meshgpt_pytorch.get_derived_face_features(corners)
        model.discretize_face_coords(corners)
        model.discretize_angle(features["angles"])
        model.discretize_area(features["area"])
        model.discretize_normals(features["normals"])

    serve(step, about("autoencoder", model, ""), PACKAGES)


WORKS: Mapping[str, Callable[..., None]] = {
    "autoencoder": serve_autoencoder,
    "transformer": serve_transformer,
    "generate": serve_generation,
    "loss": serve_training,
    "adjacency": serve_adjacency,
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    WORKS[sys.argv[1]](*sys.argv[2:])
