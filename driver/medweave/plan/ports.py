"""Inputs of a step, as far as they are known before a run: values, and outputs of other steps. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medweave.plan.flow import Flow
from medweave.project.workflows import RoleStep
from medweave_core.documents.cwl_model import Binding

_SAME = "$(self)"
_OTHER_CONTENT = ("secondaryFiles", "loadContents", "loadListing", "streamable")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value from a job file or a default.

    Attributes:
        source: name of the workflow input; empty for a default of the step or its tool.
        is_scattered: the step is scattered over it.
    """

    value: Any
    source: str = ""
    is_scattered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Outputs of other steps.

    Attributes:
        sources: all sources of the input, also those without a value.
        is_scattered: the step is scattered over it.
    """

    sources: tuple[str, ...]
    is_scattered: bool = False

    @property
    def steps(self) -> list[str]:
        """Return the paths of the steps."""
        return list(dict.fromkeys(f"/{source.partition('/')[0]}" for source in self.sources if "/" in source))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """An input that only the run knows, and why."""

    why: str


Port = Value | Written | Unseen


def ports_of(step: RoleStep, flow: Flow, lies_at: Mapping[str, str]) -> dict[str, Port]:
    """Return the inputs of a step, by name.

    Args:
        lies_at: deployments at which inputs of the workflow lie.
    """
    definition = step.definition
    over = set(definition.scatter)
    ports = dict[str, Port]()
    for name, binding in definition.inputs.items():
        parameter = step.tool.inputs.get(name)
        fields = parameter.fields if parameter is not None else {}
        default = binding.fields.get("default", fields.get("default"))
        ports[name] = _port(step, name, flow, binding, default, lies_at, is_scattered=name in over)
        if any(key in fields for key in _OTHER_CONTENT):
            ports[name] = Unseen(why=f"the tool reads more than files and folders of input {name}")
    return ports if len(over) == 1 else dict(_together(ports, over, definition.scatter_method))


def _port(
    step: RoleStep,
    name: str,
    flow: Flow,
    binding: Binding,
    default: Any,
    lies_at: Mapping[str, str],
    *,
    is_scattered: bool,
) -> Port:
    if binding.fields.get("valueFrom", _SAME) != _SAME:
        return Unseen(why=f"an expression computes input {name}")
    all_sources = binding.sources
    sources = list(flow.sources(all_sources, binding.is_first_non_null))
    if any("/" in source for source in sources):
        return _written(name, all_sources, sources, is_scattered=is_scattered)
    if len(sources) > 1 or (all_sources and binding.fields.get("linkMerge")):
        return Unseen(why=f"input {name} has several sources")
    source = sources[0] if sources else ""
    if source in lies_at:
        return Unseen(why=f"input {source} is stored at {lies_at[source]}, which plan does not contact")
    value, default_value = flow.values.get(source), flow.pipeline.defaults.get(source)
    if _has_files(default if value is None else default_value) and value in (None, default_value):
        return Unseen(why=f"the default of input {name} is a file or folder")
    return Value(value=default if value is None else value, source=source, is_scattered=is_scattered)


def _written(name: str, bound_to: Sequence[str], sources: Sequence[str], *, is_scattered: bool) -> Port:
    if not all("/" in source for source in sources):
        return Unseen(why=f"input {name} has several sources")
    return Written(sources=tuple(bound_to), is_scattered=is_scattered)


def _together(ports: Mapping[str, Port], over: set[str], method: str) -> Iterator[tuple[str, Port]]:
    """Yield the inputs of a step that is scattered over several of them; unknown unless their items are paired."""
    kinds = {type(ports[name]) for name in over}
    for name, port in ports.items():
        is_known = kinds == {Written} or (kinds == {Value} and method == "dotproduct")
        yield name, port if name not in over or is_known else Unseen(why="the step is scattered over several inputs")


def _has_files(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("class") in ("File", "Directory") or any(map(_has_files, value.values()))
    return isinstance(value, list) and any(map(_has_files, value))
