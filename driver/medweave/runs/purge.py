"""`medweave purge CASE`: all that the runs of a folder keep about one case is removed, at their sites and on this machine."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from medweave.project.run_files import file_of
from medweave.runs.clean import clean, refusal, remove_scratch
from medweave.project.files import write_atomically
from medweave_core.runlog.history import LOG_FILE, Run, read_run
from medweave_connectors.policy.pseudonym_home import forget_links
from medweave_core.runlog.run_folder import WORK
from medweave_connectors.cache.session import forget_all
from medweave_core.errors import TryAgainError, UsageError, UserInputError

DESCRIPTION = (
    "Removes what the runs of a folder keep about one case: their folders at the sites and their scratch here, what the sites'\n"
    "stores have and no other run uses (it may be the case's), all that is kept for reuse by later runs, the links by which\n"
    "pseudonyms lead back to files (unless a run goes on), the case's part of the steps' reports, every file with its pictures,\n"
    "and its name in event logs. The runs stay, and `medweave report` makes their pages again. Not touched: the cohort, and\n"
    "what runs have delivered (--outdir). Models that were trained with the case are named."
)
CASE = re.compile(r"case-[0-9a-f]{8}")
PURGED = "case-purged"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Arguments of `medweave purge`."""
    parser.add_argument(
        "case", metavar="CASE", help="id of the case, as reports have it: case- and 8 hexadecimal digits"
    )
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="folder of the runs (default: runs)"
    )
    parser.add_argument(
        "--file", type=Path, default=None, metavar="FILE",
        help="the streamflow.yml of the runs (default: the one in a run's folder, else that beside the folder of runs)",
    )  # fmt: skip


def run(namespace: argparse.Namespace) -> int:
    """Purges, and prints what was there.

    Raises:
        UsageError: this is no id of a case.
        UserInputError: no folder of runs, or a run that knows the case goes on.
        TryAgainError: a site could not be reached, or a run has left files and nobody knows of which cases.
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
    known = _knowing(records, case)
    for record, files in known:
        print(f"{record.run_id}:")
        if record.state == "completed" and not record.transfers and not _kept_at_sites(record):
            remove_scratch(record)
        else:
            for line in clean(record, namespace.file or file_of(record.folder)):
                print(f"  {line}")
        for line in _forget(record, case, files):
            print(f"  {line}")
    if known and forget_all(folder):  # nobody can tell which of its files are the case's
        print("what steps have written was kept for reuse by later runs: removed, of all cases")
    if known and all(refusal(record) is None for record in records) and forget_links(folder):
        print(
            "links to what job files named, the way back from its pseudonyms: removed, of all; a run makes those that it needs"
        )
    print(f"{len(known)} of {len(records)} runs knew {case}")
    names = {record.run_id for record, _ in known}
    unsure = [record for record in records if record.run_id not in names and _may_hold_more(record)]
    if unsure:
        raise TryAgainError(
            "some runs have left data of cases that they did not know yet.",
            seen=", ".join(record.run_id for record in unsure),
            expected="runs that completed, told their cases, or were cleaned",
            do=f"medweave clean {unsure[0].folder} (when it has ended), and the same for the others",
        )
    return 0


def _knowing(records: Sequence[Run], case: str) -> list[tuple[Run, list[Path]]]:
    """The runs that know the case, with the files that name it.

    Raises:
        UserInputError: one of them goes on.
        TryAgainError: another run goes on with its jobs.
    """
    known = []
    for record in records:
        refused = refusal(record)  # before its files are read: a run that ends meanwhile has written more
        files = list(_naming(record.folder, case))
        if files and refused is not None:
            raise refused
        if files:
            known.append((record, files))
    return known


def _kept_at_sites(record: Run) -> bool:
    """Whether a site may have kept what a step has written there."""
    return any("place" in job.parts for job in record.jobs)


def _may_hold_more(record: Run) -> bool:
    """Whether it has left files here or at sites, and nobody knows of which cases."""
    return record.state != "completed" and (record.folder / WORK).exists() and not any(_case_rows(record))


def _naming(folder: Path, case: str) -> Iterator[Path]:
    """The files of a run that name the case, or hold something of it. Its scratch goes as a whole."""
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
        shutil.rmtree(path, ignore_errors=True)  # of files only their folders are left
    for split in sorted(splits):
        yield f"the model of this run has seen the case ({split}): train another without it, or withdraw this one"


def _case_rows(record: Run) -> Iterator[Any]:
    for job in record.jobs:
        yield from (row for row in (job.report.cases if job.report else ()) if "case_id" in row)


def without(value: Any, case: str) -> Any:
    """The same JSON without the objects and entries that are about the case; where a text names it, the name goes."""
    if isinstance(value, dict):
        return {key: without(item, case) for key, item in value.items() if key != case and not _is_about(item, case)}
    if isinstance(value, list):
        return [without(item, case) for item in value if not _is_about(item, case)]
    return value.replace(case, PURGED) if isinstance(value, str) else value


def _is_about(value: Any, case: str) -> bool:
    return value == case or (isinstance(value, dict) and value.get("case_id") == case)
