"""Mesh renderer: a z-buffer in numpy, with shaded faces and their edges. No display is needed.

The projection is orthographic and y is up. At azimuth 0 and elevation 0 the camera looks along -z, with x to the right;
azimuth moves it to the right around the mesh, elevation raises it.
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
"""Margin on every side, as a fraction of the image."""
BACKGROUND = (255.0, 255.0, 255.0)
SURFACE = (198.0, 218.0, 242.0)
BACK = (240.0, 204.0, 184.0)
"""Colour of faces seen from inside, so that holes and flipped faces are visible."""
EDGE = (38.0, 48.0, 66.0)
EDGE_WIDTH = 0.5
"""Width of an edge on each of its two faces, in pixels of the final image."""
AMBIENT = 0.5
LIGHT = (-0.45, 0.75, 0.6)
"""Direction of the light in camera coordinates: right, up, towards the camera."""

_OVERSAMPLING = 2


def render(mesh: Mesh, size: int = 256, view: tuple[float, float] = VIEW) -> Pixels:
    """Image (size, size, 3) uint8; `view` is (azimuth, elevation) in degrees. Without faces the image is empty."""
    fine = size * _OVERSAMPLING
    triangles = _projected(mesh, fine, view)
    owners, edges = _rasterise(triangles, fine)
    colours = np.concatenate([_shades(triangles), [BACKGROUND]])[owners]  # index -1, no face, is the background
    colours += edges[..., None] * (np.array(EDGE) - colours)
    smooth = colours.reshape(size, _OVERSAMPLING, size, _OVERSAMPLING, 3).mean(axis=(1, 3))
    image: Pixels = np.rint(np.clip(smooth, 0, 255)).astype(np.uint8)
    return image


def contact_sheet(
    meshes: Sequence[Mesh], columns: int, size: int = 256, view: tuple[float, float] = VIEW, padding: int = 2
) -> Pixels:
    """One image with the renderings of several meshes, row by row."""
    return image_grid([render(mesh, size, view) for mesh in meshes], columns, padding)


def _projected(mesh: Mesh, size: int, view: tuple[float, float]) -> FloatArray:
    """The faces in image coordinates (m, 3, 3): right and down in pixels, and nearness in the same unit."""
    vertices = np.asarray(mesh.vertices, np.float64)
    corners = vertices[mesh.faces].reshape(-1, 3, 3)
    corners = corners[np.isfinite(corners).all(axis=(1, 2))]
    if not len(corners):
        return np.empty((0, 3, 3))
    rotated = corners @ _rotation(*view).T
    rotated -= (rotated.min(axis=(0, 1)) + rotated.max(axis=(0, 1))) / 2
    # By its projection, not its bounding box: a mesh fills the image from every side.
    reach = max(float(np.abs(rotated[..., :2]).max()), 1e-12)
    scaled = rotated * (size * (0.5 - MARGIN) / reach)
    scaled[..., 0] += size / 2
    scaled[..., 1] = size / 2 - scaled[..., 1]
    return scaled


def _rotation(azimuth: float, elevation: float) -> FloatArray:
    """Rotation matrix from the axes of the mesh to right, up, towards the camera."""
    turn, lift = math.radians(azimuth), math.radians(elevation)
    around = np.array([[math.cos(turn), 0, -math.sin(turn)], [0, 1, 0], [math.sin(turn), 0, math.cos(turn)]])
    over = np.array([[1, 0, 0], [0, math.cos(lift), -math.sin(lift)], [0, math.sin(lift), math.cos(lift)]])
    return np.asarray(over @ around)


def _shades(triangles: FloatArray) -> FloatArray:
    """The colour of each face, (m, 3)."""
    upright = triangles * (1.0, -1.0, 1.0)
    normals = np.cross(upright[:, 1] - upright[:, 0], upright[:, 2] - upright[:, 0])
    normals /= np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-12)
    from_inside = normals[:, 2] < 0
    normals[from_inside] *= -1
    light = np.array(LIGHT) / np.linalg.norm(LIGHT)
    brightness = AMBIENT + (1 - AMBIENT) * np.clip(normals @ light, 0, 1)
    return np.asarray(np.where(from_inside[:, None], BACK, SURFACE) * brightness[:, None])


def _rasterise(triangles: FloatArray, size: int) -> tuple[npt.NDArray[np.int64], FloatArray]:
    """The visible face at each pixel, -1 for none, and the opacity of its edge, 0 to 1; both (size, size)."""
    owners = np.full((size, size), -1, np.int64)
    edges = np.zeros((size, size))
    nearest = np.full((size, size), -np.inf)
    width = EDGE_WIDTH * _OVERSAMPLING
    lows = np.maximum(np.floor(triangles[..., :2].min(axis=1) - 0.5).astype(np.int64), 0)
    highs = np.minimum(np.ceil(triangles[..., :2].max(axis=1) + 0.5).astype(np.int64), size)
    for face, (a, b, c) in enumerate(triangles):
        doubled = (b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0])
        if abs(doubled) < 1e-9:  # edge-on
            continue
        (left, top), (right, bottom) = lows[face], highs[face]
        x = np.arange(left, right) + 0.5
        y = (np.arange(top, bottom) + 0.5)[:, None]
        # Barycentric weights: each is 1 at its corner and 0 on the opposite side.
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
