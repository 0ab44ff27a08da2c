"""Series whose headers were changed at random, and the four verbs that read headers run on them."""

from __future__ import annotations

import contextlib
import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydicom
from hypothesis import strategies as st
from pydicom.dataelem import RawDataElement
from pydicom.dataset import Dataset
from pydicom.tag import Tag

from medweave_steps.cli import main
from support.dicom_builder import CtSeries, write_datasets

_TEXTS = (
    b"", b" ", b"abc", b"0", b"1", b"2", b"-1", b"-0.7", b"0.7", b"1e400", b"1e30", b"1e-30", b"NaN", b"inf", b"5,0001", b"1\\2",
    b"1\\2\\3", b"0\\0", b"1\\0\\0\\1\\0\\0", b"nan\\nan\\nan", b"inf\\inf", b"-1\\-1", b"1e9\\1e9\\1e9", b"\\",
    b"9" * 40, b"1.2.3",
    b"\xe4\xf6\xfc", b"\x1b$B", b"\x00\x01", b"Doe\\Jane", b"Doe=Jane=X=Y", b"ISO_IR 999", b"ISO 2022 IR 87\\x", b"HU", b"US",
    b"DERIVED\\PRIMARY\\LOCALIZER", b"YES", b"99999999", b"20200230", b"A" * 2000, b"65536", b"1000000",
)  # fmt: skip
_BINARIES = (
    b"\x00\x00", b"\x01\x00", b"\x02\x00", b"\x0c\x00", b"\x0f\x00", b"\x20\x00", b"\xff\xff", b"\x00\x80", b"\x01",
    b"\x01\x00\x02",
    b"\x01\x00\x02\x00", b"\xff" * 8, b"\x00" * 8, b"\x00\x00\x00\x00\x00\x00\xf8\x7f",
)  # fmt: skip
_VRS = ("own", "own", "own", "DS", "IS", "US", "SS", "UL", "FD", "LO", "UI", "PN", "CS", "OB", "UN", "SQ", "AT", "TM")
_ABSENT = (
    "NumberOfFrames", "PixelPaddingValue", "PixelPaddingRangeLimit", "SpecificCharacterSet", "AcquisitionNumber",
    "AcquisitionTime", "ConvolutionKernel", "ContrastBolusAgent", "TemporalPositionIdentifier", "RealWorldValueMappingSequence",
    "MeasurementUnitsCodeSequence", "ModalityLUTSequence", "SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence",
    "MultienergyCTAcquisition", "IssuerOfPatientID", "PatientAge", "PatientWeight", "ReferencedImageSequence", "SliceLocation",
    "SpacingBetweenSlices", "BurnedInAnnotation", "LossyImageCompression", "OtherPatientIDsSequence", "TimezoneOffsetFromUTC",
    "BodyPartExamined", "AnatomicRegionSequence", "PlanarConfiguration", "PixelAspectRatio", "ClinicalTrialSponsorName",
    "EthnicGroup", "PatientComments", "PatientSpeciesCodeSequence", "ProcedureCodeSequence", "SmallestImagePixelValue",
    "RedPaletteColorLookupTableDescriptor", "PixelDataProviderURL", "ICCProfile", "LossyImageCompressionRatio",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of a header: the attribute's place, and a function that changes it in the dataset or item that holds it."""

    path: tuple[tuple[str, int], ...]
    keyword: str
    action: str
    apply: Callable[[Dataset], None]

    def __repr__(self) -> str:
        return f"{'/'.join(f'{name}[{index}]' for name, index in self.path)} {self.keyword}: {self.action}"

    def on(self, dataset: Dataset) -> None:
        """Change a dataset in place; nothing where an earlier change removed or damaged the place."""
        with contextlib.suppress(Exception):
            for name, index in self.path:
                dataset = dataset[name].value[index]
            self.apply(dataset)


def changes(template: Dataset) -> st.SearchStrategy[Change]:
    """Return changes of any attribute of a dataset, at any depth, and additions of attributes that it lacks."""
    places = [(path, keyword) for path, keyword in _places(template, ()) if keyword != "PixelData"]
    top = [place for place in places if not place[0]] + [((), keyword) for keyword in _ABSENT]
    nested = [place for place in places if place[0]]
    return st.one_of([st.sampled_from(group) for group in (top, nested) if group]).flatmap(_change_at)


def _places(dataset: Dataset, path: tuple[tuple[str, int], ...]) -> list[tuple[tuple[tuple[str, int], ...], str]]:
    found = []
    for element in dataset:
        found.append((path, element.keyword))
        if element.VR == "SQ":
            for index, item in enumerate(element.value):
                found += _places(item, (*path, (element.keyword, index)))
    return found


@st.composite
def _change_at(draw: st.DrawFn, place: tuple[tuple[tuple[str, int], ...], str]) -> Change:
    path, keyword = place
    kind = draw(st.sampled_from(("delete", "value", "value", "value", "value", "items")))
    if kind == "delete":
        return Change(path, keyword, kind, lambda holder: holder.__delattr__(keyword))
    if kind == "items":
        count = draw(st.integers(0, 3))
        return Change(path, keyword, f"{count} items", lambda holder: _set_items(holder, keyword, count))
    vr, value = draw(st.sampled_from(_VRS)), draw(st.sampled_from((*_TEXTS, *_BINARIES)))
    return Change(path, keyword, f"{vr} {value!r:.60}", lambda holder: set_raw(holder, keyword, vr, value))


def _set_items(holder: Dataset, keyword: str, count: int) -> None:
    items = list(holder[keyword].value) if keyword in holder and holder[keyword].VR == "SQ" else []
    items = (items or [Dataset()]) * 3
    holder.add_new(keyword, "SQ", [copy.deepcopy(item) for item in items[:count]])


def set_raw(holder: Dataset, keyword: str, vr: str, value: bytes) -> None:
    """Set an attribute to bytes with a VR, which need not be its own or fit the bytes."""
    tag = Tag(keyword)
    own = pydicom.datadict.dictionary_VR(tag).split(" or ")[0]
    vr = own if vr == "own" else vr
    holder[tag] = RawDataElement(tag, vr, len(value), value, 0, False, True)


@dataclass
class Ends:
    """Exit codes of the verbs and their messages."""

    codes: dict[str, int]
    text: str
    folder: Path


def write_changed(
    folder: Path,
    datasets: Sequence[Dataset],
    applied: Sequence[Change],
    targets: Sequence[int],
    *,
    syntax: str,
    flips: Sequence[tuple[float, int]] = (),
) -> None:
    """Write a series in which some files have changed headers.

    Args:
        targets: indices of those files.
        flips: bytes to overwrite afterwards: place as a share of the header's length, and new value.
    """
    for index, (dataset, path) in enumerate(
        zip(datasets, write_datasets(datasets, folder, syntax=syntax), strict=True)
    ):
        if index not in targets:
            continue
        changed = pydicom.dcmread(path)
        for change in applied:
            change.on(changed)
        with contextlib.suppress(Exception):  # what cannot be written stays as it was
            buffer = io.BytesIO()
            implicit = syntax == "implicit"
            pydicom.dcmwrite(buffer, changed, implicit_vr=implicit, little_endian=True, overwrite=True)
            path.write_bytes(buffer.getvalue())
        content = bytearray(path.read_bytes())
        header_bytes = max(1, len(content) - len(dataset.PixelData))
        for share, value in flips:
            content[int(share * (header_bytes - 1))] = value
        path.write_bytes(content)


def run_verbs(cohort: Path, work: Path, model: Path, *, options: Sequence[str] = ()) -> Ends:
    """Run check, preprocess, segment and deidentify as a user would; each one only if the one before it ended well."""
    ends = run_check(cohort, work, options=options)
    prepared, batch = work / "prepared", work / "prepared" / "inference_batches" / "batch-000"
    prepare = ("--cohort", cohort, "--cohort-index", work / "index.json", "--output", prepared)
    if ends.codes["check"] == 0 and _run(ends, "preprocess", *prepare, "--purpose", "inference", "--crop", "none"):
        _run(ends, "segment", "--segmentation-model", model, "--case-batch", batch, "--output", work / "segmented")
    home = ("--home", work / "home", "--key", work / "key")
    _run(ends, "deidentify", "--cohort", cohort, "--output", work / "deidentified", *home, *options)
    return ends


def run_check(cohort: Path, work: Path, *, options: Sequence[str] = ()) -> Ends:
    """Run check as a user would."""
    ends = Ends({}, "", work)
    _run(ends, "check", "--cohort", cohort, "--output", work / "index.json", *options)
    return ends


def _run(ends: Ends, verb: str, *words: Any) -> bool:
    output = io.StringIO()
    report = ["--num-threads", "1", "--run-report", str(ends.folder / f"{verb}.json")]
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        ends.codes[verb] = main([verb, *map(str, words), *report])
    ends.text += output.getvalue()
    return ends.codes[verb] == 0


def small_series(key: str) -> CtSeries:
    """Return the series that is changed: as small as the verbs accept."""
    return CtSeries(key=key, patient=f"patient-{key}", shape=(4, 36, 34))
