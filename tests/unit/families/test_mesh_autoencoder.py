"""The mesh tokenizers: features, packed batches, codes and back, the loss, metrics, the trainer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from quintet.common.batch import Batch, Item
from quintet.common.rng import ItemRNG
from quintet.compat import meshgpt_pytorch
from quintet.config import build
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.config import MeshAutoencoderConfig
from quintet.families.mesh_autoencoder.coordinates import CoordinateTokenizer
from quintet.families.mesh_autoencoder.features import (
    bin_centres,
    binned,
    coordinate_bins,
    corner_angles,
    crossed_diagonals,
    feature_bins,
    log_area,
)
from quintet.families.mesh_autoencoder.model import MeshAutoencoder, blurred_cross_entropy
from quintet.families.mesh_autoencoder.packed import Meshes, neighbours, pack
from quintet.families.mesh_autoencoder.pipeline import MeshAutoencoderPipeline
from quintet.families.mesh_autoencoder.task import MeshAutoencoderTask
from quintet.families.mesh_autoencoder.trainer import MeshAutoencoderTrainer
from quintet.media.mesh import Mesh, canonical, dequantise, quantise, read_mesh
from quintet.training.engine import Engine

TINY: dict[str, Any] = {
    "coordinate_dim": 4,
    "angle_dim": 4,
    "area_dim": 4,
    "normal_dim": 4,
    "encoder_dims": (16, 16, 24),
    "code_dim": 8,
    "codebook_size": 256,
    "decoder_dims": (16, 16, 24),
    "bins": 32,
}

CUBE = torch.tensor([[x, y, z] for z in (-0.5, 0.5) for y in (-0.5, 0.5) for x in (-0.5, 0.5)], dtype=torch.float64)
CUBE_QUADS = torch.tensor([[0, 2, 3, 1], [4, 5, 7, 6], [0, 1, 5, 4], [2, 6, 7, 3], [0, 4, 6, 2], [1, 3, 7, 5]])
CUBE_TRIANGLES = torch.cat([CUBE_QUADS[:, [0, 1, 2]], CUBE_QUADS[:, [0, 2, 3]]])


def solid(number: int, faces: int = 12) -> tuple[Tensor, Tensor]:
    """A distorted cube in canonical order, of which only the first `faces` faces are used."""
    generator = torch.Generator().manual_seed(number)
    vertices = CUBE + torch.rand(CUBE.shape, dtype=torch.float64, generator=generator) * 0.6 - 0.3
    mesh = canonical(Mesh(vertices.numpy(), CUBE_TRIANGLES.numpy()), 32)
    return torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces[:faces])


def batch_of(*solids: tuple[Tensor, Tensor]) -> Meshes:
    vertices, faces = zip(*solids, strict=True)
    return pack(vertices, faces)


def small(**changes: Any) -> MeshAutoencoder:
    """A small model without layers that are the identity, as new blocks are."""
    torch.manual_seed(0)
    model = MeshAutoencoder(**{**TINY, **changes}).double()
    for name, parameter in model.named_parameters():
        if name.endswith("second.linear.weight"):
            torch.nn.init.normal_(parameter, std=0.2)
    return model


# --- features -------------------------------------------------------------------------------------------------------


def test_bins_equal_those_of_media_mesh() -> None:
    values = np.concatenate([np.random.default_rng(0).uniform(-1.2, 1.2, 4000), np.arange(-64, 65) / 64])
    values = np.concatenate([values, values - 1e-9])
    ours = coordinate_bins(torch.from_numpy(values), 128)
    assert torch.equal(ours, torch.from_numpy(quantise(values, 128)))
    centres = bin_centres(torch.arange(128), 128, torch.float64)
    assert torch.equal(centres, torch.from_numpy(dequantise(np.arange(128), 128)))
    assert torch.equal(coordinate_bins(bin_centres(torch.arange(1024), 1024), 1024), torch.arange(1024))


def test_non_finite_values_have_a_valid_bin() -> None:
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 2.0, -2.0])
    assert binned(values, -1, 1, 8).tolist() == [0, 7, 0, 4, 7, 0]


def test_angles_do_not_depend_on_position_and_scale() -> None:
    corners = torch.tensor([[[0.0, 0, 0], [3, 0, 0], [0, 4, 0]]], dtype=torch.float64)
    expected = torch.tensor([[math.pi / 2, math.atan2(4, 3), math.atan2(3, 4)]], dtype=torch.float64)
    torch.testing.assert_close(corner_angles(corners), expected)
    torch.testing.assert_close(corner_angles(corners + torch.tensor([5.0, -2, 9])), expected)
    torch.testing.assert_close(corner_angles(corners * 1e-6), expected)
    square = CUBE[CUBE_QUADS]
    torch.testing.assert_close(corner_angles(square), torch.full((6, 4), math.pi / 2, dtype=torch.float64))
    assert corner_angles(torch.zeros(1, 3, 3)).isfinite().all()


def test_areas_and_normals_of_triangles_and_quads() -> None:
    for faces, area in ((CUBE_QUADS, 1.0), (CUBE_TRIANGLES, 0.5)):
        crossed = crossed_diagonals(CUBE[faces])
        torch.testing.assert_close(crossed.norm(dim=-1) / 2, torch.full((len(faces),), area, dtype=torch.float64))
        outwards = CUBE[faces].mean(1)
        assert ((crossed * outwards).sum(-1) > 0).all()


@pytest.mark.parametrize("bins", [32, 128])
def test_angles_on_the_edge_of_a_bin_have_the_same_bin_in_every_batch(bins: int) -> None:
    """Angles of 45 degrees; vectorised functions round the rows of a batch differently, by their position."""
    cube = (CUBE.float() * 1.96)[CUBE_TRIANGLES]
    alone = feature_bins(cube, bins)
    for before in range(1, 20):
        others = torch.rand(before, 3, 3, generator=torch.Generator().manual_seed(before))
        behind = feature_bins(torch.cat([others, cube, others]), bins)
        for one, other in zip(alone, behind, strict=True):
            assert torch.equal(one, other[before : before + len(cube)])


@pytest.mark.parametrize("scale", [0.11, 0.3, 0.7, 0.98])
def test_angles_of_45_degrees_have_the_same_bin_at_every_place(scale: float) -> None:
    vertices = (CUBE * scale + torch.tensor([0.1, 0.2, 0.3])).float()
    _, angles, _, _ = feature_bins(vertices[CUBE_TRIANGLES], 128)
    assert set(angles.flatten().tolist()) == {32, 64}


def test_a_cube_has_the_same_codes_alone_and_behind_another_mesh() -> None:
    torch.manual_seed(0)
    model = MeshAutoencoder(**{**TINY, "bins": 128, "angle_dim": 64, "codebook_size": 4096}).eval()
    cube = (CUBE.float() * 1.96, CUBE_TRIANGLES)
    alone = model.encode(batch_of(cube))
    for faces in range(1, 13):
        vertices, triangles = solid(1, faces)
        assert torch.equal(model.encode(batch_of((vertices.float(), triangles), cube))[faces:], alone)


def test_small_faces_have_different_areas() -> None:
    """Each a quarter of the one before, down to a thousandth of the width of one of 128 bins."""
    crossed = torch.zeros(9, 3)
    crossed[:, 0] = 0.5 ** torch.arange(0, 18, 2)
    bins = binned(log_area(crossed), 0, 1, 128).flatten()
    assert (bins[:-1] - bins[1:]).min() >= 10
    assert binned(log_area(torch.zeros(1, 3)), 0, 1, 128).item() == 0


# --- packed batches -------------------------------------------------------------------------------------------------


def test_neighbours_share_an_edge_and_include_the_face_itself() -> None:
    edges = neighbours(CUBE_TRIANGLES)
    pairs = set(map(tuple, edges.T.tolist()))
    assert len(pairs) == edges.shape[1] == 12 * 4
    assert all((b, a) in pairs for a, b in pairs)
    assert all((a, a) in pairs for a in range(12))
    for first, second in pairs:
        shared = set(CUBE_TRIANGLES[first].tolist()) & set(CUBE_TRIANGLES[second].tolist())
        assert len(shared) >= 2
    assert neighbours(CUBE_QUADS).shape[1] == 6 * 5


def test_an_empty_mesh_is_refused() -> None:
    with pytest.raises(UsageError, match="without faces"):
        pack([CUBE], [CUBE_TRIANGLES[:0]])


KINDS = [
    {"quantizer": "lfq"},
    {"quantizer": "vq"},
    {"quantizer": "fsq"},
    {"quantizer": "lfq", "num_quantizers": 1},
    {
        "quantizer": "fsq",
        "encoder_attention": 1,
        "decoder_attention": 2,
        "attention_window": 3,
        "attention_head_dim": 8,
    },
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_mesh_is_the_same_alone_and_in_a_batch(kind: dict[str, Any]) -> None:
    model = small(**kind)
    one = solid(1, 7)
    alone = model(batch_of(one))
    between = model(batch_of(solid(2), one, solid(3, 3)))
    torch.testing.assert_close(between.logits[12:19], alone.logits, rtol=0, atol=1e-12)
    assert torch.equal(between.codes[12:19], alone.codes)
    others = model(batch_of(solid(5, 11), one, solid(6)))
    torch.testing.assert_close(others.logits[11:18], alone.logits, rtol=0, atol=1e-12)
    # Decoding codes equals the forward pass, averaged over corners of a mesh with the same codes.
    decoded = model.decode_from_codes(between.codes, [12, 7, 3])
    log_probs = between.logits.log_softmax(-1).view(-1, 3, 3, model.bins)
    corners = between.codes.view(len(between.codes), 3, -1)
    for mesh in (slice(0, 12), slice(12, 19), slice(19, 22)):
        for codes, corner in zip(corners[mesh].flatten(0, 1), decoded[mesh].flatten(0, 1), strict=True):
            same = (corners[mesh] == codes).all(-1)
            bins = log_probs[mesh][same].mean(0).argmax(-1)
            torch.testing.assert_close(corner, bin_centres(bins, model.bins, torch.float64))
    assert torch.equal(model.decode_from_codes(alone.codes), decoded[12:19])


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_stay_within_a_mesh(kind: dict[str, Any]) -> None:
    """Of the decoder; the loss of the quantizer is one over the whole batch."""
    model = small(**kind)
    meshes = batch_of(solid(2, 5), solid(1, 7), solid(3, 3))
    vectors = torch.randn(15, 3 * 8, dtype=torch.float64, requires_grad=True)
    model.decoder(vectors, meshes.by_face)[5:12].square().sum().backward()
    assert vectors.grad is not None
    touched = vectors.grad.abs().sum(1) > 0
    assert touched.tolist() == [False] * 5 + [True] * 7 + [False] * 3


def test_the_decoder_sees_adjacent_faces_of_the_sequence() -> None:
    model = small()
    meshes = batch_of(solid(1))
    vectors = torch.randn(12, 24, dtype=torch.float64)
    before = model.decoder(vectors, meshes.by_face)
    vectors[5] += 1
    moved = (model.decoder(vectors, meshes.by_face) - before).abs().amax((1, 2)) > 1e-9
    assert moved[4:7].all()


def test_local_attention_sees_no_further_than_its_window() -> None:
    model = small(decoder_attention=1, attention_window=2, attention_head_dim=8)
    faces = torch.randn(12 + 9, 24, dtype=torch.float64)
    meshes = batch_of(solid(1), solid(2, 9))
    attention = model.decoder.attention
    before = attention(faces, meshes.by_face)
    faces[5] *= -1
    moved = (attention(faces, meshes.by_face) - before).abs().amax(1) > 1e-9
    assert moved.nonzero().flatten().tolist() == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_vertex_has_the_same_codes_in_all_its_faces(kind: dict[str, Any]) -> None:
    model = small(**kind)
    meshes = batch_of(solid(1), solid(2))
    codes = model.encode(meshes).view(24, 3, -1)
    assert codes.shape[1:] == (3, model.num_quantizers)
    assert model.tokens_per_face == 3 * model.num_quantizers
    assert 0 <= codes.min() <= codes.max() < model.num_codes
    for vertex in range(len(meshes.vertices)):
        assert len(codes[meshes.faces == vertex].unique(dim=0)) == 1


def test_a_vertex_without_a_face_is_ignored() -> None:
    model = small(quantizer="vq")
    vertices, faces = solid(1)
    lone = torch.cat([vertices, torch.full((1, 3), 0.9, dtype=torch.float64)])
    with_it, without = (model(batch_of((each, faces)), return_candidates=True) for each in (lone, vertices))
    torch.testing.assert_close(with_it.logits, without.logits)
    torch.testing.assert_close(with_it.loss, without.loss)
    assert with_it.statistics.sums["0/count"].sum() == len(vertices)
    assert len(model.latents(batch_of((lone, faces)))) == len(vertices)


def test_quads() -> None:
    model = small(vertices_per_face=4)
    meshes = batch_of((CUBE, CUBE_QUADS), (CUBE * 0.5, CUBE_QUADS[:4]))
    result = model(meshes)
    assert result.logits.shape == (10, 12, 32)
    assert result.codes.shape == (10, 8)
    assert model.decode_from_codes(result.codes, meshes.face_counts).shape == (10, 4, 3)
    # A triangle among quads repeats one corner.
    assert model(batch_of((CUBE, torch.tensor([[0, 1, 2, 2]])))).logits.isfinite().all()
    with pytest.raises(UsageError, match="vertices_per_face=4"):
        model(batch_of(solid(1)))


def test_tokenize_takes_one_mesh_or_a_padded_batch() -> None:
    model = small()
    (vertices, faces), (others, few) = solid(1), solid(2, 5)
    alone = model.tokenize(vertices, faces)
    assert torch.equal(alone, model.encode(batch_of((vertices, faces))))
    padded = torch.full((2, 14, 3), -1)
    padded[0, :12], padded[1, :5] = faces, few
    both = model.tokenize(torch.stack([vertices, others]), padded)
    assert both.shape == (2, 14, 6)
    assert torch.equal(both[0, :12], alone)
    assert (both[0, 12:] == -1).all()
    assert (both[1, 5:] == -1).all()


def test_codes_of_another_shape_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\(12, 6\)"):
        small().decode_from_codes(torch.zeros(12, 9, dtype=torch.int64))


def test_bf16_autocast_trains_and_encodes() -> None:
    model = MeshAutoencoder(**TINY)
    vertices, faces = solid(1)
    meshes = batch_of((vertices.float(), faces), (vertices.float() * 0.7, faces[:6]))
    with torch.autocast("cpu", torch.bfloat16):
        result = model(meshes)
        targets = coordinate_bins(meshes.corners.flatten(1), model.bins)
        loss = blurred_cross_entropy(result.logits, targets, 0.4).mean() + result.loss
        codes = model.encode(meshes)
    loss.backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.decode_from_codes(codes, meshes.face_counts).dtype == torch.float32


def test_dropout_is_active_in_training_only() -> None:
    model = small(dropout=0.5)
    meshes = batch_of(solid(1))
    assert not torch.equal(model(meshes).logits, model(meshes).logits)
    model.eval()
    assert torch.equal(model(meshes).logits, model(meshes).logits)


# --- the loss -------------------------------------------------------------------------------------------------------


def test_blurred_targets_sum_to_one_everywhere() -> None:
    """For uniform logits every target distribution has the same loss."""
    targets = torch.arange(8)
    losses = blurred_cross_entropy(torch.zeros(8, 8, dtype=torch.float64), targets, 0.4)
    torch.testing.assert_close(losses, torch.full((8,), math.log(8), dtype=torch.float64))


@pytest.mark.parametrize(("blur", "neighbour"), [(0.4, 0.0404), (1.0, 0.2420)])
def test_blurred_targets_are_a_gaussian(blur: float, neighbour: float) -> None:
    logits = torch.zeros(1, 16, dtype=torch.float64, requires_grad=True)
    blurred_cross_entropy(logits, torch.tensor([7]), blur).sum().backward()
    assert logits.grad is not None
    targets = 1 / 16 - logits.grad[0]
    assert targets[7] == targets.max()
    assert targets[6].item() == pytest.approx(neighbour, abs=3e-3)
    torch.testing.assert_close(targets, targets.flip(0).roll(-1))
    assert targets.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("target", [0, 5, 15])
def test_no_blur_is_the_plain_cross_entropy(target: int) -> None:
    logits = torch.randn(1, 16, dtype=torch.float64)
    expected = F.cross_entropy(logits, torch.tensor([target]))
    torch.testing.assert_close(blurred_cross_entropy(logits, torch.tensor([target]), 0.0)[0], expected)


# --- coordinates ----------------------------------------------------------------------------------------------------


def test_coordinates_are_exact_to_the_bin() -> None:
    tokenizer = CoordinateTokenizer(bins=32)
    meshes = batch_of(solid(1), solid(2, 5))
    codes = tokenizer.encode(meshes)
    assert (codes.shape, tokenizer.num_codes, tokenizer.tokens_per_face) == ((17, 9), 32, 9)
    decoded = tokenizer.decode_from_codes(codes, meshes.face_counts)
    assert (decoded - meshes.corners).abs().max() <= 1 / 32 + 1e-6
    assert torch.equal(tokenizer.encode(pack([decoded.view(-1, 3)], [torch.arange(51).view(-1, 3)])), codes)


def test_coordinates_of_a_canonical_mesh_are_sorted() -> None:
    codes = CoordinateTokenizer(bins=32).tokenize(*solid(1)).view(-1, 3, 3)
    numbers = (codes[..., 0] * 32 + codes[..., 1]) * 32 + codes[..., 2]  # z, y, x
    assert (numbers[:, :1] < numbers[:, 1:]).all()
    assert numbers.tolist() == sorted(numbers.tolist())


def test_coordinate_tokenizers_differ_in_their_state() -> None:
    states = [
        {name: value.shape for name, value in CoordinateTokenizer(**keys).state_dict().items()}
        for keys in ({}, {"bins": 64}, {"vertices_per_face": 4})
    ]
    assert states[0] != states[1] != states[2] != states[0]


# --- the task -------------------------------------------------------------------------------------------------------


def make_task(**keys: Any) -> MeshAutoencoderTask:
    overrides = {**{f"model.{name}": value for name, value in TINY.items()}, "engine.precision": "fp64", **keys}
    torch.manual_seed(0)
    task = MeshAutoencoderTask(build(MeshAutoencoderConfig, overrides=overrides))
    Engine(task.config.engine).to_device(task.modules)
    return task


def items(count: int = 3) -> list[Item]:
    return [
        dict(zip(("vertices", "faces"), solid(number, 12 if number != 1 else 7), strict=True)) | {"texts": "a box"}
        for number in range(count)
    ]


def make_batch(task: MeshAutoencoderTask, rows: list[Item] | None = None) -> Batch:
    rows = rows or items()
    names = tuple(f"mesh {number}" for number in range(len(rows)))
    rng = ItemRNG(0, [0] * len(rows), range(len(rows)))
    return Batch(task.collate(rows), names, rng, torch.float64)


@pytest.mark.parametrize("quantizer", ["lfq", "vq", "fsq"])
def test_a_step_reaches_every_parameter_and_changes_no_state(quantizer: str) -> None:
    task = make_task(**{"model.quantizer": quantizer})
    before = {name: value.clone() for name, value in task.model.state_dict().items()}
    report = task.backward([make_batch(task)], task.modules, Engine(task.config.engine), 0)
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())
    assert all(parameter.grad is not None for parameter in task.model.parameters())
    parts = {name.removeprefix("autoencoder/"): value for name, value in report.metrics.items()}
    torch.testing.assert_close(parts["loss"], parts["reconstruction"] + 0.1 * parts["quantizer"])
    task.after_step(report.statistics, 0)
    changed = [name for name, value in task.model.state_dict().items() if not torch.equal(value, before[name])]
    assert bool(changed) == (quantizer == "vq")


def test_a_codebook_is_initialised_from_vertices() -> None:
    task = make_task(**{"model.quantizer": "vq", "model.codebook_size": 16})
    task.init_from_data(task.modules, [make_batch(task)], Engine(task.config.engine))
    codes = task.pipeline(task.modules).encode_batch(make_batch(task))
    assert len(codes[codes[..., 0] >= 0][..., 0].unique()) > 4


def test_a_non_finite_vertex_makes_the_loss_nan_and_names_its_mesh() -> None:
    task = make_task()
    rows = items()
    rows[1]["vertices"] = rows[1]["vertices"].clone()
    rows[1]["vertices"][int(rows[1]["faces"][0, 0]), 2] = math.nan
    batch = make_batch(task, rows)
    report = task.backward([batch], task.modules, Engine(task.config.engine), 0)
    assert report.metrics["autoencoder/loss"].isnan()
    assert batch.nonfinite_items() == ("mesh 1",)


def test_metrics_of_the_coordinate_tokenizer_are_perfect() -> None:
    task = make_task(**{"model.kind": "coordinates", "model.bins": 128})
    whole = [item for item in items(4) if len(item["faces"]) == 12]
    metrics = task.summarise(task.measure(task.modules, make_batch(task, whole)))
    for name in ("coordinate_accuracy", "coordinate_exact", "valid", "watertight", "watertight_originals"):
        assert metrics[name] == 1, name
    assert 0 < metrics["chamfer"] < 0.01
    assert metrics["normal_consistency"] > 0.99
    assert 0 < metrics["codebook_usage"] <= 1


def test_metrics_of_an_untrained_tokenizer_are_not() -> None:
    task = make_task()
    statistics = task.measure(task.modules, make_batch(task))
    metrics = task.summarise(statistics + task.measure(task.modules, make_batch(task)))
    assert metrics == pytest.approx(task.summarise(statistics))
    assert metrics["coordinate_accuracy"] < 0.5
    assert metrics["chamfer"] > 0.05
    assert metrics["watertight_originals"] == pytest.approx(2 / 3)


def test_codes_are_padded_and_become_files(tmp_path: Path) -> None:
    task = make_task(**{"model.kind": "coordinates"})
    batch = make_batch(task)
    tokenizer = task.pipeline(task.modules)
    codes = tokenizer.encode_batch(batch)
    assert codes.shape == (3, 12, 9)
    assert (codes[1, 7:] == -1).all()
    assert (codes[1, :7] >= 0).all()
    artifacts = tokenizer.decode_files(codes, "name")
    assert [artifact.file for artifact in artifacts] == ["name-0.glb", "name-1.glb", "name-2.glb"]
    for artifact, faces in zip(artifacts, (12, 7, 12), strict=True):
        artifact.write(tmp_path / artifact.file)
        assert len(read_mesh(tmp_path / artifact.file, bins=32).faces) == faces
    (alone,) = tokenizer.decode_files(codes[1:2], "alone")
    assert alone.file == "alone.glb"


def test_degenerate_faces_are_still_written(tmp_path: Path) -> None:
    task = make_task(**{"model.kind": "coordinates"})
    (artifact,) = task.pipeline(task.modules).decode_files(torch.full((1, 3, 9), 5), "flat")
    artifact.write(tmp_path / artifact.file)
    assert (tmp_path / artifact.file).stat().st_size > 0


def test_samples_are_a_sheet_and_mesh_files(tmp_path: Path) -> None:
    task = make_task(**{"model.kind": "coordinates"})
    batch = make_batch(task)
    sheet, *meshes = task.sample(task.modules, batch)
    assert sheet.file == "reconstructions.png"
    assert [mesh.file for mesh in meshes[:2]] == ["000-input.glb", "000-reconstruction.glb"]
    assert [mesh.metadata["item"] for mesh in meshes[::2]] == list(batch.names)
    meshes[1].write(tmp_path / meshes[1].file)
    assert (tmp_path / "000-reconstruction.glb").read_bytes()[:4] == b"glTF"
    assert sheet.tensor is not None
    assert sheet.tensor.ndim == 3


def test_an_exported_model_gives_the_same_codes(tmp_path: Path) -> None:
    model = small().float()
    model.save_pretrained(tmp_path / "hub")
    again = MeshAutoencoder.from_pretrained(tmp_path / "hub")
    vertices, faces = solid(1)
    assert torch.equal(model.tokenize(vertices.float(), faces), again.tokenize(vertices.float(), faces))
    exact = CoordinateTokenizer(bins=16)
    exact.save_pretrained(tmp_path / "exact")
    assert CoordinateTokenizer.from_pretrained(tmp_path / "exact").bins == 16


# --- the pipeline ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["coordinates:64", "export"])
def test_the_pipeline_encodes_and_decodes_in_python(source: str, tmp_path: Path) -> None:
    if source == "export":
        small_task = make_task(**{"engine.precision": "fp32"})
        small_task.pipeline(small_task.modules).save_pretrained(tmp_path / "hub")
        source = str(tmp_path / "hub")
    tokenizer = MeshAutoencoderPipeline.from_pretrained(source)
    (vertices, faces), (others, few) = solid(1), solid(2, 5)
    codes = tokenizer.encode(vertices, faces)
    assert codes.shape == (12, tokenizer.autoencoder.tokens_per_face)
    assert torch.equal(tokenizer.encode(vertices.numpy(), faces.numpy()), codes)

    padded = torch.full((2, 12, 3), -1)
    padded[0], padded[1, :5] = faces, few
    both = tokenizer.encode(torch.stack([vertices, others]), padded)
    assert torch.equal(both[0], codes)
    assert (both[1, 5:] == -1).all()

    alone, one_of_two = tokenizer.decode(codes)[0], tokenizer.decode(both)[0]
    assert np.array_equal(alone.vertices, one_of_two.vertices)
    assert np.array_equal(alone.faces, one_of_two.faces)
    assert alone.faces.shape[1] == alone.vertices.shape[1] == 3
    assert np.abs(alone.vertices).max() <= 1
    if source == "coordinates:64":
        assert torch.equal(tokenizer.encode(alone.vertices, alone.faces).sort(0)[0], codes.sort(0)[0])


# --- the trainer in Python ------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"data.num_workers": 0, "log.trackers": [], "eval.batches": 1, "sample.num": 2}


class Solids:
    """Twelve meshes in one of the forms that datasets have."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        vertices, faces = solid(index)
        padded = torch.cat([faces, torch.full((4, 3), -1)])
        return {
            "tuple": (vertices.float(), faces),
            "captioned": (vertices.float(), faces, "a box"),
            "padded": {"vertices": vertices.numpy(), "faces": padded.numpy()},
            "quads": (CUBE.float(), CUBE_QUADS),
        }[self.form]


