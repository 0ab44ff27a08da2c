"""A small run as files: cohort, index, prepared batches and delivered masks, as the verbs before `evaluate` write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medweave_core.contracts import codec
from medweave_core.contracts.cohort import CaseEntry, CohortIndex, PreparedCase, PreparedCohort
from medweave_core.contracts.labels import PRESETS, Label, Region
from medweave_core.contracts.segmentations import Segmentations
from medweave_core.contracts.volume import Grid, VolumeInfo
from medweave_steps.io import geometry

AIR_HU, LUNG_HU, TISSUE_HU = -1000.0, -850.0, 40.0


@dataclass(kw_only=True)
class CaseSpec:
    """One case.

    Attributes:
        reference: ground truth in source order (bool, or uint8 label values), or None.
        predicted: delivered mask in source order (likewise), or None where `segment` delivered nothing.
        volume_hu: float32 in source order; by default lung with the reference as soft tissue.
        lung: bool in source order; by default everywhere.
        source_format: "nifti" arrays are [i, j, k]; "dicom" arrays are [slice, row, column].
        spacing_mm: along the source array's axes.
        labels: of the masks; `write_run` sets them.
    """

    case_id: str
    reference: np.ndarray | None
    predicted: np.ndarray | None
    volume_hu: np.ndarray | None = None
    lung: np.ndarray | None = None
    source_format: str = "nifti"
    spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    patient_key: str = ""
    labels: tuple[Label, ...] = PRESETS["lung-nodule"]

    @property
    def shape(self) -> tuple[int, int, int]:
        return next(a.shape for a in (self.reference, self.predicted, self.volume_hu) if a is not None)

    def volume(self) -> np.ndarray:
        if self.volume_hu is not None:
            return self.volume_hu.astype(np.float32)
        lesion = np.zeros(self.shape, bool) if self.reference is None else self.reference
        return np.where(lesion, TISSUE_HU, LUNG_HU).astype(np.float32)

    def grid(self) -> Grid:
        matrix = np.eye(4)
        matrix[:3, 3] = (30.0, 40.0, -100.0)
        if self.source_format == "nifti":
            matrix[:3, :3] = np.diag(self.spacing_mm) * (-1, -1, 1)  # i to the left, j to the back, k upwards
        else:  # slices upwards, rows to the back, columns to the left
            matrix[:3, :3] = 0
            matrix[2, 0], matrix[1, 1], matrix[0, 2] = self.spacing_mm * np.array((1, -1, -1))
        return Grid(shape=self.shape, affine=geometry.affine_rows(matrix))

    def info(
        self, spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0), start: tuple[int, int, int] = (0, 0, 0)
    ) -> VolumeInfo:
        grid = self.grid()
        axis, flipped = geometry.ras_axes(grid)
        ras = geometry.ras_grid(grid, axis, flipped)
        full = geometry.resampled_shape(ras.shape, ras.spacing_mm, spacing_mm)
        shape = tuple(n - s for n, s in zip(full, start, strict=True))
        return VolumeInfo(
            case_id=self.case_id, source_format=self.source_format, source_grid=grid, source_sha256="0" * 64,
            source_axis=axis, source_flipped=flipped, crop_start=start, window_hu=(-1000.0, 400.0),
            grid=geometry.resampled_grid(ras, spacing_mm, start=start, shape=shape),
        )  # fmt: skip


@dataclass(kw_only=True)
class MadeRun:
    """The paths of a run's files, and the options of `evaluate`."""

    root: Path
    cohort: Path
    index: Path
    batches: list[Path]
    segmentations: list[Path]

    def options(self, output: Path) -> list[str]:
        return [
            "--cohort", str(self.cohort), "--cohort-index", str(self.index),
            "--segmentations", *map(str, self.segmentations), "--case-batches", *map(str, self.batches),
            "--output", str(output), "--run-report", str(output.with_name(f"{output.name}-run_report.json")),
            "--num-threads", "2",
        ]  # fmt: skip


