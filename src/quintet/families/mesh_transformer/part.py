"""Owns the reading of a part of a mesh, for a model to go on from: it stays where it stands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from quintet.errors import UnreadableItem
from quintet.media.mesh import Mesh, canonical, clean
from quintet.media.mesh_formats import read_soup


def read_part(path: Path, bins: int) -> Mesh:
    """The faces of a file in canonical order, clean at the size of a bin.

    A whole mesh is scaled to the unit box when it is read; a part says by its coordinates where in the box it belongs.
    """
    soup = read_soup(path)
    used = soup.vertices[np.unique(soup.faces)]
    if np.abs(used).max() > 1:
        low, high = used.min(), used.max()
        raise UnreadableItem(
            f"a part stands where the whole mesh will have it, in the box from -1 to 1; its coordinates go from "
            f"{low:.3g} to {high:.3g}"
        )
    part = clean(Mesh(soup.vertices, soup.faces), bins)
    if not len(part.faces):
        raise UnreadableItem(f"no face of it has an area at {bins} bins a side")
    return canonical(part, bins)
