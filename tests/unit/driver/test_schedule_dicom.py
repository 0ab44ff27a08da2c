"""A schedule that watches a DICOM node, which is Debian's Orthanc: by DICOMweb and by C-STORE."""

from __future__ import annotations

import datetime
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom
import pytest
from pydicom.uid import ExplicitVRLittleEndian, JPEG2000Lossless
from pynetdicom import AE
from pynetdicom.sop_class import CTImageStorage, Verification

from medweave.project.schedules import read_schedule
from medweave.schedule.dicomweb import DicomWeb, dates
from medweave.schedule.studies import Study
from medweave_core.documents.line_numbers import Where
from medweave_core.errors import TryAgainError, UserInputError
from support.dicom_builder import CtSeries, uid, write_datasets
from support.orthanc import PASSWORD, USER, Orthanc, free_port, orthanc
from support.schedules import call_schedule, results, start, write_schedule

COUNT = "find -L \"$0\" -name '*.dcm' | wc -l > result.txt"
NUM_SLICES = 3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    with orthanc(tmp_path_factory.mktemp("node") / "orthanc") as running:
        yield running


def write_study(folder: Path, name: str, *, days_ago: int = 0) -> None:
    """Write a CT study of a patient."""
    day = datetime.date.today() - datetime.timedelta(days=days_ago)
    datasets = CtSeries(shape=(NUM_SLICES, 8, 8), spacing_mm=(5.0, 1.0, 1.0)).datasets()
    for number, dataset in enumerate(datasets):
        dataset.PatientName, dataset.PatientID = name, f"MRN-{name}"
        dataset.StudyInstanceUID, dataset.SeriesInstanceUID = uid(name, "study"), uid(name, "series")
        dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = uid(name, number)
        dataset.StudyDate, dataset.AccessionNumber = f"{day:%Y%m%d}", f"ACC-{name}"
    write_datasets(datasets, folder / name)


def watching(above: Path, **watch: Any) -> Path:
    into = above / "x/schedules/nightly/incoming"
    return write_schedule(above / "x", COUNT, scans=into, watch={"quiet": 1} | watch)


def fire(file: Path) -> str:
    code, _, err = call_schedule("run", file.name, cwd=file.parent, NODE_PASSWORD=PASSWORD)
    assert code == 0, err
    return err


def assert_has_no_identifiers(file: Path, err: str, *names: str) -> None:
    """No name and no UID in the output, in the stored state and in file names; only the DICOM objects contain them."""
    for identifier in [word for name in names for word in (name, uid(name, "study"))]:
        assert identifier not in err
        for path in (file.parent / "schedules").rglob("*"):
            assert identifier not in path.name
            if path.is_file() and path.suffix != ".dcm":
                assert identifier.encode() not in path.read_bytes(), path.name


@pytest.mark.slow
def test_new_studies_of_a_node_are_run_once_by_dicomweb(tmp_path: Path, node: Orthanc) -> None:
    settings = {"url": node.dicomweb, "user": USER, "password": "${NODE_PASSWORD}", "modality": "CT"}
    file = watching(tmp_path, dicomweb=settings)
    assert "skipped: no new study" in fire(file)
    write_study(tmp_path / "studies", "DOE^JANE")
    write_study(tmp_path / "studies", "ROE^OLD", days_ago=30)
    node.take(tmp_path / "studies")
    err = fire(file)
    assert "starting a run: 1 new study" in err
    assert results(file.parent)[0].read_text().strip() == str(NUM_SLICES)
    received = sorted((file.parent / "schedules/nightly/incoming").rglob("*.dcm"))
    assert {str(pydicom.dcmread(path).PatientName) for path in received} == {"DOE^JANE"}
    assert len(pydicom.dcmread(received[0]).PixelData) == 8 * 8 * 2
    assert_has_no_identifiers(file, err, "DOE^JANE", "ROE^OLD")
    assert "skipped: no new study" in fire(file)


