"""StreamFlow's transfer of a step's inputs: for several jobs at once, and a folder without sending its entries again."""

from __future__ import annotations

import asyncio
from pathlib import PurePosixPath
from typing import Any, cast

from streamflow.core.workflow import Status
from streamflow.cwl.step import CWLTransferStep
from streamflow.cwl.utils import remap_token_value
from streamflow.deployment.utils import get_path_processor
from streamflow.log_handler import logger
from streamflow.workflow.port import JobPort
from streamflow.workflow.step import _reduce_statuses
from streamflow.workflow.utils import check_termination

from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.host.errors import SiteConfigError
from medweave_connectors.host.gather import cancel_and_wait
from medweave_connectors.policy.data_classes import port_of
from medweave_connectors.policy.transfer_rules import carrying
from medweave_connectors.policy.web_inputs import scheme_of
from medweave_core.documents.file_locations import location_of

AT_ONCE = 8  # jobs of a step whose input is transferred; each connector has its own limit


class MedweaveTransferStep(CWLTransferStep):
    """Sends an input to several jobs of a scatter at once. The entries of a folder that was sent or linked are not sent again.

    StreamFlow's step sends to one job after the other, while the waiting jobs occupy their locations.

    Where a site already has a folder, StreamFlow's step links it, finds its entries unregistered, and sends each of them through
    the link: folders end up inside themselves, in the inputs of an earlier step.
    """

    async def run(self) -> None:
        """Transfer inputs until there are no more, or a transfer fails.

        StreamFlow pairs the results with jobs by their order: inputs are sent at the same time, and passed on in order.
        """
        self._begun: dict[str, asyncio.Task[Any]] = {}
        waiting: asyncio.Queue[tuple[Any, Any, str] | None] = asyncio.Queue()
        taking, status = asyncio.create_task(self._take(waiting)), Status.SKIPPED
        try:
            while (item := await waiting.get()) is not None:
                job, inputs, port_name = item
                await self._run_transfer(job=job, inputs=inputs, port_name=port_name, token=inputs[port_name])
            status = await taking
        except asyncio.CancelledError:
            await self.terminate(Status.CANCELLED)
        except Exception as error:
            logger.exception(error)
            await self.terminate(Status.FAILED)
        finally:
            await cancel_and_wait(taking, *self._begun.values())
        await self.terminate(self._get_status(status))

    async def transfer(self, job: Any, token: Any) -> Any:
        """Transfer an input, or wait for its transfer that has begun."""
        begun = self._begun.pop(job.name, None)
        with carrying(port_of(self.name)):
            return await (super().transfer(job, token) if begun is None else begun)

    async def _take(self, waiting: asyncio.Queue[tuple[Any, Any, str] | None]) -> Status:
        """Start the transfer of each input; return the status once there are no more."""
        (port_name,) = (name for name in self.get_input_ports() if name != "__job__")
        ports, places = {port_name: self.get_input_port(port_name)}, asyncio.Semaphore(AT_ONCE)

        async def sent(job: Any, token: Any) -> Any:
            async with places:
                with carrying(port_of(self.name)):
                    return await super(MedweaveTransferStep, self).transfer(job, token)

        try:
            while True:
                inputs = await self._get_inputs(ports)
                job = await cast(JobPort, self.get_input_port("__job__")).get_job(self.name)
                if check_termination(inputs.values()) or job is None:
                    return Status(_reduce_statuses([Status.SKIPPED, *(token.value for token in inputs.values())]))
                self._begun[job.name] = asyncio.create_task(sent(job, inputs[port_name]))
                waiting.put_nowait((job, inputs, port_name))
        finally:
            waiting.put_nowait(None)

    async def _update_file_token(self, job: Any, token_value: Any, dst_path: Any = None) -> Any:
        if scheme := scheme_of(token_value.get("location")):  # StreamFlow's step ignores failed downloads
            raise SiteConfigError(
                f"{job.name}: medweave fetches nothing from the web.",
                seen=f"an input whose location begins with {scheme}://",
                expected="a file or folder that an earlier step made, or that an input of the workflow names",
                do="fetch it beforehand, or in a step that compares it with its SHA-256",
            )
        manager, places = self.workflow.context.data_manager, self.workflow.context.scheduler.get_locations(job.name)
        if "path" not in token_value and isinstance(manager, MedweaveDataManager):
            manager.guard.admit([], places)  # its content is in the token: no copy writes it
        token = await super()._update_file_token(job, token_value, dst_path)
        # StreamFlow decodes `%41` in a file name.
        return {**token, "location": location_of(token["path"])} if "path" in token else token

    async def _update_listing(
        self, job: Any, token_value: Any, dst_path: Any = None, src_location: Any = None
    ) -> list[Any]:
        if src_location is None:  # the folder was made empty: its entries are elsewhere
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
