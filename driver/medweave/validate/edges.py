"""Workflows: what their steps are bound to, and whether what flows along each edge is what is taken at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from medweave.validate.cwl import formats_of, path_of_run
from medweave.validate.expressions import expression_names, misread, strings
from medweave.validate.findings import Finding, one_of
from medweave.validate.merges import NULL, joined
from medweave.validate.repository import Repository
from medweave.validate.source import Source
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_types import (
    Array,
    Type,
    fits,
    may_fit,
    named,
    of_value,
    required,
    spelled_type,
    type_of,
)
from medweave_core.documents.line_numbers import FieldPath

FEATURES = {
    "scatter": "ScatterFeatureRequirement",
    "source": "MultipleInputFeatureRequirement",
    "valueFrom": "StepInputExpressionRequirement",
    "run": "SubworkflowFeatureRequirement",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """The end of an edge.

    Attributes:
        formats: full names; empty where none is said.
        optional: it need not be bound.
    """

    type: Type
    formats: tuple[str, ...] = ()
    optional: bool = False


@dataclass(slots=True)
class _Workflow:
    source: Source
    tools: dict[str, Source | None]  # by step; None where it is missing
    sources: dict[str, Port] = field(default_factory=dict)
    unknown_sources: bool = False
    # Steps whose scatter is wrong: what they write has another depth than was meant, all the way down.
    wrong_scatter: set[str] = field(default_factory=set)
    came_from: dict[FieldPath, set[str]] = field(default_factory=dict)


def check_workflow(source: Source, repository: Repository) -> list[Finding]:
    """What is wrong with the edges of a workflow."""
    steps = {name: step for name, step in named(source.data.get("steps")).items() if isinstance(step, Mapping)}
    workflow = _Workflow(source=source, tools={})
    found = [*_tools(workflow, steps, repository)]
    workflow.sources = dict(_sources(workflow, steps))
    for name, step in steps.items():
        found += [*_ports(workflow, name, step), *_scatter(workflow, name, step), *_features(workflow, name, step)]
        for port, bound in named(step.get("in") or {}).items():
            found += _step_input(workflow, name, step, port, bound)
    for name, described in named(source.data.get("outputs") or {}).items():
        found += _output(workflow, name, described)
    found = [each for each in found if not workflow.came_from.get(each.field, set()) & workflow.wrong_scatter]
    found += _cycles(workflow, steps)
    return found + ([] if workflow.unknown_sources else [*_unused(source)])


def sources_of(bound: Any, key: str = "source") -> list[str]:
    """What an input of a step, or an output of the workflow, is bound to."""
    raw = bound.get(key) if isinstance(bound, Mapping) else bound
    return [str(each).lstrip("#") for each in ([raw] if isinstance(raw, str) else raw if isinstance(raw, list) else [])]


def written(step: Mapping[str, Any]) -> list[str]:
    """Names of the outputs that a step takes from its tool."""
    return [str(each.get("id") if isinstance(each, Mapping) else each) for each in step.get("out") or []]


def _tools(workflow: _Workflow, steps: Mapping[str, Any], repository: Repository) -> Iterator[Finding]:
    for name, step in steps.items():
        run = step.get("run")
        path = path_of_run(workflow.source, run)
        if path is None:
            inside = Source(path=workflow.source.path, text="", data=run, root=workflow.source.root)
            workflow.tools[name] = inside if isinstance(run, Mapping) else None
            continue
        workflow.tools[name] = repository.source(path)
        if not path.is_file():
            beside = [file.name for file in path.parent.glob("*.cwl")] if path.parent.is_dir() else []
            yield workflow.source.finding(
                "cwl-missing-file", ("steps", name, "run"), f"the document that step '{name}' runs is not there.", seen=str(run),
                expected=f"one of {', '.join(sorted(beside))} in that folder" if beside else "a CWL document",
                fix=closest(path.name, sorted(beside)) or "correct the path, which starts at the workflow's folder",
            )  # fmt: skip


def _sources(workflow: _Workflow, steps: Mapping[str, Any]) -> Iterator[tuple[str, Port]]:
    document = workflow.source.data
    for name, described in named(document.get("inputs") or {}).items():
        kind = type_of(described, document)
        default = isinstance(described, Mapping) and described.get("default") is not None
        yield name, Port(type=kind - NULL if default else kind, formats=formats_of(described, document))
    for name, step in steps.items():
        tool = workflow.tools[name]
        outputs = named(tool.data.get("outputs")) if tool else {}
        listed = written(step)
        stray = any(
            output not in outputs for output in listed
        )  # told as such; what reads the one that was meant is right
        for output in {**dict.fromkeys(listed), **(outputs if stray else {})}:
            described = outputs.get(output)
            kind = type_of(described, tool.data) if tool and output in outputs else frozenset(["Any"])
            for _ in range(_depth(step)):
                kind = frozenset([Array(kind)])
            if "when" in step:
                kind = kind | NULL
            formats = formats_of(described, tool.data) if tool and described is not None else ()
            yield f"{name}/{output}", Port(type=kind, formats=formats)


def _depth(step: Mapping[str, Any]) -> int:
    scattered = sources_of(step.get("scatter"))
    return len(scattered) if step.get("scatterMethod") == "nested_crossproduct" else min(len(scattered), 1)


def _ports(workflow: _Workflow, name: str, step: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether the step binds and takes what its tool has."""
    tool = workflow.tools[name]
    if tool is None:
        return
    inputs, outputs = named(tool.data.get("inputs")), named(tool.data.get("outputs"))
    bound = named(step.get("in") or {})
    read = {each for _, text in strings(step) for each in expression_names(text)}
    misspelt = dict(misread(workflow.source, name, step, bound, inputs))
    yield from misspelt.values()
    unknown = [
        port
        for port in bound
        if port not in inputs and port not in read and not any(closest(each, [port]) for each in misspelt)
    ]
    for port in unknown:
        free = [each for each in inputs if each not in bound]
        near = closest(port, free)
        # CWL takes what the tool does not have: the step waits for what it is bound to.
        yield workflow.source.finding(
            "cwl-port" if near else "cwl-extra-port", ("steps", name, "in", port),
            f"the tool of step '{name}' has no input '{port}'.", seen=port, expected=one_of(inputs),
            fix=near or "take it away, if the step need not wait for it",
        )  # fmt: skip
    for output in written(step):
        if output not in outputs:
            yield workflow.source.finding(
                "cwl-port", ("steps", name, "out", output), f"the tool of step '{name}' has no output '{output}'.", seen=output,
                expected=one_of(outputs), fix=closest(output, list(outputs)) or "take it away",
            )  # fmt: skip
    for port, described in inputs.items():
        if port not in bound and not unknown and not _port(described, tool).optional:
            yield workflow.source.finding(
                "cwl-port", ("steps", name, "in"), f"step '{name}' does not bind the input '{port}', which its tool must have.",
                seen=", ".join(bound) or "nothing bound", expected=f"{port}: … ({spelled_type(_port(described, tool).type)})",
                fix=f"bind '{port}', or give it a default in {tool.path.name}",
            )  # fmt: skip


