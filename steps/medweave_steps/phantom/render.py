"""From anatomy to Hounsfield units: stamps everything on the CT grid, then composes it slice by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.anatomy import FIELDS, Anatomy, Fields
from medweave_steps.phantom.bones import stamp_bones
from medweave_steps.phantom.fields import MAX_DISTANCE_MM, CtGrid, Float, Part, interpolated_slices, parts_around
from medweave_steps.phantom.nodules import DrawnNodule
from medweave_steps.phantom.tubes import Tubes, decode_depth, stamp_tubes

# Typical values of unenhanced chest CT at 120 kV (Kalender 2011, Computed Tomography, ch. 1; Hansell et al. 2008,
# Radiology 246:697): fat -100, muscle and blood 40 to 60, cortical bone 600 to 1000, cancellous bone 150 to 300.
AIR_HU, FAT_HU, SOFT_HU, SKIN_HU = -1000.0, -100.0, 46.0, 15.0
CORTICAL_HU, CANCELLOUS_HU = 720.0, 190.0
VESSEL_HU = 40.0  # blood without contrast medium is as dense as a solid nodule
FISSURE_MM = 0.3  # two pleural layers; seen only as a partial-volume line
SKIN_MM = 1.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The structures of one patient on one CT grid."""

    grid: CtGrid
    fields: Fields
    tissue_KJI: NDArray[np.uint8]
    """Coded depths of vessels and bronchial walls."""
    lumen_KJI: NDArray[np.uint8]
    """Coded depths of air in trachea and bronchi."""
    bone_KJI: NDArray[np.uint8]
    """Coded depths of bones."""
    table_JI: Float
    """HU around the patient: air and the table."""
    nodules: list[DrawnNodule]
    edge_mm: float
    """Full width of every edge: voxel and kernel."""


def stamp_scene(
    grid: CtGrid,
    anatomy: Anatomy,
    fields: Fields,
    vessels: Tubes,
    airways: Tubes,
    nodules: list[DrawnNodule],
    edge_mm: float,
) -> Scene:
    """Draw all tubes and bones on the grid; bronchial walls are 0.7 mm plus a tenth of the lumen's radius."""
    tissue, lumen, bone = (np.zeros(grid.shape_KJI, np.uint8) for _ in range(3))
    strands = [one.shape.spicules for one in nodules if one.shape.spicules is not None]
    stamp_tubes(tissue, grid, Tubes.joined(vessels, airways.widened(1.1, 0.7), *strands), edge_mm=edge_mm)
    stamp_tubes(lumen, grid, airways, edge_mm=edge_mm)
    stamp_bones(bone, grid, anatomy, edge_mm)
    return Scene(
        grid=grid,
        fields=fields,
        tissue_KJI=tissue,
        lumen_KJI=lumen,
        bone_KJI=bone,
        table_JI=_table(grid, anatomy.back_y, edge_mm),
        nodules=nodules,
        edge_mm=edge_mm,
    )


def render_volume(
    scene: Scene, noise: Iterator[Float], noise_hu: float, padding_value: int | None
) -> NDArray[np.int16]:
    """Return the HU of the whole volume, KJI.

    Args:
        scene: from `stamp_scene`.
        noise: unit-variance noise, one (J, I) plane per slice.
        noise_hu: standard deviation in the middle of the field of view; it falls to 60 % at the rim, as fewer photons
            are lost there.
        padding_value: stored outside the circle of reconstruction, or None.
    """
    grid = scene.grid
    _, y, x = grid.axes_mm()
    radial = np.hypot(x - x.mean(), (y - y.mean())[:, None])
    sigma = (noise_hu * (0.6 + 0.4 * np.exp(-((radial / 130) ** 2)))).astype(np.float32)
    outside = radial > grid.spacing_xyz_mm[0] * grid.shape_KJI[2] / 2
    hu_KJI = np.empty(grid.shape_KJI, np.int16)
    parts = _parts_with_patient(scene)
    blocks = interpolated_slices(scene.fields.grid, scene.fields.stack_FKJI, grid, parts)
    for k, (part, block_FJI, grain) in enumerate(zip(parts, blocks, noise, strict=True)):
        plane = scene.table_JI.copy()
        plane[part] = _slice_hu(scene, k, part, block_FJI)
        plane += sigma * grain
        np.clip(plane, -1024, 3071, out=plane)
        if padding_value is not None:
            plane[outside] = padding_value
        hu_KJI[k] = np.rint(plane, out=plane)
    return hu_KJI


def _parts_with_patient(scene: Scene) -> list[Part]:
    """Return per slice the part outside which there are only air and table: nothing there has a share in a voxel."""
    seen = [scene.fields.stack_FKJI[FIELDS.index(name)] for name in ("body", "lung", "central")]
    nearest = np.maximum.reduce(seen)
    # A little more than the half edge, for rounding.
    return parts_around(scene.fields.grid, nearest > -0.51 * scene.edge_mm, scene.grid)


