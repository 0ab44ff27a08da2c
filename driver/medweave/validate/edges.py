"""Workflows: what their steps are bound to, and whether the type of each edge's source fits its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from medweave.validate.expressions import expression_names, misread, strings
from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave.validate.repository import Repository
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Binding, Parameter, Process, Step
from medweave_core.documents.cwl_types import ANY, NULL, Array, Type, fits, may_fit, of_value, spelled_type
from medweave_core.documents.line_numbers import FieldPath

FEATURES = {
    "scatter": "ScatterFeatureRequirement",
    "source": "MultipleInputFeatureRequirement",
    "valueFrom": "StepInputExpressionRequirement",
    "run": "SubworkflowFeatureRequirement",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePort:
    """The end of an edge.

    Attributes:
        formats: full names; empty where none is declared.
    """

    type: Type
    formats: tuple[str, ...] = ()


@dataclass(slots=True)
class _Workflow:
    """A workflow while it is checked.

    Attributes:
        tools: by step; None where its document is missing.
        sources: type of each workflow input and step output.
        wrong_scatter: steps whose scatter is wrong: their outputs have another depth than intended, and all that follows.
        origins: steps from which the value of a step input or workflow output comes.
    """

    process: Process
    tools: dict[str, Process | None]
    sources: dict[str, EdgePort] = field(default_factory=dict)
    unknown_sources: bool = False
    wrong_scatter: set[str] = field(default_factory=set)
    origins: dict[FieldPath, set[str]] = field(default_factory=dict)

    def finding(self, rule: str, at: FieldPath, what: str, *, seen: str, expected: str, fix: str) -> ValidationFinding:
        """Return a finding at a field of the workflow."""
        return finding_at(self.process.document, rule, at, what, seen=seen, expected=expected, fix=fix)


def check_workflow(process: Process, repository: Repository) -> list[ValidationFinding]:
    """Return the findings of the edges of a workflow."""
    workflow = _Workflow(process=process, tools={})
    findings = [*_tools(workflow, repository)]
    workflow.sources = dict(_sources(workflow))
    for step in process.steps.values():
        findings += [*_ports(workflow, step), *_scatter(workflow, step), *_features(workflow, step)]
        for port, binding in step.inputs.items():
            findings += _step_input(workflow, step, port, binding)
    for parameter in process.outputs.values():
        findings += _output(workflow, parameter)
    findings = [
        finding for finding in findings if not workflow.origins.get(finding.field, set()) & workflow.wrong_scatter
    ]
    findings += _cycles(workflow)
    return findings + ([] if workflow.unknown_sources else [*_unused(workflow)])


def _tools(workflow: _Workflow, repository: Repository) -> Iterator[ValidationFinding]:
    for name, step in workflow.process.steps.items():
        path = step.run_file
        if path is None:
            workflow.tools[name] = step.process if isinstance(step.fields.get("run"), Mapping) else None
            continue
        workflow.tools[name] = repository.process(path)
        if not path.is_file():
            siblings = [file.name for file in path.parent.glob("*.cwl")] if path.parent.is_dir() else []
            yield workflow.finding(
                "cwl-missing-file", ("steps", name, "run"), f"step '{name}' runs a document that does not exist.",
                seen=str(step.fields["run"]),
                expected=f"one of {', '.join(sorted(siblings))} in that folder" if siblings else "a CWL document",
                fix=closest(path.name, sorted(siblings)) or "correct the path; it starts at the workflow's folder",
            )  # fmt: skip


def _sources(workflow: _Workflow) -> Iterator[tuple[str, EdgePort]]:
    for name, parameter in workflow.process.inputs.items():
        kind = parameter.type - NULL if parameter.has_default else parameter.type
        yield name, EdgePort(type=kind, formats=parameter.formats)
    for name, step in workflow.process.steps.items():
        tool = workflow.tools[name]
        outputs = tool.outputs if tool else {}
        # An unknown output is reported once; readers of the intended output are correct.
        has_unknown = any(output not in outputs for output in step.outputs)
        for output in {**dict.fromkeys(step.outputs), **(outputs if has_unknown else {})}:
            kind, formats = (outputs[output].type, outputs[output].formats) if output in outputs else (ANY, ())
            for _ in range(_depth(step)):
                kind = frozenset([Array(kind)])
            if step.is_conditional:
                kind = kind | NULL
            yield f"{name}/{output}", EdgePort(type=kind, formats=formats)


def _depth(step: Step) -> int:
    return len(step.scatter) if step.scatter_method == "nested_crossproduct" else min(len(step.scatter), 1)


def _ports(workflow: _Workflow, step: Step) -> Iterator[ValidationFinding]:
    """Yield inputs and outputs of a step that its tool does not have, and required inputs that are not bound."""
    tool, name = workflow.tools[step.name], step.name
    if tool is None:
        return
    bound = step.inputs
    read = {input_name for _, text in strings(step.fields) for input_name in expression_names(text)}
    misspelt = dict(misread(workflow.process.document, step, tool.inputs))
    yield from misspelt.values()
    unknown = [
        port
        for port in bound
        if port not in tool.inputs
        and port not in read
        and not any(closest(input_name, [port]) for input_name in misspelt)
    ]
    for port in unknown:
        near = closest(port, [input_name for input_name in tool.inputs if input_name not in bound])
        # CWL accepts an input that the tool does not have: the step waits for its source.
        yield workflow.finding(
            "cwl-port" if near else "cwl-extra-port", ("steps", name, "in", port),
            f"the tool of step '{name}' has no input '{port}'.", seen=port, expected=one_of(tool.inputs),
            fix=near or "remove it, unless the step must wait for it",
        )  # fmt: skip
    for output in step.outputs:
        if output not in tool.outputs:
            yield workflow.finding(
                "cwl-port", ("steps", name, "out", output), f"the tool of step '{name}' has no output '{output}'.", seen=output,
                expected=one_of(tool.outputs), fix=closest(output, list(tool.outputs)) or "remove it",
            )  # fmt: skip
    for port, parameter in tool.inputs.items():
        if port not in bound and not unknown and not parameter.is_optional:
            yield workflow.finding(
                "cwl-port", ("steps", name, "in"), f"step '{name}' does not bind input '{port}', which its tool requires.",
                seen=", ".join(bound) or "nothing bound", expected=f"{port}: … ({spelled_type(parameter.type)})",
                fix=f"bind '{port}', or add a default in {tool.path.name}",
            )  # fmt: skip


def _input_port(parameter: Parameter) -> EdgePort:
    """Return what an input of a tool accepts: also null, if it is optional."""
    kind = parameter.type | NULL if parameter.is_optional else parameter.type
    return EdgePort(type=kind, formats=parameter.formats)


def _scatter(workflow: _Workflow, step: Step) -> Iterator[ValidationFinding]:
    tool, name = workflow.tools[step.name], step.name
    for port in step.scatter:
        if port not in step.inputs:
            workflow.wrong_scatter.add(name)
            if tool and port in tool.inputs and not tool.inputs[port].is_optional:  # reported as not bound
                continue
            yield workflow.finding(
                "cwl-scatter", ("steps", name, "scatter"), f"step '{name}' is scattered over '{port}', which it does not bind.",
                seen=port, expected=one_of(step.inputs), fix=closest(port, list(step.inputs)) or "correct the name",
            )  # fmt: skip


def _features(workflow: _Workflow, step: Step) -> Iterator[ValidationFinding]:
    has = {
        name
        for requirements in (workflow.process.requirements, step.requirements)
        for name, requirement in requirements.items()
        if requirement.section == "requirements"
    }
    tool = workflow.tools[step.name]
    used = {
        "scatter": bool(step.fields.get("scatter")),
        "source": any(len(binding.sources) > 1 for binding in step.inputs.values()),
        "valueFrom": any(binding.has_expression for binding in step.inputs.values()),
        "run": tool is not None and tool.is_workflow,
    }
    for feature, requirement in FEATURES.items():
        if used[feature] and requirement not in has:
            key = "in" if feature in ("source", "valueFrom") else feature
            yield workflow.finding(
                "cwl-requirement", ("steps", step.name, key),
                f"step '{step.name}' uses a feature that needs a requirement.",
                seen=f"'{feature}' without {requirement}", expected=f"requirements: {{{requirement}: {{}}}}",
                fix=f"add {requirement} to the workflow's requirements",
            )  # fmt: skip


def _step_input(workflow: _Workflow, step: Step, port: str, binding: Binding) -> Iterator[ValidationFinding]:
    place: FieldPath = ("steps", step.name, "in", port)
    unknown = [*_unknown(workflow, place, binding.sources)]
    yield from unknown
    tool = workflow.tools[step.name]
    if unknown or tool is None or port not in tool.inputs or step.name in workflow.wrong_scatter:
        return
    sink, is_scattered = _input_port(tool.inputs[port]), port in step.scatter
    kind = frozenset([Array(sink.type)]) if is_scattered else sink.type
    default = binding.fields.get("default")
    if default is not None and not binding.has_expression and not of_value(default, kind):
        yield workflow.finding(
            "cwl-edge-type",
            (*place, "default"),
            f"the default of '{port}' has another type than the tool's input.",
            seen=str(default),
            expected=spelled_type(kind),
            fix="correct the default",
        )
    if not binding.sources or binding.has_expression:
        if not binding.sources and default is None and not binding.has_expression and not tool.inputs[port].is_optional:
            yield workflow.finding(
                "cwl-port", place, f"'{port}' has no source, but the tool requires a value.", seen="no source",
                expected=spelled_type(kind), fix="add a source",
            )  # fmt: skip
        return
    source_type = _joined([workflow.sources[source].type for source in binding.sources], binding)
    if default is not None:
        source_type -= NULL
    scatter_fix = ""
    if _is_array_of(source_type, kind):
        scatter_fix = f"scatter step '{step.name}' over '{port}'"
    elif is_scattered and fits(source_type, sink.type) and not fits(source_type, kind):
        scatter_fix = f"do not scatter step '{step.name}' over '{port}'"
    if scatter_fix:
        workflow.wrong_scatter.add(step.name)
    yield from _edge(workflow, place, binding, source_type, EdgePort(type=kind, formats=sink.formats), scatter_fix)


def _output(workflow: _Workflow, parameter: Parameter) -> Iterator[ValidationFinding]:
    binding = parameter.binding
    place: FieldPath = ("outputs", parameter.name, "outputSource") if binding.sources else ("outputs", parameter.name)
    unknown = [*_unknown(workflow, place, binding.sources)]
    yield from unknown
    if not binding.sources and not {"null", "Any"} & parameter.type:
        yield workflow.finding(
            "cwl-source", place, f"output '{parameter.name}' has no source.", seen="no outputSource",
            expected="outputSource: …, an output of a step or an input of the workflow",
            fix=_fix_of_type(workflow, parameter.type) or "add outputSource",
        )  # fmt: skip
    if unknown or not binding.sources:
        return
    source_type = _joined([workflow.sources[source].type for source in binding.sources], binding)
    yield from _edge(
        workflow, place, binding, source_type, EdgePort(type=parameter.type, formats=parameter.formats), ""
    )


def _joined(types: list[Type], binding: Binding) -> Type:
    """Return the type that several sources give together; see linkMerge and pickValue in the CWL specification."""
    merge, pick = binding.fields.get("linkMerge"), binding.fields.get("pickValue")
    if not binding.is_list and len(types) == 1:
        kind = frozenset([Array(types[0])]) if merge == "merge_nested" else types[0]
    elif merge == "merge_flattened":
        inner: Type = frozenset()
        for one in types:
            for alternative in one:
                inner |= alternative.items if isinstance(alternative, Array) else frozenset([alternative])
        kind = frozenset([Array(inner)])
    elif len(types) == 1 and merge is None:
        kind = types[0]
    else:
        kind = frozenset([Array(frozenset().union(*types))])
    if pick is None:
        return kind
    items: Type = frozenset()
    for alternative in kind:
        items |= alternative.items if isinstance(alternative, Array) else frozenset([alternative])
    items -= NULL
    return frozenset([Array(items)]) if pick == "all_non_null" else items


def _unknown(workflow: _Workflow, place: FieldPath, sources: Sequence[str]) -> Iterator[ValidationFinding]:
    known = list(workflow.sources)
    for source in sources:
        if source not in known:
            workflow.unknown_sources = True
            step, _, output = source.rpartition("/")
            of_step = [name for name in known if name.startswith(f"{step}/")] if step else []
            yield workflow.finding(
                "cwl-source",
                place,
                f"the source '{source}' does not exist.",
                seen=source,
                expected=f"an input of the workflow, or an output of a step: {', '.join(of_step or known)}",
                fix=closest(source, known) or f"use a listed output of step '{step}' instead of '{output}'"
                if step
                else closest(source, known) or "correct the name",
            )


def _edge(
    workflow: _Workflow, place: FieldPath, binding: Binding, source_type: Type, sink: EdgePort, other_fix: str
) -> Iterator[ValidationFinding]:
    """Yield the mismatches of an edge, whose sources together have the type `source_type`."""
    sources = binding.sources
    name = ", ".join(sources)
    workflow.origins[place] = {source.split("/")[0] for source in sources if "/" in source}
    if not may_fit(source_type, sink.type) and not fits(source_type, sink.type):
        yield workflow.finding("cwl-edge-type", place, "type mismatch: the input does not accept the type of its source.",
            seen=f"{spelled_type(source_type)} (of {name})", expected=spelled_type(sink.type),
            fix=other_fix or _fix_of_type(workflow, sink.type) or "bind it to a source of this type",
        )  # fmt: skip
    elif not fits(source_type, sink.type):
        yield workflow.finding(
            "cwl-null-edge",
            place,
            "type mismatch: the source may be null or have a type that the input does not accept.",
            seen=f"{spelled_type(source_type)} (of {name})",
            expected=spelled_type(sink.type),
            fix="add a default or pickValue, or make the input optional",
        )
    else:
        for source in sources:
            formats = workflow.sources[source].formats
            if (
                formats
                and sink.formats
                and not set(formats) <= set(sink.formats)
                and "$schemas" not in workflow.process.fields
            ):
                yield workflow.finding(
                    "cwl-format",
                    place,
                    "format mismatch: the input does not accept the format of its source.",
                    seen=f"{', '.join(formats)} (of {source})",
                    expected=" or ".join(sink.formats),
                    fix="bind it to a file of this format, or correct the format",
                )


def _fix_of_type(workflow: _Workflow, target: Type) -> str:
    names = [name for name, port in workflow.sources.items() if fits(port.type, target) and "Any" not in port.type]
    return f"bind it to a source of this type, such as {', '.join(names[:4])}" if names and "Any" not in target else ""


def _is_array_of(source_type: Type, target: Type) -> bool:
    return any(isinstance(alternative, Array) and fits(alternative.items, target) for alternative in source_type)


def _cycles(workflow: _Workflow) -> Iterator[ValidationFinding]:
    steps = workflow.process.steps
    before = {
        name: {source.split("/")[0] for binding in step.inputs.values() for source in binding.sources if "/" in source}
        for name, step in steps.items()
    }
    waiting = dict(before)
    while ready := [name for name, needs in waiting.items() if not needs & set(waiting)]:
        for name in ready:
            del waiting[name]
    # The remaining steps are in a cycle or wait for one: go back from any of them until a step repeats.
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
            for port, binding in steps[first].inputs.items()
            if any(source.split("/")[0] == last for source in binding.sources)
        )
        yield workflow.finding(
            "cwl-cycle",
            ("steps", first, "in", port),
            f"step '{first}' depends on itself (cycle).",
            seen=" → ".join(turned),
            expected="a workflow without cycles",
            fix=f"bind '{port}' to a source that does not depend on '{first}'",
        )
        return


def _unused(workflow: _Workflow) -> Iterator[ValidationFinding]:
    process = workflow.process
    bindings = [binding for step in process.steps.values() for binding in step.inputs.values()]
    bindings += [parameter.binding for parameter in process.outputs.values()]
    read = {source for binding in bindings for source in binding.sources}
    for name in process.inputs:
        if name not in read:
            yield workflow.finding(
                "cwl-unused-input", ("inputs", name), f"input '{name}' of the workflow is not used.",
                seen="no step or output reads it",
                expected="an input that changes what the workflow does", fix="bind a step input to it, or remove it",
            )  # fmt: skip
