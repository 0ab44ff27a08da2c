"""All checks of the ECG recordings of a cohort: each record read, its beats found, and one lead in the whole cohort."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.cohort import CaseEntry, Finding
from medweave_core.contracts.volume import Grid, ecg_channel
from medweave_core.errors import UsageError
from medweave_steps.check.cases import Examined
from medweave_steps.check.labels import NO_LABEL_OPTIONS, LabelOptions
from medweave_steps.check.targets import CohortTargets
from medweave_steps.io.cohort.channel_rules import ChannelRule
from medweave_steps.io.cohort.channel_selection import names_of_rules
from medweave_steps.io.cohort.discovery import patient_key_of
from medweave_steps.io.cohort.files import CARD_FILE
from medweave_steps.io.cohort.reference import RHYTHMS, Rows, choose_reference, read_reference
from medweave_steps.io.cohort.signals import RecordFile, find_data_without_header, find_records, sample_id
from medweave_steps.io.findings import FindingError, SeriesName, first_of, notice, refuse
from medweave_steps.io.geometry import affine_rows
from medweave_steps.io.signals.beats import BEATS, cut_beats, find_r_peaks, group_beats, sample_digest
from medweave_steps.io.signals.record import RATE_HZ, RecordHeader, read_header, read_signal
from medweave_steps.runtime.imports import require
from medweave_steps.runtime.pool import finished_cases
from medweave_steps.runtime.verb import StepContext


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJob:
    """The check of one record; it can be sent to another process.

    Attributes:
        channel: lead of the cohort; empty for a record without it.
        header: None where it cannot be read; `finding` then says why.
    """

    cohort: Path
    record: RecordFile
    channel: str
    header: RecordHeader | None
    finding: Finding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedRecord:
    """The result for one record.

    Attributes:
        samples: one for each group of five beats; a single one without entry where the record cannot be used.
        resampled_from: sampling rate in Hz, where it is not 300.
    """

    record: RecordFile
    samples: tuple[Examined, ...]
    resampled_from: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedSignals:
    """The result of checking the recordings of a cohort, and findings about all of them."""

    records: tuple[ExaminedRecord, ...]
    findings: tuple[Finding, ...]


def lead_of_rules(rules: Sequence[ChannelRule], options: LabelOptions) -> str:
    """Return the channel of the lead that --channels names, such as `ECG II`; empty without the option.

    Raises:
        UsageError: another form, or options of masks.
    """
    leads = [ecg_channel(name) for name in names_of_rules(rules)]
    if options != NO_LABEL_OPTIONS or len(leads) > 1 or "" in leads:
        raise UsageError(
            "--labels, --merge-labels and --ignore-label apply to volumes, and the cohort has ECG recordings.",
            expected="none of these options, and at most one lead with --channels, such as [{name: II}]",
        )
    return leads[0] if leads else ""


def examine_signals(
    cohort: Path,
    names: Sequence[str],
    numbers: Mapping[str, int],
    context: StepContext,
    *,
    has_public_names: bool,
    lead: str = "",
) -> ExaminedSignals:
    """Read and check every record.

    Args:
        names: files of the cohort, sorted.
        numbers: of each file in messages.
        has_public_names: as in `find_records`.
        lead: channel of --channels, such as `ECG II`; empty for the only lead of the recordings.
    """
    records = find_records(names, has_public_names=has_public_names)
    examined = _examine_records(cohort, records, context, lead)
    findings = _notices_of(examined)
    if strays := find_data_without_header(names):
        findings.append(
            refuse(
                "data-without-header", f"{len(strays)} data files have no header (.hea).",
                seen=f"number {first_of([numbers[name] for name in strays])} of the files sorted by path",
                expected="a header of the same name next to each",
                do="add the headers, remove the files, or use --on-error skip",
            ).finding
        )  # fmt: skip
    return ExaminedSignals(records=tuple(examined), findings=tuple(findings))


def _examine_records(
    cohort: Path, records: Sequence[RecordFile], context: StepContext, lead: str
) -> list[ExaminedRecord]:
    require("wfdb.processing", extra="signals")  # once, before processes are forked
    require("scipy.signal", extra="signals")
    headers = [_header(cohort, record) for record in records]
    channel = lead or _usual_lead([one for one in headers if isinstance(one, RecordHeader)])
    jobs = [
        RecordJob(
            cohort=cohort, record=record, channel=channel, header=one if isinstance(one, RecordHeader) else None,
            finding=one if isinstance(one, Finding) else None,
        )
        for record, one in zip(records, headers, strict=True)
    ]  # fmt: skip
    progress = context.progress(unit="recording", total=len(jobs), is_quick=True)
    examined = []
    for done in finished_cases(examine_record, jobs, num_processes=context.num_threads):
        examined.append(done)
        count = len(done.samples)
        samples = f"{done.record.name}, {count} {'sample' if count == 1 else 'samples'}"
        progress.step(samples if done.samples[0].entry else done.samples[0].line)
    return sorted(examined, key=lambda done: done.record.name.ordinal)


def examine_record(job: RecordJob) -> ExaminedRecord:
    """Read one lead, find its beats, and return its samples, or the error about the record."""
    name, header = job.record.name, job.header
    try:
        if header is None:
            assert job.finding is not None
            raise FindingError(job.finding)
        signal = read_signal(header, job.channel, name)
        groups = group_beats([int(peak) for peak in find_r_peaks(signal)], len(signal))
        if not groups:
            raise _too_few_beats(name, len(signal) / RATE_HZ)
    except FindingError as error:
        return ExaminedRecord(record=job.record, samples=(Examined(name=name, findings=[error.finding]),))
    folder = PurePosixPath(job.record.file).parent
    files = (job.record.file, *((folder / file).as_posix() for file in header.data_files))
    size = sum((job.cohort / file).stat().st_size for file in files)
    grid = Grid(shape=(header.num_samples or len(signal), 1, 1), affine=affine_rows(np.eye(4)))
    samples = []
    for number, beats in enumerate(groups):
        own = dataclasses.replace(name, case_id=sample_id(name.case_id, number))
        entry = CaseEntry(
            case_id=own.case_id, series_ordinal=name.ordinal, patient_key=patient_key_of(f"recording {job.record.file}"),
            source_format="wfdb", files=files, ground_truth=None, grid=grid, fixed_split=None,
            content_sha256=sample_digest(cut_beats(signal, beats)), channels=(job.channel,), beats=beats,
        )  # fmt: skip
        samples.append(Examined(name=own, entry=entry, recording=name.case_id, bytes_read=0 if number else size))
    resampled = None if header.rate_hz == RATE_HZ else header.rate_hz
    return ExaminedRecord(record=job.record, samples=tuple(samples), resampled_from=resampled)


def _notices_of(examined: Sequence[ExaminedRecord]) -> list[Finding]:
    """Return a notice about the recordings that are resampled, and about patients."""
    rates = Counter(one.resampled_from for one in examined if one.resampled_from is not None)
    findings = [
        notice(
            "no-patient-id",
            "each recording counts as one patient: WFDB records do not name patients.",
            do="list the recordings of a patient in one split of splits.json, if patients have several",
        )
    ]
    if rates:
        number = sum(rates.values())
        what = f"{number} {'recording is' if number == 1 else 'recordings are'} resampled to {RATE_HZ} Hz."
        seen = ", ".join(f"{count} at {rate:g} Hz" for rate, count in sorted(rates.items()))
        findings.append(notice("resampled", what, seen=seen))
    return findings


def reference_targets(
    cohort: Path,
    names: Sequence[str],
    examined: Sequence[ExaminedRecord],
    declared: tuple[ImageClass, ...],
    *,
    table: Path | None,
    selected: tuple[str, ...],
) -> CohortTargets:
    """Apply REFERENCE.csv, or the table of --targets, as `apply_reference`.

    Args:
        names: files of the cohort.
        table: of --targets.
    Raises:
        UsageError: there is no such file.
    """
    name = choose_reference(names) if table is None else None
    path = table if name is None else cohort / name
    if path is None:
        what = "the cohort has no REFERENCE.csv: its recordings can be classified, but not used for training."
        return CohortTargets(findings=(notice("no-targets", what),))
    if not path.is_file():
        raise UsageError("--targets is not an existing file.", expected="a table of references", do="correct the path")
    return apply_reference(read_reference(path), examined, declared, selected=selected)


def apply_reference(
    rows: Rows, examined: Sequence[ExaminedRecord], declared: tuple[ImageClass, ...], *, selected: tuple[str, ...] = ()
) -> CohortTargets:
    """Give the samples of each recording the label of the recording; return the classes of the cohort.

    Args:
        rows: of REFERENCE.csv.
        declared: classes of the cohort card; without any, the labels of the PhysioNet/CinC Challenge 2017.
        selected: classes of --classes; empty for all.
    Raises:
        UsageError: `selected` has a name that is no class.
    """
    declared = declared or RHYTHMS
    known = [one.name for one in declared]
    if unknown := [name for name in selected if name not in known]:
        raise UsageError("--classes names an unknown class.", seen=f"'{unknown[0]}'", expected=first_of(known))
    by_record: dict[str, list[ExaminedRecord]] = {}
    for one in examined:
        by_record.setdefault(one.record.record, []).append(one)
    labels: dict[str, str] = {}
    wrong: dict[str, list[int]] = {"label": [], "record": [], "twice": []}
    for number, record, label in rows:
        wrong["label"] += [number] * (label not in known)
        wrong["record"] += [number] * (len(by_record.get(record, ())) != 1)
        wrong["twice"] += [number] * (labels.setdefault(record, label) != label)
    left_out = set()
    for one in examined:
        label = labels.get(one.record.record, "")
        for sample in one.samples:
            if sample.entry is not None and label in known:
                sample.entry = dataclasses.replace(sample.entry, classes=(label,))
            if selected and label not in selected:
                left_out.add(sample.name.case_id)
    without = [str(one.record.name) for one in examined if one.record.record not in labels]
    used = [name for name in selected or known if name in labels.values()]
    readable = {
        labels.get(one.record.record) for one in examined if any(sample.entry is not None for sample in one.samples)
    }
    present = [name for name in used if name in readable]
    findings = _reference_findings(wrong, without, known, num_records=len(examined))
    if len(present) == 1:
        what = "the selected recordings have only one class: they can be classified, but not used for training."
        do = "add recordings of another class before training"
        findings.append(notice("one-class", what, seen=present[0], do=do))
    return CohortTargets(
        classes=tuple(one for one in declared if one.name in used),
        findings=tuple(findings),
        rule="REFERENCE.csv: the label of a recording is the class of its samples of five heartbeats",
        left_out=frozenset(left_out),
    )


def _reference_findings(
    wrong: Mapping[str, Sequence[int]], without: Sequence[str], known: Sequence[str], *, num_records: int
) -> list[Finding]:
    table = "the table of references (REFERENCE.csv)"
    errors = []
    if wrong["label"]:
        errors.append(
            refuse(
                "unknown-label", f"{len(wrong['label'])} rows of {table} have an unknown label.",
                seen=f"row {first_of(wrong['label'])}", expected=f"a label of {', '.join(known)}",
                do=f"correct the table, or declare the labels in 'classes' of {CARD_FILE}",
            )
        )  # fmt: skip
    if wrong["record"]:
        errors.append(
            refuse(
                "rows-without-case", f"{len(wrong['record'])} rows of {table} do not name one recording.",
                seen=f"row {first_of(wrong['record'])}", expected="the name of one record (.hea) in each row",
                do="add the recordings, correct the table, or use --on-error skip: such rows are then ignored",
            )
        )  # fmt: skip
    if wrong["twice"]:
        errors.append(
            refuse(
                "two-targets", f"{len(wrong['twice'])} rows of {table} give a recording a second label.",
                seen=f"row {first_of(wrong['twice'])}", expected="one label for each recording", do="correct the table",
            )
        )  # fmt: skip
    if without:
        errors.append(
            refuse(
                "cases-without-row", f"{len(without)} of {num_records} recordings have no row in {table}.",
                seen=first_of(without), expected="a row for each recording",
                do="add the rows, remove the recordings, or use --on-error skip: such recordings then have no class",
            )
        )  # fmt: skip
    return [error.finding for error in errors]


def _header(cohort: Path, record: RecordFile) -> RecordHeader | Finding:
    try:
        return read_header(cohort / record.file, record.name)
    except FindingError as error:
        return error.finding


def _usual_lead(headers: Sequence[RecordHeader]) -> str:
    """Return the lead that most recordings have.

    Raises:
        FindingError: recordings have several leads of an ECG.
    """
    leads = Counter(lead for header in headers for lead in set(header.channels) if lead)
    if any(sum(lead != "" for lead in header.channels) > 1 for header in headers):
        raise refuse(
            "several-leads", "the recordings have several leads.", seen=first_of(sorted(leads)), expected="one lead",
            do="name the lead with --channels: a file with [{name: II}]",
        )  # fmt: skip
    return max(sorted(leads), key=lambda lead: leads[lead], default="ECG")


def _too_few_beats(name: SeriesName, seconds: float) -> FindingError:
    return name.refuse(
        "too-few-beats",
        f"fewer than {BEATS} heartbeats were found.",
        seen=f"no {BEATS} beats with a whole window in {seconds:.1f} s",
        expected=f"at least {BEATS} beats",
        do="leave the recording out with --on-error skip",
    )
