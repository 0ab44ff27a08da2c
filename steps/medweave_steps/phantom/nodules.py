"""Lung nodules: kinds, locations, shapes, and rendering on a CT grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

from medweave_core.errors import InternalError
from medweave_steps.phantom.anatomy import Fields
from medweave_steps.phantom.fields import CtGrid, Float
from medweave_steps.phantom.tubes import Tubes

Attenuation = Literal["solid", "part-solid", "ground-glass"]
Location = Literal["isolated", "juxta-vascular", "juxta-pleural"]

GAP_MM = 8.0  # least distance between the surfaces of two nodules: they cannot touch on any allowed grid

# Share of diameters (mm): screening finds mostly small nodules (National Lung Screening Trial 2011, NEJM 365:395;
# LIDC-IDRI, Armato et al. 2011, Med Phys 38:915, has 3 to 30 mm). Locations: categories of Kostis et al. 2003, IEEE Trans
# Med Imaging 22:1259.
DIAMETER_BINS_MM = ((4.0, 6.0, 0.12), (6.0, 10.0, 0.43), (10.0, 16.0, 0.30), (16.0, 30.0, 0.15))
LOCATION_SHARES: dict[Location, float] = {"isolated": 0.45, "juxta-vascular": 0.30, "juxta-pleural": 0.25}


@dataclass(frozen=True, slots=True, kw_only=True)
class NoduleShape:
    """A star-shaped body: an ellipsoid whose surface is displaced by a few smooth waves over the directions."""

    centre_xyz_mm: Float
    to_unit: Float
    """(3, 3): millimetres to the unit sphere."""
    radius_mm: float
    """Geometric mean of the three semi-axes, which turns unit depth into mm."""
    waves: Float
    """(W, 3) wave vectors over the unit sphere."""
    phases: Float
    amplitudes: Float
    attenuation: Attenuation
    location: Location
    ground_hu: float
    core_hu: float
    core_shift: Float
    core_share: float
    """Diameter of the solid core over that of the nodule; 1 for solid, 0 for pure ground glass."""
    spicules: Tubes | None

    def depth(self, points_xyz_mm: Float) -> tuple[Float, Float]:
        """Return the depth in mm below the surface, and below the surface of the solid core (points (..., 3))."""
        unit = (points_xyz_mm - self.centre_xyz_mm) @ self.to_unit.T
        out = np.linalg.norm(unit, axis=-1)
        direction = unit / np.maximum(out, 1e-3)[..., None]
        surface = np.ones_like(out)
        for wave, phase, amplitude in zip(self.waves, self.phases, self.amplitudes, strict=True):
            surface += amplitude * np.sin(direction @ wave + phase)
        whole = (surface - out) * np.float32(self.radius_mm)
        if self.core_share <= 0 or self.core_share >= 1:
            return whole, whole
        core_out = np.linalg.norm(unit - self.core_shift, axis=-1)
        return whole, ((surface * np.float32(self.core_share)) - core_out) * np.float32(self.radius_mm)

    def scaled(self, factor: float) -> NoduleShape:
        """Return the same shape, larger or smaller about its center."""
        return replace(self, to_unit=self.to_unit / np.float32(factor), radius_mm=self.radius_mm * factor)

    @property
    def reach_mm(self) -> float:
        """Radius of a sphere that contains the whole body, mm."""
        longest = 1 / np.linalg.svd(self.to_unit, compute_uv=False)[-1]
        return float(longest * (1 + np.abs(self.amplitudes).sum()))


def diameter_at_mm(quantile: float) -> float:
    """Return diameter at a quantile of the distribution above, uniform inside each bin."""
    edge = 0.0
    for low, high, share in DIAMETER_BINS_MM:
        if quantile < edge + share or high == DIAMETER_BINS_MM[-1][1]:
            inside = min(max((quantile - edge) / share, 0.0), 1.0)
            return low + (high - low) * inside
        edge += share
    raise AssertionError("quantiles lie in [0, 1]")


def _draw_attenuation(diameter_mm: float, rng: np.random.Generator) -> Attenuation:
    """Draw a nodule's attenuation: subsolid only from 6 mm, where readers can name it (Fleischner 2017, Radiology 284:228)."""
    chance = rng.uniform()
    if diameter_mm >= 8 and chance < 0.22:
        return "part-solid"
    if diameter_mm >= 6 and 0.22 <= chance < 0.37:
        return "ground-glass"
    return "solid"


