"""Readers of photographs and radiographs, on real files: every pixel as it is to be seen, or an error."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydicom.dataset import Dataset

from medweave_core.contracts.volume import COLOR_CHANNELS, GRAY_CHANNELS
from medweave_steps.io.image.picture import ImageError, Picture, near_pairs, perceptual_hash
from medweave_steps.io.image.radiograph import read_radiograph, read_radiograph_header
from medweave_steps.io.image.raster import read_raster
from medweave_steps.phantom.xray import XraySpec
from medweave_steps.phantom.xray import radiograph as radiograph_pixels
from medweave_steps.preprocess.images import fit
from support.image_files import noise, radiograph, save, save_dicom


def code_of(read, path: Path) -> str:
    with pytest.raises(ImageError) as caught:
        read(path)
    assert path.name not in f"{caught.value} {caught.value.seen} {caught.value.do}"
    return caught.value.code


def test_a_color_png_keeps_its_pixels(tmp_path: Path) -> None:
    pixels = noise(1)
    picture = read_raster(save(tmp_path / "a.png", pixels))
    assert picture.channels == COLOR_CHANNELS
    assert (picture.grid.shape, picture.spacing_mm) == ((24, 20, 1), None)
    np.testing.assert_allclose(picture.pixels_CRI, pixels.transpose(2, 0, 1) / 255, atol=1e-6)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    upright = noise(2, (12, 10, 3))
    # What a camera stores, so that the turn that the tag names gives the upright picture.
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.swapaxes(0, 1),
        6: np.rot90(upright), 7: np.rot90(upright.swapaxes(0, 1), 2), 8: np.rot90(upright, -1),
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = read_raster(save(tmp_path / "a.png", np.ascontiguousarray(stored), exif=exif))
    np.testing.assert_allclose(picture.pixels_CRI, upright.transpose(2, 0, 1) / 255, atol=1e-6)
    assert picture.notes == (("exif-orientation",) if orientation > 1 else ())


@pytest.mark.filterwarnings("error")
def test_damaged_exif_data_gives_no_warning_of_a_library(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jpg", noise(1), exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12")
    assert read_raster(path).notes == ()


def test_16_bit_gray_keeps_its_full_range(tmp_path: Path) -> None:
    pixels = np.linspace(0, 65535, 480).round().astype(np.uint16).reshape(20, 24)
    picture = read_raster(save(tmp_path / "a.png", pixels))
    assert (picture.channels, picture.notes) == (GRAY_CHANNELS, ("sixteen-bits",))
    np.testing.assert_allclose(picture.pixels_CRI[0], pixels / 65535, atol=1e-6)
    assert len(np.unique(picture.pixels_CRI)) == 480, "no value was rounded to 8 bits"


def test_16_bit_color_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", noise(3))
    data = bytearray(path.read_bytes())
    data[24] = 16  # the bit depth of the header; Pillow would reduce such color to 8 bits in silence
    path.write_bytes(bytes(data))
    assert code_of(read_raster, path) == "unsupported-pixels"


def test_three_equal_channels_are_gray(tmp_path: Path) -> None:
    gray = noise(4, (20, 24))
    picture = read_raster(save(tmp_path / "a.png", np.repeat(gray[..., None], 3, 2)))
    assert (picture.channels, picture.notes) == (GRAY_CHANNELS, ("gray-in-color",))
    assert picture.digest() == read_raster(save(tmp_path / "b.png", gray)).digest()


def test_an_opaque_alpha_channel_is_dropped_and_a_transparent_one_refused(tmp_path: Path) -> None:
    opaque = np.dstack([noise(5), np.full((20, 24), 255, np.uint8)])
    picture = read_raster(save(tmp_path / "a.png", opaque))
    assert (picture.channels, picture.notes) == (COLOR_CHANNELS, ("opaque-alpha",))
    opaque[0, 0, 3] = 254
    assert code_of(read_raster, save(tmp_path / "b.png", opaque)) == "transparent-image"


def test_a_palette_is_resolved(tmp_path: Path) -> None:
    image = Image.fromarray(noise(6)).quantize(16)
    image.save(tmp_path / "a.png")
    expected = np.asarray(image.convert("RGB")).transpose(2, 0, 1) / 255
    np.testing.assert_allclose(read_raster(tmp_path / "a.png").pixels_CRI, expected, atol=1e-6)


def test_cmyk_is_refused(tmp_path: Path) -> None:
    Image.fromarray(noise(7)).convert("CMYK").save(tmp_path / "a.jpg")
    assert code_of(read_raster, tmp_path / "a.jpg") == "unsupported-pixels"


@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, suffix: str, share: float) -> None:
    path = save(tmp_path / f"a.{suffix}", np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert code_of(read_raster, path) == "truncated-file"


def test_another_file_under_the_name_of_an_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"<html>not found</html>")
    assert code_of(read_raster, tmp_path / "a.jpg") == "unreadable-file"


def test_a_radiograph_is_windowed_and_has_the_pixel_spacing(tmp_path: Path) -> None:
    stored = np.array([[0, 1000, 2000], [2500, 3000, 4095]], np.uint16)
    dataset = radiograph(stored=stored, WindowCenter=2000, WindowWidth=2000, VOILUTFunction="LINEAR_EXACT")
    picture = read_radiograph(save_dicom(tmp_path / "a.dcm", dataset))
    np.testing.assert_allclose(picture.pixels_CRI[0], [[0, 0, 0.5], [0.75, 1, 1]], atol=1e-6)
    assert (picture.channels, picture.spacing_mm, picture.notes) == (("DX",), (0.1, 0.2), ())
    assert picture.grid.spacing_mm == (0.1, 0.2, 1.0)


def test_monochrome1_is_inverted(tmp_path: Path) -> None:
    dense = noise(8, (20, 24)).astype(np.uint16) * 16
    bright = read_radiograph(save_dicom(tmp_path / "a.dcm", radiograph(stored=dense, VOILUTFunction="LINEAR_EXACT")))
    dark = radiograph(
        stored=4096 - dense, PhotometricInterpretation="MONOCHROME1", VOILUTFunction="LINEAR_EXACT", BitsStored=16,
        HighBit=15,
    )  # fmt: skip
    inverted = read_radiograph(save_dicom(tmp_path / "b.dcm", dark))
    np.testing.assert_allclose(inverted.pixels_CRI, bright.pixels_CRI, atol=1e-6)
    assert "monochrome1" in inverted.notes


def test_a_voi_lut_comes_before_the_window(tmp_path: Path) -> None:
    lut = Dataset()
    lut.LUTDescriptor, lut.LUTData = [4, 0, 8], b"\xff\x00\x80\x00\x40\x00\x00\x00"
    stored = np.array([[0, 1], [2, 3]], np.uint16)
    picture = read_radiograph(save_dicom(tmp_path / "a.dcm", radiograph(stored=stored, VOILUTSequence=[lut])))
    np.testing.assert_allclose(picture.pixels_CRI[0], np.array([[255, 128], [64, 0]]) / 255, atol=1e-6)


def test_a_radiograph_without_window_has_its_own_range_and_padding_is_black(tmp_path: Path) -> None:
    stored = np.array([[4000, 100], [200, 300]], np.uint16)
    dataset = radiograph(stored=stored, WindowCenter=None, WindowWidth=None, PixelPaddingValue=4000)
    picture = read_radiograph(save_dicom(tmp_path / "a.dcm", dataset))
    np.testing.assert_allclose(picture.pixels_CRI[0], [[0, 0], [0.5, 1]], atol=1e-6)
    assert picture.notes == ("no-window",)


def test_a_rescaled_window_is_in_the_units_after_rescaling(tmp_path: Path) -> None:
    stored = np.array([[0, 1000, 2000]], np.uint16)
    dataset = radiograph(
        stored=stored, RescaleSlope=2, RescaleIntercept=-1000, WindowCenter=1000, WindowWidth=4000,
        VOILUTFunction="LINEAR_EXACT",
    )  # fmt: skip
    picture = read_radiograph(save_dicom(tmp_path / "a.dcm", dataset))
    np.testing.assert_allclose(picture.pixels_CRI[0], [[0, 0.5, 1]], atol=1e-6)


@pytest.mark.parametrize(
    ("values", "spacing", "notes"),
    [
        ({"PixelSpacing": None}, (0.3, 0.3), ("detector-spacing",)),
        ({"PixelSpacing": ["0.1"]}, (0.3, 0.3), ("detector-spacing",)),
        ({"PixelSpacing": [0, 0.1], "ImagerPixelSpacing": ["", ""]}, None, ("no-pixel-spacing",)),
        ({"PixelSpacing": None, "ImagerPixelSpacing": None}, None, ("no-pixel-spacing",)),
    ],
)
def test_the_origin_of_the_pixel_spacing_is_reported(tmp_path: Path, values: dict, spacing, notes) -> None:
    picture = read_radiograph(save_dicom(tmp_path / "a.dcm", radiograph(**values)))
    assert (picture.spacing_mm, picture.notes) == (spacing, notes)


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"NumberOfFrames": 2}, "multi-frame"),
        ({"PresentationIntentType": "FOR PROCESSING"}, "for-processing"),
        ({"PhotometricInterpretation": "RGB"}, "color-pictures"),
        ({"WindowWidth": 0}, "unusable-window"),
        ({"PixelPaddingValue": [0, 1]}, "unusable-window"),
        ({"PixelData": b"\0\0"}, "undecodable-pixels"),
    ],
)
def test_unusable_radiographs_are_refused(tmp_path: Path, values: dict, code: str) -> None:
    assert code_of(read_radiograph, save_dicom(tmp_path / "a.dcm", radiograph(**values))) == code


def test_the_view_of_a_header_is_its_position_or_its_code(tmp_path: Path) -> None:
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "399162004", "SCT", "cranio-caudal"
    save_dicom(tmp_path / "a.dcm", radiograph(modality="MG", ViewPosition="MLO"))
    save_dicom(tmp_path / "b.dcm", radiograph(modality="MG", ViewPosition=None, ViewCodeSequence=[code]))
    headers = [read_radiograph_header(tmp_path, name) for name in ("a.dcm", "b.dcm")]
    assert [(header.view, header.modality, header.is_radiograph) for header in headers if header] == [
        ("MLO", "MG", True),
        ("cranio-caudal", "MG", True),
    ]


@given(
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.integers(8, 32), st.integers(8, 32)),
    st.floats(0, 1),
)
def test_fit_keeps_the_whole_image_and_its_aspect_ratio(source, size, value) -> None:
    (rows, columns), (width, height) = source, size
    fitted, (left, top) = fit(np.full((1, rows, columns), value, np.float32), width, height)
    assert fitted.shape == (1, height, width)
    assert left == 0 or top == 0
    inside = fitted[0, top : height - top or None, left : width - left or None]
    assert inside[: inside.shape[0] - 1 or 1, : inside.shape[1] - 1 or 1] == pytest.approx(value, abs=1e-6)
    assert (fitted >= 0).all()
    assert (fitted <= 1).all()


def test_fit_averages_what_becomes_smaller() -> None:
    stripes = np.tile(np.array([0, 1], np.float32), (1, 64, 32))
    assert np.abs(fit(stripes, 8, 8)[0] - 0.5).max() < 0.06, "without antialiasing, stripes would be 0 or 1"


def test_near_copies_are_found_and_other_images_are_not(tmp_path: Path) -> None:
    images = [radiograph_pixels(XraySpec(patient_seed=seed)) // 16 for seed in range(6)]
    images = [np.asarray(one, np.uint8) for one in images]
    copy = np.asarray(Image.fromarray(images[2]).resize((80, 80), Image.Resampling.BILINEAR))
    save(tmp_path / "copy.jpg", copy, quality=80)
    pictures = [Picture(pixels_CRI=(one[None] / 255).astype(np.float32), channels=GRAY_CHANNELS) for one in images]
    hashes = [perceptual_hash(one) for one in [*pictures, read_raster(tmp_path / "copy.jpg")]]
    assert near_pairs(np.stack(hashes)) == [(2, 6)]


def test_near_pairs_differ_in_at_most_four_bits_wherever_they_are() -> None:
    hashes = np.random.default_rng(0).integers(0, 256, (8, 36), dtype=np.uint8)
    hashes[5] = hashes[1] ^ np.array([1, *[0] * 34, 0b111], np.uint8)  # 4 bits, in the first and in the last byte
    hashes[7] = hashes[3] ^ np.array([*[0] * 31, 1, 0b11, 0, 0, 0b11], np.uint8)  # 5 bits
    assert near_pairs(hashes) == [(1, 5)]
    assert near_pairs(hashes[:1]) == []