def _port(described: Any, tool: Source) -> Port:
    kind = type_of(described, tool.data)
    optional = bool({"null", "Any"} & kind) or (isinstance(described, Mapping) and described.get("default") is not None)
    return Port(type=kind | NULL if optional else kind, formats=formats_of(described, tool.data), optional=optional)


def _scatter(workflow: _Workflow, name: str, step: Mapping[str, Any]) -> Iterator[Finding]:
    bound, tool = list(named(step.get("in") or {})), workflow.tools[name]
    inputs = named(tool.data.get("inputs")) if tool else {}
    for port in sources_of(step.get("scatter")):
        short = port.removeprefix(f"{name}/")
        if short not in bound:
            workflow.wrong_scatter.add(name)
            if tool and short in inputs and not _port(inputs[short], tool).optional:  # told as bound to nothing
                continue
            yield workflow.source.finding(
                "cwl-scatter", ("steps", name, "scatter"), f"step '{name}' is scattered over '{short}', which it does not bind.",
                seen=short, expected=one_of(bound), fix=closest(short, bound) or "correct the name",
            )  # fmt: skip


def _features(workflow: _Workflow, name: str, step: Mapping[str, Any]) -> Iterator[Finding]:
    has = {**required(workflow.source.data, "requirements"), **required(step, "requirements")}
    bound = named(step.get("in") or {})
    tool = workflow.tools[name]
    used = {
        "scatter": bool(step.get("scatter")),
        "source": any(len(sources_of(each)) > 1 for each in bound.values()),
        "valueFrom": any(isinstance(each, Mapping) and "valueFrom" in each for each in bound.values()),
        "run": tool is not None and tool.data.get("class") == "Workflow",
    }
    for feature, requirement in FEATURES.items():
        if used[feature] and requirement not in has:
            where = "in" if feature in ("source", "valueFrom") else feature
            yield workflow.source.finding(
                "cwl-requirement", ("steps", name, where), f"step '{name}' uses a feature that the workflow does not require.",
                seen=f"'{feature}' without {requirement}", expected=f"requirements: {{{requirement}: {{}}}}",
                fix=f"add {requirement} to the workflow's requirements",
            )  # fmt: skip


