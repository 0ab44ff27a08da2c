"""CT headers of real scanners and archives: units, frames, odd values, pixel formats and mixed acquisitions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from cases.chest import chest_hu, ct_series, enhanced_ct, save_series
from medweave_core.contracts.cohort import Finding
from support.checked import errors_of, open_only
from support.odd_headers import Ends, run_verbs
from support.openvino_models import NODULE_ANYWHERE, write_tiny_model

Seen = Callable[[object], None]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_model(folder, labels=(NODULE_ANYWHERE,))
    return folder


def refused(folder: Path, seen: Seen) -> Finding:
    """Return the only error of a cohort, and report it."""
    (error,) = errors_of(folder)
    seen(f"{error.code}: {error.seen}")
    return error


@pytest.mark.case("not_hu", expected="check refuses values that are not HU")
def test_a_perfusion_map_is_refused(tmp_path: Path, seen: Seen) -> None:
    datasets = ct_series()
    for dataset in datasets:
        dataset.ImageType, dataset.RescaleType = ["DERIVED", "PRIMARY", "PERFUSION", "RCBF"], "US"
    assert refused(save_series(tmp_path, datasets), seen).code == "not-hu"


@pytest.mark.case("enhanced_frames", expected="items of functional groups that differ from NumberOfFrames are refused")
@pytest.mark.parametrize(("num_items", "num_frames"), [(16, 24), (24, 16)])
def test_functional_groups_must_agree_with_the_frames(
    tmp_path: Path, seen: Seen, num_items: int, num_frames: int
) -> None:
    dataset = enhanced_ct()
    dataset.PerFrameFunctionalGroupsSequence = list(dataset.PerFrameFunctionalGroupsSequence)[:num_items]
    dataset.NumberOfFrames = num_frames
    dataset.PixelData = dataset.PixelData[: num_frames * 96 * 96 * 2]
    error = refused(save_series(tmp_path, [dataset]), seen)
    assert error.code == "frames-disagree"
    assert error.seen == f"{num_items} items in the per-frame functional groups for {num_frames} frames"


@pytest.mark.case("enhanced_frames", expected="all steps leave a LOCALIZER frame out, and check reports it")
def test_a_localizer_frame_is_left_out_by_all_steps(tmp_path: Path, tiny_model: Path, seen: Seen) -> None:
    dataset = enhanced_ct(chest_hu(num_slices=8, side=48))
    first = dataset.PerFrameFunctionalGroupsSequence[0]
    first.CTImageFrameTypeSequence[0].FrameType = ["ORIGINAL", "PRIMARY", "LOCALIZER", "NONE"]
    first.PlanePositionSequence[0].ImagePositionPatient = [-170, 0, 300]
    ends = run_verbs(save_series(tmp_path / "cohort", [dataset]), tmp_path, tiny_model)
    seen(ends.codes)
    assert set(ends.codes.values()) == {0}
    assert "1 localizer" in ends.text
    segmentation = pydicom.dcmread(next((tmp_path / "segmented").rglob("lesion_mask.dcm")))
    assert segmentation.NumberOfFrames == 7
    sources = [
        group.DerivationImageSequence[0].SourceImageSequence[0].ReferencedFrameNumber
        for group in segmentation.PerFrameFunctionalGroupsSequence
    ]
    assert sources == list(range(2, 9)), "numbers of the frames in the source file"


def edited(cohort: Path, old: bytes, new: bytes) -> Path:
    """Replace bytes of the same number in every file of a cohort."""
    assert len(old) == len(new)
    for path in cohort.iterdir():
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new))
    return cohort


def blank_instance_number(datasets: list[Dataset], cohort: Path) -> Path:
    for dataset in datasets:
        dataset.InstanceNumber = 77777777
    return edited(save_series(cohort, datasets), b"77777777", b" " * 8)


def decimal_comma(datasets: list[Dataset], cohort: Path) -> Path:
    for dataset in datasets:
        dataset.SliceThickness = "5.0001"
    return edited(save_series(cohort, datasets), b"5.0001", b"5,0001")


def backslash_in_name(datasets: list[Dataset], cohort: Path) -> Path:
    return edited(save_series(cohort, datasets), b"Doe^Jane", b"Doe\\Jane")


def unknown_character_set(datasets: list[Dataset], cohort: Path) -> Path:
    for dataset in datasets:
        dataset.SpecificCharacterSet = "ISO_IR 100"
    return edited(save_series(cohort, datasets), b"ISO_IR 100", b"ISO_IR 999")


@pytest.fixture
def segmented(tmp_path: Path, tiny_model: Path) -> Callable[[Callable[[list[Dataset], Path], Path]], Ends]:
    small = chest_hu(num_slices=6, side=48)
    return lambda make: run_verbs(make(ct_series(small), tmp_path / "cohort"), tmp_path, tiny_model)


@pytest.mark.case("odd_headers", expected="oddities of optional attributes change nothing: DICOM results are written")
@pytest.mark.parametrize("make", [blank_instance_number, decimal_comma, backslash_in_name, unknown_character_set])
def test_odd_optional_values(
    tmp_path: Path,
    segmented: Callable[..., Ends],
    seen: Seen,
    make: Callable[[list[Dataset], Path], Path],
) -> None:
    ends = segmented(make)
    seen(ends.codes)
    assert set(ends.codes.values()) == {0}
    assert len(list(tmp_path.rglob("lesions_sr.dcm"))) == 1


@pytest.mark.case("odd_headers", expected="check refuses unusable geometry")
@pytest.mark.parametrize(
    ("keyword", "value", "code"),
    [("Rows", 0, "unusable-header"), ("PixelSpacing", ["inf", "inf"], "no-geometry"), ("NumberOfFrames", 10**8, "frames-disagree")],
)  # fmt: skip
def test_unusable_geometry(tmp_path: Path, seen: Seen, keyword: str, value: object, code: str) -> None:
    datasets = ct_series(chest_hu(num_slices=6, side=48))
    for dataset in datasets:
        setattr(dataset, keyword, value)
    assert refused(save_series(tmp_path, datasets), seen).code == code


@pytest.mark.case("mixed_sign", expected="each slice is read by its own pixel format")
def test_signedness_of_each_slice(tmp_path: Path, seen: Seen) -> None:
    hu = np.rint(chest_hu(num_slices=6, side=48)).clip(-1024)
    datasets = ct_series(hu)
    for dataset, plane in list(zip(datasets, hu, strict=True))[::2]:
        dataset.PixelRepresentation, dataset.RescaleIntercept = 1, 0
        dataset.PixelData = plane.astype("<i2").tobytes()
    volume = open_only(save_series(tmp_path, datasets)).volume()
    seen(f"largest difference {np.abs(volume - hu).max()} HU")
    np.testing.assert_array_equal(volume, hu)


@pytest.mark.case("highbit", expected="values in the upper bits are shifted: 49 HU at row 48, column 48")
def test_high_bit_above_the_stored_bits(tmp_path: Path, seen: Seen) -> None:
    hu = chest_hu()
    stored = np.rint(hu + 1024).clip(0, 4095).astype("<u2")
    datasets = ct_series(hu)
    for dataset, plane in zip(datasets, stored, strict=True):
        dataset.BitsStored, dataset.HighBit, dataset.PixelData = 12, 15, (plane << 4).tobytes()
    volume = open_only(save_series(tmp_path, datasets)).volume()
    seen(f"{volume[12, 48, 48]:.0f} HU")
    assert volume[12, 48, 48] == 49
    np.testing.assert_array_equal(volume, stored.astype(np.float32) - 1024)


@pytest.mark.case("interleaved", expected="check refuses two acquisitions that alternate along the stack")
def test_two_interleaved_acquisitions(tmp_path: Path, seen: Seen) -> None:
    hu = chest_hu()
    first, second = ct_series(hu), ct_series(np.roll(hu, 6, axis=1))
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        a.AcquisitionNumber, a.AcquisitionTime, a.ConvolutionKernel = 1, "101500", "B30f"
        b.AcquisitionNumber, b.AcquisitionTime, b.ConvolutionKernel = 2, "102000", "B70f"
        b.ContrastBolusAgent, b.SOPInstanceUID = "IODINE", f"1.2.826.0.1.2.9{number}"
        b.ImagePositionPatient = [-170, -170, number * 8 + 4]
    assert refused(save_series(tmp_path, first + second), seen).code == "mixed-acquisitions"
