"""One patient's chest: parameters drawn from a seed, and the smooth fields that follow from them.

Frame: x patient right to left, y anterior to posterior, z feet to head, in mm, the carina at the origin (LPS). Sizes follow
adult chest CT at full inspiration: inner thorax 230 to 290 mm wide and 150 to 190 mm deep, lungs 22 to 27 cm tall.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medweave_steps.phantom.fields import (
    MAX_DISTANCE_MM,
    CoarseGrid,
    Float,
    capsule,
    random_texture,
    signed_distance,
    smooth_max,
    smooth_min,
)
from medweave_steps.phantom.tubes import Tubes

COARSE_STEP_MM = 4.0
WIDEST_Z_MM = -70.0  # level at which the rib cage is widest
FIELDS = (
    "body",
    "soft",
    "lung",
    "parenchyma",
    "oblique",
    "horizontal",
    "texture",
    "central",
)  # order of Fields.stack_FKJI

Axes = tuple[Float, Float, Float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Sizes and positions of one patient in mm, HU where named so."""

    half_width: float
    half_depth: float
    apex_z: float
    dome_z_right: float
    dome_z_left: float
    recess_drop: float
    """How far the costophrenic recess lies below the dome."""
    fat: float
    breast: float
    wall: float
    """Chest wall between pleura and subcutaneous fat, at its thinnest."""
    heart_centre: tuple[float, float, float]
    heart_radii: tuple[float, float, float]
    heart_turn_rad: float
    mediastinum_half_width: float
    spine_y: float
    vertebra_radius: float
    vertebra_height: float
    trachea_radius: float
    tilt: tuple[float, float, float]
    """Sines of small rotations of fissures."""
    parenchyma_hu: float
    gravity_hu: float
    atelectasis_hu: float
    position: tuple[float, float, float]
    """Offset of the centre of the field of view from that of the chest (no patient lies exactly in the middle)."""

    @property
    def back_y(self) -> float:
        """y of the skin of the back in the middle, where the table is."""
        return 10 + self.half_depth + self.wall + 0.8 * self.fat

    @property
    def lowest_z(self) -> float:
        """Bottom of the deepest recess."""
        return min(self.dome_z_right, self.dome_z_left) - self.recess_drop