@pytest.mark.parametrize("form", ["tuple", "captioned", "padded", "quads"])
def test_datasets_of_every_form_train(tmp_path: Path, form: str) -> None:
    torch.manual_seed(0)
    model = MeshAutoencoder(**TINY, vertices_per_face=4 if form == "quads" else 3)
    trainer = MeshAutoencoderTrainer(
        model, data=Solids(form), out=tmp_path / "run", steps=2, batch_size=4, config=QUICK
    )
    trainer.train()
    trainer.close()
    assert trainer.step == 2
    assert trainer.ema_model is not trainer.unwrapped_model


def test_the_whole_original_signature_trains(tmp_path: Path) -> None:
    trainer = meshgpt_pytorch.MeshAutoencoderTrainer(
        MeshAutoencoder(**TINY),
        Solids("tuple"),
        num_train_steps=2,
        batch_size=4,
        grad_accum_every=1,
        val_dataset=Solids("tuple"),
        val_every=1,
        val_num_batches=1,
        learning_rate=1e-3,
        weight_decay=0.1,
        max_grad_norm=1.0,
        ema_kwargs={"beta": 0.9},
        checkpoint_every=1,
        checkpoint_folder=str(tmp_path / "run"),
        data_kwargs=["vertices", "faces"],
        warmup_steps=1,
        use_wandb_tracking=False,
    )
    settings = trainer.config
    assert (settings.optim.lr, settings.optim.max_grad_norm, settings.ema.decay) == (1e-3, 1.0, 0.9)
    trainer.train()
    trainer.close()
    assert trainer.step == 2


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ((CUBE * 3, CUBE_TRIANGLES), "outside of -1 to 1"),
        ((CUBE, CUBE_TRIANGLES[:0]), "no faces"),
        ((CUBE[:4], CUBE_TRIANGLES), "names vertex 7 of 4"),
        ((CUBE, CUBE_QUADS), "faces of 4 vertices"),
        ((CUBE * torch.nan, CUBE_TRIANGLES), "not finite"),
        ((CUBE * 0, CUBE_TRIANGLES), "no face of it has an area"),
    ],
)
def test_unusable_items_are_named(tmp_path: Path, item: Any, reason: str) -> None:
    class Odd(Solids):
        def __getitem__(self, index: int) -> Any:
            return item

    with pytest.raises(UsageError, match=reason):
        MeshAutoencoderTrainer(
            MeshAutoencoder(**TINY), data=Odd(""), out=tmp_path / "run", steps=2, batch_size=4, config=QUICK
        ).train()


