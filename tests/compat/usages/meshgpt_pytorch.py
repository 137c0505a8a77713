"""Usages of the models and data sets of meshgpt-pytorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from compat.usage import usage
from quintet.compat.meshgpt_pytorch import (
    DatasetFromTransforms,
    MeshAutoencoder,
    MeshAutoencoderTrainer,
    MeshTransformer,
    MeshTransformerTrainer,
    cache_face_edges_for_dataset,
    cache_text_embeds_for_dataset,
)

TINY: dict[str, Any] = {
    "num_discrete_coors": 32,
    "dim_coor_embed": 8,
    "dim_area_embed": 8,
    "dim_normal_embed": 8,
    "dim_angle_embed": 8,
    "encoder_dims_through_depth": (16, 24),
    "decoder_dims_through_depth": (16, 24),
    "dim_codebook": 16,
    "codebook_size": 64,
}
SMALL: dict[str, Any] = {"dim": 32, "max_seq_len": 384, "attn_depth": 1, "attn_heads": 2, "fine_attn_depth": 1}


def autoencoder(**options: Any) -> MeshAutoencoder:
    return MeshAutoencoder(**{**TINY, **options})


def transformer(**options: Any) -> MeshTransformer:
    return MeshTransformer(autoencoder(), **{**SMALL, **options})


def meshes(corners: int = 3) -> tuple[Tensor, Tensor]:
    """Two meshes; the second has padding faces."""
    vertices = torch.randn((2, 121, 3))
    faces = torch.randint(0, 121, (2, 16, corners))
    faces[1, 10:] = -1
    return vertices, faces


@usage("MeshAutoencoder", "README: the loss of vertices and faces")
def readme_autoencoder() -> None:
    model, (vertices, faces) = autoencoder(), meshes()
    loss = model(vertices=vertices, faces=faces)
    loss.backward()
    assert loss.shape == ()
    assert all(parameter.grad is not None for parameter in model.parameters())


@usage("MeshTransformer", "README: train on meshes, and generate")
def readme_transformer() -> None:
    vertices, faces = meshes()
    model = MeshTransformer(autoencoder(), **SMALL)
    loss = model(vertices=vertices, faces=faces)
    loss.backward()
    assert all(parameter.grad is None for parameter in model.autoencoder.parameters())
    faces_coordinates, face_mask = model.generate(max_seq_len=24)
    assert faces_coordinates.shape[:2] == face_mask.shape
    assert faces_coordinates.shape[2:] == (3, 3)
    assert faces_coordinates[face_mask].isfinite().all()


@usage("MeshTransformer", "README: train on texts, and generate with guidance")
def readme_text() -> None:
    vertices, faces = meshes()
    model = transformer(condition_on_text=True)
    loss = model(vertices=vertices, faces=faces, texts=["a high chair", "a small teapot"])
    loss.backward()
    faces_coordinates, face_mask = model.generate(
        texts=["a long table"], cond_scale=8.0, remove_parallel_component=True, max_seq_len=12
    )
    assert len(faces_coordinates) == len(face_mask) == 1


@usage("MeshAutoencoder", "README: tokenize")
def readme_tokenize() -> None:
    model, (vertices, faces) = autoencoder(), meshes()
    ids = model.tokenize(vertices=vertices, faces=faces)
    assert ids.shape == (2, 16 * 3, 2)
    assert (ids[1, 30:] == -1).all()
    assert model.training
    assert torch.equal(model.tokenize(vertices[0], faces[0]), ids[0])


@usage("MeshAutoencoder", "codes, breakdown of the loss, reconstructed faces")
def autoencoder_returns() -> None:
    model, (vertices, faces) = autoencoder(), meshes()
    recon, loss, (recon_loss, commit_loss) = model(
        vertices=vertices, faces=faces, return_loss_breakdown=True, return_recon_faces=True
    )
    torch.testing.assert_close(loss, recon_loss + 0.1 * commit_loss)
    assert recon.shape == (2, 16, 3, 3)
    assert recon[1, 10:].isnan().all()
    assert model(vertices=vertices, faces=faces, only_return_recon_faces=True).shape == (2, 16, 3, 3)
    assert len(model(vertices=vertices, faces=faces, return_recon_faces=True)) == 2
    assert model(vertices=vertices, faces=faces, return_codes=True).shape == (2, 48, 2)


@usage("MeshAutoencoder", "face_edges given by the user")
def given_edges() -> None:
    model, (vertices, faces) = autoencoder().eval(), meshes()
    itself = torch.arange(16)[None, :, None].expand(2, -1, 2).clone()
    itself[1, 10:] = -1
    alone = model.tokenize(vertices, faces, face_edges=itself)
    assert alone.shape == (2, 48, 2)
    chain = torch.stack([torch.arange(15), torch.arange(1, 16)], -1)[None]
    edges = torch.cat([itself[:1], chain, chain.flip(-1)], dim=1)
    assert not torch.equal(model.tokenize(vertices[:1], faces[:1], face_edges=edges), alone[:1])


@usage("MeshAutoencoder", "its parts: encode, quantize, decode")
def parts() -> None:
    model, (vertices, faces) = autoencoder().eval(), meshes()
    mask = (faces != -1).all(-1)
    edges = torch.arange(16)[None, :, None].expand(2, -1, 2).clone()
    edges[1, 10:] = -1
    encoded, bins = model.encode(
        vertices=vertices, faces=faces, face_edges=edges, face_mask=mask, return_face_coordinates=True
    )
    assert (encoded.shape, bins.shape) == ((2, 16, 24), (2, 16, 9))
    quantized, codes, _ = model.quantize(faces=faces, face_mask=mask, face_embed=encoded)
    assert torch.equal(codes, model.tokenize(vertices, faces, face_edges=edges))
    logits = model.to_coor_logits(model.decode(quantized, face_mask=mask))
    assert logits.shape == (2, 16, 9, 32)
    recon = model(vertices=vertices, faces=faces, face_edges=edges, only_return_recon_faces=True)
    found = (logits.argmax(-1) + 0.5) / 32 * 2 - 1
    torch.testing.assert_close(found.view(2, 16, 3, 3)[mask], recon[mask])


@usage("MeshAutoencoder", "decode_from_codes_to_faces")
def decode_codes() -> None:
    model, (vertices, faces) = autoencoder(), meshes()
    codes = model.tokenize(vertices, faces)
    coordinates, mask = model.decode_from_codes_to_faces(codes)
    assert coordinates.shape == (2, 16, 3, 3)
    assert mask.sum(1).tolist() == [16, 10]
    assert coordinates[1, 10:].isnan().all()
    _, discrete, _ = model.decode_from_codes_to_faces(codes.flatten(1), return_discrete_codes=True)
    torch.testing.assert_close(((discrete + 0.5) / 32 * 2 - 1)[mask], coordinates[mask])


@usage("MeshAutoencoder", "quads, vector quantization, another range, attention and dropout")
def options() -> None:
    vertices, faces = meshes(4)
    autoencoder(quads=True)(vertices=vertices, faces=faces).backward()
    vertices, faces = meshes()
    model = autoencoder(use_residual_lfq=False, coor_continuous_range=(-3.0, 3.0), resnet_dropout=0.1)
    for _ in range(2):
        model(vertices=vertices, faces=faces).backward()
    coordinates, mask = model.decode_from_codes_to_faces(model.tokenize(vertices, faces))
    assert coordinates[mask].abs().max() <= 3
    attended = autoencoder(attn_encoder_depth=1, attn_decoder_depth=1, local_attn_kwargs={"dim_head": 8, "heads": 2})
    attended(vertices=vertices, faces=faces).backward()


@usage("MeshAutoencoder", "another padding")
def other_padding() -> None:
    vertices, faces = meshes()
    model = autoencoder(pad_id=-2)
    codes = model.tokenize(vertices, faces.masked_fill(faces == -1, -2))
    assert (codes[1, 30:] == -2).all()


@usage("MeshAutoencoder", "settings of the quantizer", refused="quintet's model has no such settings")
def quantizer_settings() -> None:
    autoencoder(rlfq_kwargs={"spherical": True})


@usage("MeshAutoencoder", "save, load and init_and_load")
def save_autoencoder(folder: Path) -> None:
    model, (vertices, faces) = autoencoder(), meshes()
    model(vertices=vertices, faces=faces)
    model.save(folder / "autoencoder.pt")
    again = MeshAutoencoder.init_and_load(folder / "autoencoder.pt")
    assert torch.equal(again.tokenize(vertices, faces), model.tokenize(vertices, faces))
    other = autoencoder()
    other.load(folder / "autoencoder.pt")
    assert torch.equal(other.tokenize(vertices, faces), model.tokenize(vertices, faces))


@usage("MeshAutoencoder", "load a pickled checkpoint", refused="never opens pickled checkpoints")
def load_pickle(folder: Path) -> None:
    (folder / "mesh-autoencoder.ckpt.0.pt").write_bytes(b"\x80\x02.")
    autoencoder().load(folder / "mesh-autoencoder.ckpt.0.pt")


@usage("MeshTransformer", "train on codes, and the logits of all codes")
def train_on_codes() -> None:
    model = transformer()
    codes = torch.randint(0, 64, (2, 12, 2))
    codes[1, 6:] = -1
    model(codes=codes).backward()
    model(vertices=None, faces=None, codes=codes.flatten(1)).backward()
    logits = model(codes=codes, return_loss=False)
    assert logits.shape == (2, 25, 65)


@usage("MeshTransformer", "the loss is the cross-entropy of its logits")
def loss_of_logits() -> None:
    model = transformer().eval()
    codes = torch.randint(0, 64, (2, 24))
    logits = model(codes=codes, return_loss=False)
    labels = torch.cat([codes, torch.full((2, 1), model.eos_token_id)], dim=1)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    torch.testing.assert_close(model(codes=codes), expected)


@usage("MeshTransformer", "text_embeds, also of an optimizer that exists already")
def given_embeds() -> None:
    model, (vertices, faces) = transformer(condition_on_text=True), meshes()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    embeds = torch.randn(2, 5, 40)
    embeds[1, 3:] = 0
    losses = []
    for _ in range(8):
        loss = model(vertices=vertices, faces=faces, text_embeds=embeds)
        optimizer.zero_grad()
        loss.backward()
        before = model.model.text_encoder.project.weight.detach().clone()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert not torch.equal(before, model.model.text_encoder.project.weight)
    assert losses[-1] < losses[0]
    assert model.generate(text_embeds=embeds, max_seq_len=12, return_codes=True).shape[0] == 2


@usage("MeshTransformer", "embed_texts, for text_embeds")
def embed_texts() -> None:
    model, (vertices, faces) = transformer(condition_on_text=True), meshes()
    embeds = model.embed_texts(["a high chair", "a small teapot"])
    assert embeds.ndim == 3
    assert model.embed_texts("a high chair").ndim == 2
    model(vertices=vertices, faces=faces, text_embeds=embeds).backward()
    assert torch.equal(model.embed_texts(["a high chair", "a small teapot"]), embeds)
    model(vertices=vertices, faces=faces, texts=["a high chair", "a small teapot"], cond_drop_prob=0.0).backward()


@usage("MeshTransformer", "generate: prompts, filters, temperature, codes and files")
def generate() -> None:
    model, (vertices, faces) = transformer(), meshes()
    prompt = model.autoencoder.tokenize(vertices[:, :], faces[:, :2])
    codes = model.generate(prompt=prompt, temperature=0.7, return_codes=True, max_seq_len=24)
    assert torch.equal(codes[:, :6], prompt)
    assert codes.shape[2] == 2

    def top_p(logits: Tensor, thres: float = 0.9) -> Tensor:
        raise NotImplementedError

    model.generate(batch_size=2, filter_logits_fn=top_p, filter_kwargs={"thres": 0.8}, max_seq_len=12)
    counts = model.generate(batch_size=2, face_coords_to_file=len, max_seq_len=12, temperature=0.0, cache_kv=False)
    assert len(counts) == 2
    assert model.training


@usage("MeshTransformer", "further ways of conditioning on text, which are one here")
def further_conditioning() -> None:
    model = transformer(
        condition_on_text=True,
        fine_cross_attend_text=True,
        text_cond_with_film=True,
        coarse_adaptive_rmsnorm=True,
        coarse_post_gateloop_depth=1,
        num_sos_tokens=1,
    )
    model(codes=torch.zeros(2, 6, dtype=torch.long), texts=["a high chair", "a small teapot"]).backward()


@usage("MeshTransformer", "generation with and without the cache is the same")
def same_with_cache() -> None:
    model = transformer(max_seq_len=12)
    uncached, _ = model.generate(cache_kv=False, temperature=0)
    cached, _ = model.generate(cache_kv=True, temperature=0)
    assert torch.allclose(uncached, cached)


@usage("MeshTransformer", "another filter of logits", refused="use top_k or top_p")
def other_filter() -> None:
    transformer().generate(filter_logits_fn=lambda logits: logits)


@usage("MeshTransformer", "two dimensions", refused="both stages have the same dimension")
def two_dimensions() -> None:
    transformer(dim=(32, 16))


@usage("MeshTransformer", "texts without condition_on_text", refused="takes no texts")
def unwanted_texts() -> None:
    transformer()(codes=torch.zeros(1, 6, dtype=torch.long), texts=["a chair"])


@usage("MeshTransformer", "save, init_and_load and from_pretrained")
def save_transformer(folder: Path) -> None:
    model = transformer(condition_on_text=True)
    codes = torch.randint(0, 64, (2, 24))
    for name, inputs in (("texts", {"texts": ["a", "b"]}), ("embeds", {"text_embeds": torch.randn(2, 3, 16)})):
        model.train()(codes=codes, **inputs)
        model.eval().save(folder / name)
        for again in (MeshTransformer.init_and_load(folder / name), MeshTransformer.from_pretrained(folder / name)):
            torch.testing.assert_close(again.eval()(codes=codes, **inputs), model(codes=codes, **inputs))


@usage("MeshTransformer", "from_pretrained with a name of the hub", refused="nothing is downloaded")
def from_hub() -> None:
    MeshTransformer.from_pretrained("MarcusLoren/MeshGPT-preview")


@usage("MeshTransformer", "an autoencoder of quads with a transformer of triangles", refused="the other kind of faces")
def mixed_kinds() -> None:
    MeshTransformer(autoencoder(quads=True), **SMALL)


@usage("DatasetFromTransforms", "files of a folder by functions of their extensions")
def dataset_from_transforms(folder: Path) -> None:
    (folder / "meshes").mkdir()
    for name in ("one.tri", "two.tri", "notes.txt"):
        (folder / "meshes" / name).write_text(name)

    def read(path: Path) -> tuple[Tensor, Tensor]:
        return torch.zeros(3, 3), torch.arange(3)[None]

    dataset = DatasetFromTransforms(
        str(folder / "meshes"), {"tri": read}, augment_fn=lambda item: (item[0] + 1, item[1])
    )
    assert len(dataset) == 2
    assert torch.equal(dataset[0][0], torch.ones(3, 3))


@usage("DatasetFromTransforms", "a folder without such files", refused="has no files")
def empty_folder(folder: Path) -> None:
    DatasetFromTransforms(str(folder), {"obj": len})


class _Chairs(Dataset[Any]):
    def __init__(self) -> None:
        self.data_kwargs = ["vertices", "faces", "texts"]

    def __len__(self) -> int:
        return 3

    def __getitem__(self, idx: int) -> Any:
        faces = torch.tensor([[0, 1, 2], [1, 2, 3], [-1, -1, -1]])
        return torch.rand(4, 3), faces, f"chair number {idx}"


@usage("cache_text_embeds_for_dataset", "texts are embedded once")
def cached_texts() -> None:
    calls: list[str] = []

    def embed(texts: list[str]) -> Tensor:
        calls.extend(texts)
        return torch.full((len(texts), 4, 8), float(len(texts[0])))

    kind = cache_text_embeds_for_dataset(embed, 3)(type("Chairs", (_Chairs,), {}))
    dataset = kind()
    assert dataset.data_kwargs == ["vertices", "faces", "text_embeds"]
    first = dataset[1][2]
    assert first.shape == (3, 8)
    assert torch.equal(dataset[1][2], first)
    assert calls.count("chair number 1") == 1
    assert Path("text_embed_cache/cache.text_embed.memmap.npy").is_file()


@usage("MeshTransformerTrainer", "a model of this package on items with cached text embeddings")
def train_on_cached_texts() -> None:
    model = transformer(condition_on_text=True)
    kind = cache_text_embeds_for_dataset(model.embed_texts, 4)(type("Chairs", (_Chairs,), {}))
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    trainer = MeshTransformerTrainer(model, kind(), num_train_steps=2, batch_size=2, grad_accum_every=1, warmup_steps=0)
    trainer.train()
    assert any(
        not torch.equal(before[name], tensor) for name, tensor in model.model.state_dict().items() if name in before
    )
    faces, mask = model.generate(texts=["a chair"], max_seq_len=12)
    assert len(faces) == len(mask) == 1


@usage("MeshTransformerTrainer", "a model of this package on items with codes")
def train_on_code_items() -> None:
    model = transformer()
    items = [{"codes": model.autoencoder.tokenize(*_Chairs()[index][:2])} for index in range(3)]
    MeshTransformerTrainer(model, items, num_train_steps=2, batch_size=2, grad_accum_every=1).train()


@usage("MeshAutoencoderTrainer", "a model of this package")
def train_autoencoder() -> None:
    model = autoencoder()
    items = [_Chairs()[index][:2] for index in range(3)]
    MeshAutoencoderTrainer(model, items, num_train_steps=2, batch_size=2, grad_accum_every=1).train()
    assert model.tokenize(*items[0]).shape == (9, 2)


@usage("cache_face_edges_for_dataset", "adjacent faces are found once")
def cached_edges() -> None:
    kind = cache_face_edges_for_dataset(8)(type("Chairs", (_Chairs,), {}))
    dataset = kind()
    assert dataset.data_kwargs[-1] == "face_edges"
    edges = dataset[0][-1]
    assert sorted(map(tuple, edges.tolist())) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert Path("face_edges_cache/cache.face_edges_embed.memmap.npy").is_file()


@usage("cache_face_edges_for_dataset", "more pairs than the cache has room for", refused="more than max_edges_len=2")
def too_many_edges() -> None:
    cache_face_edges_for_dataset(2)(type("Chairs", (_Chairs,), {}))()[0]