def _draw_location(rng: np.random.Generator) -> Location:
    names = list(LOCATION_SHARES)
    return names[int(rng.choice(len(names), p=list(LOCATION_SHARES.values())))]


def draw_shape(
    centre_xyz_mm: Float, diameter_mm: float, attenuation: Attenuation, location: Location, rng: np.random.Generator
) -> NoduleShape:
    """Return a random body around a center, about `diameter_mm` wide; `fit_diameter` makes that exact.

    HU: solid -50 to 80; ground glass, alone or around a solid core, -650 to -450: hazy, vessels still seen
    (Hansell et al. 2008, Radiology 246:697; ranges as measured by de Hoop et al. 2010, Radiology 255:199).
    """
    turn = np.linalg.qr(rng.standard_normal((3, 3)))[0]
    ratios = np.array([1.0, rng.uniform(0.8, 1.0), rng.uniform(0.75, 1.0)])
    semi = diameter_mm / 2 * ratios
    lobed = rng.uniform() < 0.35
    num_waves = 6
    waves = (
        rng.standard_normal((num_waves, 3)) * np.where(np.arange(num_waves) < 3, 1.5, 4.0 if lobed else 2.6)[:, None]
    )
    amplitudes = rng.uniform(0.02, 0.06, num_waves) * (1.5 if lobed else 1.0)
    core_share = {"solid": 1.0, "ground-glass": 0.0, "part-solid": float(rng.uniform(0.4, 0.7))}[attenuation]
    spiculated = attenuation != "ground-glass" and diameter_mm >= 9 and rng.uniform() < 0.35
    ground = rng.uniform(-650, -450)
    return NoduleShape(
        centre_xyz_mm=centre_xyz_mm.astype(np.float32),
        to_unit=(turn / semi[:, None]).astype(np.float32),
        radius_mm=float(semi.prod() ** (1 / 3)),
        waves=waves.astype(np.float32),
        phases=rng.uniform(0, 2 * np.pi, num_waves).astype(np.float32),
        amplitudes=amplitudes.astype(np.float32),
        attenuation=attenuation,
        location=location,
        ground_hu=float(ground),
        core_hu=float(np.clip(rng.normal(30, 25), -50, 80)),
        core_shift=rng.uniform(-0.16, 0.16, 3).astype(np.float32),
        core_share=core_share,
        spicules=_spicules(centre_xyz_mm, diameter_mm, rng) if spiculated else None,
    )


