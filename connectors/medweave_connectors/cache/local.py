"""A job of this machine whose work may have been done before: its outputs lie on the shelf of the folder of runs.

No streamflow in here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_connectors.cache.content import FOLDER_SIGN, tree
from medweave_connectors.cache.key import described, parts_of
from medweave_connectors.cache.local_software import processor, software_of
from medweave_connectors.cache.session import Asked, Reuse, Work
from medweave_connectors.sites.local.environment import step_environment


class WorkHere(Work):
    """See `Work`.

    Args:
        outputs: the job's output folder.
    """

    def __init__(self, reuse: Reuse, job_name: str, inputs: Mapping[str, Any], *, allowed: bool, outputs: Path) -> None:
        super().__init__(reuse, job_name, inputs, allowed=allowed)
        self._outputs, self._staged = outputs, dict[str, str]()

    async def parts(self, asked: Asked) -> tuple[dict[str, str], bytes]:
        """As `Work.parts`; what the job reads is read in a thread."""
        return await asyncio.to_thread(self._parts, asked)

    async def given(self, key: str) -> str:
        """As `Work.given`, by links; what was changed there counts as not kept."""
        record = await asyncio.to_thread(self.reuse.shelf.take, key, self._outputs)
        return record.run_id if record is not None else ""

    async def handed_in(self, key: str) -> None:
        """As `Work.handed_in`, by links."""
        await asyncio.to_thread(
            self.reuse.shelf.keep, key, self._outputs, staged=self._staged, run_id=self.reuse.run.run_id
        )

    async def report_folder(self) -> Path:
        """The output folder."""
        return self._outputs

    def _parts(self, asked: Asked) -> tuple[dict[str, str], bytes]:
        contents, secret = self.reuse.shelf.contents, self.reuse.secret()
        staged = {
            inside: FOLDER_SIGN if is_folder else contents.digest(path)
            for inside, path, is_folder in (tree(os.fspath(self._outputs)) if self._outputs.is_dir() else ())
        }
        self._staged = staged
        told = parts_of(
            words=asked.words,
            environment=asked.environment,
            streams=asked.streams,
            inputs={name: described(value, contents.digest) for name, value in self.inputs.items()},
            staged=staged,
            software=software_of(asked.words, step_environment(asked.environment)["PATH"]),
            processor=processor(),
            run_id=self.reuse.run.run_id,
            secret=secret,
        )
        return told, secret