def test_adjacent_bins_start_with_similar_weights() -> None:
    torch.manual_seed(0)
    model = MeshAutoencoder(bins=64, encoder_dims=(32,), decoder_dims=(32,), code_dim=16, codebook_size=256)
    logits = model.decoder.to_logits.weight.view(9, 64, -1)
    for table in (model.features.coordinates.weight, model.features.normal.weight, *logits):
        near = torch.cosine_similarity(table[1:], table[:-1], dim=-1).mean()
        far = torch.cosine_similarity(table[32:], table[:-32], dim=-1).mean()
        assert near > far + 0.3


def test_corners_with_the_same_codes_have_the_same_position() -> None:
    """A vertex has one position in all of its faces, within its own mesh."""
    torch.manual_seed(0)
    model = MeshAutoencoder(bins=64, encoder_dims=(32,), decoder_dims=(32, 32), code_dim=16, codebook_size=256).eval()
    vertices = torch.randint(0, 256, (9, 2))
    faces = torch.tensor([[0, 1, 2], [1, 3, 2], [2, 3, 4], [0, 1, 2], [5, 6, 7], [6, 8, 0]])
    decoded = model.decode_from_codes(vertices[faces].flatten(1), (3, 3))
    for mesh in (slice(0, 3), slice(3, 6)):
        for number in faces[mesh].unique():
            assert len(decoded[mesh][faces[mesh] == number].unique(dim=0)) == 1
    assert torch.equal(decoded[3:], model.decode_from_codes(vertices[faces[3:]].flatten(1)))
    assert len(decoded.flatten(0, 1).unique(dim=0)) > 3
