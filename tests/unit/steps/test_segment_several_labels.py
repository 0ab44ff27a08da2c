"""`segment` with models of several labels or regions: label map, DICOM SEG, SR, table and record, read by others."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.body_parts import procedure_of
from medweave_core.contracts.labels import LUNG_NODULE, Label, joint_title
from medweave_core.contracts.model import ComponentFilter, InputContract, Postprocessing
from medweave_core.contracts.segmentations import Segmentations
from medweave_steps.io.model.folder import write_card
from support.dicom_builder import CtSeries
from support.labels import SPLEEN, sct
from support.openvino_models import write_model_of_labels, write_tiny_model
from support.prepared_builder import prepare
from support.segmented import CASE, Run, scan_of, segment, series_with
from support.validators import dciodvfy_errors

LUNG = sct("39607008", "Lung")
ABNORMAL = LUNG_NODULE.category
HALO = Label(value=1, name="halo", category=ABNORMAL, type=sct("79654002", "Edema"), anatomy=LUNG)
CORE = Label(value=2, name="solid core", category=ABNORMAL, type=sct("27925004", "Nodule"), anatomy=LUNG)
CAVITY = Label(
    value=5, name="cavity", category=ABNORMAL, type=sct("2032001", "Cavitation"), anatomy=LUNG,
    laterality=sct("24028007", "Right"),
)  # fmt: skip
LABELS = (HALO, CORE, CAVITY)
# Slices, rows and columns whose product is not a multiple of 8: the second segment begins inside a byte.
ODD_SHAPE = (21, 61, 69)


def case_of(folder: Path, model: Path, *more: Path, series: CtSeries | None = None, options: Sequence[str] = ()) -> Run:
    batch = prepare(folder / "batch", [scan_of(series or series_with())])
    return segment(folder, (model, *more), batch, *options)


@pytest.fixture(scope="module", params=["softmax", "regions"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    write_model_of_labels(folder / "model", LABELS, has_regions=request.param == "regions")
    made = case_of(folder, folder / "model")
    assert made.exit_code == 0
    return made


def label_map(run: Run) -> np.ndarray:
    """Return the NIfTI label map as [slice, row, column]."""
    return np.asarray(nibabel.load(run.case("lesion_mask.nii.gz")).dataobj).transpose(2, 1, 0)


def record_of(run: Run) -> Segmentations:
    return codec.from_json(Segmentations, json.loads((run.output / "segmentations.json").read_text()), where="test")


def rows_of(run: Run) -> list[dict[str, str]]:
    with run.case("lesions.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_the_label_map_has_the_values_of_the_card(run: Run) -> None:
    labels = label_map(run)
    assert np.unique(labels).tolist() == [0, 1, 2]  # no voxel has the third label, 5
    series = series_with()
    assert (series.hu()[labels == 2] > series.hu()[labels == 1].max() - 300).mean() > 0.9


def test_dicom_seg_has_one_coded_segment_per_label(run: Run) -> None:
    seg = pydicom.dcmread(run.case("lesion_mask.dcm"))
    assert [(int(s.SegmentNumber), s.SegmentLabel) for s in seg.SegmentSequence] == [
        (1, "Halo"), (2, "Solid core"), (3, "Cavity")
    ]  # fmt: skip
    assert [s.SegmentedPropertyTypeCodeSequence[0].CodeValue for s in seg.SegmentSequence] == [
        "79654002", "27925004", "2032001"
    ]  # fmt: skip
    assert [s.AnatomicRegionSequence[0].CodeValue for s in seg.SegmentSequence] == ["39607008"] * 3
    modifiers = ["AnatomicRegionModifierSequence" in s.AnatomicRegionSequence[0] for s in seg.SegmentSequence]
    assert modifiers == [False, False, True]
    assert (seg.ContentLabel, seg.SegmentationType) == ("SEGMENTATION", "BINARY")
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []


def test_every_segment_has_a_frame_for_every_slice_in_order(run: Run) -> None:
    seg, images = pydicom.dcmread(run.case("lesion_mask.dcm")), series_with().datasets()
    frames = seg.PerFrameFunctionalGroupsSequence
    numbers = [int(f.SegmentIdentificationSequence[0].ReferencedSegmentNumber) for f in frames]
    assert numbers == sorted([1, 2, 3] * len(images))
    named = [f.DerivationImageSequence[0].SourceImageSequence[0].ReferencedSOPInstanceUID for f in frames]
    assert named == [image.SOPInstanceUID for image in images] * 3
    index = [list(f.FrameContentSequence[0].DimensionIndexValues) for f in frames]
    assert index == [[segment, place] for segment in (1, 2, 3) for place in range(1, len(images) + 1)]
    stack = seg.pixel_array.reshape(3, *label_map(run).shape)
    for pixels, label in zip(stack, LABELS, strict=True):
        np.testing.assert_array_equal(pixels, label_map(run) == label.value)


def test_simpleitk_shows_the_segments_as_one_stack_at_the_right_place(run: Run) -> None:
    import SimpleITK as sitk

    labels = label_map(run)
    image = sitk.ReadImage(str(run.case("lesion_mask.dcm")))
    stack = sitk.GetArrayFromImage(image).reshape(3, *labels.shape)
    for pixels, label in zip(stack, LABELS, strict=True):
        np.testing.assert_array_equal(pixels > 0, labels == label.value)
    np.testing.assert_allclose(image.GetSpacing(), (0.8, 0.7, 1.5), atol=1e-5)
    nifti = sitk.ReadImage(str(run.case("lesion_mask.nii.gz")))
    np.testing.assert_allclose(image.GetOrigin(), nifti.GetOrigin(), atol=1e-4)
    np.testing.assert_allclose(image.GetDirection(), nifti.GetDirection(), atol=1e-5)


def test_highdicom_reads_names_and_voxels(run: Run) -> None:
    import highdicom

    seg, labels = highdicom.seg.segread(run.case("lesion_mask.dcm")), label_map(run)
    assert [seg.get_segment_description(n).segment_label for n in (1, 2, 3)] == ["Halo", "Solid core", "Cavity"]
    volume = seg.get_volume(combine_segments=True)
    index = (np.linalg.inv(volume.affine) @ series_with().affine_lps()).round(4)
    for number, label in enumerate(LABELS, start=1):
        ours = np.argwhere(labels == label.value)
        theirs = (index @ np.c_[ours, np.ones(len(ours))].T).T[:, :3].round().astype(int)
        assert (volume.array == number).sum() == len(ours)
        assert (volume.array[tuple(theirs.T)] == number).all()


def test_the_table_numbers_lesions_of_each_label(run: Run) -> None:
    rows, labels = rows_of(run), label_map(run)
    assert next(iter(rows[0])) == "label"
    by_label = {name: [r for r in rows if r["label"] == name] for name in ("halo", "solid core", "cavity")}
    assert by_label["cavity"] == []
    for label in (HALO, CORE):
        own = by_label[label.name]
        assert [row["lesion"] for row in own] == [str(n) for n in range(1, len(own) + 1)]
        voxels = sum(float(row["volume_mm3"]) for row in own) / (1.5 * 0.7 * 0.8)
        assert voxels == pytest.approx((labels == label.value).sum(), abs=0.1)


def test_the_record_counts_by_label(run: Run) -> None:
    record, rows = record_of(run), rows_of(run)
    (case,) = record.cases
    assert [(t.value, t.name) for t in case.by_label] == [(1, "halo"), (2, "solid core"), (5, "cavity")]
    assert [t.num_lesions for t in case.by_label] == [
        sum(row["label"] == label.name for row in rows) for label in LABELS
    ]
    assert case.num_lesions == len(rows)
    assert case.lesion_volume_mm3 == pytest.approx(sum(t.volume_mm3 for t in case.by_label), abs=0.02)
    assert next(iter(record.table_columns)) == "label"
    assert [region.name for region in record.regions] in ([], ["whole", "core", "never"])
    assert len(record.thresholds) == 3


def test_the_structured_report_names_finding_site_and_segment_of_each_label(run: Run) -> None:
    import highdicom

    report = highdicom.sr.srread(run.case("lesions_sr.dcm"))
    groups = report.content.get_volumetric_roi_measurement_groups()
    rows = rows_of(run)
    seen = [
        (int(g.referenced_segment[0].ReferencedSOPSequence[0].ReferencedSegmentNumber), g.finding_type.value)
        for g in groups
    ]
    numbers = {"halo": (1, "79654002"), "solid core": (2, "27925004")}
    assert seen == [numbers[row["label"]] for row in rows]
    assert {g.finding_sites[0].topographical_modifier for g in groups} == {None}
    counts = report.content.get_image_measurement_groups()
    assert [g.finding_type.value for g in counts] == ["79654002", "27925004", "2032001"]
    values = [int(g.get_measurements()[0].value) for g in counts]
    assert values == [sum(row["label"] == label.name for row in rows) for label in LABELS]
    assert len({str(g.tracking_uid) for g in (*groups, *counts)}) == len(groups) + 3
    assert "CT of chest" in pydicom.dcmread(run.case("lesions_sr.dcm")).to_json()


def test_segments_whose_bits_begin_inside_a_byte(tmp_path: Path) -> None:
    write_model_of_labels(tmp_path / "model", LABELS)
    run = case_of(tmp_path, tmp_path / "model", series=series_with(shape=ODD_SHAPE))
    seg, labels = pydicom.dcmread(run.case("lesion_mask.dcm")), label_map(run)
    assert labels.size % 8
    for pixels, label in zip(seg.pixel_array.reshape(3, *labels.shape), LABELS, strict=True):
        np.testing.assert_array_equal(pixels, labels == label.value)


def test_other_labels_at_the_same_voxels_are_another_object(tmp_path: Path) -> None:
    uids = []
    for name, labels in (("a", LABELS), ("b", (HALO, dataclasses.replace(CORE, value=3), CAVITY))):
        write_model_of_labels(tmp_path / name / "model", labels)
        run = case_of(tmp_path / name, tmp_path / name / "model")
        uids.append(pydicom.dcmread(run.case("lesion_mask.dcm")).SOPInstanceUID)
    assert uids[0] != uids[1]


def test_no_dicom_output_unless_every_label_has_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = (HALO, Label(value=2, name="solid core"), Label(value=5, name="cavity"))
    write_model_of_labels(tmp_path / "model", labels)
    run = case_of(tmp_path, tmp_path / "model")
    assert sorted(path.name for path in run.case().iterdir()) == ["lesion_mask.nii.gz", "lesions.csv"]
    assert "the labels 2 (solid core), 5 (cavity) of the model card have no DICOM codes" in capsys.readouterr().err


def test_filters_of_one_label_leave_the_others(tmp_path: Path) -> None:
    filters = (ComponentFilter(), ComponentFilter(min_volume_mm3=1e6), ComponentFilter())
    write_model_of_labels(tmp_path / "model", LABELS, postprocessing=Postprocessing(by_output=filters))
    run = case_of(tmp_path, tmp_path / "model")
    assert np.unique(label_map(run)).tolist() == [0, 1]


def test_onnx_runtime_gives_the_same_labels(run: Run, tmp_path: Path) -> None:
    has_regions = bool(record_of(run).regions)
    write_model_of_labels(tmp_path / "model", LABELS, has_regions=has_regions)
    other = case_of(tmp_path, tmp_path / "model", options=["--backend", "onnxruntime"])
    assert other.exit_code == 0
    assert (label_map(run) != label_map(other)).mean() < 1e-4


# --- MR


def test_seg_and_sr_of_mr_series_name_the_mr_images_and_no_ct(tmp_path: Path) -> None:
    contract = InputContract(
        spacing_mm=(2.0, 2.0, 2.0), window_hu=None, patch_shape=(16, 16, 16), patch_multiple=4, crop="none", modality="MR",
        unit="SD", channel_names=("T1",),
    )  # fmt: skip
    write_model_of_labels(tmp_path / "model", LABELS, input=contract)
    headers = series_with().datasets()
    for header in headers:
        header.Modality, header.SOPClassUID = "MR", pydicom.uid.MRImageStorage
        header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID
        for keyword in ("RescaleIntercept", "RescaleSlope", "RescaleType"):
            header.pop(keyword, None)
    scan = scan_of(series_with(), headers=headers)
    scan.hu = (scan.hu + 1000) / 1400
    batch = prepare(tmp_path / "batch", [scan], window_hu=None, channels=("T1",))
    place = batch / "cases" / CASE
    info = json.loads((place / "volume_info.json").read_text())
    changes = {"window_hu": None, "unit": "SD", "source_hu_start": None}
    (place / "volume_info.json").write_text(json.dumps(info | changes))
    (place / "source_hu.npy").unlink()
    np.save(place / "volume.npy", np.load(place / "volume.npy")[None])
    run = segment(tmp_path, (tmp_path / "model",), batch)
    assert run.exit_code == 0
    seg, report = (pydicom.dcmread(run.case(name)) for name in ("lesion_mask.dcm", "lesions_sr.dcm"))
    (series,) = seg.ReferencedSeriesSequence
    assert series.SeriesInstanceUID == headers[0].SeriesInstanceUID
    assert {item.ReferencedSOPClassUID for item in series.ReferencedInstanceSequence} == {pydicom.uid.MRImageStorage}
    assert "MRI unspecified body region" in report.to_json()
    assert "Hounsfield" not in report.to_json()
    assert {row["mean_hu"] for row in rows_of(run)} == {""}
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []


# --- thresholds and channels


def test_a_threshold_applies_to_regions_and_not_to_exclusive_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model_of_labels(tmp_path / "a" / "model", LABELS)
    assert case_of(tmp_path / "a", tmp_path / "a/model", options=["--threshold", "0.9"]).exit_code == 2
    assert "each voxel gets its most probable label" in capsys.readouterr().err
    write_model_of_labels(tmp_path / "b" / "model", LABELS, has_regions=True)
    high = case_of(tmp_path / "b", tmp_path / "b/model", options=["--threshold", "0.9"])
    assert [one.threshold for one in record_of(high).thresholds] == [0.9] * 3
    assert "threshold 0.9 instead of 0.5, 0.5, 0.5" in capsys.readouterr().err


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
def test_a_network_with_another_number_of_channels_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
) -> None:
    card = write_model_of_labels(tmp_path / "model", LABELS)
    path = tmp_path / "model/model_card.json"
    path.write_text(codec.dumps(dataclasses.replace(card, labels=LABELS[:2])))
    assert case_of(tmp_path, tmp_path / "model", options=["--backend", backend]).exit_code == 65
    error = capsys.readouterr().err
    assert "an output of shape (1, 4, 16, 16, 16)" in error
    assert "3 channels (background, halo, solid core)" in error


# --- ensembles


def test_an_ensemble_averages_probabilities_and_takes_median_thresholds(tmp_path: Path) -> None:
    for name, bias, threshold in (("a", -20.0, 0.4), ("b", -14.0, 0.5), ("c", -26.0, 0.9)):
        write_tiny_model(tmp_path / name, bias=bias, name=name, postprocessing=Postprocessing(threshold=threshold))
    run = case_of(tmp_path, tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert run.exit_code == 0
    record = record_of(run)
    assert [member.model_name for member in record.ensemble] == ["a", "b", "c"]
    assert len({member.model_sha256 for member in record.ensemble} | {record.model_sha256}) == 4
    assert [one.threshold for one in record.thresholds] == [0.5]
    assert record.model_name == "ensemble of 3, a"
    write_tiny_model(tmp_path / "middle", bias=-20.0)
    alone = case_of(tmp_path / "alone", tmp_path / "middle")
    # Biases symmetric about the middle: the mean probability reaches one half where the middle model's does.
    assert np.abs(label_map(run).astype(int) - label_map(alone)).mean() < 2e-3
    assert dciodvfy_errors(run.case("lesion_mask.dcm")) == []


def test_two_equal_probabilities_average_to_themselves(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_model_of_labels(tmp_path / name, LABELS, name=name, has_regions=True)
    run = case_of(tmp_path, tmp_path / "a", tmp_path / "b")
    alone = case_of(tmp_path / "alone", tmp_path / "a")
    np.testing.assert_array_equal(label_map(run), label_map(alone))


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"labels": (HALO, CORE, dataclasses.replace(CAVITY, name="bulla"))}, "labels 1 (halo), 2 (solid core), 5 (bulla)"),
        ({"labels": (HALO, CORE, dataclasses.replace(CAVITY, laterality=None))}, "codes of the labels"),
        ({"postprocessing": Postprocessing(overlap=0.5)}, "overlap 0.5"),
        ({"has_regions": True}, "activation sigmoid; regions whole (labels 1, 2, 5)"),
    ],
)  # fmt: skip
def test_members_whose_contracts_differ_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], difference: str
) -> None:
    write_model_of_labels(tmp_path / "a", LABELS, name="first")
    write_model_of_labels(tmp_path / "b", **{"labels": LABELS, "name": "second"} | changes)
    assert case_of(tmp_path, tmp_path / "a", tmp_path / "b").exit_code == 65
    error = capsys.readouterr().err
    assert f"model 2, 'second': {difference}" in error
    assert "as in model 1, 'first'" in error


def test_members_of_different_runtimes_need_a_backend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, runtime in (("a", "openvino"), ("b", "onnxruntime")):
        card = write_tiny_model(tmp_path / name, name=name)
        write_card(tmp_path / name, dataclasses.replace(card, runtime=runtime))
    assert case_of(tmp_path, tmp_path / "a", tmp_path / "b").exit_code == 65
    error = capsys.readouterr().err
    assert "model 2, 'b': runtime onnxruntime" in error
    assert "set --backend" in error
    run = case_of(tmp_path / "fixed", tmp_path / "a", tmp_path / "b", options=["--backend", "onnxruntime"])
    assert record_of(run).backend == "onnxruntime"


def test_one_model_listed_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "a")
    assert case_of(tmp_path, tmp_path / "a", tmp_path / "a").exit_code == 65
    assert "the ensemble contains one model twice" in capsys.readouterr().err


# --- words and codes


def test_procedures_are_those_of_context_group_100() -> None:
    from pydicom.sr.codedict import codes

    for modality, code in (
        ("CT", codes.LN.CTUnspecifiedBodyRegion), ("MR", codes.LN.MRIUnspecifiedBodyRegion),
        ("PT", codes.LN.PETUnspecifiedBodyRegion),
    ):  # fmt: skip
        term = procedure_of(SPLEEN, modality=modality)
        assert (term.value, term.scheme, term.meaning) == (code.value, code.scheme_designator, code.meaning)
    assert procedure_of(LUNG_NODULE, modality="MR").value == "25056-3"
    assert procedure_of(HALO, CORE).value == "169069000"
    assert procedure_of(HALO, SPLEEN).value == "25045-6"


def test_titles_of_several_labels_name_the_organ_once() -> None:
    assert joint_title((HALO, CORE)) == "lung: halo, solid core"
    assert joint_title((HALO, SPLEEN)) == "lung halo, spleen"
    assert joint_title((SPLEEN,)) == "spleen"
