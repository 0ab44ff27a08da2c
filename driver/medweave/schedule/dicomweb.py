"""New studies of a DICOM node by DICOMweb. No message tells a UID."""

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
    """A node.

    Args:
        settings: of the schedule's file.
        where: its place there, for messages.
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
        )  # ms; the next firing asks again, too

    def look(self) -> Sequence[Study]:
        """Its studies of the last days. A node does not tell since when one has not changed.

        Raises:
            TryAgainError: it does not answer, or refuses.
        """
        filters = dates(datetime.date.today(), self._settings["lastDays"])
        if self._settings.get("modality"):
            filters["ModalitiesInStudy"] = self._settings["modality"]
        # By its study, each once: studies may come between two pages. The client's own way through the pages does not end where a
        # node answers the same again.
        found: dict[str, Study] = {}
        while True:
            with self._asking("list its studies"):
                page = self._node.search_for_studies(
                    search_filters=filters, fields=["NumberOfStudyRelatedInstances"], limit=PAGE, offset=len(found)
                )
            known = len(found)
            found |= {each.name: each for each in map(_study, page) if each.name}
            if len(page) < PAGE or len(found) == known:
                return list(found.values())

    def fetch(self, study: Study, into: Path) -> None:
        """Writes its instances as they are stored there.

        Raises:
            TryAgainError: the node does not answer, or gives fewer than it has told.
        """
        number = 0
        with self._asking("give a study"):
            for number, instance in enumerate(self._node.iter_study(study.name, media_types=AS_STORED), start=1):
                instance.save_as(into / f"{number:06}.dcm", enforce_file_format=True)
        if study.content and number < int(study.content):
            raise TryAgainError(
                f"{self._settings['url']}: a study came incomplete.", seen=f"{number} instances",
                expected=f"{study.content}, as the node has told", do="nothing: the next firing asks again",
            )  # fmt: skip

    def finish(self, studies: Sequence[Study]) -> None:
        """What was run stays there."""

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        try:
            yield
        except requests.HTTPError as error:  # its own text has the URL, and so the UID
            seen = f"HTTP {error.response.status_code}" if error.response is not None else "an HTTP error"
            raise self._refused(what, seen) from None
        except requests.RequestException as error:
            raise self._refused(what, type(error).__name__) from None

    def _refused(self, what: str, seen: str) -> TryAgainError:
        return TryAgainError(
            f"{self._settings['url']}: the DICOM node does not {what}.", seen=seen, expected="DICOMweb (QIDO-RS and WADO-RS)",
            do="check url, user, password and token of the schedule's file, and the way there",
        )  # fmt: skip


def dates(today: datetime.date, days: int) -> dict[str, str]:
    """The range of dates of studies, as QIDO-RS takes it."""
    first = today - datetime.timedelta(days=days)
    return {"StudyDate": f"{first:%Y%m%d}-{today:%Y%m%d}"}


def _study(found: Mapping[str, Any]) -> Study:
    return Study(name=_value(found, STUDY_UID), content=_value(found, NUM_INSTANCES))


def _value(found: Mapping[str, Any], tag: str) -> str:
    values = (found.get(tag) or {}).get("Value") or [""]
    return str(values[0])
