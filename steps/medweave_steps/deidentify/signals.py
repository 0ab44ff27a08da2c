"""De-identification of a cohort of ECG recordings: new records with one lead's values only, under pseudonyms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medweave_core.contracts.cohort import Finding
from medweave_core.errors import UsageError
from medweave_steps.deidentify.describe import card_classes, read_description
from medweave_steps.deidentify.pseudonyms import Pseudonyms
from medweave_steps.deidentify.task import Deidentified, Task
from medweave_steps.io.cohort.files import CARD_FILE, has_public_file_names
from medweave_steps.io.cohort.reference import (
    REFERENCE_FILE,
    RHYTHMS,
    choose_reference,
    read_reference,
    write_reference,
)
from medweave_steps.io.cohort.signals import RecordFile, find_data_without_header, find_records
from medweave_steps.io.findings import FindingError, refuse
from medweave_steps.io.signals.record import RecordHeader, read_digital, read_header
from medweave_steps.io.signals.writer import write_record
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.verb import StepContext

FOLDER = "recordings"
_INT16 = np.iinfo(np.int16)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The result for one record; with a finding nothing was written."""

    record: RecordFile
    name: str
    finding: Finding | None = None
    had_more: bool = False


def deidentify_signals(task: Task, context: StepContext, names: Sequence[str]) -> Deidentified:
    """Write the records and REFERENCE.csv, but not the card and the splits.

    Record names, dates, comments and leads that are no ECG are not written. Sampling rate, gain and values do not change.

    Args:
        names: files of the cohort, sorted; at least one header of a WFDB record.
    """
    if task.brain_masks is not None:
        raise UsageError(
            "--brain-masks applies to scans, and the cohort has ECG recordings.", expected="no brain masks"
        )
    require("wfdb.io", extra="signals")
    card = read_description(task.cohort / CARD_FILE)
    records = find_records(names, has_public_names=has_public_file_names(card))
    pseudonyms = Pseudonyms(task.key)
    (task.output / FOLDER).mkdir()
    progress = context.progress(unit="recording", total=len(records), is_quick=True)
    written = []
    for record in records:
        name = f"ecg-{pseudonyms.token('recording', record.file, digits=12)}"
        done = _write(task, record, name)
        written.append(done)
        progress.step(f"{done.name}{', ' + done.finding.code if done.finding else ''}")
    result = Deidentified(findings=[one.finding for one in written if one.finding])
    usable = [one for one in written if not one.finding]
    result.files = {one.record.file: f"{FOLDER}/{one.name}.hea" for one in usable}
    result.num_patients = len(usable)
    result.actions["metadata-removed"] += sum(one.had_more for one in usable)
    result.case_ids = {one.name: 2 for one in usable}
    result.faces = dict.fromkeys(result.case_ids, "absent")
    result.new_ids = {one.record.name.case_id: "" if one.finding else one.name for one in written}
    result.left_aside["data-without-header"] += len(find_data_without_header(names))
    _write_reference(task, names, usable, result)
    return result


def _write(task: Task, record: RecordFile, name: str) -> _Written:
    """Write one record; its file holds the values of its ECG leads alone."""
    try:
        header = read_header(task.cohort / record.file, record.name)
        channels = [channel for channel in header.channels if channel]
        if len(channels) != 1:
            raise _one_lead(record, len(channels))
        digital, gain, baseline = read_digital(header, channels[0], record.name)
    except FindingError as error:
        return _Written(record=record, name=name, finding=error.finding)
    if digital.min() < _INT16.min or digital.max() > _INT16.max:
        return _Written(record=record, name=name, finding=_wide(record).finding)
    write_record(
        task.output / FOLDER, name, digital.astype(np.int16), rate_hz=header.rate_hz, gain=gain, baseline=baseline,
        lead=channels[0].replace(" ", "-"),
    )  # fmt: skip
    return _Written(record=record, name=name, had_more=_has_more(header))


def _has_more(header: RecordHeader) -> bool:
    """Return whether a header has comments, a date or a time, which are not written."""
    record = header.record
    return bool(record.comments) or record.base_date is not None or record.base_time is not None


def _write_reference(task: Task, names: Sequence[str], usable: Sequence[_Written], result: Deidentified) -> None:
    """Write the labels of the written records under their new names; an unknown label may be other text about a patient.

    Raises:
        FindingError: the table cannot be read, or has labels that are neither declared nor those of the public data set.
    """
    path = choose_reference(names)
    if path is None:
        return
    known = {one.name for one in card_classes(read_description(task.cohort / CARD_FILE)) or RHYTHMS}
    counts = Counter(one.record.record for one in usable)
    new_names = {one.record.record: one.name for one in usable if counts[one.record.record] == 1}
    rows = read_reference(task.cohort / path)
    wrong = [number for number, _, label in rows if label not in known]
    if wrong:
        raise refuse(
            "unknown-label", f"{len(wrong)} rows of the table of references (REFERENCE.csv) have an unknown label.",
            seen=f"row {wrong[0]}", expected="labels of the PhysioNet/CinC Challenge 2017, or declared classes",
            do=f"correct the table, or declare the labels in 'classes' of {CARD_FILE}",
        )  # fmt: skip
    labels = {new_names[record]: label for _, record, label in rows if record in new_names}
    write_reference(Path(task.output / FOLDER / REFERENCE_FILE), labels)
    result.files[path] = f"{FOLDER}/{REFERENCE_FILE}"


def _one_lead(record: RecordFile, number: int) -> FindingError:
    return record.name.refuse(
        "several-leads" if number else "missing-lead",
        f"the recording has {number} leads of an ECG.",
        seen=f"{number} leads",
        expected="one lead",
        do="export the recording with one lead, or leave it out with --on-error skip",
    )


def _wide(record: RecordFile) -> FindingError:
    return record.name.refuse(
        "wide-values",
        "the values of the recording need more than 16 bits.",
        seen="a format of 24 or 32 bits",
        expected=f"values from {_INT16.min} to {_INT16.max}",
        do="export the recording with 16 bits, or leave it out with --on-error skip",
    )
