"""Local cache lookup: reuse the outputs of an earlier job from the cache of the runs folder.

Does not import streamflow.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.cache.content import FOLDER_SIGN, tree
from medweave_connectors.cache.key import describe_value, key_parts
from medweave_connectors.cache.local_software import processor, software_of
from medweave_connectors.cache.session import CacheLookup, CacheSession, JobCommand
from medweave_connectors.host.environment import program_path


class LocalCacheLookup(CacheLookup):
    """Cache lookup of a job on this machine.

    Args:
        outputs: the job's output folder.
    """

    def __init__(
        self, session: CacheSession, job_name: str, inputs: Mapping[str, Any], *, allowed: bool, outputs: Path
    ) -> None:
        super().__init__(session, job_name, inputs, allowed=allowed)
        self._outputs, self._staged = outputs, dict[str, str]()

    async def compute_parts(self, command: JobCommand) -> tuple[dict[str, str], bytes]:
        """See `CacheLookup.compute_parts`; files are read in a thread."""
        return await asyncio.to_thread(self._parts, command)

    async def restore(self, key: str) -> str:
        """See `CacheLookup.restore`; files are hard links, and a changed entry counts as a miss."""
        if not self.session.store.has_entry(key):  # the usual miss: no thread for one row
            return ""
        record = await asyncio.to_thread(self.session.store.restore, key, self._outputs)
        return record.run_id if record is not None else ""

    async def store_job_outputs(self, key: str) -> None:
        """See `CacheLookup.store_job_outputs`; files are hard links."""
        await asyncio.to_thread(
            self.session.store.save, key, self._outputs, staged=self._staged, run_id=self.session.run.run_id
        )

    async def report_folder(self) -> Path:
        """Return the output folder."""
        return self._outputs

    def _parts(self, command: JobCommand) -> tuple[dict[str, str], bytes]:
        contents, secret = self.session.store.contents, self.session.secret()
        staged = {
            inside: FOLDER_SIGN if is_folder else contents.digest(path)
            for inside, path, is_folder in (tree(os.fspath(self._outputs)) if self._outputs.is_dir() else ())
        }
        self._staged = staged
        parts = key_parts(
            words=command.words,
            environment=command.environment,
            streams=command.streams,
            inputs={name: describe_value(value, contents.digest) for name, value in self.inputs.items()},
            staged=staged,
            software=software_of(command.words, program_path(command.environment)),
            processor=processor(),
            run_id=self.session.run.run_id,
            secret=secret,
        )
        return parts, secret