def _step_input(workflow: _Workflow, name: str, step: Mapping[str, Any], port: str, bound: Any) -> Iterator[Finding]:
    place: FieldPath = ("steps", name, "in", port)
    sources = sources_of(bound)
    unknown = [*_unknown(workflow, place, sources)]
    yield from unknown
    tool = workflow.tools[name]
    inputs = named(tool.data.get("inputs")) if tool else {}
    if unknown or tool is None or port not in inputs or name in workflow.wrong_scatter:
        return
    sink, long = _port(inputs[port], tool), bound if isinstance(bound, Mapping) else {}
    scattered = port in [each.removeprefix(f"{name}/") for each in sources_of(step.get("scatter"))]
    kind = frozenset([Array(sink.type)]) if scattered else sink.type
    default = long.get("default")
    if default is not None and "valueFrom" not in long and not of_value(default, kind):
        yield workflow.source.finding(
            "cwl-edge-type",
            (*place, "default"),
            f"the default of '{port}' is not of the type of the tool's input.",
            seen=str(default),
            expected=spelled_type(kind),
            fix="correct the default",
        )
    if not sources or "valueFrom" in long:
        if not sources and default is None and "valueFrom" not in long and not sink.optional:
            yield workflow.source.finding(
                "cwl-port", place, f"'{port}' is bound to nothing, and the tool must have it.", seen="no source",
                expected=spelled_type(kind), fix="give it a source",
            )  # fmt: skip
        return
    given = joined([workflow.sources[each].type for each in sources], long, isinstance(long.get("source"), list))
    if default is not None:
        given -= NULL
    scatter_fix = ""
    if _is_array_of(given, kind):
        scatter_fix = f"scatter step '{name}' over '{port}'"
    elif scattered and fits(given, sink.type) and not fits(given, kind):
        scatter_fix = f"do not scatter step '{name}' over '{port}'"
    if scatter_fix:
        workflow.wrong_scatter.add(name)
    yield from _edge(workflow, place, sources, given, Port(type=kind, formats=sink.formats), scatter_fix)


def _output(workflow: _Workflow, name: str, described: Any) -> Iterator[Finding]:
    place: FieldPath = ("outputs", name)
    sources = sources_of(described, "outputSource") if isinstance(described, Mapping) else []
    place = (*place, "outputSource") if sources else place
    unknown = [*_unknown(workflow, place, sources)]
    yield from unknown
    document = workflow.source.data
    if not sources and not {"null", "Any"} & type_of(described, document):
        yield workflow.source.finding(
            "cwl-source", place, f"the output '{name}' is bound to nothing.", seen="no outputSource",
            expected="outputSource: …, the output of a step or an input of the workflow",
            fix=_fix_of_type(workflow, type_of(described, document)) or "say where it comes from",
        )  # fmt: skip
    if unknown or not sources:
        return
    given = joined(
        [workflow.sources[each].type for each in sources], described, isinstance(described["outputSource"], list)
    )
    sink = Port(type=type_of(described, document), formats=formats_of(described, document))
    yield from _edge(workflow, place, sources, given, sink, "")


def _unknown(workflow: _Workflow, place: FieldPath, sources: list[str]) -> Iterator[Finding]:
    known = list(workflow.sources)
    for each in sources:
        if each not in known:
            workflow.unknown_sources = True
            step, _, output = each.rpartition("/")
            of_step = [other for other in known if other.startswith(f"{step}/")] if step else []
            yield workflow.source.finding(
                "cwl-source",
                place,
                f"there is no '{each}' to read from.",
                seen=each,
                expected=f"an input of the workflow, or the output of a step: {', '.join(of_step or known)}",
                fix=closest(each, known) or f"write an output that step '{step}' lists, not '{output}'"
                if step
                else closest(each, known) or "correct the name",
            )


