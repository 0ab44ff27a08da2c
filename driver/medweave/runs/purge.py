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

DESCRIPTION = """\
Remove the data of one case from all runs of a folder:

  - folders of these runs at the sites, scratch folders on this machine, and unshared files in the site stores
  - all cache entries of all cases
  - the links from pseudonyms to files, unless a run is running
  - the part of the case in reports, each file with pictures of the case, and its id in event logs

The runs stay. `medweave report` writes their HTML reports again. The command does not touch the cohort or the
delivered results (--outdir). It lists the models that were trained with the case."""
EPILOG = """\
example:
  medweave purge case-3f2a9c01 --runs runs

exit codes:
  0   all data of the case was removed
  2   wrong usage
  65  no such folder
  75  something could not be removed; run the command again"""
CASE = re.compile(r"case-[0-9a-f]{8}")
PURGED = "case-purged"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `medweave purge`."""
    parser.add_argument("case", metavar="CASE", help="case id, as in reports: case- and 8 hexadecimal digits")
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("runs"),
        metavar="FOLDER",
        help="folder that contains the run folders (default: runs)",
    )
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="StreamFlow file of the runs (default: streamflow.yml in a run folder, else next to the runs folder)",
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
            "invalid case id.",
            seen=case,
            expected="case- and 8 hexadecimal digits",
            do="find the case id in the report of the run or in cohort_index.json",
        )
    if not folder.is_dir():
        raise UserInputError(
            "the folder of runs does not exist.",
            seen=str(folder),
            expected="a folder that contains run folders",
            do="change to the folder where the runs were started, or use --runs FOLDER",
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
        print("cache entries: removed, of all cases")
    if known and all(cleaning_error(record) is None for record in records) and forget_links(folder):
        print(
            "links from pseudonyms to the paths in job files: removed, of all cases; the next run creates "
            "those that it needs"
        )
    print(f"{len(known)} of {len(records)} runs had data of {case}")
    names = {record.run_id for record, _ in known}
    unsure = [record for record in records if record.run_id not in names and _may_hold_more(record)]
    if unsure:
        raise TryAgainError(
            "some unfinished runs may hold data of this case.",
            seen=", ".join(record.run_id for record in unsure),
            expected="runs that completed, recorded their cases, or were cleaned",
            do=f"run `medweave clean {unsure[0].folder}` after the run has ended, and the same for the other runs",
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
            yield f"{inside}: case id removed"
        elif data is None or case in str(inside) or _is_about(data, case):
            path.unlink()
            yield f"{inside} removed"
        else:
            write_atomically(path, json.dumps(without(data, case), indent=2, ensure_ascii=False) + "\n")
            yield f"{inside}: case entries removed"
    for path in sorted(record.folder.rglob(f"*{case}*")):
        shutil.rmtree(path, ignore_errors=True)  # only folders are left here
    for split in sorted(splits):
        yield (
            f"the model of this run was trained with this case ({split}): train another model without it, or "
            "withdraw this model"
        )


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
