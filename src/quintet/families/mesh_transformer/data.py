"""Data of the mesh transformer: codes of captioned meshes, encoded once and stored in the token cache."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from quintet.common.batch import Dataset, Item
from quintet.common.batch import collate as collate_equal
from quintet.common.logging import say
from quintet.common.rng import ItemRNG
from quintet.data.captioned import check_captions
from quintet.data.mesh import FIELDS as MESH_FIELDS
from quintet.data.mesh import PythonMeshes, mesh_folder_splits, python_mesh_splits, say_large_meshes
from quintet.data.mesh_points import CloudSettings, PointClouds, surface_splits
from quintet.data.python_dataset import Field, Indexable, PythonDataset, caption_of, route, split_object
from quintet.data.splits import Splits
from quintet.data.text_embeddings import VECTORS, check_embeddings, collate_embeddings, embedding_of, has_type
from quintet.data.token_cache import TokenDataset
from quintet.data.tokenized import FreshTokens, fresh_splits, tokenized_splits
from quintet.errors import UnreadableItem, UsageError
from quintet.families.mesh_transformer.config import MeshTransformerConfig, MeshTransformerModelConfig
from quintet.families.mesh_transformer.model import PADDING
from quintet.families.mesh_transformer.woven_states import read_row
from quintet.media.mesh_weaving import NUM_OPERATIONS, Vocabulary
from quintet.pipelines.base import Tokenizer

READ_ITEMS = 256
"""Items of a Python data set that are read to see whether meshes have open edges."""


@dataclass
class FaceDataset:
    """The codes of meshes that are small enough, or of a random window of larger ones.

    An item holds `codes` (faces, tokens_per_face), `faces`, the face count of the full mesh, and whether the codes
    include its first face (`begins`) and its last (`ends`). Outside training with a window it also holds `full_codes`.
    A row of a woven mesh is a token, and the item also holds their `states` (tokens + 1, FEATURES) in the full mesh.
    """

    codes: TokenDataset | PythonFaces
    positions: Sequence[int]
    """Indices into `codes` of the items that are used."""
    counts: Sequence[int]
    """Face count of each of them, in the variant with most faces; or the number of tokens, if they are woven."""
    window: int | None
    """Most rows of codes of an item: faces, or woven tokens."""
    train: bool
    woven_bins: int | None = None
    """Bins of the tokenizer `woven`; None: the codes are of faces."""
    points: PointClouds | None = None
    """For a model that is conditioned on them; the items then also hold `points` (points, 6)."""

    def __len__(self) -> int:
        return len(self.positions)

    def name(self, item: int) -> str:
        return self.codes.name(self.positions[item])

    def load(self, item: int, rng: ItemRNG) -> Item:
        position = self.positions[item]
        loaded = self.codes.load(position, rng)
        if self.points is not None:
            loaded["points"] = self.points.load(position, rng)
        return _item_of(loaded, self.woven_bins, self.window, self.train, rng)

    def lengths(self) -> list[int]:
        """The number of faces of each loaded item, or of tokens, if it is woven."""
        return [min(count, self.window or count) for count in self.counts]


@dataclass
class FreshFaces:
    """The items of a `FaceDataset`, of meshes that are read and encoded at every step: their sizes are not known."""

    codes: FreshTokens
    model: MeshTransformerModelConfig
    window: int | None
    train: bool

    def __len__(self) -> int:
        return len(self.codes)

    def name(self, item: int) -> str:
        return self.codes.name(item)

    def load(self, item: int, rng: ItemRNG) -> Item:
        loaded = self.codes.load(item, rng)
        count = len(loaded["codes"])
        if self.window is None and count > _limit(self.model):
            raise UnreadableItem(_too_large(count, self.model))
        return _item_of(loaded, _woven_bins(self.model), self.window, self.train, rng)


def _woven_bins(model: MeshTransformerModelConfig) -> int | None:
    assert model.num_codes is not None
    return model.num_codes - NUM_OPERATIONS if model.kind == "woven" else None


def _limit(model: MeshTransformerModelConfig) -> int:
    """The most rows of codes of a mesh: faces, or woven tokens."""
    return model.max_tokens(model.max_faces) if model.kind == "woven" else model.max_faces


def _too_large(count: int, model: MeshTransformerModelConfig) -> str:
    if model.kind == "woven":
        return f"{count} tokens, more than the {_limit(model)} of model.max_faces={model.max_faces}"
    return f"{count} faces, more than model.max_faces={model.max_faces}"


def _window(config: MeshTransformerConfig) -> int | None:
    """The most rows of codes of an item, with `loss.window_faces`."""
    window, model = config.loss.window_faces, config.model
    return window if window is None or model.kind != "woven" else model.max_tokens(window)


def _item_of(loaded: Item, woven_bins: int | None, window: int | None, train: bool, rng: ItemRNG) -> Item:
    """An item of a `FaceDataset`, of all codes of a mesh."""
    codes: Tensor = loaded["codes"]
    start, stop = (_face_window if woven_bins is None else _woven_window)(len(codes), window, rng)
    full = {} if train or window is None else {"full_codes": codes}
    item = {**loaded, **full, "begins": start == 0, "ends": stop == len(codes), "codes": codes[start:stop]}
    if woven_bins is None:
        return {**item, "faces": len(codes)}
    try:
        states, faces = read_row(codes[:, 0].tolist(), woven_bins, start, stop)
    except ValueError as problem:
        raise UnreadableItem(f"has codes that are no woven mesh: {problem}") from None
    return {**item, "states": torch.from_numpy(states), "faces": faces}


def _face_window(count: int, window: int | None, rng: ItemRNG) -> tuple[int, int]:
    """The first face of a random window of so many faces, and that behind its last one."""
    size = count if window is None else min(count, window)
    start = int(rng.number("window") * (count - size + 1))
    return start, start + size


def _woven_window(count: int, window: int | None, rng: ItemRNG) -> tuple[int, int]:
    """The same of tokens. Its middle is at any token, so that the last window is shorter and the end of a mesh is seen
    behind any number of tokens from half a window on, as in decoding with a sliding window."""
    if window is None or count <= window:
        return 0, count
    start = max(int(rng.number("window") * count) - window // 2, 0)
    return start, min(start + window, count)


def collate(items: Sequence[Item]) -> dict[str, Any]:
    """A batch: `codes` (batch, faces, tokens_per_face) padded to the largest mesh, and their `lengths` (batch,).

    With text embeddings also `vectors` and `words`; see `collate_embeddings`.
    """
    codes = [item["codes"] for item in items]
    uneven = ("codes", "full_codes", "states", "vectors")
    fields = collate_equal([{name: value for name, value in item.items() if name not in uneven} for item in items])
    if "full_codes" in items[0]:
        fields["full_codes"] = [item["full_codes"] for item in items]
    fields["codes"] = torch.nn.utils.rnn.pad_sequence(codes, batch_first=True, padding_value=PADDING)
    fields["lengths"] = torch.tensor([len(each) for each in codes])
    if "states" in items[0]:
        fields["states"] = torch.nn.utils.rnn.pad_sequence([item["states"] for item in items], batch_first=True)
    return {**fields, **collate_embeddings(items)}


def token_splits(config: MeshTransformerConfig, tokenizer: Tokenizer[Any]) -> Splits:
    """The codes of the folders of the configuration, from the token cache or encoded now."""
    data = config.data
    media = mesh_folder_splits(
        data,
        tokenizer.model.bins,
        data.max_faces,
        decimate=data.decimate,
        augment=data.augment,
        memory_megabytes=data.memory_megabytes,
        corners=tokenizer.model.vertices_per_face,
    )
    say_large_meshes(media)
    return encode_splits(config, tokenizer, media)


def encode_splits(config: MeshTransformerConfig, tokenizer: Tokenizer[Any], media: Splits) -> Splits:
    """The items of `media` as codes, without the meshes that are too large."""
    check_captions(config.model, media, "meshes", config.data.allow_missing_captions)
    variants = config.data.variants if config.data.augment else 1
    encoder = tokenizer.token_encoder()
    codes = tokenized_splits(
        encoder,
        media,
        "meshes encoded",
        cache=config.data.cache_dir,
        variants=variants,
        workers=config.data.num_workers,
        encoding=config.data,
    )
    if config.model.condition == "none":
        return _small_enough_splits(config, codes)
    surfaces = surface_splits(media, config.data.num_points, config.data.cache_dir)
    return _with_points(config, _small_enough_splits(config, codes), surfaces)


def _with_points(config: MeshTransformerConfig, codes: Splits, surfaces: Splits) -> Splits:
    """The items of `codes` with point clouds from their surfaces."""
    data = config.data
    plain = CloudSettings(data.num_points)
    augmented = CloudSettings(data.num_points, data.point_noise, data.point_crop, data.point_normal_drop_prob)

    def with_points(faces: Dataset, surface: Dataset, settings: CloudSettings = plain) -> FaceDataset:
        assert isinstance(faces, FaceDataset)
        assert isinstance(faces.codes, TokenDataset)
        assert isinstance(surface, TokenDataset)
        return replace(faces, points=PointClouds(surface, faces.codes, settings))

    extra_splits = {
        split: with_points(faces, surfaces.extra_splits[split]) for split, faces in codes.extra_splits.items()
    }
    return replace(
        codes,
        train=with_points(codes.train, surfaces.train, augmented),
        validation=with_points(codes.validation, surfaces.validation),
        extra_splits=extra_splits,
    )


def _fresh_splits(config: MeshTransformerConfig, tokenizer: Tokenizer[Any], media: Splits) -> Splits:
    """The meshes of a Python data set as codes that are encoded at every step."""
    codes = fresh_splits(tokenizer.token_encoder(), media)

    def faces(source: Dataset, train: bool = False) -> FreshFaces:
        assert isinstance(source, FreshTokens)
        return FreshFaces(source, config.model, _window(config), train)

    extra_splits = {split: faces(source) for split, source in codes.extra_splits.items()}
    train, validation = faces(codes.train, train=True), faces(codes.validation)
    return replace(codes, train=train, validation=validation, extra_splits=extra_splits)


def _small_enough_splits(config: MeshTransformerConfig, codes: Splits) -> Splits:
    def small_enough(source: Dataset, part: str) -> FaceDataset:
        assert isinstance(source, TokenDataset | PythonFaces)
        return _small_enough(config, source, part, codes.skipped)

    return replace(
        codes,
        train=small_enough(codes.train, "train"),
        validation=small_enough(codes.validation, "validation"),
        extra_splits={split: small_enough(source, split) for split, source in codes.extra_splits.items()},
    )


def _small_enough(
    config: MeshTransformerConfig, codes: TokenDataset | PythonFaces, part: str, skipped: dict[str, str]
) -> FaceDataset:
    """The dataset without unreadable meshes and, unless windows are used, without too large ones; see `skipped`."""
    counts, max_faces = codes.lengths(), _limit(config.model)
    skipped.update({codes.name(item): reason for item, reason in codes.skipped.items()})
    limit = max_faces if config.loss.window_faces is None else max(counts, default=0)
    large = [item for item, count in enumerate(counts) if count > limit]
    for item in large:
        skipped[codes.name(item)] = _too_large(counts[item], config.model)
    if large:
        say(
            f"{len(large)} of {len(counts)} meshes ({part}) have more than model.max_faces={config.model.max_faces} "
            f"faces and are skipped; raise model.max_faces, or set loss.window_faces to train on windows of them"
        )
    used = [item for item, count in enumerate(counts) if 0 < count <= limit]
    if counts and not used:
        reasons = {skipped[codes.name(item)]: codes.name(item) for item in reversed(range(len(counts)))}
        listed = "; ".join(f"{name}: {reason}" for reason, name in [*reasons.items()][-3:])
        raise UsageError(f"none of the {len(counts)} items ({part}) can be used ({listed})")
    counts = [counts[item] for item in used]
    return FaceDataset(codes, used, counts, _window(config), part == "train", _woven_bins(config.model))


def has_open_meshes(splits: Splits, bins: int) -> bool:
    """Whether woven training meshes have open edges; of data that is read at every step, only the first are read."""
    train = splits.train
    if isinstance(train, FaceDataset) and isinstance(train.codes, TokenDataset):
        rows: Iterable[Any] = (train.codes.codes(position) for position in train.positions)
    else:
        rng = ItemRNG(0, [0], [0])
        full = train.codes if isinstance(train, FaceDataset | FreshFaces) else train  # not windows
        items = train.positions if isinstance(train, FaceDataset) else range(len(train))
        rows = (full.load(item, rng)["codes"] for item in items[:READ_ITEMS])
    hole = Vocabulary(bins).hole
    return any(bool((row == hole).any()) for row in rows)


# --- Python data sets -------------------------------------------------------------------------------------------


def _is_embedding(value: Any) -> bool:
    return VECTORS.accepts(value) and value.shape[1] != 3  # vertices


CODES = Field(
    "codes",
    ("face_codes",),
    lambda value: has_type(value, ("int",), (2,)) and value.shape[1] > 4,  # not faces or pairs of faces
    "integers (faces, tokens_per_face), the codes of a mesh",
    required=False,
)
FIELDS = (*(replace(each, required=False) for each in MESH_FIELDS), CODES, replace(VECTORS, accepts=_is_embedding))


@dataclass
class CaptionedMeshes(PythonMeshes):
    """Meshes of a Python data set with a caption or a text embedding."""

    fields = FIELDS

    def metadata(self, item: int) -> Item:
        return {**super().metadata(item), **embedding_of(self.routed(item))}

    def routed(self, item: int) -> dict[str, Any]:
        return _check_one_form(super().routed(item))


@dataclass
class PythonFaces(PythonDataset):
    """Codes of a Python data set, (faces, tokens_per_face), (vertices of faces, quantizers) or flat.

    Faces of -1 at the end are padding.
    """

    fields = FIELDS

    model: MeshTransformerModelConfig

    def load(self, item: int, rng: ItemRNG) -> Item:
        routed = _check_one_form(self.routed(item))
        return {**embedding_of(routed), "texts": caption_of(routed), "codes": self._codes(routed["codes"])}

    def metadata(self, item: int) -> Item:
        return {**super().metadata(item), **embedding_of(self.routed(item))}

    @cached_property
    def _checked(self) -> tuple[list[int], dict[int, str]]:
        """The number of faces of each item, and the items that cannot be used, with the reason."""
        counts, skipped = [0] * len(self), {}
        for item in range(len(self)):
            try:
                counts[item] = len(self.load(item, ItemRNG(0, [0], [item]))["codes"])
            except UnreadableItem as problem:
                skipped[item] = str(problem)
        return counts, skipped

    def lengths(self) -> list[int]:
        """The number of faces of each item; 0 if it cannot be used."""
        return self._checked[0]

    @property
    def skipped(self) -> dict[int, str]:
        return self._checked[1]

    def _codes(self, value: Any) -> Tensor:
        per_face, num_codes = self.model.tokens_per_face, self.model.num_codes
        assert per_face is not None
        assert num_codes is not None
        if not has_type(value, ("int",), (1, 2)):
            raise UnreadableItem(f"has no usable codes; expected {CODES.expects}")
        codes = torch.as_tensor(value).detach().cpu().long()
        # Flat codes, or one row for each vertex of a face.
        by_vertex = codes.ndim == 2 and codes.shape[1] and per_face % codes.shape[1] == 0
        if (codes.ndim == 1 or by_vertex) and codes.numel() % per_face == 0:
            codes = codes.reshape(-1, per_face)
        if codes.ndim != 2 or codes.shape[1] != per_face:
            raise UnreadableItem(f"has codes of shape {tuple(codes.shape)}; model.tokens_per_face={per_face}")
        valid = (codes >= 0).all(1)
        count = int(valid.sum())
        if not count:
            raise UnreadableItem("has no codes")
        if not valid[:count].all() or bool((codes[count:] != PADDING).any()):
            raise UnreadableItem("has codes below 0 that are not padding at its end")
        if int(codes.max()) >= num_codes:
            raise UnreadableItem(f"has codes up to {int(codes.max())}; the vocabulary ends at {num_codes - 1}")
        return codes[:count]


def _check_one_form(routed: dict[str, Any]) -> dict[str, Any]:
    """The item unchanged, if it holds either a mesh or codes."""
    is_mesh = "vertices" in routed and "faces" in routed
    if is_mesh == ("codes" in routed):
        found = "both a mesh and codes" if is_mesh else "neither vertices and faces nor codes"
        raise UsageError(f"an item of the data set holds {found}; expected exactly one of them")
    return routed


def python_splits(
    dataset: Indexable,
    config: MeshTransformerConfig,
    tokenizer: Tokenizer[Any],
    *,
    validation: Indexable | None = None,
    declared: Sequence[str] | None = None,
    kind: type[CaptionedMeshes] = CaptionedMeshes,
    cache: bool = True,
) -> Splits:
    """Codes of a Python data set of meshes or of codes, split by fraction and seed unless `validation` is given.

    With `cache=False`, meshes are read and encoded at every step, instead of once.
    """
    first = _check_one_form(route(dataset[0], FIELDS, declared or getattr(dataset, "data_kwargs", None)))
    check_embeddings(first, config.model)
    if config.model.condition == "points" and ("codes" in first or not cache):
        raise UsageError(
            "model.condition=points needs a data set of vertices and faces, whose surfaces are sampled, not of codes"
        )
    if "codes" in first:
        codes = split_object(dataset, config.data, partial(PythonFaces, model=config.model), validation, declared)
        check_captions(config.model, codes, "meshes", config.data.allow_missing_captions)
        return _small_enough_splits(config, codes)
    model = tokenizer.model
    media = python_mesh_splits(
        dataset,
        config.data,
        model.vertices_per_face,
        model.bins,
        validation=validation,
        declared=declared,
        kind=kind,
    )
    if not cache:
        return _fresh_splits(config, tokenizer, media)
    return encode_splits(config, tokenizer, media)
