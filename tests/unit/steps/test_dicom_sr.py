"""The structured report, read by highdicom."""

from __future__ import annotations

import csv

import numpy as np
import pydicom
import pytest

from support.segmented import TWO_BALLS, segment_series, series_with
from support.validators import dciodvfy_errors


def measurements(group):
    return {m.name.meaning: (m.value, m.unit.value) for m in group.get_measurements()}


def test_each_lesion_has_the_figures_of_the_table(run):
    import highdicom

    report = highdicom.sr.srread(run.case("lesions_sr.dcm"))
    assert report.ConceptNameCodeSequence[0].CodeValue == "126000"  # Imaging Measurement Report
    assert report.ContentTemplateSequence[0].TemplateIdentifier == "1500"
    with run.case("lesions.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    groups = report.content.get_volumetric_roi_measurement_groups()
    assert len(groups) == len(rows) == 2
    for group, row in zip(groups, rows, strict=True):
        assert group.tracking_identifier == f"Lung nodule {row['lesion']}"
        result = measurements(group)
        assert result["Volume"] == (pytest.approx(float(row["volume_mm3"]), abs=0.006), "mm3")
        assert result["Long axis"] == (pytest.approx(float(row["longest_diameter_mm"]), abs=0.006), "mm")
        assert result["Attenuation Coefficient"] == (pytest.approx(float(row["mean_hu"]), abs=0.06), "[hnsf'U]")
    assert len({group.tracking_uid for group in groups}) == 2


@pytest.mark.slow
def test_each_lesion_names_segmentation_images_and_place(run):
    import highdicom

    segmentation = pydicom.dcmread(run.case("lesion_mask.dcm"))
    images = series_with().datasets()
    report = highdicom.sr.srread(run.case("lesions_sr.dcm"))
    evidence = {
        item.ReferencedSOPInstanceUID
        for study in report.CurrentRequestedProcedureEvidenceSequence
        for series in study.ReferencedSeriesSequence
        for item in series.ReferencedSOPSequence
    }
    assert evidence == {segmentation.SOPInstanceUID, *(image.SOPInstanceUID for image in images)}
    for group, (centre, _) in zip(report.content.get_volumetric_roi_measurement_groups(), TWO_BALLS, strict=True):
        reference = group.referenced_segment
        assert reference[0].referenced_sop_instance_uid == segmentation.SOPInstanceUID
        named = [image.referenced_sop_instance_uid for image in reference[1:]]
        assert images[centre[0]].SOPInstanceUID in named
        assert len(named) < 12
        (point,) = (item for item in group[0].ContentSequence if item.ValueType == "SCOORD3D")
        place_lps = (series_with().affine_lps() @ [*centre, 1])[:3]
        np.testing.assert_allclose(point.GraphicData, place_lps, atol=0.5)


def test_a_scan_without_lesions_says_so(tmp_path, model):
    import highdicom

    run = segment_series(tmp_path, model, series_with(()))
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []
    report = highdicom.sr.srread(run.case("lesions_sr.dcm"))
    assert report.content.get_volumetric_roi_measurement_groups() == []
    (group,) = report.content.get_image_measurement_groups()
    assert list(measurements(group).values()) == [(0, "1")]
    assert "Number of lesions" in next(iter(measurements(group)))


def test_dciodvfy_finds_no_error(run):
    assert dciodvfy_errors(run.case("lesions_sr.dcm")) == []


def test_it_is_a_draft_of_a_machine(run):
    report = pydicom.dcmread(run.case("lesions_sr.dcm"))
    assert (report.VerificationFlag, report.PreliminaryFlag) == ("UNVERIFIED", "PRELIMINARY")
    assert "research use only" in report.SeriesDescription
    assert (report.ContentDate, report.ContentTime) == ("20200101", "120000")