def _spicules(centre_xyz_mm: Float, diameter_mm: float, rng: np.random.Generator) -> Tubes:
    """Return fine strands that radiate from the surface; they are drawn but, as in LIDC-IDRI, are not part of the outline."""
    count = int(rng.integers(6, 13))
    direction = rng.standard_normal((count, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    start = centre_xyz_mm + direction * diameter_mm * 0.32
    end = centre_xyz_mm + direction * (diameter_mm * 0.5 + rng.uniform(2, 6, (count, 1)))
    thick = rng.uniform(0.5, 0.9, count).astype(np.float32)
    return Tubes(
        start=start.astype(np.float32),
        end=end.astype(np.float32),
        start_radius=thick,
        end_radius=thick * np.float32(0.5),
    )


def axial_diameter_mm(shape: NoduleShape, fields: Fields) -> float:
    """Return longest diameter in any axial slice of the part inside the lung, measured on a fine local grid."""
    steps = 29
    reach = shape.reach_mm
    line = np.linspace(-reach, reach, steps).astype(np.float32)
    offsets = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1)[..., ::-1]  # z, y, x -> (x, y, z)
    points = offsets + shape.centre_xyz_mm
    inside = (shape.depth(points)[0] > 0) & (fields.grid.sample(fields.lung_KJI, points) > 0)
    spacing = 2 * reach / (steps - 1)
    return longest_in_plane_mm(inside, (spacing, spacing)) - 0.25 * spacing


def longest_in_plane_mm(mask_KJI: NDArray[np.bool_], spacing_xy_mm: tuple[float, float]) -> float:
    """Return largest Feret diameter over all slices, voxels counted with their width along the measuring line."""
    best = 0.0
    for plane in mask_KJI:
        rows, columns = np.nonzero(plane)
        if len(rows) == 0:
            continue
        angles = np.linspace(0, np.pi, 36, endpoint=False)
        cosine, sine = np.cos(angles), np.sin(angles)
        along = np.outer(cosine, columns * spacing_xy_mm[0]) + np.outer(sine, rows * spacing_xy_mm[1])
        width = np.ptp(along, axis=1) + np.minimum(*spacing_xy_mm)
        best = max(best, float(width.max()))
    return best


def fit_diameter(shape: NoduleShape, diameter_mm: float, fields: Fields) -> tuple[NoduleShape, float]:
    """Scale the body until its longest axial diameter inside the lung is `diameter_mm`; return it and the reached diameter."""
    measured = axial_diameter_mm(shape, fields)
    for _ in range(3):
        if abs(measured - diameter_mm) < 0.02 * diameter_mm or measured <= 0:
            break
        shape = shape.scaled(float(np.clip(diameter_mm / measured, 0.7, 1.4)))
        measured = axial_diameter_mm(shape, fields)
    return shape, measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Candidate locations of nodules: points in the lung with their depth, and vessels to touch or avoid."""

    points_xyz_mm: Float
    depth_mm: Float
    vessels: Tubes
    hila_xyz_mm: Float
    """(2, 3): right and left; no nodule near them, where readers would not call one."""


def _candidates(where: Surroundings, location: Location, radius_mm: float, rng: np.random.Generator) -> Float:
    """Return centers that suit the location, in random order."""
    middle = (where.vessels.start + where.vessels.end) / 2
    wide = where.vessels.start_radius
    points, depth = where.points_xyz_mm, where.depth_mm
    if location == "juxta-vascular":
        medium = np.flatnonzero((wide > 1.0) & (wide < 3.5))
        pick = rng.choice(medium, 1500)
        away = rng.standard_normal((1500, 3)).astype(np.float32)
        along = where.vessels.end[pick] - where.vessels.start[pick]
        away -= (away * along).sum(1, keepdims=True) / np.maximum((along * along).sum(1, keepdims=True), 1e-6) * along
        away /= np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1e-6)
        beside_mm = wide[pick] * 0.5 + radius_mm * 0.85
        return np.asarray(middle[pick] + away * beside_mm[:, None], np.float32)
    if location == "juxta-pleural":
        return np.asarray(points[(depth > 0.35 * radius_mm) & (depth < 0.8 * radius_mm)], np.float32)
    free = points[depth > radius_mm + 3]
    gap, nearest = cKDTree(middle[wide > 1.2]).query(free, distance_upper_bound=40)
    nearest_radius = np.append(wide[wide > 1.2], 0)[nearest]
    return np.asarray(free[gap > radius_mm + nearest_radius + 1.5], np.float32)


def place_nodules(
    diameters_mm: list[float], where: Surroundings, fields: Fields, rng: np.random.Generator
) -> list[tuple[NoduleShape, float]]:
    """Place nodules: return their bodies with the measured diameters, largest first, none nearer to another than GAP_MM.

    Raises:
        InternalError: no room was found for one of them (a dozen of the largest in small lungs).
    """
    placed: list[tuple[NoduleShape, float]] = []
    for diameter in sorted(diameters_mm, reverse=True):
        attenuation, wanted = _draw_attenuation(diameter, rng), _draw_location(rng)
        for location in (wanted, *LOCATION_SHARES):
            found = _place_one(diameter, attenuation, location, where, fields, placed, rng)
            if found is not None:
                placed.append(found)
                break
        else:
            raise InternalError(
                "phantom lung: no space in the lungs for a nodule.",
                seen=f"{diameter:.1f} mm nodule, with {len(placed)} nodules placed",
                expected="space for every nodule",
                do="reduce the number or size of nodules, or use another seed",
            )
    return placed


def _place_one(
    diameter_mm: float,
    attenuation: Attenuation,
    location: Location,
    where: Surroundings,
    fields: Fields,
    placed: list[tuple[NoduleShape, float]],
    rng: np.random.Generator,
) -> tuple[NoduleShape, float] | None:
    """Return the first of a few suitable places where a body of this diameter fits without coming near another."""
    centres = _candidates(where, location, diameter_mm / 2, rng)
    for centre in _free_centres(centres, location, diameter_mm, where, fields, placed)[:8]:
        shape, measured = fit_diameter(draw_shape(centre, diameter_mm, attenuation, location, rng), diameter_mm, fields)
        apart = all(
            np.linalg.norm(centre - other.centre_xyz_mm) > shape.reach_mm + other.reach_mm + GAP_MM
            for other, _ in placed
        )
        if apart and abs(measured - diameter_mm) < 0.1 * diameter_mm:
            return shape, measured
    return None


def _free_centres(
    centres: Float,
    location: Location,
    diameter_mm: float,
    where: Surroundings,
    fields: Fields,
    placed: list[tuple[NoduleShape, float]],
) -> Float:
    """Return the centers off the hila, off the other nodules and, unless juxta-pleural, off the pleura."""
    radius = diameter_mm / 2
    allowed = np.ones(len(centres), bool)
    for hilum in where.hila_xyz_mm:
        allowed &= np.linalg.norm(centres - hilum, axis=1) > 24 + radius
    if location != "juxta-pleural":
        allowed &= fields.grid.sample(fields.lung_KJI, centres) > radius + 2.5
    for other, _ in placed:
        allowed &= np.linalg.norm(centres - other.centre_xyz_mm, axis=1) > other.reach_mm + radius + GAP_MM
    return centres[allowed]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNodule:
    """A nodule on a CT grid: its box, the share of each voxel it fills, and its label."""

    box: tuple[slice, slice, slice]
    ground_KJI: Float
    core_KJI: Float
    label_KJI: NDArray[np.bool_]
    shape: NoduleShape


def draw_nodule(shape: NoduleShape, grid: CtGrid, fields: Fields, edge_mm: float) -> DrawnNodule | None:
    """Draw a nodule: return its coverage by ground glass and by solid tissue, and the voxels whose center is inside body and lung.

    The label is one connected component: the largest of several pieces, and where no center lies inside, the voxel
    deepest in the body is taken. None if the nodule lies outside the volume.
    """
    margin = shape.reach_mm + edge_mm + (7.0 if shape.spicules is not None else 0.0)
    box: list[slice] = []
    lines: list[Float] = []
    scanned = True
    for axis, line in zip((2, 1, 0), grid.axes_mm(), strict=True):
        centre = shape.centre_xyz_mm[axis]
        low, high = (int(at) for at in np.searchsorted(line, (centre - margin, centre + margin)))
        scanned &= bool(line[0] <= centre <= line[-1])
        box.append(slice(low, high))
        lines.append(line[low:high])
    points = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)[..., ::-1].astype(np.float32)
    depth, core_depth = shape.depth(points)
    inside = (depth > 0) & (fields.grid.sample(fields.lung_KJI, points) > 0)
    if not inside.any() and not scanned:
        return None
    whole = np.clip(depth / edge_mm + 0.5, 0, 1)
    core = np.zeros_like(whole) if shape.core_share <= 0 else np.clip(core_depth / edge_mm + 0.5, 0, 1)
    return DrawnNodule(
        box=(box[0], box[1], box[2]),
        ground_KJI=whole if shape.core_share < 1 else np.zeros_like(whole),
        core_KJI=np.minimum(core, whole),
        label_KJI=_one_component(inside, depth),
        shape=shape,
    )


def _one_component(inside_KJI: NDArray[np.bool_], depth_KJI: Float) -> NDArray[np.bool_]:
    if not inside_KJI.any():
        lone = np.zeros_like(inside_KJI)
        lone[np.unravel_index(int(np.argmax(depth_KJI)), lone.shape)] = True
        return lone
    parts, count = ndimage.label(inside_KJI)
    if count == 1:
        return inside_KJI
    return np.asarray(parts == 1 + int(np.argmax(np.bincount(parts.ravel())[1:])), np.bool_)
