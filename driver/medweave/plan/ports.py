"""What the inputs of a step would be, as far as it is known before a run: values, and outputs of other steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave.plan.flow import Flow
from medweave.project.workflows import Step
from medweave.validate.edges import sources_of
from medweave_core.documents.cwl_types import named

_SAME = "$(self)"
_BESIDE = ("secondaryFiles", "loadContents", "loadListing", "streamable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value that a job file, or a default, gives.

    Attributes:
        source: the workflow's input that it comes from; empty for a default of the step or its tool.
        each: the step is scattered over it: each of its items is the input of one job.
    """

    value: Any
    source: str = ""
    each: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What other steps write.

    Attributes:
        sources: all that the input is bound to, also what has no value.
        each: the step is scattered over it.
    """

    sources: tuple[str, ...]
    each: bool = False

    @property
    def steps(self) -> list[str]:
        """Paths of the steps."""
        return list(dict.fromkeys(f"/{source.partition('/')[0]}" for source in self.sources if "/" in source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Something that only the run can tell, and why."""

    why: str


Port = Value | Written | Unseen


def ports_of(
    step: Step, said: Mapping[str, Any], tool: Mapping[str, Any], flow: Flow, lies_at: Mapping[str, str]
) -> dict[str, Port]:
    """The inputs of a step, by name.

    Args:
        said: the step as it stands in the workflow.
        tool: the document of its tool.
        lies_at: deployments at which inputs of the workflow lie.
    """
    over = {each.rpartition("/")[2] for each in sources_of(said.get("scatter"))}
    inputs, found = named(tool.get("inputs")), dict[str, Port]()
    for name, bound in named(said.get("in") or {}).items():
        whole = bound if isinstance(bound, Mapping) else {}
        default = whole.get("default", _of(inputs.get(name)).get("default"))
        found[name] = _port(step, name, flow, whole, default, lies_at, each=name in over)
        if any(key in _of(inputs.get(name)) for key in _BESIDE):
            found[name] = Unseen(why=f"its tool reads more of its input {name} than files and folders")
    return found if len(over) == 1 else dict(_together(found, over, str(said.get("scatterMethod", ""))))


def _port(
    step: Step, name: str, flow: Flow, bound: Mapping[str, Any], default: Any, lies_at: Mapping[str, str], *, each: bool
) -> Port:
    if bound.get("valueFrom", _SAME) != _SAME:
        return Unseen(why=f"an expression makes its input {name}")
    bound_to = step.reads[name]
    sources = list(flow.sources(bound_to, name in step.firsts))
    if any("/" in source for source in sources):
        return _written(name, bound_to, sources, each=each)
    if len(sources) > 1 or (bound_to and bound.get("linkMerge")):
        return Unseen(why=f"its input {name} is made of several")
    source = sources[0] if sources else ""
    if source in lies_at:
        return Unseen(why=f"the input {source} lies at {lies_at[source]}, which is not asked")
    given, by_default = flow.values.get(source), flow.pipeline.defaults.get(source)
    if _has_files(default if given is None else by_default) and given in (None, by_default):
        return Unseen(why=f"its input {name} has a file or folder as its default")
    return Value(value=default if given is None else given, source=source, each=each)


def _written(name: str, bound_to: Sequence[str], sources: Sequence[str], *, each: bool) -> Port:
    if not all("/" in source for source in sources):
        return Unseen(why=f"its input {name} is made of several")
    return Written(sources=tuple(bound_to), each=each)


def _together(ports: Mapping[str, Port], over: set[str], method: str) -> Iterator[tuple[str, Port]]:
    """Several inputs that a step is scattered over: those whose items go together, one by one, can be told."""
    kinds = {type(ports[name]) for name in over}
    for name, port in ports.items():
        is_told = kinds == {Written} or (kinds == {Value} and method == "dotproduct")
        yield name, port if name not in over or is_told else Unseen(why="it is scattered over several inputs")


def _of(described: Any) -> Mapping[str, Any]:
    return described if isinstance(described, Mapping) else {}


def _has_files(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("class") in ("File", "Directory") or any(map(_has_files, value.values()))
    return isinstance(value, list) and any(map(_has_files, value))
