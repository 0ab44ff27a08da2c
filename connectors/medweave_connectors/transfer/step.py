"""StreamFlow's transfer of a step's inputs, which does not send the parts of a folder after the folder itself."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import streamflow.cwl.translator
from streamflow.cwl.step import CWLTransferStep
from streamflow.cwl.utils import remap_token_value
from streamflow.deployment.utils import get_path_processor


class MedweaveTransferStep(CWLTransferStep):  # type: ignore[misc]
    """What lies below a folder that was sent or linked is there.

    Where a site has a folder already, the stock step links it, does not find its parts registered there, and sends each of them
    once more through the link: folders end up inside themselves, in the very data that an earlier step was given.
    """

    async def _update_listing(
        self, job: Any, token_value: Any, dst_path: Any = None, src_location: Any = None
    ) -> list[Any]:
        if src_location is None:  # the folder was made empty: its parts lie elsewhere
            return list(await super()._update_listing(job, token_value, dst_path, src_location))
        below = [part for part in token_value["listing"] if _lies_below(part, token_value["path"])]
        others = [part for part in token_value["listing"] if part not in below]
        sent = await super()._update_listing(job, {**token_value, "listing": others}, dst_path, src_location)
        processor = get_path_processor(self.workflow.context.scheduler.get_locations(job.name)[0])
        there = [
            remap_token_value(path_processor=processor, old_dir=token_value["path"], new_dir=str(dst_path), value=part)
            for part in below
        ]
        return sorted([*there, *sent], key=lambda part: part["basename"])


def _lies_below(part: Any, folder: str) -> bool:
    return "path" in part and PurePosixPath(part["path"]).is_relative_to(folder)


def install() -> None:
    """Puts it in the place where StreamFlow's translator looks its step up."""
    streamflow.cwl.translator.CWLTransferStep = MedweaveTransferStep
