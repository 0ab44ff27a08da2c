"""BIDS-like folders in the output: names of subjects and sessions by pseudonyms, and the tables without personal data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from medweave_core.contracts.labels import Label
from medweave_steps.deidentify.participants import Kind, write_participants, write_table
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.deidentify.scan_words import is_scan_word
from medweave_steps.io.cohort.bids import GADOLINIUM_CHANNEL, subject_and_session
from medweave_steps.io.cohort.bids_tables import LABEL_TABLE, PARTICIPANTS_FILE
from medweave_steps.io.cohort.listed import ListedCase, ListedCohort
from medweave_steps.io.findings import refuse

_DESCRIPTION_FILE = "dataset_description.json"
_DERIVATIVE = "derivatives/masks"
_DIGITS = 12
# Suffixes of anat in BIDS 1.9 that are no words of `scan_words`.
_LISTED = """
    T1map T1rho T2map T2starw T2starmap R1map R2map R2starmap PDmap PDT2 UNIT1 inplaneT1 inplaneT2 angio VFA IRT1 MESE MEGRE MPM
    MTS MTR MTRmap MTsat MTVmap MWFmap Chimap M0map S0map
"""
_SUFFIXES = frozenset(_LISTED.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class BidsNames:
    """The names of a case of subject and session.

    Attributes:
        subject: folder of the subject, `sub-` and a pseudonym.
        session: folder of the session; empty where the source names none.
    """

    subject: str
    session: str

    @classmethod
    def of(cls, case: ListedCase, pseudonyms: Pseudonyms) -> BidsNames:
        """Return the names of a case; one without any file has no session."""
        label, session = _subject_and_session(case)
        return cls(
            subject=f"sub-{pseudonyms.token('subject', label, digits=_DIGITS)}",
            session=f"ses-{pseudonyms.token('session', f'{label}/{session}', digits=_DIGITS)}" if session else "",
        )

    @property
    def title(self) -> str:
        """Return the beginning of file names: subject and session."""
        return "_".join(filter(None, (self.subject, self.session)))

    def image(self, channel: str, suffix: str) -> str:
        """Return the path of the file of a channel."""
        name, _, agent = channel.partition("_ce-")
        if channel == GADOLINIUM_CHANNEL:
            name, agent = "T1w", "gadolinium"
        return f"{self._folder}/{self.title}{f'_ce-{agent}' if agent else ''}_{name}{suffix}"

    def mask(self, suffix: str) -> str:
        """Return the path of the mask."""
        return f"{_DERIVATIVE}/{self._folder}/{self.title}_dseg{suffix}"

    @property
    def _folder(self) -> str:
        return "/".join(filter(None, (self.subject, self.session, "anat")))


def bids_title(case: ListedCase) -> str:
    """Return subject and session of a case of the source, as its file names begin."""
    subject, session = _subject_and_session(case)
    return f"sub-{subject}" + (f"_ses-{session}" if session else "")


def described_files(names: Sequence[str]) -> list[str]:
    """Return the tables and descriptions of a BIDS folder that are rewritten."""
    own = {PARTICIPANTS_FILE, _DESCRIPTION_FILE}
    return [name for name in names if name in own or name.endswith(LABEL_TABLE)]


def check_suffixes(listed: ListedCohort) -> None:
    """Check that the channels are contrasts: suffixes become file names of the output, and free text may be a name.

    Raises:
        FindingError: another suffix, or another contrast agent.
    """
    channels = listed.cases[0].channels if listed.cases else ()
    unknown = [channel for channel in channels if not _is_contrast(channel)]
    if unknown:
        raise refuse(
            "unknown-suffix",
            "file names in anat/ end with words that are no known contrasts: they may be names.",
            seen=f"{len(unknown)} of {len(channels)} channels",
            expected="suffixes of BIDS such as T1w, T2w, FLAIR; ce-gadolinium or the name of another contrast agent",
            do="rename the files",
        )


def write_bids_tables(
    source: Path,
    output: Path,
    subjects: Mapping[str, str],
    labels: Sequence[Label],
    kinds: Mapping[str, Kind],
    *,
    retain: bool,
) -> list[str]:
    """Write dataset_description.json, participants.tsv where the source has one, and the table of labels.

    Args:
        subjects: label of each written subject in the source to its folder in the output.
        labels: those that the source declares for its masks.
        kinds: columns of participants.tsv to keep.
        retain: keep age, weight, height and sex.
    Returns:
        a notice about columns of participants.tsv that were dropped.
    """
    description = {"Name": "de-identified", "BIDSVersion": "1.9.0", "DatasetType": "raw"}
    (output / _DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    if labels and (output / _DERIVATIVE).is_dir():
        rows = [["0", "background"], *([str(label.value), label.name[:64]] for label in labels)]
        write_table(output / _DERIVATIVE / LABEL_TABLE, [["index", "name"], *rows])
    if not (source / PARTICIPANTS_FILE).is_file():
        return []
    names = {name: folder for label, folder in subjects.items() for name in (label, f"sub-{label}")}
    return write_participants(source, output, names, kinds, retain=retain)


def _is_contrast(channel: str) -> bool:
    name, _, agent = channel.partition("_ce-")
    return (name in _SUFFIXES or is_scan_word(name)) and (not agent or is_scan_word(agent))


def _subject_and_session(case: ListedCase) -> tuple[str, str]:
    return subject_and_session(case.files[0]) if case.files else (case.patient.removeprefix("subject "), "")
