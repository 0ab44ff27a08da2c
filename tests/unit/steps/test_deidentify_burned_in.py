"""Text in pixels: found where it is written, not seen where there is anatomy, metal, padding or noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from medweave_steps.deidentify.burned_in import TextSearch
from medweave_steps.phantom.chest import ChestSpec, generate_chest
from support.chest_cohort import simple_chest

WORDS = "DOE JANE 1950-01-01"


def written(
    text: str, shape: tuple[int, int], *, size: int = 14, at: tuple[int, int] = (6, 6), soft: bool = True
) -> np.ndarray:
    """How much of each pixel is ink, 0 to 1."""
    page = Image.new("L", shape[::-1], 0)
    draw = ImageDraw.Draw(page)
    draw.fontmode = "L" if soft else "1"
    draw.text(at, text, fill=255, font=ImageFont.load_default(size))
    return np.asarray(page, dtype=np.float64) / 255


def noisy(rng: np.random.Generator, shape: tuple[int, int] = (256, 256)) -> np.ndarray:
    """A slice of a trunk in air, with noise, int16."""
    rows, columns = np.indices(shape)
    inside = ((rows - shape[0] / 2) / (0.35 * shape[0])) ** 2 + ((columns - shape[1] / 2) / (0.42 * shape[1])) ** 2 <= 1
    return np.clip(np.where(inside, 1064, 24) + rng.normal(0, 20, shape), 0, 4095).astype(np.int16)


def burn(plane: np.ndarray, ink: np.ndarray, value: float) -> np.ndarray:
    """Writes into a plane as a workstation does."""
    return np.round(plane * (1 - ink) + value * ink).astype(plane.dtype)


def result(planes: Iterator[np.ndarray] | list[np.ndarray]) -> bool:
    search = TextSearch()
    for plane in planes:
        search.add(plane)
    return search.finish()


@pytest.mark.parametrize("soft", [True, False], ids=["soft", "hard"])
@pytest.mark.parametrize("size", [14, 20, 32])
@pytest.mark.parametrize("value", [4095, 2000], ids=["bright", "grey"])
@pytest.mark.parametrize("at", [(6, 6), (40, 110)], ids=["corner", "body"])
def test_the_same_words_in_every_image(size: int, value: int, soft: bool, at: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    ink = written(WORDS, (256, 256), size=size, soft=soft, at=at)
    assert result([burn(noisy(rng), ink, value) for _ in range(6)])


def test_very_small_soft_words_of_the_highest_value() -> None:
    rng = np.random.default_rng(7)
    ink = written(WORDS, (256, 256), size=10, at=(40, 110))
    assert result([burn(noisy(rng), ink, 4095) for _ in range(6)])


@pytest.mark.parametrize("size", [14, 20, 32])
def test_words_in_a_single_image(size: int) -> None:
    rng = np.random.default_rng(size)
    planes = [noisy(rng) for _ in range(6)]
    planes[3] = burn(planes[3], written(WORDS, (256, 256), size=size), 4095)
    assert result(planes)
    assert result(planes[3:4])


def test_words_over_padding_and_on_eight_bits() -> None:
    rng = np.random.default_rng(1)
    ink = written(WORDS, (256, 256), at=(4, 4))
    padded = []
    for _ in range(5):
        plane = noisy(rng)
        rows, columns = np.indices(plane.shape)
        plane[(rows - 128) ** 2 + (columns - 128) ** 2 > 120**2] = -2000
        padded.append(burn(plane, ink, 300))
    assert result(padded)
    assert result([burn((noisy(rng) // 16).astype(np.uint8), ink, 255) for _ in range(4)])


def test_dark_words() -> None:
    rng = np.random.default_rng(2)
    ink = written(WORDS, (256, 256), at=(50, 110), size=18)
    assert result([burn(noisy(rng) + np.int16(500), ink, 3) for _ in range(5)])


@pytest.mark.parametrize("padding", [None, -2000], ids=["whole", "padded"])
def test_no_phantom_is_refused(padding: int | None) -> None:
    spec = ChestSpec(
        seed=5, num_nodules=(4, 4), padding_value=padding, matrix_size=128, in_plane_spacing_mm=(2.8, 3.0),
        slice_spacing_mm=(4.5, 5.0), noise_hu=(10.0, 25.0),
    )  # fmt: skip
    assert not result(list(generate_chest(spec).hu_KJI))


@pytest.mark.parametrize("noise", [20.0, 0.0])
def test_no_simple_chest_is_refused(noise: float) -> None:
    volume, _ = simple_chest(1, noise_hu=noise)
    assert not result([volume[:, :, k] for k in range(volume.shape[2])])
    assert not result([volume[:, :, k] for k in range(3)])


def test_constant_images_and_noise_are_no_text() -> None:
    rng = np.random.default_rng(3)
    assert not result([np.full((64, 64), 7, np.int16)] * 4)
    assert not result([np.zeros((64, 64), np.uint8)])
    assert not result([rng.integers(0, 2, (128, 128)).astype(np.uint8) for _ in range(4)])
    assert not result([rng.integers(0, 2000, (64, 64)).astype(np.int16) for _ in range(4)])
    assert not result([np.empty((0, 0), np.int16)])


def test_saturated_metal_is_no_text() -> None:
    rng = np.random.default_rng(4)
    rows, columns = np.indices((256, 256))
    planes = []
    for k in range(5):
        plane = noisy(rng).astype(float)
        for centre in (60, 90, 121, 150, 183):  # fillings in a row of teeth, with their glow
            distance = np.hypot(rows - 130 - k, columns - centre)
            plane += 6000 * np.exp(-((distance / 6) ** 2))
        planes.append(np.clip(plane, 0, 4095).astype(np.int16))
    assert not result(planes)


def test_images_of_another_kind_do_not_hide_words() -> None:
    rng = np.random.default_rng(6)
    ink = written(WORDS, (256, 256), size=12)
    search = TextSearch()
    for kind, value in (("AXIAL", 1800), ("LOCALIZER", 0), ("AXIAL", 1800), ("AXIAL", 1800)):
        search.add(burn(noisy(rng), ink, value) if value else noisy(rng), kind)
    assert search.finish()
