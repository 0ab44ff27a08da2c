"""Tools that call `medweave-step`, held against its verbs and their options, of the version that is installed here."""

from __future__ import annotations

from collections.abc import Iterator

from medweave.validate.findings import Finding, finding_at, one_of
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.line_numbers import FieldPath
from medweave_steps.cli import VERBS, build_parser, load_verb

PROGRAM = "medweave-step"


def check_verb(process: Process) -> Iterator[Finding]:
    """Yield verbs and options that the program would refuse."""
    source, words = process.document, process.fields.get("baseCommand")
    if not isinstance(words, list) or len(words) < 2 or words[0] != PROGRAM:
        return
    verb = str(words[1])
    if verb not in VERBS:
        yield finding_at(
            source, "cwl-verb", ("baseCommand", 1), f"{PROGRAM} has no verb '{verb}'.", seen=verb, expected=one_of(VERBS),
            fix=closest(verb, list(VERBS)) or "choose one of these",
        )  # fmt: skip
        return
    options = [name for action in build_parser(load_verb(verb))._actions for name in action.option_strings]
    for field, option in _options(process):
        if option.startswith("-") and "$" not in option and option not in options:
            yield finding_at(
                source, "cwl-verb", field, f"`{PROGRAM} {verb}` has no option '{option}'.", seen=option, expected=one_of(options),
                fix=closest(option, options) or "take it away",
            )  # fmt: skip


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
