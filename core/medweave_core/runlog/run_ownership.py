"""Ownership of folders by runs: run ids, and the mark in each folder of a run.

A folder of a run is created exclusively, with a mark that contains the run id and a random token. Only a folder with a matching
mark is removed. Runs of older versions have no token, and their marks at sites are empty. A chosen id of such a run may name
an unrelated folder, so only generated ids count there.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from medweave_core.errors import UsageError

VARIABLE = "MEDWEAVE_RUN_ID"
TOKEN_VARIABLE = "MEDWEAVE_RUN_TOKEN"  # from `medweave run` to its engine: the token of the folder that it has created
RECORD_MARK = ".medweave-run-record"  # in runs/<run-id>
_RUN_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_GENERATED = re.compile(r"[^/\0]+-\d{8}-\d{6}-[0-9a-f]{4}")
_MOST_OF_WORKFLOW = 42  # characters; the time and the random part follow


def check_run_id(text: str, *, source: str) -> str:
    """Return the run id.

    Args:
        source: where it comes from, for the message.

    Raises:
        UsageError: the id is not a plain name: it could name a folder elsewhere, or of something else.
    """
    if _RUN_ID.fullmatch(text) is None:
        raise UsageError(
            f"{source}: invalid run id.",
            seen=repr(text[:80]),
            expected="1 to 64 letters, digits, '.', '_' and '-', starting with a letter, digit or '_'",
            do=f"choose another id, or unset {VARIABLE} to get a generated one",
        )
    return text


def new_run_id(workflow: str) -> str:
    """Return `MEDWEAVE_RUN_ID`, else `<workflow>-<UTC yyyymmdd-hhmmss>-<4 hex>`.

    Raises:
        UsageError: `MEDWEAVE_RUN_ID` is no plain name.
    """
    if requested := os.environ.get(VARIABLE):
        return check_run_id(requested, source=VARIABLE)
    moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    return f"{id_part(workflow)}-{moment}-{secrets.token_hex(2)}"


def id_part(workflow: str) -> str:
    """Return the name of a workflow as the first part of a run id."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", workflow)[:_MOST_OF_WORKFLOW].lstrip("-.") or "run"


@dataclass(frozen=True, slots=True)
class RunOwner:
    """A run as owner of folders.

    Attributes:
        token: random; empty for a run of an older version.
    """

    run_id: str
    token: str

    @property
    def mark(self) -> str:
        """Return the text of the mark in the run's folders; empty for a run of an older version."""
        return f"{self.run_id} {self.token}" if self.token else ""

    @property
    def is_certain(self) -> bool:
        """Return whether a folder with this name and mark certainly belongs to the run."""
        return bool(self.token) or is_generated(self.run_id)

    @property
    def process_key(self) -> str:
        """Return the mark of the run's jobs: a variable of local processes, the comment of Slurm jobs."""
        return f"{self.run_id}.{self.token}" if self.token else self.run_id


def recorded_owner(folder: Path, run_id: str) -> RunOwner:
    """Return the owner of an earlier run's folders, by its folder in a folder of runs and the id in its event log.

    Raises:
        UsageError: the id is no single name, so a folder with it is elsewhere.
    """
    if run_id in ("", ".", "..") or run_id.startswith((".", "-")) or "/" in run_id or not run_id.isprintable():
        raise UsageError(
            "the run id in the event log is not a valid folder name.",
            seen=repr(run_id[:80]),
            expected="one name, without '/'",
            do="remove the files of the run by hand; medweave removes nothing under such an id",
        )
    return owner_of(folder, run_id)


def is_generated(run_id: str) -> bool:
    """Return whether medweave generated an id: `<workflow>-<yyyymmdd-hhmmss>-<4 hex>`."""
    return _GENERATED.fullmatch(run_id) is not None


def claim_folder(folder: Path) -> RunOwner:
    """Create the folder of a run in a folder of runs, with its mark; its name is the run's id.

    Raises:
        UsageError: there is something of this name already.
    """
    owner = RunOwner(folder.name, secrets.token_hex(8))
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UsageError(
            f"a run or another file named '{owner.run_id}' exists already.",
            seen=f"{folder.name} in the runs folder",
            expected="a run id that is not in use: a run changes only what it created",
            do=f"unset {VARIABLE}, or choose another run id",
        ) from None
    (folder / RECORD_MARK).write_text(owner.mark, encoding="utf-8")
    return owner


def owner_of(folder: Path, run_id: str) -> RunOwner:
    """Return the owner in the mark of runs/<run-id>; without a token where there is no mark for it."""
    try:
        marked_id, _, token = (folder / RECORD_MARK).read_text(encoding="utf-8").partition(" ")
    except (OSError, UnicodeDecodeError):
        return RunOwner(run_id, "")
    return RunOwner(run_id, token if marked_id == run_id and token.isalnum() else "")


def claim_or_adopt(folder: Path) -> RunOwner:
    """Return the owner of this run's folder: the one that `medweave run` has created it for, else a new one, as `claim_folder`."""
    requested = os.environ.get(TOKEN_VARIABLE)
    owner = owner_of(folder, folder.name)
    return owner if requested and owner.token == requested else claim_folder(folder)
