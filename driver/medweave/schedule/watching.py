"""The watched source of a schedule, and how its new studies become an input of the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave.project.schedules import Schedule
from medweave.schedule.definition import job_file
from medweave.schedule.studies import ReceivedFolder, Study, StudySearch, StudySource, WatchedFolder, find, take_in
from medweave_connectors.cache.content import Contents
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.file_locations import path_of
from medweave_core.documents.line_numbers import Where, shown
from medweave_core.documents.yaml_documents import read_mapping


class StudyWatch:
    """The watched source of one schedule.

    Args:
        folder: folder of the schedule.
        contents: digests of files.
        secret: secret of the schedule.
    """

    def __init__(self, schedule: Schedule, folder: Path, contents: Contents, secret: bytes) -> None:
        assert schedule.watch is not None
        self._schedule, self._watch, self._secret = schedule, schedule.watch, secret
        self._into = folder / self._watch["into"]
        self._source: StudySource = _source(schedule, self._watch, folder, contents)
        self._check_job()

    def find(self, tries: Mapping[str, int]) -> StudySearch:
        """Return the studies to run now."""
        return find(self._source, tries, quiet_s=self._watch["quiet"], secret=self._secret)

    def take_in(self, studies: Mapping[str, Study]) -> None:
        """Write studies into the input folder of the run."""
        take_in(self._source, studies, self._into)

    def finish(self, studies: Mapping[str, Study]) -> None:
        """Handle studies whose run has completed."""
        self._source.finish(list(studies.values()))

    def _check_job(self) -> None:
        job = job_file(self._schedule.file)
        values = read_mapping(job, "job file").values() if job is not None else []
        named = [path_of(value) for value in values if isinstance(value, Mapping)]
        if job is None or self._into not in {job.parent / path for path in named if path is not None}:
            raise fault_at(
                self._schedule.path, ("watch", "into"),
                "no input of the job file is this folder, so new studies would not be processed.",
                seen=f"paths in {shown(job)}" if job is not None else "no job file", expected=f"path: {self._into}",
                do="set an input of class Directory to this path",
            )  # fmt: skip


def received_in(folder: Path) -> Path:
    """Return the folder into which the receiver of a schedule writes.

    Args:
        folder: folder of the schedule.
    """
    return folder / "received"


def _source(schedule: Schedule, watch: Mapping[str, Any], folder: Path, contents: Contents) -> StudySource:
    if "dicomweb" in watch:
        from medweave.schedule.dicomweb import DicomWeb

        return DicomWeb(watch["dicomweb"], where=Where(schedule.path, ("watch", "dicomweb")))
    if "receive" in watch:
        received_in(folder).mkdir(exist_ok=True)
        return ReceivedFolder(received_in(folder), contents)
    named = schedule.path.parent / Path(watch["folder"]).expanduser()
    if not named.is_dir():
        raise fault_at(
            schedule.path, ("watch", "folder"), "there is no such folder.", seen=shown(named),
            expected="a folder that receives studies", do="create it, or correct the path",
        )  # fmt: skip
    return WatchedFolder(named, contents)


def why_none(search: StudySearch) -> str:
    """Return why no study is to be run, in words."""
    more = []
    if search.num_coming:
        more.append(f"{search.num_coming} still arriving")
    if search.num_given_up:
        more.append(f"{search.num_given_up} skipped after failures")
    return "no new study" + (f" ({', '.join(more)})" if more else "")
