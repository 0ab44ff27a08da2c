"""All checks of one volume and its mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.labels import Label, LabelMerge, shown
from medweave_core.contracts.volume import CT_CHANNELS, are_images
from medweave_steps.check.acquisitions import check_one_acquisition
from medweave_steps.check.hounsfield import check_hounsfield, check_range
from medweave_steps.io.cohort.digest import digest_of_series, joined_files_digest, read_content
from medweave_steps.io.cohort.discovery import FoundSeries, is_reformat, patient_key_of
from medweave_steps.io.cohort.ground_truth import read_dicom_mask
from medweave_steps.io.cohort.listed import ListedCase
from medweave_steps.io.cohort.nifti_channels import NiftiChannels, open_channels, read_mask
from medweave_steps.io.cohort.patients import joined_issuer
from medweave_steps.io.cohort.source import pixel_refusal
from medweave_steps.io.dicom import pixels
from medweave_steps.io.dicom.header import Plane
from medweave_steps.io.dicom.series import DicomVolume, assemble, is_stack
from medweave_steps.io.dicom.uids import reference_problem
from medweave_steps.io.findings import FindingError, SeriesName, notice
from medweave_steps.io.geometry import FloatArray
from medweave_steps.metrics.components import connected_components

NO_AIR_HU = (
    -500.0
)  # a scan without a voxel below this is not in HU, or shows neither lung nor the air around the patient


@dataclass(slots=True, kw_only=True)
class Examined:
    """The result of checking one volume, image or sample of an ECG.

    Attributes:
        entry: None where it cannot be used.
        recording: case id of the recording of a sample of an ECG, which splits.json names; empty for others.
        labels_found: label values of the mask, after merging.
        resampled_channels: channels that later steps resample to the grid of the first, with the share of it that they cover.
    """

    name: SeriesName
    entry: CaseEntry | None = None
    recording: str = ""
    findings: list[Finding] = field(default_factory=list)
    labels_found: tuple[int, ...] = ()
    num_lesions: int | None = None
    num_label_voxels: int | None = None
    bytes_read: int = 0
    resampled_channels: dict[str, float] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Return the text of the progress line."""
        errors = [finding for finding in self.findings if finding.severity == "error"]
        if errors or self.entry is None:
            return f"{self.name.case_id}, {errors[0].code if errors else 'ignored'}"
        grid = self.entry.grid
        if are_images(self.entry.channels):
            return f"{self.name.case_id}, {grid.shape[0]} x {grid.shape[1]} pixels"
        spacing = " x ".join(f"{x:.2f}" for x in grid.spacing_mm)
        # Not "lesions": a label map may show structures, which is known after all cases (`--targets`).
        number = self.num_lesions
        mask = "no mask" if number is None else f"mask with {number} component{'' if number == 1 else 's'}"
        return f"{self.name.case_id}, {' x '.join(map(str, grid.shape))} voxels of {spacing} mm, {mask}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskRules:
    """Rules for the label values that the masks of a cohort may hold.

    Attributes:
        declared: labels after merging; None where the cohort declares none, and the masks' own values are the labels.
        merges: values that count as one label.
        ignore_value: value of voxels without annotation; None if there are none.
    """

    declared: tuple[Label, ...] | None = None
    merges: tuple[LabelMerge, ...] = ()
    ignore_value: int | None = None


