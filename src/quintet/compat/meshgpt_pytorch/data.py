"""Data sets of meshgpt-pytorch: a folder read by the user's functions, and caches in NumPy files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from quintet.compat.items import pad
from quintet.errors import UsageError
from quintet.families.mesh_autoencoder.packed import neighbours

Decorator = Callable[[type], type]


def _unchanged(item: Any) -> Any:
    return item


class DatasetFromTransforms(Dataset[Any]):
    """The files of a folder, each read by the function of its extension: `transforms={"obj": read}`."""

    def __init__(
        self,
        folder: str | Path,
        transforms: Mapping[str, Callable[[Path], Any]],
        data_kwargs: Sequence[str] | None = None,
        augment_fn: Callable[[Any], Any] = _unchanged,
    ) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise UsageError(f"{folder} is not a folder")
        self.paths = sorted(path for extension in transforms for path in self.folder.glob(f"**/*.{extension}"))
        if not self.paths:
            raise UsageError(f"{folder} has no files with the extensions {', '.join(transforms)}")
        self.transforms, self.augment_fn = transforms, augment_fn
        self.data_kwargs = None if data_kwargs is None else list(data_kwargs)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, idx: int) -> Any:
        path = self.paths[idx]
        return self.augment_fn(self.transforms[path.suffix[1:]](path))


def cache_text_embeds_for_dataset(
    embed_texts_fn: Callable[[list[str]], Tensor], max_text_len: int, cache_path: str | Path = "./text_embed_cache"
) -> Decorator:
    """Decorates a data set class: its texts become `text_embeds`, computed once and stored in `cache_path`."""

    def embed(text: str) -> Tensor:
        return embed_texts_fn([text])[0]

    cache = _Cache(Path(cache_path), "text_embed", max_text_len, 0.0, lambda: int(embed("test").shape[-1]))

    def embedded(item: Any, idx: int, count: int, mode: str) -> Any:
        def of(text: str) -> Tensor:
            rows = cache.get(idx, count, mode, lambda: embed(text)[:max_text_len])
            return rows[(rows != 0).any(-1)]

        if isinstance(item, dict):
            if "texts" not in item:
                return item
            rest = {name: value for name, value in item.items() if name != "texts"}
            return {**rest, "text_embeds": of(item["texts"])}
        return tuple(of(value) if isinstance(value, str) else value for value in item)

    def renamed(names: list[str]) -> list[str]:
        return ["text_embeds" if name == "texts" else name for name in names]

    return _decorator(embedded, renamed)


def cache_face_edges_for_dataset(
    max_edges_len: int,
    cache_path: str | Path = "./face_edges_cache",
    assert_edge_len_lt_max: bool = True,
    pad_id: int = -1,
) -> Decorator:
    """Decorates a data set class: its items get `face_edges`, computed once and stored in `cache_path`."""
    cache = _Cache(Path(cache_path), "face_edges_embed", max_edges_len, float(pad_id), lambda: 2)

    def with_edges(item: Any, idx: int, count: int, mode: str) -> Any:
        faces = item["faces"] if isinstance(item, dict) else item[1]

        def edges() -> Tensor:
            found = face_edges_of(torch.as_tensor(faces), pad_id)
            if assert_edge_len_lt_max and len(found) > max_edges_len:
                raise UsageError(f"mesh {idx} has {len(found)} face edges, more than max_edges_len={max_edges_len}")
            return found[:max_edges_len]

        rows = cache.get(idx, count, mode, edges)
        own = rows[(rows != pad_id).all(-1)].long()
        return {**item, "face_edges": own} if isinstance(item, dict) else (*item, own)

    return _decorator(with_edges, lambda names: [*names, "face_edges"])


def face_edges_of(faces: Tensor, pad_id: int = -1) -> Tensor:
    """Pairs (pairs, 2) of faces that share an edge, both ways, and every face with itself."""
    return neighbours(faces[(faces != pad_id).all(-1)].long()).t()


def derive_face_edges_from_faces(
    faces: Tensor, pad_id: int = -1, neighbor_if_share_one_vertex: bool = False, include_self: bool = True
) -> Tensor:
    """Pairs (pairs, 2) of faces (faces, corners) that share two vertices, or one; with a batch axis padded by `pad_id`.

    Without `include_self`, faces of the same vertices are no neighbours, nor is a face of itself.
    """
    if faces.ndim == 2:
        return _sharing(faces, pad_id, neighbor_if_share_one_vertex, include_self)
    found = [_sharing(each, pad_id, neighbor_if_share_one_vertex, include_self) for each in faces]
    return pad(found, pad_id)


def _sharing(faces: Tensor, pad_id: int, by_vertex: bool, include_self: bool) -> Tensor:
    valid = (faces != pad_id).all(-1)
    shared = (faces[:, None, :, None] == faces[None, :, None, :]).any(-1).sum(-1)
    are_neighbours = (shared >= (1 if by_vertex else 2)) & valid[:, None] & valid
    if not include_self:
        are_neighbours &= shared < faces.shape[1]
    return are_neighbours.nonzero()


def custom_collate(data: Sequence[Any], pad_id: int = -1) -> Any:
    """A batch of items, dictionaries or tuples: tensors padded to the longest and stacked, anything else as a list."""

    def merged(values: Sequence[Any]) -> Any:
        return pad(list(values), pad_id) if isinstance(values[0], Tensor) else list(values)

    first = data[0]
    if isinstance(first, Mapping):
        return {name: merged([item[name] for item in data]) for name in first}
    return tuple(merged(values) for values in zip(*data, strict=False))


def _decorator(change: Callable[[Any, int, int, str], Any], names: Callable[[list[str]], list[str]]) -> Decorator:
    """A decorator of data set classes that changes every item, and the names in `data_kwargs`."""

    def decorate(dataset: type) -> type:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise UsageError(f"{dataset.__name__} is not a data set: it needs __len__ and __getitem__")
        kind: Any = dataset
        built, item_of = kind.__init__, kind.__getitem__

        def initialise(self: Any, *arguments: Any, cache_memmap_file_mode: str = "w+", **keywords: Any) -> None:
            built(self, *arguments, **keywords)
            self._cache_memmap_file_mode = cache_memmap_file_mode
            if getattr(self, "data_kwargs", None) is not None:
                self.data_kwargs = names(list(self.data_kwargs))

        def changed_item(self: Any, idx: int) -> Any:
            return change(item_of(self, idx), idx, len(self), self._cache_memmap_file_mode)

        kind.__init__, kind.__getitem__ = initialise, changed_item
        return dataset

    return decorate


class _Cache:
    """Rows of floats by item, in two memory-mapped NumPy files, which hold no pickles."""

    def __init__(self, folder: Path, name: str, length: int, padding: float, width: Callable[[], int]) -> None:
        self.folder, self.name, self.length, self.padding, self.width = folder, name, length, padding, width
        folder.mkdir(parents=True, exist_ok=True)
        self._open: tuple[np.memmap[Any, Any], np.memmap[Any, Any]] | None = None

    def get(self, idx: int, count: int, mode: str, compute: Callable[[], Tensor]) -> Tensor:
        """The padded rows (length, width) of an item."""
        rows, known = self._files(count, mode)
        if not known[idx]:
            computed = compute().detach().float().cpu().numpy()
            rows[idx] = self.padding
            rows[idx, : len(computed)] = computed
            known[idx] = True
        return torch.from_numpy(np.array(rows[idx]))

    def _files(self, count: int, mode: str) -> tuple[np.memmap[Any, Any], np.memmap[Any, Any]]:
        if self._open is None:
            paths = [self.folder / f"cache.{name}.memmap.npy" for name in (self.name, "is_cached")]
            if mode != "w+" and not all(path.is_file() for path in paths):
                raise UsageError(f"{self.folder} holds no cache; leave out cache_memmap_file_mode={mode!r}")
            shapes: list[tuple[int, ...]] = [(count, self.length, self.width()), (count,)]
            kinds = ("float32", "bool")
            opened = [
                np.lib.format.open_memmap(path, mode=mode, dtype=kind, shape=shape)
                for path, kind, shape in zip(paths, kinds, shapes, strict=True)
            ]
            for file, shape in zip(opened, shapes, strict=True):
                if file.shape != shape:
                    raise UsageError(f"{self.folder} holds a cache of another data set; delete it, or choose another")
            self._open = opened[0], opened[1]
        return self._open
