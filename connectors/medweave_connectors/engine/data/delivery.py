"""Results whose destination has the results of an earlier run, or of a driver that was killed."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.policy.transfer_rules import delivers
from medweave_connectors.runlog import current
from medweave_connectors.transfer.manifest import manifest
from medweave_connectors.transfer.manifest.manifest import ManifestError
from medweave_connectors.transfer.shell_commands import OLD, staging_name
from medweave_core.runlog.log_state import driver_lives

Run = Callable[[ExecutionLocation, list[str]], Awaitable[tuple[str, int]]]
LOGS = "*/events.jsonl"


class OutputDelivery:
    """The results of one run on the driver's machine."""

    def __init__(self, run: Run) -> None:
        """Create the delivery.

        Args:
            run: runs a command at a location and returns its output and exit code.
        """
        self._run = run
        self._cleared: set[Path] = set()

    async def is_delivered(
        self, source: ExecutionLocation, path: str, destinations: Sequence[ExecutionLocation], destination: str
    ) -> bool:
        """Return whether the destination already has a result of the workflow: a folder with the same content.

        StreamFlow copies a folder into an existing one of its name. Staging folders of a killed driver are removed.
        """
        if not delivers() or not all(location.local for location in destinations):
            return False
        self._clear(Path(destination).parent)
        if not Path(destination).is_dir():
            return False
        here = destinations[0]
        try:
            delivered, expected = [
                manifest.parse((await self._run(location, manifest.command(folder)))[0])
                for location, folder in ((here, destination), (source, path))
            ]
        except ManifestError:
            return False
        return not expected.difference(delivered)

    def _clear(self, folder: Path) -> None:
        """Remove old staging folders, once per run and before its first delivery; not while another driver may use them."""
        run = current()
        if run is None or folder in self._cleared:
            return
        self._cleared.add(folder)
        if not any(driver_lives(log) for log in run.folder.parent.glob(LOGS) if log.parent != run.folder):
            for part in folder.glob(staging_name("*")):
                if _restored(part):
                    shutil.rmtree(part, ignore_errors=True)


def _restored(part: Path) -> bool:
    """Move earlier results back that a killed driver had moved aside, before the new ones were in their place.

    Returns:
        False where one could not be moved: it stays in the part.
    """
    aside = part / OLD
    for old in aside.iterdir() if aside.is_dir() else ():
        place = part.parent / old.name
        if not (place.exists() or place.is_symlink()):
            try:
                old.rename(place)
            except OSError:
                return False
    return True