def examine_dicom(cohort: Path, series: FoundSeries, rules: MaskRules, *, num_threads: int) -> Examined:
    """Check one CT series and its segmentation. Every pixel byte is read once; at most one plane is decoded."""
    result = Examined(name=series.name)
    try:
        check_defects(series)
    except FindingError as error:
        result.findings.append(error.finding)
        return result
    if not is_stack(series.planes):
        images = "1 image" if len(series.planes) == 1 else f"{len(series.planes)} images"
        what = f"{series.name}: {images} at a single position (not a volume), ignored."
        result.findings.append(notice("not-a-volume", what, case_id=series.name.case_id))
        return result
    if all(is_reformat(plane) for plane in series.planes):
        what = f"{series.name}: reformatted non-axial slices, ignored."
        result.findings.append(notice("reformatted", what, case_id=series.name.case_id))
        return result
    try:
        patient = patient_of(series, result)
        check_references(series, result)
        check_whole(series.planes, series.name)
        _check_units(series, result)
        volume = assemble(series.planes, series.name)
        check_one_acquisition(volume.planes, series.name)
        content = check_pixels(cohort, volume, series.name, result, num_threads)
        _check_air(middle_plane(cohort, volume, series.name), result)
        mask_file = check_ground_truth(cohort, series, volume, rules, result)
    except FindingError as error:
        result.findings.append(error.finding)
        return result
    result.entry = CaseEntry(
        case_id=series.name.case_id,
        series_ordinal=series.name.ordinal,
        patient_key=patient_key_of(patient),
        source_format="dicom",
        files=volume.files,
        ground_truth=mask_file,
        grid=volume.grid,
        fixed_split=None,
        content_sha256=content,
        body_part=series.body_part,
    )
    return result


def examine_nifti(cohort: Path, case: ListedCase, rules: MaskRules) -> Examined:
    """Check one NIfTI volume, of one file or of a file for each channel, and its mask. Every voxel is read once."""
    result = Examined(name=case.name, findings=list(case.errors))
    if case.errors:
        return result
    try:
        files = open_channels([cohort / file for file in case.files], case.name, case.channels)
        content = _read_files(files, result)
        if case.mask is not None:
            if not (cohort / case.mask).is_file():
                raise _mask_missing(case.name)
            _check_mask(read_mask(cohort / case.mask, files, case.name, rules.merges), rules, result)
    except FileNotFoundError:
        result.findings.append(_image_missing(case.name).finding)
        return result
    except FindingError as error:
        result.findings.append(error.finding)
        return result
    result.resampled_channels = dict(files.resampled)
    result.entry = CaseEntry(
        case_id=case.name.case_id,
        series_ordinal=case.name.ordinal,
        patient_key=patient_key_of(case.patient or f"file {case.files[0]}"),
        source_format="nifti",
        files=case.files,
        ground_truth=case.mask,
        grid=files.grid,
        fixed_split=None,
        content_sha256=content,
        channels=case.channels,
    )
    return result


def _read_files(files: NiftiChannels, result: Examined) -> str:
    """Read every voxel of a case and return the digest of its content; add the notices about its files.

    Raises:
        FindingError: a file is cut off, or its values are no HU although it is CT.
    """
    digests = []
    for nifti in files.volumes:
        result.findings += [notice for notice in nifti.notices if notice not in result.findings]
        content = read_content(nifti)
        digests.append(content.sha256)
        result.bytes_read += content.num_bytes
        if files.channels == CT_CHANNELS:
            _check_no_mask(content.labels, result.name)
            _check_air(content.middle_hu, result)
    return joined_files_digest(digests)


def patient_of(series: FoundSeries, result: Examined) -> str:
    """Return the patient of the series, for its patient key; add a notice if its headers do not identify the patient completely."""
    if len(series.patients) > 1:
        raise series.name.refuse(
            "mixed-patients",
            "the slices have different patients: two series are mixed.",
            seen=f"{len(series.patients)} patient identities",
            expected="the same PatientID in all slices of a series",
            do="separate the files by patient and export each series again",
        )
    ((patient_id, issuer),) = series.patients
    if not patient_id:
        what = f"{series.name}: the headers have no PatientID; the series counts as one patient in the split."
        result.findings.append(notice("no-patient-id", what, case_id=series.name.case_id))
        return f"series {series.series_uid}"
    joined = joined_issuer(patient_id, issuer, series.issuers)
    if joined is None:
        raise series.name.refuse(
            "ambiguous-issuer",
            "the headers have a PatientID without issuer, and other series have the same PatientID with different issuers.",
            seen=f"no IssuerOfPatientID (0010,0021); {len(series.issuers[patient_id])} issuers in other series",
            expected="IssuerOfPatientID in all series of that PatientID",
            do="add the issuer to this series, or skip the series with --on-error skip",
        )
    if joined != issuer:
        what = f"{series.name}: PatientID has no issuer; the series counts as the patient with that ID and an issuer."
        do = "add IssuerOfPatientID (0010,0021) if these are different patients"
        result.findings.append(notice("issuer-joined", what, do=do, case_id=series.name.case_id))
    return f"{patient_id}\n{joined}"


