"""Tools that call `medweave-step`: their verbs and options exist in the installed version."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from medweave.validate.findings import ValidationFinding, finding_at, one_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.line_numbers import FieldPath

PROGRAM = "medweave-step"
GROUP = "medweave.step_programs"  # entry points: the driver does not depend on the steps


def check_verb(process: Process) -> Iterator[ValidationFinding]:
    """Yield verbs and options that the program would refuse."""
    source, words = process.document, process.fields.get("baseCommand")
    if not isinstance(words, list) or len(words) < 2 or words[0] != PROGRAM:
        return
    program = _installed_program()
    if program is None:
        return
    verb, verbs = str(words[1]), list(program.VERBS)
    if verb not in verbs:
        yield finding_at(
            source, "cwl-verb", ("baseCommand", 1), f"{PROGRAM} has no verb '{verb}'.", seen=verb, expected=one_of(verbs),
            fix=closest(verb, verbs) or "choose a listed verb",
        )  # fmt: skip
        return
    parser = program.build_parser(program.load_verb(verb))
    options = [name for action in parser._actions for name in action.option_strings]
    for field, option in _options(process):
        if option.startswith("-") and "$" not in option and option not in options:
            yield finding_at(
                source, "cwl-verb", field, f"`{PROGRAM} {verb}` has no option '{option}'.", seen=option, expected=one_of(options),
                fix=closest(option, options) or "remove it",
            )  # fmt: skip


@functools.cache
def _installed_program() -> Any:
    """Return the module of the program with its verbs and their parsers; None if no steps are installed."""
    registered = entry_points(group=GROUP, name=PROGRAM)
    return next(iter(registered)).load() if registered else None


def _options(tool: Process) -> Iterator[tuple[FieldPath, str]]:
    """Yield the options of a tool's command: prefixes of its inputs, and those among its arguments."""
    for number, argument in enumerate(tool.fields.get("arguments") or []):
        if isinstance(argument, dict) and "prefix" in argument:
            yield ("arguments", number, "prefix"), str(argument["prefix"])
        elif isinstance(argument, str):
            yield ("arguments", number), argument.partition("=")[0]
    for name, parameter in tool.inputs.items():
        binding = parameter.fields.get("inputBinding")
        if isinstance(binding, dict) and "prefix" in binding:
            yield ("inputs", name, "inputBinding", "prefix"), str(binding["prefix"]).removesuffix("=")