def _cover(depth: Float, edge_mm: float) -> Float:
    """Return the share of a voxel that lies inside a surface, from the depth of its center."""
    share = depth * np.float32(1 / edge_mm)
    share += np.float32(0.5)
    covered: Float = np.clip(share, 0, 1, out=share)
    return covered


def _mix(hu: Float, code: NDArray[np.uint8], edge_mm: float, value: Callable[[Float], Float] | float) -> None:
    """Blend stamped structures into a plane, in place, touching only the pixels near one."""
    flat, code = hu.reshape(-1), code.ravel()
    at = np.flatnonzero(code)
    depth = decode_depth(code[at])
    here = flat[at]
    target = value(depth) if callable(value) else np.float32(value)
    flat[at] = here + _cover(depth, edge_mm) * (target - here)


def _bone_hu(depth: Float) -> Float:
    """Return a cortical shell of 1 to 2 mm around cancellous bone."""
    inner = np.clip((depth - np.float32(0.8)) / np.float32(1.2), 0, 1)
    return np.asarray(CORTICAL_HU + inner * (CANCELLOUS_HU - CORTICAL_HU), np.float32)


def _table(grid: CtGrid, back_y: float, edge_mm: float) -> Float:
    """Return the HU of a plane without patient: air, and the two shells of a curved carbon table under the back."""
    _, y, x = grid.axes_mm()
    below = y[:, None] - (back_y + 3 - 0.00045 * x * x)[None, :]
    shell = np.maximum(1.5 - np.abs(below), 1.5 - np.abs(below - 22))
    return (AIR_HU + 600 * _cover(shell.astype(np.float32), edge_mm)).astype(np.float32)


def _slice_hu(scene: Scene, k: int, part: Part, block_FJI: Float) -> Float:
    """Return the HU of a part of one slice without noise: fat, soft tissue, skin, bone, air, table, lungs, open airways."""
    body, soft, lung, _, _, _, texture, central = block_FJI
    edge_mm = scene.edge_mm
    hu = _cover(soft, edge_mm)
    hu *= np.float32(SOFT_HU - FAT_HU)
    hu += np.float32(9) * texture + np.float32(FAT_HU)
    hu += (1 - _cover(body - np.float32(SKIN_MM), edge_mm)) * (np.float32(SKIN_HU) - hu)
    _mix(hu, scene.bone_KJI[k][part], edge_mm, _bone_hu)
    hu -= scene.table_JI[part]
    hu *= _cover(body, edge_mm)
    hu += scene.table_JI[part]
    aerated = _cover(lung, edge_mm)
    hu += aerated * (_lung_hu(scene, k, part, block_FJI) - hu)
    open_to_air = np.maximum(aerated, _cover(central, edge_mm))  # a bronchus that strays into the heart is not drawn
    _mix(hu, np.where(open_to_air > 0.5, scene.lumen_KJI[k][part], np.uint8(0)), edge_mm, AIR_HU)
    return hu


def _lung_hu(scene: Scene, k: int, part: Part, block_FJI: Float) -> Float:
    """Return the HU of a part of one slice as if all of it were lung: tissue, fissures, ground glass, vessels, solid nodules."""
    _, _, _, parenchyma, oblique, horizontal, texture, _ = block_FJI
    content: Float = parenchyma.copy()
    rise = np.float32((VESSEL_HU + 850) * FISSURE_MM / scene.edge_mm)
    nearest = np.minimum(np.abs(oblique), np.where(oblique > 0, np.abs(horizontal), np.float32(MAX_DISTANCE_MM)))
    content += rise * np.maximum(1 - nearest * np.float32(1 / scene.edge_mm), 0)
    here = [(one, k - one.box[0].start) for one in scene.nodules if one.box[0].start <= k < one.box[0].stop]
    places = [_overlap(one.box, part) for one, _ in here]
    for (one, at), (where, own) in zip(here, places, strict=True):
        view = content[where]
        view += one.ground_KJI[at][own] * (np.float32(one.shape.ground_hu) + 12 * texture[where] - view)
    _mix(content, scene.tissue_KJI[k][part], scene.edge_mm, VESSEL_HU)
    for (one, at), (where, own) in zip(here, places, strict=True):
        view = content[where]
        view += one.core_KJI[at][own] * (np.float32(one.shape.core_hu) + 8 * texture[where] - view)
    return content


def _overlap(box: tuple[slice, slice, slice], part: Part) -> tuple[Part, Part]:
    """Return the intersection of a nodule's box and a part of a slice: within the part, and within the box."""
    within, own = [], []
    for of_box, of_part in zip(box[1:], part, strict=True):
        start = max(of_box.start, of_part.start)
        stop = max(start, min(of_box.stop, of_part.stop))
        within.append(slice(start - of_part.start, stop - of_part.start))
        own.append(slice(start - of_box.start, stop - of_box.start))
    return (within[0], within[1]), (own[0], own[1])