def draw_anatomy(rng: np.random.Generator) -> Anatomy:
    """Return a patient of random build."""

    def between(low: float, high: float) -> float:
        return float(rng.uniform(low, high))

    build, inflation = between(-1, 1), between(-1, 1)
    dome = -86 - 10 * inflation + between(-5, 5)
    heart = between(0.9, 1.1)
    return Anatomy(
        half_width=128 + 10 * build + between(-3, 3),
        half_depth=84 + 6 * build + 4 * inflation + between(-3, 3),
        apex_z=97 + 4 * build + between(-5, 5),
        dome_z_right=dome,
        dome_z_left=dome - between(6, 16),
        recess_drop=between(48, 62),
        fat=between(6, 24),
        breast=max(0.0, between(-1, 1)) * 45,
        wall=between(15, 20),
        heart_centre=(between(18, 26), between(-30, -22), -62 - 4 * inflation),
        heart_radii=(60 * heart, 44 * heart, 47 * heart),
        heart_turn_rad=between(0.35, 0.7),
        mediastinum_half_width=between(27, 33),
        spine_y=between(46, 54),
        vertebra_radius=between(15, 18),
        vertebra_height=between(22, 25),
        trachea_radius=between(7.5, 9.5),
        tilt=(between(-0.15, 0.15), between(-0.15, 0.15), between(-0.15, 0.15)),
        parenchyma_hu=-868 - 15 * inflation + between(-12, 12),
        gravity_hu=between(30, 70),
        atelectasis_hu=max(0.0, between(-120, 330)),
        position=(between(-8, 8), between(-6, 6), between(-4, 4)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Coarse fields of one patient: distances in mm, positive inside, unless noted."""

    grid: CoarseGrid
    stack_FKJI: Float
    """In the order of FIELDS: body; soft tissue against fat; lung; parenchyma in HU; signed distance to the oblique
    and the horizontal fissure; unit-variance texture; trachea and main bronchi with their walls."""
    cage_KJI: Float

    @property
    def lung_KJI(self) -> Float:
        """Distance to the pleura, positive inside either lung."""
        lung: Float = self.stack_FKJI[FIELDS.index("lung")]
        return lung


def coarse_grid(anatomy: Anatomy) -> CoarseGrid:
    """Return a grid around the whole chest, with room for any field of view (edge values are repeated beyond)."""
    low = anatomy.lowest_z - 40
    num_k = int((anatomy.apex_z + 40 - low) / COARSE_STEP_MM) + 1
    return CoarseGrid(origin_xyz_mm=(-232.0, -160.0, low), shape_KJI=(num_k, 81, 117), step_mm=COARSE_STEP_MM)


def cage_section(anatomy: Anatomy, z: NDArray[np.floating]) -> tuple[Float, Float, Float]:
    """Return the half width, half depth and center y of the inner rib cage at heights z."""
    up = np.clip((z - WIDEST_Z_MM) / (anatomy.apex_z - WIDEST_Z_MM), 0, 1).astype(np.float32)
    down = np.clip((WIDEST_Z_MM - z) / 90, 0, 1.5).astype(np.float32)
    width = anatomy.half_width * np.sqrt(np.maximum(1 - up**2.6, 0)) * (1 - 0.07 * down**2)
    depth = anatomy.half_depth * np.sqrt(np.maximum(1 - up**3, 0)) * (1 - 0.03 * down**2)
    return (
        np.maximum(width, 6).astype(np.float32),
        np.maximum(depth, 6).astype(np.float32),
        (16 * up**2).astype(np.float32),
    )


def spine_centre_y(anatomy: Anatomy, z: NDArray[np.floating]) -> Float:
    """Return y of the axis of the vertebral bodies at heights z: thoracic kyphosis."""
    curve: Float = (anatomy.spine_y - 12 * ((z + 20) / 120) ** 2).astype(np.float32)
    return curve


def _superellipse(x: Float, y: Float, half_width: Float, half_depth: Float) -> Float:
    """Return 1 - g of a superellipse of exponent 2.5: positive inside."""
    u, v = np.abs(x) / half_width, np.abs(y) / half_depth
    level = (u * u * np.sqrt(u) + v * v * np.sqrt(v)) ** np.float32(0.4)
    return (1 - level).astype(np.float32)


def great_vessels(anatomy: Anatomy) -> Tubes:
    """Return aorta, pulmonary trunk and its two arteries, superior vena cava, brachiocephalic vessels and esophagus as tubes."""
    top, low = anatomy.apex_z + 30, anatomy.lowest_z - 30
    spine = anatomy.spine_y
    chains = [
        (
            [(-10, -24, -50), (-14, -22, -5), (-10, -14, 28), (2, 2, 42), (16, 22, 40), (23, spine - 12, 22)],
            [15, 15, 14.5, 14, 13, 12.5],
        ),
        ([(23, spine - 12, 22), (25, spine - 8, -30), (14, spine - 8, -110), (8, spine - 12, low)], [12.5, 12, 11, 10]),
        ([(14, -40, -34), (16, -24, -8), (22, -4, 2), (38, 12, -4)], [14, 13, 11, 8]),
        ([(14, -18, -8), (-8, -4, -14), (-34, 4, -14)], [11, 10, 8]),
        ([(-18, -2, 75), (-25, -12, 35), (-25, -8, -40)], [8, 9, 9.5]),
        ([(-6, -10, 42), (-16, -2, 75), (-24, 8, top)], [6.5, 6, 4]),
        ([(6, 0, 44), (14, 6, 80), (18, 10, top)], [4.5, 4, 4]),
        ([(8, 26, top), (6, 32, 20), (4, 30, -20), (12, 24, low)], [7, 7, 7, 8]),
    ]
    return Tubes.joined(*(Tubes.polyline(np.array(points, float), np.array(radii, float)) for points, radii in chains))


def trachea(anatomy: Anatomy) -> tuple[Tubes, Float, Float]:
    """Return the trachea and main bronchi as lumen tubes, and the ends of the right and left main bronchus."""
    radius = anatomy.trachea_radius
    right, left = np.array([-31.0, 12, -20], np.float32), np.array([40.0, 15, -26], np.float32)
    chains = [
        (np.array([(0, -8, anatomy.apex_z + 40), (0, 2, 55), (0, 10, 0)], float), np.array([radius, radius, radius])),
        (np.array([(0, 10, 0), (-14, 11, -11), right], float), np.array([0.8, 0.78, 0.72]) * radius),
        (np.array([(0, 10, 0), (18, 13, -13), left], float), np.array([0.72, 0.68, 0.62]) * radius),
    ]
    return Tubes.joined(*(Tubes.polyline(points, radii) for points, radii in chains)), right, left


def _union(axes: Axes, tubes: Tubes, shape: tuple[int, int, int], extra_mm: float) -> Float:
    """Return the distance field of all tubes, evaluated only near each of them."""
    field = np.full(shape, -MAX_DISTANCE_MM, np.float32)
    for start, end, first, last in zip(
        tubes.start, tubes.end, tubes.start_radius + extra_mm, tubes.end_radius + extra_mm, strict=True
    ):
        reach = max(first, last) + 16
        box = []
        for axis, coordinate in zip((2, 1, 0), axes, strict=True):
            line = coordinate.ravel()
            low, high = min(start[axis], end[axis]) - reach, max(start[axis], end[axis]) + reach
            box.append(slice(int(np.searchsorted(line, low)), int(np.searchsorted(line, high))))
        kk, jj, ii = box
        near = (axes[0][kk], axes[1][:, jj], axes[2][:, :, ii])
        view = field[kk, jj, ii]
        np.maximum(view, capsule(near, start, end, (float(first), float(last))), out=view)
    return field


def _heart(anatomy: Anatomy, axes: Axes) -> Float:
    z, y, x = axes
    cx, cy, cz = anatomy.heart_centre
    cos, sin = np.float32(np.cos(anatomy.heart_turn_rad)), np.float32(np.sin(anatomy.heart_turn_rad))
    along, across = cos * (x - cx) - sin * (z - cz), sin * (x - cx) + cos * (z - cz)
    a, b, c = anatomy.heart_radii
    level = np.sqrt((along / a) ** 2 + ((y - cy) / b) ** 2 + (across / c) ** 2)
    heart: Float = (1 - level) * np.float32((a * b * c) ** (1 / 3))
    return heart


def _diaphragm(anatomy: Anatomy, axes: Axes) -> Float:
    """Return the height above the diaphragm: two domes that fall towards the wall, deepest behind."""
    z, y, x = axes
    right = 1 / (1 + np.exp(x / 9))
    dome = anatomy.dome_z_left + (anatomy.dome_z_right - anatomy.dome_z_left) * right
    x_off = (np.abs(x) - 0.46 * anatomy.half_width) / (0.56 * anatomy.half_width)
    y_off = (y + 0.22 * anatomy.half_depth) / (1.08 * anatomy.half_depth)
    out = np.sqrt(np.where(x_off < 0, 0.3 * x_off, x_off) ** 2 + y_off**2)
    height: Float = z - (dome - anatomy.recess_drop * np.minimum(out, 1.3) ** 2.4)
    return height.astype(np.float32)


def _mediastinum(anatomy: Anatomy, axes: Axes, heart: Float, vessels: Float) -> Float:
    """Return the tissue between the lungs: central column, heart with its fat, great vessels, spine."""
    z, y, x = axes
    middle = np.exp(-(((y - 8) / 40) ** 4))
    column = 9 + (anatomy.mediastinum_half_width - 9) * middle - np.abs(x - 2)
    spine = anatomy.vertebra_radius + 5 - np.hypot(x * 0.92, y - spine_centre_y(anatomy, z))
    behind = np.minimum(12 + 0.3 * (y - anatomy.spine_y) - np.abs(x), y - anatomy.spine_y)
    field = smooth_max(column.astype(np.float32), heart + 4, 14)
    field = smooth_max(field, vessels + 2, 8)
    return smooth_max(field, np.maximum(spine, behind).astype(np.float32), 8)


def _body(anatomy: Anatomy, axes: Axes) -> tuple[Float, Float]:
    """Return fields of skin and outer muscle: an oval around the cage, wider at the shoulders, with breasts in some patients."""
    z, y, x = axes
    shoulder = 1 / (1 + np.exp(-(z - 45) / 14))
    width = anatomy.half_width + anatomy.wall + 14 + 32 * shoulder
    depth = anatomy.half_depth + anatomy.wall + 4 - 10 * shoulder
    muscle = signed_distance(
        _superellipse(x, y - 6, width.astype(np.float32), depth.astype(np.float32)), COARSE_STEP_MM
    )
    lateral = np.clip(np.abs(x) / anatomy.half_width, 0, 1)
    body: Float = (muscle + anatomy.fat * (0.8 + 0.5 * lateral * lateral)).astype(np.float32)
    if anatomy.breast > 4:
        for side in (-1, 1):
            off_x = (x - side * 0.62 * anatomy.half_width) / 68
            off_y = (y + anatomy.half_depth + anatomy.wall) / (anatomy.breast + 14)
            bump = (1 - np.sqrt(off_x**2 + off_y**2 + ((z + 40) / 62) ** 2)) * 50
            body = smooth_max(body, bump.astype(np.float32), 16)
    return body, muscle


def parenchyma_field(anatomy: Anatomy, axes: Axes, lung: Float, texture: Float) -> Float:
    """Return the HU of lung tissue between its vessels.

    About -860 at full inspiration, denser towards the bed by tens of HU (gravity gradient: Verschakelen et al. 1993, AJR
    161:713), and in some patients patches of dependent atelectasis at the dorsal pleura (Hansell et al. 2008, Radiology
    246:697, glossary).
    """
    _, y, _ = axes
    depth = np.clip(lung, 0, 30)
    dorsal = np.clip((y - 25) / 40, 0, 1) * np.clip(texture + 0.6, 0, 1.6)
    field = anatomy.parenchyma_hu + anatomy.gravity_hu * (y / 100) + 16 * texture
    field = field + anatomy.atelectasis_hu * dorsal * np.exp(-depth / 5)
    return np.asarray(np.clip(field, -980, -100), np.float32)


def _fissures(anatomy: Anatomy, axes: Axes, texture: Float) -> tuple[Float, Float]:
    """Return signed distances to the oblique fissures (one per lung) and to the right horizontal one, used where `oblique` > 0."""
    z, y, x = axes
    tilt_a, tilt_b, tilt_c = anatomy.tilt
    slope = np.where(x < 0, 1.1 + tilt_a, 1.35 + tilt_b)
    lateral = np.abs(x) / 80 - 1
    warp = 5 * texture + (18 + 80 * tilt_c) * lateral + 16 * lateral * lateral
    oblique = (z + 28 - slope * (y - 5) + warp) / np.sqrt(1 + slope * slope)
    horizontal = z + 22 + (0.15 + tilt_c) * (y + 40) + 0.15 * (x + 70) + 6 * lateral * lateral + 4 * texture
    horizontal = np.where(x < -4, horizontal, MAX_DISTANCE_MM)  # the jump lies hidden in the mediastinum
    return np.clip(oblique, -MAX_DISTANCE_MM, MAX_DISTANCE_MM).astype(np.float32), np.clip(
        horizontal, -MAX_DISTANCE_MM, MAX_DISTANCE_MM
    ).astype(np.float32)


def build_fields(anatomy: Anatomy, rng: np.random.Generator) -> Fields:
    """Return all smooth fields of one patient."""
    grid = coarse_grid(anatomy)
    axes = z, y, x = grid.axes_mm()
    texture = random_texture(grid.shape_KJI, 1.6, rng)
    patches = random_texture(grid.shape_KJI, 3.0, rng)
    width, depth, centre_y = cage_section(anatomy, z)
    cage = signed_distance(_superellipse(x, y - centre_y, width, depth), COARSE_STEP_MM)
    heart = _heart(anatomy, axes)
    vessels = _union(axes, great_vessels(anatomy), grid.shape_KJI, 0.0)
    airway = _union(axes, trachea(anatomy)[0], grid.shape_KJI, 2.0)
    diaphragm = signed_distance(_diaphragm(anatomy, axes), COARSE_STEP_MM)
    mediastinum = _mediastinum(anatomy, axes, heart, np.maximum(vessels, airway))
    thickened = 2.2 * np.clip(patches - 1.2, 0, 1.5)  # patches of pleural thickening
    lung = smooth_min(cage - thickened + 0.5 * texture, -mediastinum + 0.8 * texture, 5)
    lung = smooth_min(lung, diaphragm, 4)
    body, muscle = _body(anatomy, axes)
    fat_planes = np.minimum((1.9 - np.abs(texture)) * 6, np.abs(cage + 12 + 3 * patches) - 1.2 + 0.8 * texture)
    fat_planes = np.where(cage > -6, MAX_DISTANCE_MM, fat_planes)
    wall = smooth_min(np.minimum(muscle, fat_planes), -cage + 1.5, 2)
    abdomen = smooth_min(-diaphragm - 1, np.where(x < 10, MAX_DISTANCE_MM, (1.0 - patches) * 12), 4)
    diaphragm_muscle = 2.5 - np.abs(diaphragm + 1)
    organs = np.maximum(np.maximum(heart, vessels), np.maximum(airway, np.maximum(abdomen, diaphragm_muscle)))
    soft = np.maximum(wall, np.minimum(organs, cage + 3))
    oblique, horizontal = _fissures(anatomy, axes, patches)
    parenchyma = parenchyma_field(anatomy, axes, lung, patches)
    stack = np.stack([body, soft, lung, parenchyma, oblique, horizontal, texture, airway]).astype(np.float32)
    return Fields(grid=grid, stack_FKJI=stack, cage_KJI=cage)