def write_run(
    root: Path,
    specs: Sequence[CaseSpec],
    *,
    num_batches: int = 1,
    prepared_spacing_mm: tuple[float, float, float] = (1.0, 1.0, 1.0),
    crop_start: tuple[int, int, int] = (0, 0, 0),
    synthetic: bool = True,
    labels: tuple[Label, ...] = PRESETS["lung-nodule"],
    delivered: tuple[Label, ...] | None = None,
    regions: tuple[Region, ...] = (),
    ignore_value: int | None = None,
) -> MadeRun:
    """Write everything; cases go to the batches in turn.

    Args:
        labels, ignore_value: of the ground truth.
        delivered, regions: of the model, which `segmentations.json` then records; None for the labels of the ground truth and no
            such file.
    """
    made = MadeRun(
        root=root,
        cohort=root / "cohort",
        index=root / "cohort_index.json",
        batches=[root / "batches" / f"batch-{i:03d}" for i in range(num_batches)],
        segmentations=[root / "segmentations" / f"batch-{i:03d}" for i in range(num_batches)],
    )
    entries = []
    prepared: list[list[PreparedCase]] = [[] for _ in range(num_batches)]
    for folder in (*made.batches, *made.segmentations):
        folder.mkdir(parents=True)
    for ordinal, spec in enumerate(specs, start=1):
        batch = (ordinal - 1) % num_batches
        spec.labels = labels
        entries.append(_write_source(made, spec, ordinal))
        _write_mask(made, spec, made.segmentations[batch] / spec.case_id, delivered or labels)
        prepared[batch].append(
            _write_prepared(made.batches[batch] / "cases" / spec.case_id, spec, prepared_spacing_mm, crop_start)
        )
    for folder, cases in zip(made.batches, prepared, strict=True):
        cohort = PreparedCohort(
            spacing_mm=prepared_spacing_mm, window_hu=(-1000.0, 400.0), crop="lungs", margin_mm=0.0, split_seed=0,
            synthetic=synthetic, labels=labels, ignore_value=ignore_value, data_sha256="0" * 64, cases=tuple(cases),
        )  # fmt: skip
        (folder / "cohort.json").write_text(codec.dumps(cohort))
    for folder in made.segmentations if delivered else ():
        record = Segmentations(
            model_name="labels", model_sha256="a" * 64, precision="float32", backend="openvino", synthetic_data=True,
            synthetic_model=True, table_columns={}, cases=(), labels=delivered, regions=regions,
        )  # fmt: skip
        (folder / "segmentations.json").write_text(codec.dumps(record))
    index = CohortIndex(
        layout="dicom" if all(s.source_format == "dicom" for s in specs) else "nifti",
        synthetic=synthetic,
        labels=labels,
        ignore_value=ignore_value,
        cases=tuple(entries),
        findings=(),
    )
    made.index.write_text(codec.dumps(index))
    return made


def _write_source(made: MadeRun, spec: CaseSpec, ordinal: int) -> CaseEntry:
    files: list[str]
    truth = None
    if spec.source_format == "nifti":
        files = [f"images/{spec.case_id}.nii.gz"]
        save_nifti(made.cohort / files[0], spec.volume().astype(np.int16), spec.grid())
        if spec.reference is not None:
            truth = f"labels/{spec.case_id}.nii.gz"
            save_nifti(made.cohort / truth, spec.reference.astype(np.uint8), spec.grid())
    else:
        folder = made.cohort / spec.case_id
        datasets = write_series(folder, spec)
        files = [str(path.relative_to(made.cohort)) for path in sorted(folder.glob("*.dcm"))]
        if spec.reference is not None:
            truth = f"ground-truth/{spec.case_id}.dcm"
            write_seg(made.cohort / truth, spec.reference, datasets, spec.labels)
    return CaseEntry(
        case_id=spec.case_id, series_ordinal=ordinal, patient_key=spec.patient_key or f"patient-of-{spec.case_id}",
        source_format=spec.source_format, files=tuple(files), ground_truth=truth, grid=spec.grid(),
        fixed_split="test", content_sha256=f"{ordinal:064x}",
    )  # fmt: skip


def _write_mask(made: MadeRun, spec: CaseSpec, folder: Path, labels: Sequence[Label]) -> None:
    if spec.predicted is None:
        return
    from medweave_steps.io.nifti.source_grid import write_mask

    folder.mkdir(parents=True)
    write_mask(folder / "lesion_mask.nii.gz", spec.predicted.astype(np.uint8), spec.info())
    if spec.source_format == "dicom":
        import pydicom

        datasets = [pydicom.dcmread(path) for path in sorted((made.cohort / spec.case_id).glob("*.dcm"))]
        write_seg(folder / "lesion_mask.dcm", spec.predicted, datasets, labels)