@pytest.mark.slow
def test_errors_of_a_node_contain_no_uid(tmp_path: Path, node: Orthanc) -> None:
    settings = {"url": node.dicomweb, "user": USER, "password": "${NODE_PASSWORD}", "lastDays": 7}
    file = watching(tmp_path, dicomweb=settings)
    code, _, err = call_schedule("run", file.name, cwd=file.parent, NODE_PASSWORD="wrong")
    assert (code, "HTTP 401" in err, "wrong" in err) == (75, True, False)
    code, _, err = call_schedule("run", file.name, cwd=file.parent)
    assert (code, "variable NODE_PASSWORD is not set" in err) == (2, True)
    away = DicomWeb(
        {"url": f"http://127.0.0.1:{free_port()}/dicom-web", "lastDays": 7}, where=Where(Path("schedule.yml"))
    )
    with pytest.raises(TryAgainError, match="ConnectionError"):
        away.look()
    secret_uid = uid("gone", "study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NODE_PASSWORD", PASSWORD)
        known = DicomWeb(settings, where=Where(Path("schedule.yml")))
        with pytest.raises(TryAgainError) as refused:
            known.fetch(Study(name=secret_uid, content="1"), tmp_path)
    assert secret_uid not in str(refused.value)


def test_the_last_days_are_a_range() -> None:
    assert dates(datetime.date(2026, 3, 2), 7) == {"StudyDate": "20260223-20260302"}


@pytest.mark.slow
def test_sent_studies_are_run_and_removed(tmp_path: Path, node: Orthanc) -> None:
    file = watching(tmp_path, receive={"port": node.sends_to, "address": "127.0.0.1", "callers": ["PACS"]})
    write_study(tmp_path / "studies", "POE^EDGAR")
    node.take(tmp_path / "studies")
    receiver = start("receive", file, cwd=file.parent)
    assert receiver.stderr is not None
    assert "listening on port" in receiver.stderr.readline()
    try:
        sent = node.send()
        assert sent >= NUM_SLICES
    finally:
        receiver.send_signal(signal.SIGTERM)
    assert receiver.wait(30) == 0
    assert f"received {sent} instances" in receiver.stderr.read()
    err = fire(file)
    assert "new stud" in err
    assert results(file.parent)[0].read_text().strip() == str(sent)
    assert list((file.parent / "schedules/nightly/received").iterdir()) == []
    assert_has_no_identifiers(file, err, "POE^EDGAR")


@pytest.mark.slow
def test_an_unknown_sender_and_another_title_are_refused(tmp_path: Path) -> None:
    port = free_port()
    file = watching(tmp_path, receive={"port": port, "address": "127.0.0.1", "callers": ["PACS"]})
    receiver = start("receive", file, cwd=file.parent)
    assert receiver.stderr is not None
    receiver.stderr.readline()
    try:
        accepted = {
            (caller, title): associated(port, caller, title)
            for caller in ("PACS", "STRANGER")
            for title in ("MEDWEAVE", "OTHER")
        }
        second = start("receive", file, cwd=file.parent)
        _, err = second.communicate(timeout=60)
        assert (second.returncode, f"cannot listen on port {port}." in err) == (65, True)
    finally:
        receiver.send_signal(signal.SIGINT)
    assert receiver.wait(30) == 0
    assert [names for names, is_accepted in accepted.items() if is_accepted] == [("PACS", "MEDWEAVE")]


def associated(port: int, caller: str, title: str) -> bool:
    """Return whether a sender is accepted, may send compressed CT, and gets an answer to C-ECHO."""
    entity = AE(ae_title=caller)
    entity.add_requested_context(Verification)
    entity.add_requested_context(CTImageStorage, [JPEG2000Lossless])
    entity.add_requested_context(CTImageStorage, [ExplicitVRLittleEndian])
    association = entity.associate("127.0.0.1", port, ae_title=title)
    if not association.is_established:
        return False
    try:
        assert len(association.accepted_contexts) == 3
        return bool(association.send_c_echo().Status == 0)
    finally:
        association.release()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("watch", "message"),
    [
        ({}, "watch needs exactly one source of studies"),
        ({"folder": "a", "receive": {"callers": ["A"]}}, "watch needs exactly one source of studies"),
        ({"dicomweb": {"url": "http://x", "user": "a", "password": "secret"}}, "watch.dicomweb.password"),
        ({"receive": {"callers": []}}, "watch.receive.callers"),
    ],
)
def test_an_invalid_watch_is_an_error(tmp_path: Path, watch: dict[str, Any], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        read_schedule(watching(tmp_path, **watch))
