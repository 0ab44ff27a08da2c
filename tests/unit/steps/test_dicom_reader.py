"""A series is read the same whatever its files are called, however it lies and however it is compressed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pydicom
import pytest
import SimpleITK as sitk
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from medweave_steps.io.cohort.source import open_source
from medweave_steps.io.dicom.source_headers import frame_order, read_headers, write_headers
from support.checked import cases_of, check, notices_of, open_only
from support.dicom_builder import AXIAL, FEET_FIRST_PRONE, SYNTAXES, CtSeries, rotated, write_datasets
from support.engine import wait_until
from support.processes import alive

ORIENTATIONS = {
    "head first": AXIAL,
    "feet first": FEET_FIRST_PRONE,
    "oblique": rotated((1, 2, 3), 25),
    "coronal": (1.0, 0.0, 0.0, 0.0, 0.0, -1.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_values_in_every_transfer_syntax(tmp_path: Path, syntax: str, num_workers: int) -> None:
    series = CtSeries(shape=(18, 36, 34))
    series.write(tmp_path, syntax=syntax)
    source = open_only(tmp_path)
    planes = list(source.planes(num_workers=num_workers))
    np.testing.assert_array_equal(np.stack(planes), series.hu())
    assert planes[0].dtype == np.float32
    np.testing.assert_array_equal(source.volume(num_workers=num_workers), series.hu())


@pytest.mark.parametrize("name", ORIENTATIONS)
def test_voxels_lie_where_simpleitk_puts_them(tmp_path: Path, name: str) -> None:
    series = CtSeries(orientation=ORIENTATIONS[name])
    series.write(tmp_path)
    source = open_only(tmp_path)
    reader = sitk.ImageSeriesReader()
    reader.SetFileNames([str(tmp_path / file) for file in source.entry.files])
    image = reader.Execute()
    np.testing.assert_array_equal(sitk.GetArrayFromImage(image), source.volume())
    affine = np.asarray(source.grid.affine)
    for k, r, c in [(0, 0, 0), (5, 35, 33), (3, 7, 20)]:
        lps = image.TransformIndexToPhysicalPoint((c, r, k))
        ras = np.asarray(lps) * [-1, -1, 1]
        np.testing.assert_allclose(affine @ [k, r, c, 1], [*ras, 1], atol=1e-3)
    np.testing.assert_allclose(affine, series.affine_ras(), atol=1e-4)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_neither_names_nor_order_nor_folders_matter(tmp_path: Path, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from([(0, 0, 1), (1, 0, 0), (1, 2, 3)]))
    series = CtSeries(orientation=rotated(axis, data.draw(st.integers(-170, 170))), shape=(5, 8, 6))
    order = data.draw(st.permutations(range(5)))
    names = data.draw(
        st.lists(
            st.from_regex(r"([a-c]/)?[A-Za-z0-9]{1,6}(\.dcm|\.ima)?", fullmatch=True),
            min_size=5,
            max_size=5,
            unique_by=str.lower,
        )
    )
    names = [f"{index % 2}-{name}" if "/" not in name else name for index, name in enumerate(names)]
    shutil.rmtree(tmp_path / "straight", ignore_errors=True)
    shutil.rmtree(tmp_path / "mixed", ignore_errors=True)
    series.write(tmp_path / "straight")
    datasets = series.datasets()
    write_datasets([datasets[i] for i in order], tmp_path / "mixed", names=names)
    one, other = open_only(tmp_path / "straight"), open_only(tmp_path / "mixed")
    np.testing.assert_array_equal(other.volume(), series.hu())
    assert other.grid == one.grid
    np.testing.assert_allclose(np.asarray(one.grid.affine), series.affine_ras(), atol=1e-4)
    assert other.entry.content_sha256 == one.entry.content_sha256
    assert other.entry.case_id == one.entry.case_id


def test_spacing_comes_from_positions_not_from_slice_thickness(tmp_path: Path) -> None:
    series = CtSeries(spacing_mm=(1.25, 0.6, 0.9))
    series.write(tmp_path)  # every header says SliceThickness 5
    np.testing.assert_allclose(open_only(tmp_path).grid.spacing_mm, (1.25, 0.6, 0.9), atol=1e-6)


def test_slope_and_intercept_of_each_slice(tmp_path: Path) -> None:
    series = CtSeries(slopes=[1, 2, 0.5, 1, 3, 1], intercepts=[-1024, -1000, 0, -2000, 5, -1024])
    series.write(tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.parametrize(("signed", "bits"), [(True, 16), (False, 16), (True, 12), (False, 12)])
@pytest.mark.parametrize("syntax", ["explicit", "implicit", "rle", "jpeg2000"])
def test_signed_and_unsigned_of_12_and_16_bits(tmp_path: Path, signed: bool, bits: int, syntax: str) -> None:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    stored = np.random.default_rng(1).integers(low, high, (6, 36, 34), endpoint=True)
    stored[0, 0, :2] = low, high
    series = CtSeries(signed=signed, bits_stored=bits, stored=stored, intercepts=-1024)
    series.write(tmp_path, syntax=syntax)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


def test_bits_above_the_stored_ones_are_not_part_of_the_value(tmp_path: Path) -> None:
    series = CtSeries(signed=False, bits_stored=12)
    datasets = series.datasets()
    for dataset in datasets:  # an overlay in bit 15, as old scanners wrote it
        dataset.PixelData = (np.frombuffer(dataset.PixelData, "<u2") | 0x8000).tobytes()
    write_datasets(datasets, tmp_path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.parametrize(("padding", "limit"), [(-2000, None), (-2000, -1500), (-1500, -2000)])
def test_padding_becomes_air(tmp_path: Path, padding: int, limit: int | None) -> None:
    stored = np.full((6, 36, 34), 1000)
    stored[:, :3], stored[:, 3:6], stored[:, 6:9] = -2000, -1700, -1499
    series = CtSeries(stored=stored, padding=padding, padding_limit=limit, slopes=2)
    series.write(tmp_path)
    volume = open_only(tmp_path).volume()
    np.testing.assert_array_equal(volume, series.hu())
    assert (volume[:, 0] == -1024).all()
    assert (volume[:, 3] == (-1024 if limit else -1700 * 2 - 1024)).all()


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_padding_in_every_transfer_syntax(tmp_path: Path, syntax: str) -> None:
    stored = np.full((6, 36, 34), 1000)
    stored[:, :3] = -2000
    CtSeries(stored=stored, padding=-2000).write(tmp_path, syntax=syntax)
    volume = open_only(tmp_path).volume()
    assert (volume[:, :3] == -1024).all()
    assert (volume[:, 3:] == -24).all()


def test_padding_written_with_the_wrong_signedness(tmp_path: Path) -> None:
    stored = np.full((6, 36, 34), 1000)
    stored[:, :3] = -2000
    datasets = CtSeries(stored=stored).datasets()
    for dataset in datasets:
        dataset.add_new("PixelPaddingValue", "US", 65536 - 2000)
    write_datasets(datasets, tmp_path)
    assert (open_only(tmp_path).volume()[:, :3] == -1024).all()


@pytest.mark.parametrize("syntax", ["explicit", "rle", "jpeg2000"])
@pytest.mark.parametrize("num_workers", [1, 2])
def test_enhanced_multi_frame(tmp_path: Path, syntax: str, num_workers: int) -> None:
    series = CtSeries(shape=(17, 36, 34), slopes=[1 + i % 3 for i in range(17)], orientation=rotated((1, 2, 3), 10))
    order = np.random.default_rng(3).permutation(17)
    write_datasets([series.enhanced(order=list(order))], tmp_path, syntax=syntax)
    source = open_only(tmp_path)
    np.testing.assert_array_equal(np.stack(list(source.planes(num_workers=num_workers))), series.hu())
    np.testing.assert_allclose(np.asarray(source.grid.affine), series.affine_ras(), atol=1e-4)
    headers = source.headers()
    assert len(headers) == 1
    assert [frame for _, frame in frame_order(headers)] == list(np.argsort(order))


def test_a_code_stream_of_the_other_signedness(tmp_path: Path) -> None:
    # Written as unsigned 12-bit numbers, meant as signed ones: the header is right.
    stored = np.random.default_rng(0).integers(-2048, 2047, (6, 36, 34), endpoint=True)
    series = CtSeries(stored=stored, bits_stored=12)
    unsigned = CtSeries(stored=stored & 0xFFF, bits_stored=12, signed=False)
    for path in unsigned.write(tmp_path, syntax="jpeg2000"):
        dataset = pydicom.dcmread(path)
        dataset.PixelRepresentation = 1
        dataset.save_as(path)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


@pytest.mark.parametrize("has_table", [True, False])
def test_frames_in_several_fragments(tmp_path: Path, has_table: bool) -> None:
    series = CtSeries(shape=(5, 36, 34))
    paths = series.write(tmp_path / "plain", syntax="jpeg2000")
    streams = [next(pydicom.encaps.generate_frames(pydicom.dcmread(p).PixelData, number_of_frames=1)) for p in paths]
    if has_table:  # all frames in one object, which frame a fragment belongs to is in the offset table
        dataset = series.enhanced()
        dataset.PixelData = pydicom.encaps.encapsulate(streams, fragments_per_frame=3, has_bot=True)
        written = [(dataset, "enhanced.dcm")]
    else:
        written = [(pydicom.dcmread(path), path.name) for path in paths]
        for (dataset, _), stream in zip(written, streams, strict=True):
            dataset.PixelData = pydicom.encaps.encapsulate([stream], fragments_per_frame=3, has_bot=False)
    for dataset, name in written:
        dataset["PixelData"].is_undefined_length = True
        dataset.file_meta.TransferSyntaxUID = pydicom.uid.JPEG2000Lossless
        (tmp_path / "split").mkdir(exist_ok=True)
        pydicom.dcmwrite(tmp_path / "split" / name, dataset, enforce_file_format=True)
    np.testing.assert_array_equal(open_only(tmp_path / "split").volume(), series.hu())


@pytest.mark.parametrize("syntax", ["big endian", "deflated", "no preamble"])
def test_old_encodings(tmp_path: Path, syntax: str) -> None:
    series = CtSeries()
    for index, dataset in enumerate(series.datasets()):
        path = tmp_path / f"{index}.dcm"
        if syntax == "big endian":
            dataset["PixelData"].value = np.frombuffer(dataset.PixelData, "<i2").byteswap().tobytes()
            dataset.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRBigEndian
            pydicom.dcmwrite(path, dataset, enforce_file_format=True)
        elif syntax == "deflated":
            dataset.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
            pydicom.dcmwrite(path, dataset, enforce_file_format=True)
        else:
            del dataset.file_meta
            pydicom.dcmwrite(path, dataset, implicit_vr=True, little_endian=True)
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())


def test_several_series_in_one_folder_and_one_series_in_several(tmp_path: Path) -> None:
    first, second = CtSeries(key="a"), CtSeries(key="b", patient="patient-b", spacing_mm=(1, 0.5, 0.5))
    names = [f"{'xyz'[i % 3]}/{i}.dcm" for i in range(6)]
    first.write(tmp_path, names=names)
    second.write(tmp_path, names=[f"x/other-{i}.dcm" for i in range(6)])
    cases = cases_of(tmp_path)
    volumes = {float(case.grid.spacing_mm[0]): open_source(tmp_path, case).volume() for case in cases}
    np.testing.assert_array_equal(volumes[2.0], first.hu())
    np.testing.assert_array_equal(volumes[1.0], second.hu())
    assert len({case.patient_key for case in cases}) == 2
    assert [case.case_id for case in cases] == sorted(case.case_id for case in cases)
    assert sorted(case.series_ordinal for case in cases) == [1, 2]


def test_localizers_secondary_captures_and_reports_are_left_aside(tmp_path: Path) -> None:
    series = CtSeries()
    series.write(tmp_path)
    localizer, capture, report = (series.datasets()[0] for _ in range(3))
    localizer.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
    localizer.ImageOrientationPatient = [1, 0, 0, 0, 0, -1]  # in the same series: some scanners do
    capture.SOPClassUID, capture.SeriesInstanceUID = pydicom.uid.SecondaryCaptureImageStorage, "2.25.77"
    report.SOPClassUID, report.Modality, report.SeriesInstanceUID = pydicom.uid.EnhancedSRStorage, "SR", "2.25.78"
    for number, dataset in enumerate((localizer, capture, report)):
        dataset.SOPInstanceUID = f"2.25.9{number}"
    write_datasets([localizer, capture, report], tmp_path, names=["l.dcm", "s.dcm", "r.dcm"])
    (tmp_path / "README.txt").write_text("notes")
    np.testing.assert_array_equal(open_only(tmp_path).volume(), series.hu())
    assert {"localizer", "secondary-capture", "other-objects", "other-files"} <= set(notices_of(tmp_path))


def test_derived_reformats_are_left_aside(tmp_path: Path) -> None:
    CtSeries().write(tmp_path / "a")
    coronal = CtSeries(key="b", orientation=ORIENTATIONS["coronal"]).datasets()
    for dataset in coronal:
        dataset.ImageType = ["DERIVED", "SECONDARY", "REFORMATTED"]
    write_datasets(coronal, tmp_path / "b")
    assert len(cases_of(tmp_path)) == 1
    assert "reformatted" in notices_of(tmp_path)


def test_bolus_tracking_is_no_volume(tmp_path: Path) -> None:
    CtSeries().write(tmp_path / "a")
    CtSeries(key="b", spacing_mm=(0.0, 0.7, 0.8)).write(tmp_path / "b")
    assert len(cases_of(tmp_path)) == 1
    assert "not-a-volume" in notices_of(tmp_path)


def test_headers_travel_in_a_zip(tmp_path: Path) -> None:
    series = CtSeries()
    series.write(tmp_path / "dicom", syntax="jpeg2000", names=[f"{5 - i}.dcm" for i in range(6)])
    headers = open_only(tmp_path / "dicom").headers()
    write_headers(tmp_path / "one.zip", headers)
    write_headers(tmp_path / "two.zip", headers)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    back = read_headers(tmp_path / "one.zip")
    assert all("PixelData" not in dataset for dataset in back)
    heights = [float(dataset.ImagePositionPatient[2]) for dataset in back]
    assert heights == pytest.approx([series.position(i)[2] for i in range(6)])
    assert [str(dataset.PatientName) for dataset in back] == ["Doe^Jane"] * 6
    assert frame_order(back) == [(i, 0) for i in range(6)]


def test_content_digest_reports_scans_apart(tmp_path: Path) -> None:
    def digest(name: str, series: CtSeries) -> str:
        series.write(tmp_path / name)
        return cases_of(tmp_path / name)[0].content_sha256

    base = digest("base", CtSeries())
    again = CtSeries(key="other uids", stored=CtSeries().stored)
    assert digest("other uids", again) == base
    changed = np.array(CtSeries().stored)
    changed[3, 5, 5] += 1
    assert digest("a voxel", CtSeries(stored=changed)) != base
    assert digest("spacing", CtSeries(spacing_mm=(2.0, 0.7, 0.81))) != base
    assert digest("intercept", CtSeries(intercepts=-1000)) != base


def test_the_index_is_the_same_when_check_runs_again(tmp_path: Path) -> None:
    CtSeries().write(tmp_path)
    assert check(tmp_path).index == check(tmp_path).index


READER = """
import sys
from pathlib import Path
from medweave_steps.io.cohort.prepared import read_index
from medweave_steps.io.cohort.source import open_source
from medweave_steps.runtime import signals
signals.install()
cohort = Path(sys.argv[1])
source = open_source(cohort, read_index(cohort / "index.json").cases[0])
try:
    while True:
        for plane in source.planes(num_workers=2):
            print("plane", flush=True)
except signals.Terminated as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_decoding_processes_end_with_their_parent(tmp_path: Path, number: int) -> None:
    from medweave_core.contracts import codec

    CtSeries(shape=(40, 36, 34)).write(tmp_path, syntax="jpeg2000")
    (tmp_path / "index.json").write_text(codec.dumps(check(tmp_path).index))
    parent = subprocess.Popen([sys.executable, "-c", READER, str(tmp_path)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"plane\n"
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    assert len(children) == 2
    os.kill(parent.pid, number)
    assert parent.wait(timeout=10) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_until(lambda: not any(alive(int(child)) for child in children))
    assert not any(alive(int(child)) for child in children), "a decoding process outlived its parent"
