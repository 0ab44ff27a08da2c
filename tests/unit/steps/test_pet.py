"""PET from DICOM: standardized uptake values by body weight, and headers that do not give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_steps.io.cohort.source import open_source
from support.checked import cases_of, check, only_error, open_only
from support.dicom_builder import write_datasets
from support.identified import deidentify
from support.mr_pet_builder import PetSeries

HALF_LIFE_S = 6586.2


def suv(scan: PetSeries, seconds: float) -> np.ndarray:
    """Return activity x weight in g / activity that is left of the injected one."""
    return scan.becquerels_per_ml() * 70e3 / (3.7e8 * 0.5 ** (seconds / HALF_LIFE_S))


def volume(folder: Path, **attributes: Any) -> np.ndarray:
    PetSeries(key="pet", **attributes).write(folder)
    return open_only(folder).volume()


def error_code(folder: Path, **options: Any) -> str:
    PetSeries(key="pet", **options).write(folder)
    return only_error(folder).code


def test_values_are_suv_with_the_slope_of_each_slice_and_decay_to_the_series_time(tmp_path: Path) -> None:
    np.testing.assert_allclose(volume(tmp_path), suv(PetSeries(key="pet"), 3600), rtol=1e-6)
    (case,) = cases_of(tmp_path)
    assert case.channels == ("PET",)
    assert len(list(open_source(tmp_path, case).planes(num_workers=1, verify=True))) == 6


@pytest.mark.parametrize(
    ("attributes", "tracer", "seconds"),
    [
        ({"DecayCorrection": "ADMIN"}, {"RadiopharmaceuticalStartTime": None}, 0),
        ({}, {"RadiopharmaceuticalStartDateTime": "20200101103000.00", "RadiopharmaceuticalStartTime": "990000"}, 5400),
        ({}, {"RadiopharmaceuticalStartDateTime": "20191231230000+0100", "RadiopharmaceuticalStartTime": None}, 46800),
        ({"SeriesTime": "003000", "AcquisitionTime": "003000"}, {"RadiopharmaceuticalStartTime": "233000"}, 3600),
        ({"SeriesTime": "150000"}, {}, 3600),
        ({"SeriesTime": None}, {}, 3600),
    ],
)  # fmt: skip
def test_decay_is_counted_from_the_injection(
    tmp_path: Path, attributes: dict[str, Any], tracer: dict[str, Any], seconds: float
) -> None:
    values = volume(tmp_path, attributes=attributes, tracer=tracer)
    np.testing.assert_allclose(values, suv(PetSeries(key="pet"), seconds), rtol=1e-6)


def test_a_series_that_was_processed_later_is_reported(tmp_path: Path) -> None:
    PetSeries(key="pet", attributes={"SeriesTime": "150000"}).write(tmp_path)
    assert "suv-by-acquisition-time" in {finding.code for finding in check(tmp_path).index.findings}


@pytest.mark.parametrize("kind", ["BW", None])
def test_suv_by_body_weight_is_taken_as_it_is(tmp_path: Path, kind: str | None) -> None:
    values = volume(
        tmp_path, attributes={"Units": "GML", "SUVType": kind, "PatientWeight": None, "DecayCorrection": "NONE"}
    )
    np.testing.assert_allclose(values, PetSeries(key="pet").becquerels_per_ml(), rtol=1e-6)


@pytest.mark.parametrize(
    ("attributes", "tracer", "code"),
    [
        ({"PatientWeight": None}, {}, "no-patient-weight"),
        ({"PatientWeight": 0}, {}, "no-patient-weight"),
        ({"PatientWeight": 70000}, {}, "no-patient-weight"),
        ({}, {"RadionuclideTotalDose": None}, "no-injected-dose"),
        ({}, {"RadionuclideTotalDose": 370}, "no-injected-dose"),
        ({}, {"RadionuclideHalfLife": None}, "no-half-life"),
        ({}, {"RadiopharmaceuticalStartTime": None}, "no-injection-time"),
        ({}, {"RadiopharmaceuticalStartDateTime": "20200101123000"}, "no-injection-time"),
        ({}, {"RadiopharmaceuticalStartDateTime": "20190101123000"}, "no-injection-time"),
        ({"SeriesDate": None, "AcquisitionDate": None}, {}, "no-scan-time"),
        ({"DecayCorrection": "NONE"}, {}, "no-decay-correction"),
        ({"DecayCorrection": None}, {}, "no-decay-correction"),
        ({"CorrectedImage": ["ATTN"]}, {}, "no-decay-correction"),
        ({"CorrectedImage": ["DECY"]}, {}, "no-attenuation-correction"),
        ({"Units": "CNTS"}, {}, "pet-units"),
        ({"Units": None}, {}, "pet-units"),
        ({"Units": "GML", "SUVType": "LBM"}, {}, "pet-units"),
        ({"RescaleSlope": None}, {}, "no-rescale"),
    ],
)
def test_headers_without_suv_are_refused(
    tmp_path: Path, attributes: dict[str, Any], tracer: dict[str, Any], code: str
) -> None:
    assert error_code(tmp_path, attributes=attributes, tracer=tracer) == code


def test_private_text_of_the_header_is_never_shown(tmp_path: Path) -> None:
    PetSeries(key="pet", attributes={"Units": "QUILLFEATHER"}).write(tmp_path)
    error = only_error(tmp_path)
    assert error.seen == "Units that DICOM does not define"
    assert "never guessed" in error.do


def test_files_of_different_weights_are_refused(tmp_path: Path) -> None:
    datasets = PetSeries(key="pet").datasets()
    datasets[3].PatientWeight = 71
    write_datasets(datasets, tmp_path)
    error = only_error(tmp_path)
    assert (error.code, error.seen) == ("pet-headers-differ", "several values of weight_kg")


def test_another_weight_after_check_is_noticed(tmp_path: Path) -> None:
    PetSeries(key="pet").write(tmp_path)
    (case,) = cases_of(tmp_path)
    PetSeries(key="pet", attributes={"PatientWeight": 80}).write(tmp_path)
    with pytest.raises(Exception, match="changed since"):
        list(open_source(tmp_path, case).planes(num_workers=1, verify=True))


def test_a_de_identified_series_has_the_same_suv(tmp_path: Path) -> None:
    tracer = {"RadiopharmaceuticalStartDateTime": "20191231233000", "RadionuclideHalfLife": 40000}
    scan = PetSeries(key="pet", attributes={"SeriesTime": "003000", "AcquisitionTime": "003000"}, tracer=tracer)
    scan.write(tmp_path / "cohort")
    assert deidentify(tmp_path / "cohort") == 0
    before, after = open_only(tmp_path / "cohort").volume(), open_only(tmp_path / "out").volume()
    np.testing.assert_array_equal(before, after)
