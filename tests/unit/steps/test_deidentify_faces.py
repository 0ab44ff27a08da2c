"""`deidentify` on DICOM scans of the head: the data class, brain masks, and the errors about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset

from medweave_core.errors import UserInputError
from medweave_steps.io.cohort.brain_mask import match_masks, names_of_volume
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.source import open_source
from medweave_steps.preprocess.brain_masks import read_mask
from medweave_steps.preprocess.resample import plan_resampling
from support.checked import check
from support.dicom_builder import CtSeries, segmentation, uid, write_datasets
from support.identified import card, deidentify, notices, results, tree
from support.validators import dciodvfy_errors

MR_IMAGE = "1.2.840.10008.5.1.4.1.1.4"
SHAPE = CtSeries().shape
FRAME = uid("frame of the head")


def head(key: str = "a", part: str | None = "BRAIN", *, modality: str = "MR", **series: Any) -> list[Dataset]:
    """Return a series of the head of one patient; values from 500 on, so that none is air by chance."""
    stored = np.random.default_rng(len(key)).integers(500, 2000, series.get("shape", SHAPE))
    datasets = CtSeries(key=key, patient="p", stored=stored, **series).datasets()
    for dataset in datasets:
        dataset.StudyInstanceUID, dataset.FrameOfReferenceUID = uid("study"), FRAME
        if modality == "MR":
            dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = MR_IMAGE
            dataset.Modality, dataset.ScanningSequence = "MR", "SE"
            for keyword in ("RescaleSlope", "RescaleIntercept", "RescaleType", "KVP"):
                if keyword in dataset:
                    delattr(dataset, keyword)
        if part is not None:
            dataset.BodyPartExamined = part
    return datasets


def brain(shape: Sequence[int] = SHAPE) -> np.ndarray:
    """Return a mask [slice, row, column] that keeps a part of each slice but the first."""
    mask = np.zeros(shape, np.uint8)
    mask[1:, 8:20, 10:30] = 1
    return mask


def write_mask(folder: Path, name: str, mask: np.ndarray, affine: np.ndarray) -> Path:
    folder.mkdir(exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(mask, affine), folder / f"{name}.nii.gz")
    return folder


def mask_of(folder: Path, datasets: Sequence[Dataset], mask: np.ndarray | None = None, **series: Any) -> Path:
    """Write the mask of a series under its case id, with the axes in the order of NIfTI tools [column, row, slice]."""
    affine = CtSeries(**series).affine_ras()[:, [2, 1, 0, 3]]
    values = (brain() if mask is None else mask).transpose(2, 1, 0)
    return write_mask(folder, case_id_of_series(datasets[0].SeriesInstanceUID), values, affine)


def written(folder: Path, series_of: str | None = None) -> list[Dataset]:
    """Return the images that were written, by series number and position; with `series_of` only those of one description."""
    images = [pydicom.dcmread(path) for path in (folder.parent / "out").rglob("*.dcm")]
    images = [one for one in images if series_of in (None, one.get("SeriesDescription"))]
    return sorted(images, key=lambda one: float(one.ImagePositionPatient[2]))


@pytest.mark.parametrize(
    ("part", "modality", "more", "data_class", "notice"),
    [
        ("BRAIN", "MR", (), "identified", "1 head scan may show a face"),
        ("HEAD", "CT", (), "identified", "1 head scan may show a face"),
        ("WHOLEBODY", "CT", (), "identified", "1 head scan may show a face"),
        ("BRAIN", "MR", ("--faces", "absent"), "de-identified", ""),
        ("KNEE", "MR", (), "de-identified", ""),
        ("CHEST", "CT", (), "de-identified", ""),
        (None, "MR", (), "identified", "1 MR or PET case states no body part"),
        (None, "MR", ("--faces", "absent"), "de-identified", ""),
        (None, "CT", (), "de-identified", "1 case states no body part"),
        (None, "CT", ("--faces", "present"), "identified", "1 head scan may show a face"),
    ],
)
def test_a_head_stays_identified_unless_its_face_is_declared_absent(
    tmp_path: Path, part: str | None, modality: str, more: tuple[str, ...], data_class: str, notice: str
) -> None:
    write_datasets(head(part=part, modality=modality), tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort", *more) == 0
    assert card(tmp_path / "cohort")["data_class"] == data_class
    assert notice in notices(tmp_path / "cohort")
    assert bool(notice) == bool(notices(tmp_path / "cohort"))
    (case,) = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert not notice or case["case_id"] in notices(tmp_path / "cohort")


def test_headers_that_declare_no_recognizable_features_count(tmp_path: Path) -> None:
    datasets = head()
    for dataset in datasets:
        dataset.RecognizableVisualFeatures = "NO"
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    assert card(tmp_path / "cohort")["data_class"] == "de-identified"
    datasets[3].RecognizableVisualFeatures = "YES"
    write_datasets(datasets, tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort", "--faces", "absent", name="one") == 0
    assert card(tmp_path / "cohort", "one")["data_class"] == "identified"


def test_the_cohort_card_declares_faces_and_the_output_repeats_it(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    write_datasets(head(), folder)
    (folder / "cohort_card.json").write_text(json.dumps({"faces": "absent"}))
    assert deidentify(folder) == 0
    assert card(folder) == {"data_class": "de-identified", "synthetic": False, "faces": "absent"}
    (folder / "cohort_card.json").write_text(json.dumps({"faces": "none"}))
    assert deidentify(folder, name="bad") == 65


def test_the_output_declares_faces_absent_only_if_all_cases_are_without_one(tmp_path: Path) -> None:
    folder, masked = tmp_path / "cohort", head()
    write_datasets(masked, folder / "head")
    write_datasets(head("knee", "KNEE"), folder / "knee")
    masks = str(mask_of(tmp_path / "masks", masked))
    assert deidentify(folder, "--brain-masks", masks) == 0
    assert card(folder) == {"data_class": "de-identified", "synthetic": False, "faces": "absent"}
    unknown = head("unknown", None, modality="CT")
    for dataset in unknown:
        dataset.FrameOfReferenceUID = uid("another frame")
    write_datasets(unknown, folder / "unknown")
    assert deidentify(folder, "--brain-masks", masks, name="more") == 0
    assert "1 case states no body part" in notices(folder, "more")
    assert card(folder, "more") == {"data_class": "de-identified", "synthetic": False}


def test_a_run_that_must_deidentify_refuses_heads_and_writes_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cohort"
    write_datasets(head(), folder / "head")
    write_datasets(head("knee", "KNEE"), folder / "knee")
    assert deidentify(folder, "--require-deidentified") == 65
    message = capsys.readouterr().err
    assert "series 1: the images may show a face" in message
    assert "--brain-masks" in message
    assert not (tmp_path / "out").exists()
    assert deidentify(folder, "--require-deidentified", "--on-error", "skip") == 0
    assert results(folder)["left_out"] == {"face": 1}
    assert card(folder)["data_class"] == "de-identified"
    assert len(written(folder)) == SHAPE[0]


@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000", "jpegls"])
def test_a_brain_mask_sets_all_other_voxels_to_air(tmp_path: Path, syntax: str) -> None:
    folder, datasets = tmp_path / "cohort", head()
    write_datasets(datasets, folder, syntax=syntax)
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", datasets))) == 0
    before = np.stack([dataset.pixel_array for dataset in datasets])
    images = written(folder)
    after = np.stack([image.pixel_array for image in images])
    np.testing.assert_array_equal(after, np.where(brain(), before, 0))
    assert card(folder) == {"data_class": "de-identified", "synthetic": False, "faces": "absent"}
    assert notices(folder) == ""
    assert results(folder)["actions"]["face-removed"] == len(images)
    for image in images:
        assert image.RecognizableVisualFeatures == "NO"
        assert "113102" in {item.CodeValue for item in image.DeidentificationMethodCodeSequence}
    assert "Clean Recognizable Visual Features Option" in results(folder)["options"]


@pytest.mark.parametrize(("padding", "expected"), [(None, 24), (-5, -5)])
def test_removed_voxels_of_ct_are_air_or_padding(tmp_path: Path, padding: int | None, expected: int) -> None:
    folder, datasets = tmp_path / "cohort", head(modality="CT", padding=padding)
    write_datasets(datasets, folder)
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", datasets))) == 0
    for image, mask in zip(written(folder), brain(), strict=True):
        assert set(image.pixel_array[mask == 0]) == {expected}  # -1000 HU with an intercept of -1024


def test_a_mask_applies_to_every_head_series_in_its_frame_of_reference(tmp_path: Path) -> None:
    folder, first = tmp_path / "cohort", head()
    coarse = {"shape": (3, 40, 38), "spacing_mm": (4.0, 1.4, 1.6)}
    write_datasets(first, folder / "first")
    write_datasets(head("coarse", **coarse), folder / "coarse")
    knee = head("knee", "KNEE")
    write_datasets(knee, folder / "knee")
    moved = head("moved")
    for dataset in moved:
        dataset.FrameOfReferenceUID = uid("another frame")
    write_datasets(moved, folder / "moved")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", first))) == 0
    by_shape: dict[tuple[int, ...], list[Dataset]] = {}
    for image in written(folder):
        by_shape.setdefault((image.Rows, image.Columns), []).append(image)
    # Voxel (s, r, c) of the coarse series is at voxel (2s, 2r, 2c) of the mask.
    sampled = np.zeros(coarse["shape"], np.uint8)
    sampled[:, :18, :17] = brain()[::2, ::2, ::2]
    for image, mask in zip(by_shape[40, 38], sampled, strict=True):
        np.testing.assert_array_equal(image.pixel_array > 0, mask > 0)
    fine = [np.count_nonzero(image.pixel_array) for image in by_shape[SHAPE[1:]]]
    assert sorted(fine)[: SHAPE[0]] == [0, *[np.count_nonzero(brain()[1])] * 5]
    assert sorted(fine)[SHAPE[0] :] == [SHAPE[1] * SHAPE[2]] * 12, (
        "the knee, and the series in another frame of reference"
    )
    assert "1 series are not on the grid" in notices(folder)
    assert "1 head scan may show a face" in notices(folder), "the series in another frame of reference"
    assert card(folder)["data_class"] == "identified"


def test_a_mask_applies_to_the_frames_of_a_multi_frame_object(tmp_path: Path) -> None:
    folder, order = tmp_path / "cohort", [3, 0, 5, 1, 4, 2]
    scan = CtSeries(stored=np.random.default_rng(1).integers(500, 2000, SHAPE)).enhanced(order=order)
    scan.BodyPartExamined = "HEAD"
    write_datasets([scan], folder)
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", [scan]))) == 0
    (new,) = (pydicom.dcmread(path) for path in (tmp_path / "out").rglob("*.dcm"))
    np.testing.assert_array_equal(new.pixel_array, np.where(brain()[order], scan.pixel_array, 24))
    assert card(folder)["data_class"] == "de-identified"


def test_the_mask_of_a_head_does_not_empty_a_larger_scan(tmp_path: Path) -> None:
    folder, first = tmp_path / "cohort", head()
    write_datasets(first, folder / "first")
    write_datasets(head("body", "WHOLEBODY"), folder / "body")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", first))) == 0
    assert sum(bool((image.pixel_array > 0).all()) for image in written(folder)) == SHAPE[0]
    assert card(folder)["data_class"] == "identified"


def test_a_mask_applies_to_its_own_series_only_where_headers_name_no_frame_of_reference(tmp_path: Path) -> None:
    folder, first, second = tmp_path / "cohort", head(), head("second")
    for dataset in (*first, *second):
        del dataset.FrameOfReferenceUID
    write_datasets(first, folder / "first")
    write_datasets(second, folder / "second")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", first))) == 0
    assert sum(bool((image.pixel_array > 0).all()) for image in written(folder)) == SHAPE[0]
    assert results(folder)["actions"]["face-removed"] == SHAPE[0]
    assert card(folder)["data_class"] == "identified"


def test_localizers_of_a_masked_head_are_not_written(tmp_path: Path) -> None:
    folder, first, scout = tmp_path / "cohort", head(), head("scout")
    for dataset in scout:
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    write_datasets(first, folder / "first")
    write_datasets(scout, folder / "scout")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", first))) == 0
    assert len(written(folder)) == len(first)
    assert results(folder)["left_aside"] == {"picture-of-a-head": len(scout)}
    assert card(folder)["data_class"] == "de-identified"
    assert len(list((tmp_path / "out").glob("patient-*/series-*"))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda mask: mask[1:], "the brain mask is on another grid"),
        (lambda mask: mask * np.arange(1, 7, dtype=np.uint8)[:, None, None], "the brain mask is not binary"),
        (lambda mask: np.zeros_like(mask), "the brain mask is not binary"),
        (lambda mask: np.ones_like(mask), "the brain mask is not binary"),
    ],
)
def test_a_mask_that_does_not_fit_its_series_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[np.ndarray], np.ndarray],
    message: str,
) -> None:
    folder, datasets = tmp_path / "cohort", head()
    write_datasets(datasets, folder)
    masks = mask_of(tmp_path / "masks", datasets, change(brain()))
    assert deidentify(folder, "--brain-masks", str(masks)) == 65
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_mask_with_shifted_voxels_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, datasets = tmp_path / "cohort", head()
    write_datasets(datasets, folder)
    masks = mask_of(tmp_path / "masks", datasets, origin=(-119.7, -90.0, -300.0))
    assert deidentify(folder, "--brain-masks", str(masks)) == 65
    assert "series 1: the brain mask is on another grid" in capsys.readouterr().err


def test_masks_without_a_case_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "cohort"
    write_datasets(head(), folder)
    masks = write_mask(tmp_path / "masks", "Quillfeather", brain(), np.eye(4))
    assert deidentify(folder, "--brain-masks", str(masks)) == 65
    message = capsys.readouterr().err
    assert "1 of 1 NIfTI files match no case" in message
    assert "Quillfeather" not in message


def test_the_mask_of_a_refused_series_stops_no_run_that_skips_it(tmp_path: Path) -> None:
    folder, first, mixed = tmp_path / "cohort", head(), head("mixed")
    for dataset in mixed:
        dataset.StudyInstanceUID = uid("another study")
    mixed[0].PatientID = "another patient"
    write_datasets(first, folder / "first")
    write_datasets(mixed, folder / "mixed")
    masks = mask_of(tmp_path / "masks", first)
    mask_of(masks, mixed)
    assert deidentify(folder, "--brain-masks", str(masks)) == 65
    assert deidentify(folder, "--brain-masks", str(masks), "--on-error", "skip") == 0
    assert results(folder)["left_out"] == {"mixed-patients": 1}
    assert results(folder)["actions"]["face-removed"] == len(first)


@pytest.mark.parametrize(("place", "code"), [((2, 10, 12), 0), ((0, 10, 12), 65)])
def test_labels_that_the_mask_would_cut_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: tuple[int, int, int], code: int
) -> None:
    folder, datasets = tmp_path / "cohort", head(modality="CT")
    labels = np.zeros(SHAPE, np.uint8)
    labels[place] = 1
    write_datasets(datasets, folder)
    write_datasets([segmentation(datasets, labels)], folder / "truth")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", datasets))) == code
    assert ("labelled voxels lie outside of the brain mask" in capsys.readouterr().err) == bool(code)


def without(keyword: str) -> Callable[[Dataset], None]:
    return lambda dataset: delattr(dataset, keyword)


def of_another_frame(dataset: Dataset) -> None:
    dataset.FrameOfReferenceUID = uid("another frame")


def of_another_series(dataset: Dataset) -> None:
    dataset.ReferencedSeriesSequence[0].SeriesInstanceUID = uid("a series that the cohort lacks")


@pytest.mark.parametrize(
    ("change", "slice_of_label", "code"),
    [
        (without("ReferencedSeriesSequence"), 0, 65),
        (without("ReferencedSeriesSequence"), 2, 0),
        (without("FrameOfReferenceUID"), 0, 65),
        (without("FrameOfReferenceUID"), 2, 0),
        (of_another_series, 0, 65),
        (of_another_frame, 2, 65),  # no mask in the frame of its positions
    ],
)
def test_labels_are_compared_that_name_the_defaced_series_or_its_frame_of_reference(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Dataset], None],
    slice_of_label: int,
    code: int,
) -> None:
    folder, datasets = tmp_path / "cohort", head(modality="CT")
    labels = np.zeros(SHAPE, np.uint8)
    labels[slice_of_label, 10, 12] = 1
    truth = segmentation(datasets, labels)
    change(truth)
    write_datasets(datasets, folder)
    write_datasets([truth], folder / "truth")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", datasets))) == code
    assert ("labelled voxels lie outside of the brain mask" in capsys.readouterr().err) == bool(code)


def test_labels_on_a_scan_that_no_mask_applies_to_are_not_compared(tmp_path: Path) -> None:
    folder, first, body = tmp_path / "cohort", head(modality="CT"), head("body", "WHOLEBODY", modality="CT")
    labels = np.zeros(SHAPE, np.uint8)
    labels[0, 10, 12] = 1
    write_datasets(first, folder / "first")
    write_datasets(body, folder / "body")
    write_datasets([segmentation(body, labels)], folder / "truth")
    assert deidentify(folder, "--brain-masks", str(mask_of(tmp_path / "masks", first))) == 0


def test_masks_belong_to_the_volume_of_their_path_or_name() -> None:
    names = {image: names_of_volume(image) for image in ("a/t1.nii.gz", "b/t1.nii.gz", "c/t2.nii")}
    paths = {name: Path(name) for name in ("a/t1", "t2")}
    assert match_masks(paths, names) == {"a/t1.nii.gz": Path("a/t1"), "c/t2.nii": Path("t2")}
    for wrong in ({"t1": Path("t1")}, {"t2": Path("t2"), "c/t2": Path("c/t2")}, {}):
        with pytest.raises(UserInputError, match="do not match the cases"):
            match_masks(wrong, names)


def test_masks_and_absent_faces_contradict_each_other(tmp_path: Path) -> None:
    write_datasets(head(), tmp_path / "cohort")
    (tmp_path / "masks").mkdir()
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "masks"), "--faces", "absent") == 2
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "cohort"), name="in") == 2
    assert deidentify(tmp_path / "cohort", "--brain-masks", str(tmp_path / "nowhere"), name="no") == 2


def test_the_same_key_makes_the_same_bytes_with_masks_and_the_result_is_valid(tmp_path: Path) -> None:
    from medweave_steps.phantom.brain import BrainSpec, generate_brain
    from medweave_steps.phantom.brain_dicom import write_study
    from medweave_steps.phantom.patient import Patient

    patient, folder = Patient(seed=1, ordinal=1, held_out=False), tmp_path / "cohort"
    phantom = generate_brain(BrainSpec(seed=patient.chest_seed, matrix_size=32))
    write_study(folder, patient, phantom, "rle")
    inside = np.zeros_like(phantom.label_IJK)
    inside[:, :, 1:-1] = phantom.image_CIJK[0, :, :, 1:-1] > 0
    inside |= phantom.label_IJK > 0
    for path in folder.glob("study-*/*/*.dcm"):
        image = pydicom.dcmread(path)
        image.RecognizableVisualFeatures = "YES"
        image.save_as(path)
    flair = pydicom.dcmread(next((folder / "study-0001/flair").iterdir()))
    size = phantom.spacing_mm
    affine = np.diag([-size, -size, size, 1.0])
    affine[1, 3] = size * (inside.shape[1] - 1)
    masks = write_mask(tmp_path / "masks", case_id_of_series(flair.SeriesInstanceUID), inside, affine)
    for name, num_threads in (("out", "1"), ("again", "2")):
        assert deidentify(folder, "--brain-masks", str(masks), "--num-threads", num_threads, name=name) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "again")
    files = sorted((tmp_path / "out").rglob("*.dcm"))
    assert len(files) == 4 * inside.shape[2] + 1
    assert results(folder)["actions"]["face-removed"] == 4 * inside.shape[2]
    assert card(folder)["data_class"] == "de-identified"
    assert "grid" not in notices(folder)
    for path in (files[0], files[-1], next(path for path in files if pydicom.dcmread(path).Modality == "SEG")):
        assert dciodvfy_errors(path) == []


def test_kept_masks_have_the_case_ids_of_the_output(tmp_path: Path) -> None:
    folder = tmp_path / "cohort"
    datasets = head()
    write_datasets(datasets, folder / "a")
    masks = mask_of(tmp_path / "masks", datasets)
    assert deidentify(folder, "--brain-masks", str(masks), "--keep-brain-masks") == 0
    (case,) = check(tmp_path / "out").index.cases
    (path,) = (tmp_path / "out" / "brain-masks").iterdir()
    assert path.name == f"{case.case_id}.nii.gz"
    source = nibabel.load(next(masks.iterdir()))
    kept = nibabel.load(path)
    np.testing.assert_array_equal(np.asarray(kept.dataobj), np.asarray(source.dataobj))
    np.testing.assert_allclose(kept.affine, source.affine, atol=1e-4)
    entry = open_source(tmp_path / "out", case)
    plan = plan_resampling(entry.grid, entry.grid.spacing_mm[::-1])
    mask = read_mask(path, case.case_id, plan)
    assert int(mask.sum()) == int(brain().sum())
    assert results(folder)["left_aside"] == {}
