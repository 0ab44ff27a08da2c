"""Radiographs (CR, DX, MG): cases by image, and the patients and tables of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medweave_core.contracts.cohort import Finding
from medweave_steps.deidentify.dicom_case import SeriesDone
from medweave_steps.deidentify.dicom_cohort import SourceSeries
from medweave_steps.deidentify.images.tables import ImageTables
from medweave_steps.io.cohort.discovery import case_id_of_series
from medweave_steps.io.cohort.tables import is_table
from medweave_steps.io.findings import refuse


def tables_of_radiographs(cohort: Path, series: Sequence[SourceSeries], names: Sequence[str]) -> ImageTables:
    """Return the tables about the radiographs of a cohort; none without radiographs.

    Args:
        names: files of the cohort that are not DICOM, sorted.
    """
    case_ids = {file: case_id_of_series(uid or file) for one in series for file, uid in one.radiographs.items()}
    return ImageTables.read(cohort, [name for name in names if is_table(name)] if case_ids else (), case_ids)


def name_patients(series: Sequence[SourceSeries], tables: ImageTables) -> list[tuple[int, Finding]]:
    """Set the patients that only the tables name, as `check` does; return errors by the ordinal of their series."""
    without = [one for one in series if one.radiographs and not one.patient_id]
    identities = tables.identities([file for one in without for file in one.files])
    findings = []
    for one in without:
        named = {identities[file] for file in one.files if file in identities}
        if len(named) > 1:
            findings.append((one.ordinal, _mixed(one.ordinal)))
        elif named:
            (one.identity,) = named
            one.patient_id = one.identity.removesuffix("\n") if one.identity.endswith("\n") else ""
    return findings


def source_case_ids(series: SourceSeries) -> list[str]:
    """Return the case ids of a series in the source: one for each radiograph, else one for the series."""
    if not series.radiographs:
        return [case_id_of_series(series.series_uid)]
    return [case_id_of_series(uid or file) for file, uid in series.radiographs.items()]


def new_cases(series: SourceSeries, done: SeriesDone) -> Mapping[str, tuple[str, int]]:
    """Return the case id in the output and the number of files, by the case id in the source."""
    if not series.radiographs:
        return {case_id_of_series(series.series_uid): (case_id_of_series(done.series_uid), len(done.files))}
    return {
        case_id_of_series(uid): (case_id_of_series(done.uids[uid]), 1)
        for file, uid in series.radiographs.items()
        if file in done.files
    }


def _mixed(ordinal: int) -> Finding:
    return refuse(
        "mixed-patients",
        f"series {ordinal}: the tables name several patients for the images of the series, and its headers name none.",
        seen="several patients in the rows of one series",
        expected="one patient for each series",
        do="correct the table, or skip the series with --on-error skip",
    ).finding