def check_references(series: FoundSeries, result: Examined) -> None:
    """Add a notice where DICOM results cannot reference the images; masks and tables need no identifiers."""
    problem = reference_problem(series.uids)
    if problem:
        what = f"{series.name}: the identifiers are unusable, so segment cannot write DICOM SEG and SR for this series."
        do = "correct the identifiers, or use the NIfTI mask and the table"
        finding = notice("no-dicom-results", what, seen=problem, do=do, case_id=series.name.case_id)
        result.findings.append(finding)


def check_whole(planes: Sequence[Plane], name: SeriesName) -> None:
    """Refuse a series with truncated files.

    This check runs before those of the geometry: a truncated header has neither a position nor pixels, and the cause is the copy,
    not the scanner.
    """
    lacking = sum(map(_is_cut_off, planes))
    if lacking:
        raise name.refuse(
            "truncated-file",
            f"{lacking} of {len(planes)} slices have neither a position nor pixel data: the files are truncated.",
            seen="truncated headers",
            expected="complete files",
            do="copy or export the series again",
        )


def _is_cut_off(plane: Plane) -> bool:
    return plane.pixel_offset is None and plane.position_lps is None


def check_defects(series: FoundSeries) -> None:
    """Refuse files whose pixels cannot be used; files that end inside their header are left to `check_whole`."""
    cut_off = {plane.file for plane in series.planes if _is_cut_off(plane)}
    defects = [file.defect for file in series.defective if file.defect and file.file not in cut_off]
    if defects:
        first = defects[0]
        raise series.name.refuse(
            first.code,
            f"{len(defects)} of {len(series.files) + len(series.masks)} files: {first.what}.",
            seen=first.seen,
            expected=first.expected,
            do="export the series again from the archive or the scanner",
        )


def _check_units(series: FoundSeries, result: Examined) -> None:
    names = {plane.file for plane in series.planes}
    image_types = [file.image_type for file in series.files if file.file in names]
    result.findings += check_hounsfield(series.planes, image_types, series.name)


def check_pixels(cohort: Path, volume: DicomVolume, name: SeriesName, result: Examined, num_threads: int) -> str:
    """Read every pixel byte of a series once; return the digest of its voxels and geometry.

    Args:
        name: of the series, which may be a later channel of the case.
        result: its bytes read are counted.
    Raises:
        FindingError: pixels that cannot be decoded, or a truncated file.
    """
    planes = volume.planes
    try:
        for layout in {plane.layout for plane in planes}:
            pixels.check_decodable(layout)
        ranges = pixels.locate(cohort, planes)
        content, num_bytes = digest_of_series(cohort, planes, ranges, volume.grid, num_threads=num_threads)
    except pixels.PixelError as error:
        raise pixel_refusal(name, error) from error
    except EOFError as error:
        raise name.refuse(
            "truncated-file", "a file is truncated.", seen="a file that ends inside its pixel data", expected="complete files",
            do="copy or export the series again",
        ) from error  # fmt: skip
    result.bytes_read += num_bytes
    return content


