"""`medweave.filter`: which targets of a binding a job may take, and which it should take first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from importlib.resources import files
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import BindingFilter, Target
from streamflow.core.workflow import Job
from streamflow.deployment.utils import get_binding_config

from medweave_connectors.engine.scheduling.choice import Candidate, in_order
from medweave_connectors.engine.scheduling.inputs import Inputs
from medweave_connectors.engine.scheduling.shortfall import sizes_at
from medweave_connectors.host.errors import ImpossibleRequest, PlacementForbidden
from medweave_connectors.jobs import job_requests
from medweave_connectors.policy.data_rules import DataRules, Fault
from medweave_core.runlog.engine_names import step_of

TYPE = "medweave.filter"


class MedweaveFilter(BindingFilter):  # type: ignore[misc]
    """Leaves out what the data rules forbid and what has too few GPUs, and puts the deployment with the data first.

    Attributes:
        context: the run's; the engine gives a filter none, `medweave.scheduler` does. Without it only the data rules hold.
    """

    def __init__(
        self,
        name: str,
        holds: Mapping[str, Sequence[str]] | None = None,
        mayHold: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(name)
        self.context: StreamFlowContext | None = None
        self._rules = _rules(name, holds, mayHold)
        self._inputs = Inputs()

    async def get_targets(self, job: Job, targets: MutableSequence[Target]) -> MutableSequence[Target]:
        """The targets that are left, best first; what nothing tells apart stays in the order of the file.

        Raises:
            PlacementForbidden: the data rules leave none.
            ImpossibleRequest: each is known to have too few GPUs.
        """
        allowed = _allowed(self._rules, step_of(job.name), targets)
        gpus = job_requests.hints_of(job.name).gpus_min
        context = self.context
        if context is None or (len(allowed) == 1 and not gpus):
            return allowed
        names = [target.deployment.name for target in allowed]
        num_bytes = await self._inputs.bytes_at(context, job, names, lambda copy: str(copy.deployment))
        candidates = [
            Candidate(name=str(number), gpus=await _gpus(context, target), num_bytes=num_bytes[target.deployment.name])
            for number, target in enumerate(allowed)
        ]
        left = in_order(candidates, gpus=gpus)
        if not left:
            seen = [f"{_spelled(target)} has {each.gpus:g}" for target, each in zip(allowed, candidates, strict=True)]
            raise ImpossibleRequest(
                f"{job.name} asks for {gpus} GPUs, and no place it is bound to has as many.\n"
                f"  seen:     {'; '.join(seen)}\n"
                f"  expected: a place where a job can have {gpus} GPUs (medweave:GPURequest of the tool)\n"
                f"  do:       bind the step to one, or say how many it has (gpusPerNode of a Slurm service)"
            )
        return [allowed[int(each.name)] for each in left]

    @classmethod
    def get_schema(cls) -> str:
        """The closed schema of a filter's `config`."""
        return files(__package__).joinpath("filter.schema.json").read_text("utf-8")


def check_placement(step: str, workflow_config: Any) -> None:
    """Looks at a step's binding when the workflow is read: before anything is deployed, and in `--validate` too.

    Args:
        step: its path.
        workflow_config: the engine's, with bindings and filters of the file.

    Raises:
        PlacementForbidden: the data rules leave the step no target, or the binding has one that they forbid, without the filter
            that would leave it out.
    """
    for config in workflow_config.binding_filters.values():
        if config.type != TYPE:
            continue
        rules = _rules(config.name, **config.config)
        binding = get_binding_config(step, "step", workflow_config)
        faults = [rules.fault(step, target.deployment.name) for target in binding.targets]
        filtered = any(each.name == config.name for each in binding.filters)
        _refuse(faults, any_will_do=filtered)


def _rules(
    name: str, holds: Mapping[str, Sequence[str]] | None = None, mayHold: Mapping[str, Sequence[str]] | None = None
) -> DataRules:
    return DataRules(where=f"bindingFilters.{name}.config", holds=holds or {}, may_hold=mayHold or {})


def _allowed(rules: DataRules, step: str, targets: Sequence[Target]) -> list[Target]:
    faults = [rules.fault(step, target.deployment.name) for target in targets]
    _refuse(faults, any_will_do=True)
    return [target for target, fault in zip(targets, faults, strict=True) if fault is None]


def _refuse(faults: Iterable[Fault | None], *, any_will_do: bool) -> None:
    all_of_them = list(faults)
    found = [fault for fault in all_of_them if fault is not None]
    if found and not (any_will_do and len(found) < len(all_of_them)):
        raise PlacementForbidden(found[0].what, seen=found[0].seen, expected=found[0].expected, do=found[0].do)


async def _gpus(context: StreamFlowContext, target: Target) -> float | None:
    sizes = await sizes_at(context.deployment_manager, target.deployment.name, target.service)
    return max((size.gpus for size in sizes.values()), default=None)


def _spelled(target: Target) -> str:
    return f"{target.deployment.name}/{target.service}" if target.service else str(target.deployment.name)