def _write_prepared(
    folder: Path, spec: CaseSpec, spacing_mm: tuple[float, float, float], start: tuple[int, int, int]
) -> PreparedCase:
    info = spec.info(spacing_mm, start)
    source_mm = geometry.ras_grid(info.source_grid, info.source_axis, info.source_flipped).spacing_mm

    def resample(array: np.ndarray) -> np.ndarray:
        moved = geometry.to_ras_order(array, info.source_axis, info.source_flipped).astype(np.float32)
        for a in range(3):
            positions = (np.arange(info.grid.shape[a]) + start[a]) * spacing_mm[a] / source_mm[a]
            moved = geometry.interpolate_axis(moved, positions, a)
        return np.ascontiguousarray(moved)

    folder.mkdir(parents=True)
    lung = np.ones(spec.shape, bool) if spec.lung is None else spec.lung
    np.save(folder / "volume.npy", resample(spec.volume()))
    np.save(folder / "lung.npy", resample(lung) >= 0.5)
    has_label = spec.reference is not None
    if has_label:
        label = resample(spec.reference)
        np.save(
            folder / "label.npy", (label >= 0.5 if spec.reference.dtype == bool else np.rint(label)).astype(np.uint8)
        )
    (folder / "volume_info.json").write_text(codec.dumps(info))
    return PreparedCase(
        case_id=spec.case_id, patient_key=spec.patient_key or f"patient-of-{spec.case_id}", split="test",
        has_label=has_label, num_lesions=1, num_label_voxels=int(spec.reference.sum()) if has_label else 0,
    )  # fmt: skip


def save_nifti(path: Path, array: np.ndarray, grid: Grid) -> None:
    """Write a NIfTI file in the array's own order."""
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    image = nibabel.Nifti1Image(array, np.asarray(grid.affine))
    image.header.set_xyzt_units("mm")
    nibabel.save(image, path)


def write_series(folder: Path, spec: CaseSpec) -> list:
    """Write a CT series, one file per slice."""
    import pydicom
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    folder.mkdir(parents=True)
    affine = np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.asarray(spec.grid().affine)
    study, series, frame = (generate_uid(entropy_srcs=[spec.case_id, word]) for word in ("study", "series", "frame"))
    datasets = []
    for index, plane in enumerate(spec.volume()):
        ds = pydicom.Dataset()
        ds.file_meta = pydicom.dataset.FileMetaDataset()
        ds.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        ds.SOPClassUID = ds.file_meta.MediaStorageSOPClassUID = CTImageStorage
        ds.SOPInstanceUID = generate_uid(entropy_srcs=[spec.case_id, str(index)])
        ds.file_meta.MediaStorageSOPInstanceUID = ds.SOPInstanceUID
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = study, series, frame
        ds.PatientID, ds.PatientName, ds.PatientBirthDate, ds.PatientSex = spec.case_id, "Phantom^", "", "O"
        ds.StudyID, ds.AccessionNumber, ds.ReferringPhysicianName, ds.StudyDate, ds.StudyTime = "1", "", "", "", ""
        ds.Manufacturer, ds.PositionReferenceIndicator, ds.Modality = "medweave", "", "CT"
        ds.ImageType = ["ORIGINAL", "PRIMARY", "AXIAL"]
        ds.SeriesNumber, ds.InstanceNumber = 1, index + 1
        ds.ImagePositionPatient = [float(x) for x in (affine @ (index, 0, 0, 1))[:3]]
        ds.ImageOrientationPatient = [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
        ds.PixelSpacing, ds.SliceThickness = list(spec.spacing_mm[1:]), spec.spacing_mm[0]
        ds.Rows, ds.Columns = plane.shape
        ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
        ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 16, 15, 1
        ds.RescaleSlope, ds.RescaleIntercept, ds.RescaleType = 1, 0, "HU"
        ds.PixelData = plane.astype("<i2").tobytes()
        ds.save_as(folder / f"{index:04d}.dcm", enforce_file_format=True)
        datasets.append(ds)
    return datasets


def write_seg(
    path: Path, mask: np.ndarray, datasets: Sequence, labels: Sequence[Label] = PRESETS["lung-nodule"]
) -> None:
    """Write a BINARY DICOM SEG on these images, with a segment for each label in this order."""
    import highdicom as hd
    from pydicom.sr.codedict import codes

    descriptions = [
        hd.seg.SegmentDescription(
            segment_number=number, segment_label=label.name,
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Nodule, algorithm_type=hd.seg.SegmentAlgorithmTypeValues.MANUAL,
        )
        for number, label in enumerate(labels, start=1)
    ]  # fmt: skip
    segments = mask.astype(np.uint8)
    if len(labels) > 1:
        segments = np.select([mask == label.value for label in labels], range(1, len(labels) + 1)).astype(np.uint8)
    segmentation = hd.seg.Segmentation(
        source_images=list(datasets), pixel_array=segments, segmentation_type="BINARY",
        segment_descriptions=descriptions, series_instance_uid=hd.UID(), series_number=2, sop_instance_uid=hd.UID(),
        instance_number=1, manufacturer="medweave", manufacturer_model_name="test", software_versions="0",
        device_serial_number="0", omit_empty_frames=False,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    segmentation.save_as(path)
