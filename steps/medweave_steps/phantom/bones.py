"""Ribs, spine, sternum, clavicles and scapulae, stamped as depths below the bone surface."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.anatomy import Anatomy, cage_section, spine_centre_y
from medweave_steps.phantom.fields import CtGrid, Float
from medweave_steps.phantom.tubes import DEPTH_MAX_MM, DEPTH_MIN_MM, Tubes, encode_depth, stamp_tubes

NUM_RIBS = 11
RIB_Z_SQUEEZE = 0.6  # ribs are 6 to 7 mm thick and 11 to 12 mm high


def vertebra_levels(anatomy: Anatomy) -> Float:
    """Return z of the centers of all vertebral bodies in and around the field of view."""
    top, low = anatomy.apex_z + 45, anatomy.lowest_z - 60
    levels: Float = np.arange(top, low, -anatomy.vertebra_height).astype(np.float32)
    return levels


def rib_line(anatomy: Anatomy, number: int, side: int) -> Float:
    """Return the centerline (P, 3) of one bony rib from the spine around to its cartilage; side -1 right, +1 left.

    A rib leaves the spine level with its vertebra, runs around the cage 4 mm outside the pleura and descends towards the front.
    """
    levels = vertebra_levels(anatomy)
    first = int(np.argmin(np.abs(levels - (anatomy.apex_z + 2))))
    head_z = float(levels[min(first + number - 1, len(levels) - 1)])
    reach = (0.78, 0.80, 0.82, 0.83, 0.83, 0.82, 0.80, 0.76, 0.72, 0.62, 0.5)[number - 1]
    drop = (30, 48, 60, 68, 74, 80, 84, 84, 80, 60, 45)[number - 1]
    along = np.linspace(0, reach, 36)
    z = head_z - drop * (1 - np.cos(np.pi * np.minimum(along / 0.95, 1))) / 2
    width, depth, centre_y = cage_section(anatomy, np.minimum(z, anatomy.apex_z - 6))
    angle = np.pi * (0.035 + 0.9 * along)  # 0 behind, pi in front
    sine, cosine = np.abs(np.sin(angle)) ** 0.8, np.cos(angle)
    x = side * (width + 4.5) * sine
    y = centre_y + (depth + 4.5) * np.sign(cosine) * np.abs(cosine) ** 0.8
    points: Float = np.stack([x, y, z], axis=1).astype(np.float32)
    return points


def _ribs(anatomy: Anatomy) -> Tubes:
    chains = []
    for number in range(1, NUM_RIBS + 1):
        for side in (-1, 1):
            points = rib_line(anatomy, number, side)
            chains.append(Tubes.polyline(points, np.linspace(3.3, 3.9, len(points))))
    return Tubes.joined(*chains)


def _scapulae(anatomy: Anatomy) -> Tubes:
    """Return the scapulae as tubes: two thin plates behind the upper ribs, made of rods that overlap when drawn tall."""
    chains = []
    shoulder = anatomy.half_width + anatomy.wall
    for side in (-1, 1):
        for row in np.linspace(0, 1, 30):
            z = anatomy.apex_z - 4 - 120 * row
            medial = np.array([side * (66 + 10 * row), anatomy.half_depth + 12 - 4 * row, z])
            lateral = np.array([side * (shoulder - 6 - 40 * row), anatomy.half_depth - 34 + 30 * row, z + 8])
            chains.append(Tubes.polyline(np.stack([medial, lateral]), np.array([1.6, 3.2])))
    return Tubes.joined(*chains)


def _long_bones(anatomy: Anatomy) -> Tubes:
    """Return the sternum, the clavicles and the processes of the vertebrae as tubes."""
    chains = []
    sternum_z = np.linspace(40, -78, 12)
    _, depth, centre_y = cage_section(anatomy, np.minimum(sternum_z, 40))
    for x in np.linspace(-12, 12, 9):
        width = np.where(sternum_z > 10, 1.3, 0.9)
        points = np.stack([x * width, centre_y - depth - 8.5, sternum_z], axis=1)
        chains.append(Tubes.polyline(points, np.full(12, 4.4)))
    front = float(centre_y[0] - depth[0])
    for side in (-1, 1):
        clavicle = [(side * 22, front - 6, 48), (side * 60, front + 4, 66), (side * 110, front + 40, 92)]
        chains.append(Tubes.polyline(np.array(clavicle, float), np.array([7, 5.5, 5.5])))
    for z in vertebra_levels(anatomy):
        y = float(spine_centre_y(anatomy, np.asarray(z, np.float32))) + anatomy.vertebra_radius + 16
        chains.append(Tubes.polyline(np.array([(0, y, z), (0, y + 24, z - 18)], float), np.array([3.2, 3.6])))
        for side in (-1, 1):
            process = np.array([(side * 9, y - 4, z + 2), (side * 30, y + 4, z + 4)], float)
            chains.append(Tubes.polyline(process, np.array([4.6, 4.0])))
    return Tubes.joined(*chains)


def _stamp_spine(depth_KJI: NDArray[np.uint8], grid: CtGrid, anatomy: Anatomy) -> None:
    """Draw the vertebral bodies, separated by discs, and the ring around the spinal canal, in a box around the spine."""
    z, y, x = grid.axes_mm()
    radius = anatomy.vertebra_radius
    ii = slice(*np.searchsorted(x, (-radius - 8, radius + 8)))
    jj = slice(*np.searchsorted(y, (anatomy.spine_y - 40, anatomy.spine_y + radius + 32)))
    levels = vertebra_levels(anatomy)
    for k, height in enumerate(z):
        off_z = float(np.abs(levels - height).min())
        dy = y[jj, None] - spine_centre_y(anatomy, height)
        xx = x[None, ii]
        body = radius - np.hypot(xx * 0.9, dy)
        body = np.minimum(body, 0.5 * anatomy.vertebra_height - 2.8 - off_z)
        canal = np.hypot(xx, dy - radius - 7)
        ring = np.minimum(3.2 - np.abs(canal - 11.5), 0.36 * anatomy.vertebra_height - off_z)
        bone = np.minimum(np.maximum(body, ring), canal - 8)
        view = depth_KJI[k, jj, ii]
        np.maximum(view, encode_depth(np.clip(bone, DEPTH_MIN_MM, DEPTH_MAX_MM)), out=view)


def stamp_bones(depth_KJI: NDArray[np.uint8], grid: CtGrid, anatomy: Anatomy, edge_mm: float) -> None:
    """Raise coded depths to those of all bones, in place."""
    stamp_tubes(
        depth_KJI, grid, Tubes.joined(_ribs(anatomy), _scapulae(anatomy)), edge_mm=edge_mm, z_squeeze=RIB_Z_SQUEEZE
    )
    stamp_tubes(depth_KJI, grid, _long_bones(anatomy), edge_mm=edge_mm)
    _stamp_spine(depth_KJI, grid, anatomy)