def middle_plane(cohort: Path, volume: DicomVolume, name: SeriesName) -> FloatArray:
    """Return the middle plane of a series, float32 [row, column], in its unit.

    Raises:
        FindingError: it cannot be decoded.
    """
    try:
        return next(pixels.iterate(cohort, [volume.planes[len(volume.planes) // 2]], num_workers=1))
    except pixels.PixelError as error:
        raise pixel_refusal(name, error) from error


def check_ground_truth(
    cohort: Path, series: FoundSeries, volume: DicomVolume, rules: MaskRules, result: Examined
) -> str | None:
    """Check the mask that was drawn on a series; return its path, None if there is none."""
    mask_file = _only_mask(series)
    if mask_file is not None:
        mask = read_dicom_mask(
            cohort / mask_file, volume.planes, volume.grid, series.name, rules.merges, notices=result.findings
        )
        _check_mask(mask, rules, result)
    return mask_file


def _check_air(plane_hu: FloatArray, result: Examined) -> None:
    check_range(plane_hu, result.name)
    lowest, highest = float(plane_hu.min()), float(plane_hu.max())
    if lowest > NO_AIR_HU:
        what = f"{result.name}: the middle slice contains no air; the values may not be Hounsfield units."
        seen = f"values from {lowest:.0f} to {highest:.0f}"
        result.findings.append(notice("no-air", what, seen=seen, case_id=result.name.case_id))


def _check_no_mask(labels: frozenset[int] | None, name: SeriesName) -> None:
    """Refuse a label map in place of a volume.

    Raises:
        FindingError: the volume has two values or more, all of them label numbers.
    """
    if labels is None or len(labels) < 2:
        return
    raise name.refuse(
        "mask-as-volume",
        "the values are labels, not HU: a mask is stored where a volume is expected.",
        seen=f"{len(labels)} different integers from {min(labels)} to {max(labels)}",
        expected="HU",
        do="move each mask to a folder labels/ next to its volume, under the name of the volume, or remove the mask",
    )


def _only_mask(series: FoundSeries) -> str | None:
    if len(series.masks) > 1:
        raise series.name.refuse(
            "several-masks",
            "several DICOM masks (SEG or RTSTRUCT) reference this series.",
            seen=f"{len(series.masks)} masks",
            expected="one mask, with one segment or ROI per label",
            do="keep only the mask that is the ground truth, or merge the masks",
        )
    return series.masks[0].file if series.masks else None


def _check_mask(mask: npt.NDArray[np.uint8], rules: MaskRules, result: Examined) -> None:
    counts = np.bincount(mask[mask > 0], minlength=256)  # of the whole mask it would make a copy of 8 bytes a voxel
    if rules.ignore_value is not None:
        counts[rules.ignore_value] = 0
    result.labels_found = tuple(int(value) for value in np.flatnonzero(counts))
    result.num_label_voxels = int(counts.sum())
    result.num_lesions = sum(connected_components(mask == value).num for value in result.labels_found)
    if rules.declared is not None:
        declared = {label.value for label in rules.declared}
        outside = [value for value in result.labels_found if value not in declared]
        if outside:
            raise result.name.refuse(
                "labels-outside-declared-set",
                "the mask contains labels that the cohort does not declare.",
                seen=f"label {', '.join(map(str, outside))} ({int(counts[outside].sum())} voxels)",
                expected=f"0 (background), {shown(rules.declared)}",
                do="correct the mask, declare the label (--labels, or 'labels' of dataset.json or cohort_card.json), or merge "
                "values with --merge-labels",
            )
    if not result.num_label_voxels:
        what = f"{result.name}: the mask is empty; the case counts as a case without lesions."
        do = "remove the mask if this case was not annotated"
        result.findings.append(notice("empty-mask", what, do=do, case_id=result.name.case_id))


def _mask_missing(name: SeriesName) -> FindingError:
    return name.refuse(
        "missing-mask",
        "the mask is missing.",
        seen="a mask listed in dataset.json, and no such file",
        expected="every mask that dataset.json lists",
        do="download or copy the complete data set again",
    )


def _image_missing(name: SeriesName) -> FindingError:
    return name.refuse(
        "missing-volume",
        "the volume is missing.",
        seen="a volume listed in dataset.json, and no such file",
        expected="every volume that dataset.json lists",
        do="download or copy the complete data set again",
    )
