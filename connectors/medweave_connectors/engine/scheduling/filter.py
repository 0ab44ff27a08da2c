"""`medweave.filter`: which targets of a binding a job may use, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from importlib.resources import files
from typing import Any

from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import BindingFilter, Target
from streamflow.core.workflow import Job
from streamflow.deployment.utils import get_binding_config

from medweave_connectors.engine.scheduling.inputs import Inputs
from medweave_connectors.engine.scheduling.ranking import Candidate, rank_candidates
from medweave_connectors.engine.scheduling.shortfall import sizes_at
from medweave_connectors.host.errors import ImpossibleRequest, PlacementForbidden
from medweave_connectors.jobs import job_requests
from medweave_connectors.policy.data_rules import DataRules, Fault
from medweave_core.runlog.engine_names import step_of

TYPE = "medweave.filter"


class MedweaveFilter(BindingFilter):
    """Excludes targets that the data rules forbid or that have too few GPUs, and puts the deployment with the data first.

    Args:
        context: the run's, which `medweave.scheduler` passes; None where another scheduler builds the filter, and only the data
            rules are applied.
    """

    def __init__(
        self,
        name: str,
        holds: Mapping[str, Sequence[str]] | None = None,
        mayHold: Mapping[str, Sequence[str]] | None = None,
        context: StreamFlowContext | None = None,
    ) -> None:
        super().__init__(name)
        self._context = context
        self._rules = _rules(name, holds, mayHold)
        self._inputs = Inputs()

    async def get_targets(self, job: Job, targets: MutableSequence[Target]) -> MutableSequence[Target]:
        """Return the allowed targets, best first; equal ones keep the order of the file.

        Raises:
            PlacementForbidden: the data rules forbid all targets.
            ImpossibleRequest: every target is known to have too few GPUs.
        """
        allowed = _allowed(self._rules, step_of(job.name), targets)
        gpus = job_requests.hints_of(job.name).gpus_min
        context = self._context
        if context is None or (len(allowed) == 1 and not gpus):
            return allowed
        names = [target.deployment.name for target in allowed]
        num_bytes = await self._inputs.bytes_at(context, job, names, lambda copy: str(copy.deployment))
        candidates = [
            Candidate(name=str(number), gpus=await _gpus(context, target), num_bytes=num_bytes[target.deployment.name])
            for number, target in enumerate(allowed)
        ]
        ranked = rank_candidates(candidates, gpus=gpus)
        if not ranked:
            gpus_of = zip(allowed, candidates, strict=True)
            seen = [f"{_name_of(target)} has {candidate.gpus:g}" for target, candidate in gpus_of]
            raise ImpossibleRequest(
                f"{job.name} requests {gpus} GPUs, and no location of its binding has that many.\n"
                f"  seen:     {'; '.join(seen)}\n"
                f"  expected: a location where a job can have {gpus} GPUs (medweave:GPURequest of the tool)\n"
                f"  do:       bind the step to such a location, or declare its GPUs (gpusPerNode of a Slurm service)"
            )
        return [allowed[int(candidate.name)] for candidate in ranked]

    @classmethod
    def get_schema(cls) -> str:
        """Return the closed schema of a filter's `config`."""
        return files(__package__).joinpath("filter.schema.json").read_text("utf-8")


def check_placement(step: str, workflow_config: Any) -> None:
    """Check a step's binding by the data rules when the workflow is read: before any deployment, and in `--validate` too.

    Args:
        step: its path.
        workflow_config: StreamFlow's, with bindings and filters of the file.

    Raises:
        PlacementForbidden: the data rules forbid all targets of the step, or one of them and the binding does not name the filter
            that would exclude it.
    """
    for config in workflow_config.binding_filters.values():
        if config.type != TYPE:
            continue
        rules = _rules(config.name, **config.config)
        binding = get_binding_config(step, "step", workflow_config)
        faults = [rules.fault(step, target.deployment.name) for target in binding.targets]
        is_filtered = any(filter_config.name == config.name for filter_config in binding.filters)
        _refuse(faults, one_target_suffices=is_filtered)


def _rules(
    name: str, holds: Mapping[str, Sequence[str]] | None = None, mayHold: Mapping[str, Sequence[str]] | None = None
) -> DataRules:
    return DataRules(where=f"bindingFilters.{name}.config", holds=holds or {}, may_hold=mayHold or {})


def _allowed(rules: DataRules, step: str, targets: Sequence[Target]) -> list[Target]:
    faults = [rules.fault(step, target.deployment.name) for target in targets]
    _refuse(faults, one_target_suffices=True)
    return [target for target, fault in zip(targets, faults, strict=True) if fault is None]


def _refuse(faults: Iterable[Fault | None], *, one_target_suffices: bool) -> None:
    by_target = list(faults)
    forbidden = [fault for fault in by_target if fault is not None]
    if forbidden and not (one_target_suffices and len(forbidden) < len(by_target)):
        first = forbidden[0]
        raise PlacementForbidden(first.what, seen=first.seen, expected=first.expected, do=first.do)


async def _gpus(context: StreamFlowContext, target: Target) -> float | None:
    sizes = await sizes_at(context.deployment_manager, target.deployment.name, target.service)
    return max((size.gpus for size in sizes.values()), default=None)


def _name_of(target: Target) -> str:
    return f"{target.deployment.name}/{target.service}" if target.service else str(target.deployment.name)
