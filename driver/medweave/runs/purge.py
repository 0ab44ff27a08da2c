"""`medweave purge CASE`: remove the data of one case from the runs of a folder, at their sites and on this machine."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medweave.project.files import write_atomically
from medweave.runs.clean import clean, cleaning_error, file_of, remove_scratch
from medweave_connectors.cache.session import delete_cache
from medweave_connectors.policy.pseudonym_home import forget_links
from medweave_core.errors import TryAgainError, UsageError, UserInputError
from medweave_core.runlog.history import LOG_FILE, Run, read_run
from medweave_core.runlog.run_folder import WORK

DESCRIPTION = (
    "Removes the data of one case from the runs of a folder: their folders at the sites and their scratch here, what the sites'\n"
    "stores have and no other run uses (it may be the case's), all entries of the cache, the links by which\n"
    "pseudonyms lead back to files (unless a run is running), the case's part of reports, every file with its pictures,\n"
    "and its name in event logs. The runs stay, and `medweave report` makes their pages again. Not touched: the cohort, and\n"
    "what runs have delivered (--outdir). Models that were trained with the case are named."
)
CASE = re.compile(r"case-[0-9a-f]{8}")
PURGED = "case-purged"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave purge`."""
    parser.add_argument(
        "case", metavar="CASE", help="id of the case, as reports have it: case- and 8 hexadecimal digits"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of the runs (default: runs)"
    )
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="the streamflow.yml of the runs (default: the one in a run's folder, else the one next to the folder of runs)",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Purge the case and print the removed files.

    Raises:
        UsageError: CASE is not the id of a case.
        UserInputError: no folder of runs, or a run that has data of the case is running.
        TryAgainError: a site could not be reached, or a run has left files of unknown cases.
    """
    case, folder = namespace.case, namespace.runs
    if CASE.fullmatch(case) is None:
        raise UsageError(
            "this is no id of a case.",
            seen=case,
            expected="case- and 8 hexadecimal digits",
            do="look for it in the report of the run, or in cohort_index.json",
        )
    if not folder.is_dir():
        raise UserInputError(
            "there is no folder of runs.",
            seen=str(folder),
            expected="a folder with one folder per run",
            do="name it: --runs FOLDER",
        )
    records = [read_run(log.parent) for log in sorted(folder.glob(f"*/{LOG_FILE}"))]
    known = _runs_with_case(records, case)
    for record, files in known:
        print(f"{record.run_id}:")
        if record.state == "completed" and not record.transfers and not _may_have_site_data(record):
            remove_scratch(record)
        else:
            for line in clean(record, namespace.file or file_of(record.folder)):
                print(f"  {line}")
        for line in _forget(record, case, files):
            print(f"  {line}")
    if known and delete_cache(folder):  # which of its files belong to the case is not recorded
        print("cache entries of earlier steps: removed, of all cases")
    if known and all(cleaning_error(record) is None for record in records) and forget_links(folder):
        print(
            "links from pseudonyms to the paths in job files: removed, of all cases; a run creates those that it needs"
        )
    print(f"{len(known)} of {len(records)} runs had data of {case}")
    names = {record.run_id for record, _ in known}
    unsure = [record for record in records if record.run_id not in names and _may_hold_more(record)]
    if unsure:
        raise TryAgainError(
            "some runs have left data of cases that are not recorded yet.",
            seen=", ".join(record.run_id for record in unsure),
            expected="runs that completed, recorded their cases, or were cleaned",
            do=f"medweave clean {unsure[0].folder} (when it has ended), and the same for the others",
        )
    return 0


def _runs_with_case(records: Sequence[Run], case: str) -> list[tuple[Run, list[Path]]]:
    """Return the runs that have data of the case, with the files that name it.

    Raises:
        UserInputError: one of them is running.
        TryAgainError: another run has re-attached its jobs.
    """
    known = []
    for record in records:
        error = cleaning_error(record)  # before its files are read: a run that is just ending may still write
        files = list(_naming(record.folder, case))
        if files and error is not None:
            raise error
        if files:
            known.append((record, files))
    return known


def _may_have_site_data(record: Run) -> bool:
    """Return whether a site may store outputs of a step."""
    return any("place" in job.parts for job in record.jobs)


def _may_hold_more(record: Run) -> bool:
    """Return whether the run has left files of cases that its reports do not name."""
    return record.state != "completed" and (record.folder / WORK).exists() and not any(_case_rows(record))


def _naming(folder: Path, case: str) -> Iterator[Path]:
    """Yield the files of a run that contain the case's id, outside its scratch, which is removed as a whole."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if inside.parts[0] == WORK or not path.is_file():
            continue
        if case in str(inside) or case.encode() in path.read_bytes():
            yield path


def _forget(record: Run, case: str, files: Sequence[Path]) -> Iterator[str]:
    splits = {str(row.get("split")) for row in _case_rows(record) if row["case_id"] == case} & {"train", "validation"}
    for path in files:
        inside = path.relative_to(record.folder)
        data = json.loads(path.read_text(encoding="utf-8")) if path.suffix == ".json" else None
        if path.suffix == ".jsonl":
            write_atomically(path, path.read_text(encoding="utf-8").replace(case, PURGED))
            yield f"{inside}: its name removed"
        elif data is None or case in str(inside) or _is_about(data, case):
            path.unlink()
            yield f"{inside} removed"
        else:
            write_atomically(path, json.dumps(without(data, case), indent=2, ensure_ascii=False) + "\n")
            yield f"{inside}: its part removed"
    for path in sorted(record.folder.rglob(f"*{case}*")):
        shutil.rmtree(path, ignore_errors=True)  # only folders are left here
    for split in sorted(splits):
        yield f"the model of this run has seen the case ({split}): train another without it, or withdraw this one"


def _case_rows(record: Run) -> Iterator[Any]:
    for job in record.jobs:
        yield from (row for row in (job.report.cases if job.report else ()) if "case_id" in row)


def without(value: Any, case: str) -> Any:
    """Return JSON without the objects and entries of the case; its id is replaced in other texts."""
    if isinstance(value, dict):
        return {key: without(item, case) for key, item in value.items() if key != case and not _is_about(item, case)}
    if isinstance(value, list):
        return [without(item, case) for item in value if not _is_about(item, case)]
    return value.replace(case, PURGED) if isinstance(value, str) else value


def _is_about(value: Any, case: str) -> bool:
    return value == case or (isinstance(value, dict) and value.get("case_id") == case)
