"""New studies of a DICOM node by DICOMweb. No message contains a UID."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests
from dicomweb_client import DICOMwebClient

from medweave.schedule.studies import Study
from medweave_core.documents.line_numbers import Where
from medweave_core.documents.streamflow_paths import expand
from medweave_core.errors import TryAgainError

STUDY_UID, NUM_INSTANCES = "0020000D", "00201208"
AS_STORED = (("application/dicom", "*"),)
ANSWER_S = 60.0
PAGE = 200


class DicomWeb:
    """A DICOM node with DICOMweb.

    Args:
        settings: key `watch.dicomweb` of the schedule's file.
        where: location of that key, for messages.
    """

    def __init__(self, settings: Mapping[str, Any], *, where: Where) -> None:
        self._settings = settings
        session = requests.Session()
        if settings.get("user"):
            session.auth = (settings["user"], expand(settings.get("password", ""), where=where / "password"))
        if settings.get("token"):
            session.headers["Authorization"] = f"Bearer {expand(settings['token'], where=where / 'token')}"
        self._node = DICOMwebClient(settings["url"], session=session, timeout=ANSWER_S)
        self._node.set_http_retry_params(
            max_attempts=3, wait_exponential_multiplier=250
        )  # ms; the next firing tries again, too

    def look(self) -> Sequence[Study]:
        """Return the studies of the last days. A node does not report when a study last changed.

        Raises:
            TryAgainError: the node does not answer, or refuses.
        """
        filters = dates(datetime.date.today(), self._settings["lastDays"])
        if self._settings.get("modality"):
            filters["ModalitiesInStudy"] = self._settings["modality"]
        # Collected by UID, since new studies may shift the pages. The client's own paging never ends at a node that repeats a page.
        studies: dict[str, Study] = {}
        while True:
            with self._request("list its studies"):
                page = self._node.search_for_studies(
                    search_filters=filters, fields=["NumberOfStudyRelatedInstances"], limit=PAGE, offset=len(studies)
                )
            known = len(studies)
            studies |= {study.name: study for study in map(_study, page) if study.name}
            if len(page) < PAGE or len(studies) == known:
                return list(studies.values())

    def fetch(self, study: Study, into: Path) -> None:
        """Write the instances of a study as the node stores them.

        Raises:
            TryAgainError: the node does not answer, or sends fewer instances than it announced.
        """
        number = 0
        with self._request("send a study"):
            for number, instance in enumerate(self._node.iter_study(study.name, media_types=AS_STORED), start=1):
                instance.save_as(into / f"{number:06}.dcm", enforce_file_format=True)
        if study.content and number < int(study.content):
            raise TryAgainError(
                f"{self._settings['url']}: incomplete study.", seen=f"{number} instances",
                expected=f"{study.content}, as announced by the node", do="nothing: the next firing tries again",
            )  # fmt: skip

    def finish(self, studies: Sequence[Study]) -> None:
        """Do nothing: studies stay at the node."""

    @contextlib.contextmanager
    def _request(self, what: str) -> Iterator[None]:
        try:
            yield
        except requests.HTTPError as error:  # its text contains the URL, and so the UID
            seen = f"HTTP {error.response.status_code}" if error.response is not None else "an HTTP error"
            raise self._refused(what, seen) from None
        except requests.RequestException as error:
            raise self._refused(what, type(error).__name__) from None

    def _refused(self, what: str, seen: str) -> TryAgainError:
        return TryAgainError(
            f"{self._settings['url']}: the DICOM node does not {what}.", seen=seen, expected="DICOMweb (QIDO-RS and WADO-RS)",
            do="check url, user, password and token in the schedule file, and the network",
        )  # fmt: skip


def dates(today: datetime.date, days: int) -> dict[str, str]:
    """Return the range of study dates as a QIDO-RS filter."""
    first = today - datetime.timedelta(days=days)
    return {"StudyDate": f"{first:%Y%m%d}-{today:%Y%m%d}"}


def _study(dataset: Mapping[str, Any]) -> Study:
    return Study(name=_value(dataset, STUDY_UID), content=_value(dataset, NUM_INSTANCES))


def _value(dataset: Mapping[str, Any], tag: str) -> str:
    values = (dataset.get(tag) or {}).get("Value") or [""]
    return str(values[0])