def _edge(
    workflow: _Workflow, place: FieldPath, sources: list[str], given: Type, sink: Port, other_fix: str
) -> Iterator[Finding]:
    name = ", ".join(sources)
    workflow.came_from[place] = {each.split("/")[0] for each in sources if "/" in each}
    if not may_fit(given, sink.type) and not fits(given, sink.type):
        yield workflow.source.finding(
            "cwl-edge-type", place, "the type of what comes along this edge is not the one that is taken here.",
            seen=f"{spelled_type(given)} (of {name})", expected=spelled_type(sink.type),
            fix=other_fix or _fix_of_type(workflow, sink.type) or "bind it to something of that type",
        )  # fmt: skip
    elif not fits(given, sink.type):
        yield workflow.source.finding(
            "cwl-null-edge", place, "what comes along this edge may be null, or of a type that is not taken here.",
            seen=f"{spelled_type(given)} (of {name})", expected=spelled_type(sink.type),
            fix="give it a default or a pickValue, or let the end take null",
        )  # fmt: skip
    else:
        for each in sources:
            formats = workflow.sources[each].formats
            if (
                formats
                and sink.formats
                and not set(formats) <= set(sink.formats)
                and "$schemas" not in workflow.source.data
            ):
                yield workflow.source.finding(
                    "cwl-format",
                    place,
                    "the format of what comes along this edge is not the one that is taken here.",
                    seen=f"{', '.join(formats)} (of {each})",
                    expected=" or ".join(sink.formats),
                    fix="bind it to a file of that format, or correct the format",
                )


def _fix_of_type(workflow: _Workflow, wanted: Type) -> str:
    able = [name for name, port in workflow.sources.items() if fits(port.type, wanted) and "Any" not in port.type]
    return f"bind it to something of that type, such as {', '.join(able[:4])}" if able and "Any" not in wanted else ""


def _is_array_of(given: Type, wanted: Type) -> bool:
    return any(isinstance(each, Array) and fits(each.items, wanted) for each in given)


def _cycles(workflow: _Workflow, steps: Mapping[str, Any]) -> Iterator[Finding]:
    before = {
        name: {each.split("/")[0] for bound in named(step.get("in") or {}).values() for each in sources_of(bound) if "/" in each}
        for name, step in steps.items()
    }  # fmt: skip
    waiting = dict(before)
    while ready := [name for name, needs in waiting.items() if not needs & set(waiting)]:
        for name in ready:
            del waiting[name]
    # What is left waits for a circle, or is in one: go back from anywhere until a step comes again.
    while waiting:
        chain = [next(iter(waiting))]
        while (earlier := next(name for name in waiting if name in waiting[chain[-1]])) not in chain:
            chain.append(earlier)
        circle = [*reversed(chain[chain.index(earlier) :])]
        first = min(circle, key=list(steps).index)
        turned = [*circle[circle.index(first) :], *circle[: circle.index(first)], first]
        last = turned[-2]
        port = next(
            port
            for port, bound in named(steps[first]["in"]).items()
            if any(each.split("/")[0] == last for each in sources_of(bound))
        )
        yield workflow.source.finding(
            "cwl-cycle", ("steps", first, "in", port), f"step '{first}' waits for itself.", seen=" → ".join(turned),
            expected="steps that can be put in an order", fix=f"bind '{port}' to something that does not come after '{first}'",
        )  # fmt: skip
        return


def _unused(source: Source) -> Iterator[Finding]:
    document = source.data
    read = {
        each
        for step in named(document.get("steps")).values()
        if isinstance(step, Mapping)
        for bound in named(step.get("in") or {}).values()
        for each in sources_of(bound)
    }
    read |= {
        each for output in named(document.get("outputs") or {}).values() for each in sources_of(output, "outputSource")
    }
    for name in named(document.get("inputs") or {}):
        if name not in read:
            yield source.finding(
                "cwl-unused-input", ("inputs", name), f"no step and no output reads the input '{name}'.", seen="bound nowhere",
                expected="an input that changes what the workflow does", fix="bind a step's input to it, or take it away",
            )  # fmt: skip
