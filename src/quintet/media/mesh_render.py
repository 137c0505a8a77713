"""Owns pictures of meshes: a z-buffer in numpy, shaded faces with their edges drawn over them. No display is needed.

The view is parallel, y is up. At azimuth 0 and elevation 0 the eye looks along -z, x to the right; azimuth turns it to
the right around the mesh, elevation raises it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from quintet.media.image import image_grid
from quintet.media.mesh import Mesh

Pixels = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float64]

VIEW = (35.0, 25.0)
MARGIN = 0.06
"""Of the picture, free on every side."""
BACKGROUND = (255.0, 255.0, 255.0)
SURFACE = (198.0, 218.0, 242.0)
BACK = (240.0, 204.0, 184.0)
"""Of faces seen from inside, so that holes and turned faces show."""
EDGE = (38.0, 48.0, 66.0)
EDGE_WIDTH = 0.5
"""Half the width of an edge on each of its two faces, in pixels of the final picture."""
AMBIENT = 0.5
LIGHT = (-0.45, 0.75, 0.6)
"""Towards the light, seen from the eye: right, up, towards the eye."""

_OVERSAMPLING = 2


def render(mesh: Mesh, size: int = 256, view: tuple[float, float] = VIEW) -> Pixels:
    """A picture, size x size x 3; `view` is (azimuth, elevation) in degrees. A mesh without faces is an empty one."""
    fine = size * _OVERSAMPLING
    triangles = _seen(mesh, fine, view)
    owners, edges = _rasterise(triangles, fine)
    colours = np.concatenate([_shades(triangles), [BACKGROUND]])[owners]  # -1, where nothing is, is the last one
    colours += edges[..., None] * (np.array(EDGE) - colours)
    smooth = colours.reshape(size, _OVERSAMPLING, size, _OVERSAMPLING, 3).mean(axis=(1, 3))
    picture: Pixels = np.rint(np.clip(smooth, 0, 255)).astype(np.uint8)
    return picture


def contact_sheet(
    meshes: Sequence[Mesh], columns: int, size: int = 256, view: tuple[float, float] = VIEW, padding: int = 2
) -> Pixels:
    """Pictures of several meshes, row by row, as one."""
    return image_grid([render(mesh, size, view) for mesh in meshes], columns, padding)


def _seen(mesh: Mesh, size: int, view: tuple[float, float]) -> FloatArray:
    """The faces with a picture in it, (m, 3, 3): right and down in pixels, and nearness to the eye, as large."""
    vertices = np.asarray(mesh.vertices, np.float64)
    corners = vertices[mesh.faces].reshape(-1, 3, 3)
    corners = corners[np.isfinite(corners).all(axis=(1, 2))]
    if not len(corners):
        return np.empty((0, 3, 3))
    turned = corners @ _rotation(*view).T
    turned -= (turned.min(axis=(0, 1)) + turned.max(axis=(0, 1))) / 2
    # By what is seen, not by the box: a mesh fills the picture from every side.
    reach = max(float(np.abs(turned[..., :2]).max()), 1e-12)
    scaled = turned * (size * (0.5 - MARGIN) / reach)
    scaled[..., 0] += size / 2
    scaled[..., 1] = size / 2 - scaled[..., 1]
    return scaled


def _rotation(azimuth: float, elevation: float) -> FloatArray:
    """From the axes of the mesh to right, up, towards the eye."""
    turn, lift = math.radians(azimuth), math.radians(elevation)
    around = np.array([[math.cos(turn), 0, -math.sin(turn)], [0, 1, 0], [math.sin(turn), 0, math.cos(turn)]])
    over = np.array([[1, 0, 0], [0, math.cos(lift), -math.sin(lift)], [0, math.sin(lift), math.cos(lift)]])
    return np.asarray(over @ around)


def _shades(triangles: FloatArray) -> FloatArray:
    """The colour of each face."""
    upright = triangles * (1.0, -1.0, 1.0)
    normals = np.cross(upright[:, 1] - upright[:, 0], upright[:, 2] - upright[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    from_inside = normals[:, 2] < 0
    normals[from_inside] *= -1
    light = np.array(LIGHT) / np.linalg.norm(LIGHT)
    brightness = AMBIENT + (1 - AMBIENT) * np.clip(normals @ light, 0, 1)
    return np.asarray(np.where(from_inside[:, None], BACK, SURFACE) * brightness[:, None])


def _rasterise(triangles: FloatArray, size: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """The face seen at each pixel, -1 for none, and how much of an edge is there, 0 to 1."""
    owners = np.full((size, size), -1, np.int64)
    edges = np.zeros((size, size))
    nearest = np.full((size, size), -np.inf)
    width = EDGE_WIDTH * _OVERSAMPLING
    lows = np.maximum(np.floor(triangles[..., :2].min(axis=1) - 0.5).astype(np.int64), 0)
    highs = np.minimum(np.ceil(triangles[..., :2].max(axis=1) + 0.5).astype(np.int64), size)
    for face, (a, b, c) in enumerate(triangles):
        doubled = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        if abs(doubled) < 1e-9:  # seen from its side
            continue
        (left, top), (right, bottom) = lows[face], highs[face]
        x = np.arange(left, right) + 0.5
        y = (np.arange(top, bottom) + 0.5)[:, None]
        # Each weight is 1 at its corner and 0 on the side opposite, and falls evenly between.
        weight_b = ((x - a[0]) * (c[1] - a[1]) - (y - a[1]) * (c[0] - a[0])) / doubled
        weight_c = ((b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0])) / doubled
        weight_a = 1.0 - weight_b - weight_c
        depth = weight_a * a[2] + weight_b * b[2] + weight_c * c[2]
        window = np.s_[top:bottom, left:right]
        inside = (weight_a >= 0) & (weight_b >= 0) & (weight_c >= 0) & (depth > nearest[window])
        # Distance in pixels from the nearest side: a weight times the height over that side.
        sides = (math.dist(b[:2], c[:2]), math.dist(c[:2], a[:2]), math.dist(a[:2], b[:2]))
        heights = [abs(doubled) / max(side, 1e-12) for side in sides]
        distance = np.minimum(np.minimum(weight_a * heights[0], weight_b * heights[1]), weight_c * heights[2])
        nearest[window][inside] = depth[inside]
        owners[window][inside] = face
        edges[window][inside] = np.clip(width + 0.5 - distance[inside], 0.0, 1.0)
    return owners, edges
