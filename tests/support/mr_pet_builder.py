"""Small MR and PET series, enhanced MR among them, as real DICOM files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydicom.dataset import Dataset
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import EnhancedMRImageStorage, MRImageStorage, PositronEmissionTomographyImageStorage

from support.dicom_builder import CtSeries, decimal_string, uid


@dataclass(kw_only=True)
class MrSeries(CtSeries):
    """A series of MR slices of one patient, in one frame of reference for all series of the patient.

    Attributes:
        study: word that makes the StudyInstanceUID with the patient.
        frame: word that makes the FrameOfReferenceUID with the patient.
        contrast: ContrastBolusAgent; empty without.
        attributes: values of more attributes by keyword.
    """

    description: str = "t2"
    study: str = "study"
    frame: str = "frame"
    contrast: str = ""
    echo_time_ms: float = 90.0
    repetition_time_ms: float = 4000.0
    attributes: dict[str, Any] = field(default_factory=dict)

    def values(self) -> np.ndarray:
        """Return the expected voxels, float32 [slice, row, column]: the stored ones."""
        assert self.stored is not None
        return self.stored.astype(np.float32)

    def _common(self, sop_class: str, instance: str) -> Dataset:
        dataset = super()._common(sop_class, instance)
        del dataset.KVP
        dataset.Modality, dataset.SeriesDescription = "MR", self.description
        dataset.StudyInstanceUID = uid(self.patient, self.study)
        dataset.FrameOfReferenceUID = uid(self.patient, self.frame)
        if self.contrast:
            dataset.ContrastBolusAgent = self.contrast
        for keyword, value in self.attributes.items():
            setattr(dataset, keyword, value)
        return dataset

    def _slice(self, index: int) -> Dataset:
        dataset = super()._slice(index)
        dataset.SOPClassUID = self._image_class()
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "M", "ND"]
        self._acquired(dataset, index)
        return dataset

    def _image_class(self) -> str:
        return MRImageStorage

    def _acquired(self, dataset: Dataset, index: int) -> None:
        del dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType
        dataset.EchoTime, dataset.RepetitionTime = self.echo_time_ms, self.repetition_time_ms
        dataset.ScanningSequence = "SE"

    def enhanced_mr(self, echo_times_ms: tuple[float, ...] = (90.0,)) -> Dataset:
        """Return the scan as one Enhanced MR object; frames repeat for each echo time."""
        assert self.stored is not None
        num_slices = self.shape[0]
        dataset = self._common(EnhancedMRImageStorage, uid(self.key, "enhanced"))
        dataset.ImageType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
        dataset.NumberOfFrames = num_slices * len(echo_times_ms)
        self._pixels(dataset, np.concatenate([self.stored] * len(echo_times_ms)))
        measures, oriented, frame_type, timing = Dataset(), Dataset(), Dataset(), Dataset()
        measures.PixelSpacing = [decimal_string(v) for v in self.spacing_mm[1:]]
        oriented.ImageOrientationPatient = [decimal_string(v) for v in self.orientation]
        frame_type.FrameType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
        timing.RepetitionTime = self.repetition_time_ms
        shared = Dataset()
        shared.PixelMeasuresSequence = DicomSequence([measures])
        shared.PlaneOrientationSequence = DicomSequence([oriented])
        shared.MRImageFrameTypeSequence = DicomSequence([frame_type])
        shared.MRTimingAndRelatedParametersSequence = DicomSequence([timing])
        dataset.SharedFunctionalGroupsSequence = DicomSequence([shared])
        groups = [self._frame(index, echo) for echo in echo_times_ms for index in range(num_slices)]
        dataset.PerFrameFunctionalGroupsSequence = DicomSequence(groups)
        return dataset

    def _frame(self, index: int, echo_time_ms: float) -> Dataset:
        group, place, echo = Dataset(), Dataset(), Dataset()
        place.ImagePositionPatient = [decimal_string(v) for v in self.position(index)]
        echo.EffectiveEchoTime = echo_time_ms
        group.PlanePositionSequence = DicomSequence([place])
        group.MREchoSequence = DicomSequence([echo])
        return group


@dataclass(kw_only=True)
class PetSeries(MrSeries):
    """A PET series in Bq/ml: 370 MBq of F-18 injected one hour before the scan into a patient of 70 kg.

    Attributes:
        tracer: values of RadiopharmaceuticalInformationSequence by keyword; None leaves the attribute out.
        attributes: values of attributes of the image; None leaves the attribute out.
    """

    description: str = "pet ac"
    signed: bool = False
    intercepts: float = 0.0
    slopes: Any = (2.0, 2.0, 2.0, 4.0, 4.0, 4.0)
    tracer: dict[str, Any] = field(default_factory=dict)

    def becquerels_per_ml(self) -> np.ndarray:
        """Return the activity concentration, float64 [slice, row, column]."""
        assert self.stored is not None
        slopes = np.broadcast_to(np.asarray(self.slopes, dtype=np.float64), self.shape[:1])
        return self.stored * slopes[:, None, None]

    def _image_class(self) -> str:
        return PositronEmissionTomographyImageStorage

    def _acquired(self, dataset: Dataset, index: int) -> None:
        del dataset.RescaleType
        dataset.Modality = "PT"
        dataset.ImageType = ["ORIGINAL", "PRIMARY"]
        own = {
            "Units": "BQML", "DecayCorrection": "START", "CorrectedImage": ["DECY", "ATTN", "SCAT"], "PatientWeight": 70,
            "SeriesDate": "20200101", "SeriesTime": "120000.0", "AcquisitionDate": "20200101",
            "AcquisitionTime": f"12{index:02d}00",
        }  # fmt: skip
        for keyword, value in {**own, **self.attributes}.items():
            if value is None:
                delattr(dataset, keyword) if keyword in dataset else None
            else:
                setattr(dataset, keyword, value)
        item = Dataset()
        tracer = {
            "RadiopharmaceuticalStartTime": "110000", "RadionuclideTotalDose": 3.7e8, "RadionuclideHalfLife": 6586.2,
        }  # fmt: skip
        for keyword, value in {**tracer, **self.tracer}.items():
            if value is not None:
                setattr(item, keyword, value)
        dataset.RadiopharmaceuticalInformationSequence = DicomSequence([item])
