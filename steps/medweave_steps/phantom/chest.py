"""`generate_chest`: one synthetic chest CT with its nodules, from a seed.

Arrays are KJI = [slice feet to head, row anterior to posterior, column patient right to left], the order in which an axial
DICOM series is stored; points are (x, y, z) in mm in the patient frame (LPS) with the carina at the origin. The pure core of
`medweave-step phantom lung`: no file is touched here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_core.errors import UsageError
from medweave_steps.phantom.anatomy import Anatomy, Fields, build_fields, draw_anatomy, trachea
from medweave_steps.phantom.fields import CtGrid, Float
from medweave_steps.phantom.nodules import (
    Attenuation,
    DrawnNodule,
    Location,
    NoduleShape,
    Surroundings,
    diameter_at_mm,
    draw_nodule,
    place_nodules,
)
from medweave_steps.phantom.noise import KERNELS, KernelName, noise_amplitude, noise_slices
from medweave_steps.phantom.render import render_volume, stamp_scene
from medweave_steps.phantom.tubes import Tubes
from medweave_steps.phantom.vessels import airways_beside, grow_tree, tree_tubes


@dataclass(frozen=True, slots=True, kw_only=True)
class ChestSpec:
    """Settings of a synthetic chest. Ranges are drawn from uniformly, per patient; give equal ends to fix a value."""

    seed: int
    """Everything about the patient follows from it; another grid shows the same anatomy and nodules."""
    matrix_size: int = 512
    """Rows and columns, 64 to 1024."""
    in_plane_spacing_mm: tuple[float, float] = (0.6, 0.9)
    """Range in mm; the lower end rises where the lungs would not fit the field of view."""
    slice_spacing_mm: tuple[float, float] = (1.0, 2.5)
    """Range in mm of the distance between slice centres."""
    num_slices: int | None = None
    """Slices around the middle of the lungs; None covers the lungs and about 9 mm around them."""
    num_nodules: tuple[int, int] = (2, 6)
    """Fewest and most nodules; the count leans to the upper end (binomial with p = 0.72)."""
    diameter_mm: tuple[float, float] = (4.0, 30.0)
    """Range in mm that diameters are clipped to."""
    kernels: tuple[KernelName, ...] = ("soft", "medium", "sharp")
    """Reconstruction kernels to draw from."""
    noise_hu: tuple[float, float] = (15.0, 40.0)
    """Range in HU of the standard deviation in the middle of the body; soft kernels get the lower part of it."""
    padding_value: int | None = None
    """HU stored outside the circle of reconstruction, such as -2000 (a pixel padding value); None fills the square."""

    def __post_init__(self) -> None:
        _require(64 <= self.matrix_size <= 1024, "matrix_size", self.matrix_size, "64 to 1024")
        _require_range(self.in_plane_spacing_mm, "in_plane_spacing_mm", 0.3, 3.0)
        _require_range(self.slice_spacing_mm, "slice_spacing_mm", 0.4, 5.0)
        _require_range(self.num_nodules, "num_nodules", 0, 12)
        _require_range(self.diameter_mm, "diameter_mm", 4.0, 30.0)
        _require_range(self.noise_hu, "noise_hu", 0.0, 200.0)
        _require(self.num_slices is None or self.num_slices >= 8, "num_slices", self.num_slices, "None or at least 8")
        known = bool(self.kernels) and all(kernel in KERNELS for kernel in self.kernels)
        _require(known, "kernels", self.kernels, f"some of {', '.join(KERNELS)}")
        _require(self.seed >= 0, "seed", self.seed, "0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodule:
    """One nodule as a reader would list it."""

    centre_mm: tuple[float, float, float]
    """(x, y, z) in the patient frame (LPS), as `ChestPhantom.origin_mm`."""
    diameter_mm: float
    """Longest axial diameter of the part inside the lung."""
    volume_mm3: float
    """Of the label on this grid."""
    num_voxels: int
    attenuation: Attenuation
    location: Location
    mean_hu: float
    """Of the labelled voxels, noise included."""
    spiculated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChestPhantom:
    """A CT volume and its ground truth; arrays KJI = [slice feet to head, row anterior to posterior, column right to left]."""

    hu_KJI: NDArray[np.int16]
    label_KJI: NDArray[np.uint8]
    """0 background, 1 nodule; every nodule is one connected component."""
    spacing_mm: tuple[float, float, float]
    """Along x (columns), y (rows) and z (slices)."""
    origin_mm: tuple[float, float, float]
    """(x, y, z) of the centre of voxel [0, 0, 0] in the patient frame (LPS)."""
    nodules: tuple[Nodule, ...]
    kernel: KernelName
    noise_hu: float
    padding_value: int | None


def _require(holds: bool, name: str, seen: object, expected: str) -> None:
    if not holds:
        raise UsageError(f"phantom lung: invalid value of {name}.", seen=f"{seen!r}", expected=expected)


def _require_range(ends: tuple[float, float], name: str, lowest: float, highest: float) -> None:
    holds = len(ends) == 2 and lowest <= ends[0] <= ends[1] <= highest
    _require(holds, name, ends, f"(low, high) with {lowest:g} <= low <= high <= {highest:g}")


def generate_chest(spec: ChestSpec) -> ChestPhantom:
    """Return one patient's CT: anatomy, then tubes, then nodules, then slices with noise.

    Args:
        spec: what to generate.
    Returns:
        hu_KJI int16 of shape (slices, matrix_size, matrix_size), clipped to [-1024, 3071] but for padding.
    """
    seeds = np.random.SeedSequence(spec.seed).spawn(6)
    draw, shape_rng, tree_rng, nodule_rng, scan_rng, noise_rng = (
        np.random.Generator(np.random.PCG64(seed)) for seed in seeds
    )
    anatomy = draw_anatomy(draw)
    fields = build_fields(anatomy, shape_rng)
    vessels, airways, hila = _grow_lungs(anatomy, fields, tree_rng)
    shapes = _draw_nodules(spec, fields, Tubes.joined(vessels, airways), hila, nodule_rng)
    grid = _draw_grid(spec, anatomy, fields, scan_rng)
    kernel = spec.kernels[int(scan_rng.integers(len(spec.kernels)))]
    noise_hu = _draw_noise_hu(spec, kernel, scan_rng)
    edge_mm = float(np.hypot(np.prod(grid.spacing_xyz_mm) ** (1 / 3), KERNELS[kernel].blur_mm))
    seen = [(draw_nodule(shape, grid, fields, edge_mm), diameter) for shape, diameter in shapes]
    drawn = [one for one, _ in seen if one is not None]
    scene = stamp_scene(grid, anatomy, fields, vessels, airways, drawn, edge_mm)
    amplitude = noise_amplitude(spec.matrix_size, grid.spacing_xyz_mm[0], KERNELS[kernel])
    noise = noise_slices(grid.shape_KJI[0], amplitude, _slice_correlation(grid), noise_rng)
    hu = render_volume(scene, noise, noise_hu, spec.padding_value)
    label = np.zeros(grid.shape_KJI, np.uint8)
    for one in drawn:
        label[one.box] |= one.label_KJI
    listed = [_listed(one, diameter, hu, grid) for one, diameter in seen if one is not None]
    return ChestPhantom(
        hu_KJI=hu,
        label_KJI=label,
        spacing_mm=grid.spacing_xyz_mm,
        origin_mm=grid.origin_xyz_mm,
        nodules=tuple(listed),
        kernel=kernel,
        noise_hu=noise_hu,
        padding_value=spec.padding_value,
    )


def _draw_grid(spec: ChestSpec, anatomy: Anatomy, fields: Fields, rng: np.random.Generator) -> CtGrid:
    """Return the scan: spacing as drawn, field of view around the chest, slices over both lungs."""
    low, high = spec.in_plane_spacing_mm
    fitting = (2 * anatomy.half_width + 36) / spec.matrix_size
    in_plane = round(float(rng.uniform(min(max(low, fitting), high), high)), 4)
    between = round(float(rng.uniform(*spec.slice_spacing_mm)), 2)
    shift_x, shift_y, shift_z = anatomy.position
    z, _, _ = fields.grid.axes_mm()
    lungs = z.ravel()[(fields.lung_KJI > 0).any(axis=(1, 2))]
    bottom, top = float(lungs[0]) - 9, float(lungs[-1]) + 9
    count = spec.num_slices or int(np.ceil((top - bottom) / between))
    half = in_plane * (spec.matrix_size - 1) / 2
    middle = (bottom + top) / 2 + (0 if spec.num_slices is None else shift_z)
    origin = (shift_x - half, 8 + shift_y - half, middle - between * (count - 1) / 2)
    return CtGrid(
        origin_xyz_mm=(round(origin[0], 4), round(origin[1], 4), round(origin[2], 4)),
        spacing_xyz_mm=(in_plane, in_plane, between),
        shape_KJI=(count, spec.matrix_size, spec.matrix_size),
    )


def _draw_noise_hu(spec: ChestSpec, kernel: KernelName, rng: np.random.Generator) -> float:
    low, high = spec.noise_hu
    part = {"soft": (0.0, 0.45), "medium": (0.2, 0.7), "sharp": (0.5, 1.0)}[kernel]
    return float(low + (high - low) * rng.uniform(*part))


def _slice_correlation(grid: CtGrid) -> float:
    """Return the correlation of noise between adjacent slices: slices about 1.5 mm thick share data when they lie closer."""
    return float(np.exp(-((grid.spacing_xyz_mm[2] / 1.5) ** 2)))


def _lung_points(fields: Fields, count: int, least_depth_mm: float, rng: np.random.Generator) -> Float:
    """Return random points (count, 3), uniform over both lungs at least so deep below the pleura."""
    inside = np.argwhere(fields.lung_KJI > least_depth_mm)[:, ::-1]
    pick = inside[rng.integers(len(inside), size=count)]
    jitter = rng.uniform(-0.5, 0.5, (count, 3))
    points: Float = ((pick + jitter) * fields.grid.step_mm + np.array(fields.grid.origin_xyz_mm)).astype(np.float32)
    return points


def _grow_lungs(anatomy: Anatomy, fields: Fields, rng: np.random.Generator) -> tuple[Tubes, Tubes, Float]:
    """Grow the structures of the lungs: return the vessels, the bronchial lumina (trachea included) and the two hila (2, 3)."""
    windpipe, *main_ends = trachea(anatomy)
    targets = _lung_points(fields, 1600, 2.5, rng)
    vessels, airways = [], [windpipe]
    for side, hilum in zip((-1, 1), main_ends, strict=True):
        mine = targets[targets[:, 0] * side > 0]
        cut = int(len(mine) * 0.55)
        artery_root = hilum + np.array([side * 3, -9, 4], np.float32)
        arteries = grow_tree(artery_root, mine[:cut], float(rng.uniform(4.8, 5.8)), rng)
        veins = grow_tree(np.array([side * 26 + 4, 2, -36], np.float32), mine[cut:], float(rng.uniform(4.4, 5.2)), rng)
        vessels += [tree_tubes(arteries, rng), tree_tubes(veins, rng)]
        bronchi = airways_beside(arteries, np.array([0.2 * side, 1.0, -0.3], np.float32), smallest_mm=0.9)
        airways.append(tree_tubes(bronchi, rng, bow=0.0))
        stem = np.stack([hilum, bronchi.start[0]])
        airways.append(Tubes.polyline(stem, np.array([0.66 * anatomy.trachea_radius, bronchi.radius[0]])))
    return Tubes.joined(*vessels), Tubes.joined(*airways), np.stack(main_ends)


def _draw_nodules(
    spec: ChestSpec, fields: Fields, tubes: Tubes, hila: Float, rng: np.random.Generator
) -> list[tuple[NoduleShape, float]]:
    fewest, most = spec.num_nodules
    count = fewest + int(rng.binomial(most - fewest, 0.72))
    strata = (rng.permutation(count) + rng.uniform(size=count)) / max(count, 1)
    low, high = spec.diameter_mm
    diameters = [min(max(diameter_at_mm(quantile), low), high) for quantile in strata]
    points = _lung_points(fields, 6000, 0.5, rng)
    where = Surroundings(
        points_xyz_mm=points,
        depth_mm=fields.grid.sample(fields.lung_KJI, points),
        vessels=tubes,
        hila_xyz_mm=hila,
    )
    return place_nodules(diameters, where, fields, rng)


def _listed(one: DrawnNodule, diameter_mm: float, hu_KJI: NDArray[np.int16], grid: CtGrid) -> Nodule:
    count = int(one.label_KJI.sum())
    x, y, z = (float(value) for value in one.shape.centre_xyz_mm)
    return Nodule(
        centre_mm=(x, y, z),
        diameter_mm=diameter_mm,
        volume_mm3=float(count * np.prod(grid.spacing_xyz_mm)),
        num_voxels=count,
        attenuation=one.shape.attenuation,
        location=one.shape.location,
        mean_hu=float(hu_KJI[one.box][one.label_KJI].mean()),
        spiculated=one.shape.spicules is not None,
    )
