"""Data classes of new files: the outputs of a step and the inputs of the workflow get the class of their port."""

from __future__ import annotations

from typing import Any

from streamflow.cwl.step import CWLInputInjectorStep
from streamflow.data.remotepath import StreamFlowPath
from streamflow.workflow.step import BaseStep

from medweave_connectors.engine import input_links
from medweave_connectors.engine.data.manager import MedweaveDataManager
from medweave_connectors.policy.data_classes import WORKFLOW, StepPort
from medweave_connectors.policy.token_paths import paths_in

_INJECTOR = "-injector"


class RecordsDataClasses(BaseStep):
    """Mixin of StreamFlow steps: records the classes of a token's files before other steps get the token."""

    async def _persist_token(self, token: Any, port: Any, input_token_ids: Any) -> Any:
        if isinstance(manager := self.workflow.context.data_manager, MedweaveDataManager):
            names = [name for name, known in self.output_ports.items() if known == port.name]
            for path in paths_in(token):
                copies = [(copy.location, copy.path) for copy in manager.get_data_locations(path)]
                for name in names:
                    manager.guard.note_made(_made_at(self.name, name), copies)
        return await super()._persist_token(token=token, port=port, input_token_ids=input_token_ids)


class MedweaveInputInjectorStep(RecordsDataClasses, CWLInputInjectorStep):
    """Passes an input of the workflow on, which lies behind a link.

    StreamFlow's step registers the target of a link only where it lies below a registered folder.
    """

    async def process_input(self, job: Any, token_value: Any) -> Any:
        """Return the token of the input."""
        context = self.workflow.context
        for location in context.scheduler.get_locations(job.name):
            await input_links.make_site_links(context, location, token_value)
            for path in paths_in(token_value):
                real = await StreamFlowPath(path, context=context, location=location).resolve()
                if real is not None and str(real) != path:
                    context.data_manager.register_path(location=location, path=str(real), relpath=real.name)
        return await super().process_input(job, token_value)


def _made_at(step: str, name: str) -> StepPort:
    return StepPort(WORKFLOW, name) if step.endswith(_INJECTOR) else StepPort(step, name)
