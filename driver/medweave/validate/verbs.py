"""Tools that call `medweave-step`, held against its verbs and their options, of the version that is installed here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from medweave.validate.findings import Finding, one_of
from medweave.validate.source import Source
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_types import named
from medweave_core.documents.line_numbers import FieldPath
from medweave_steps.cli import VERBS, build_parser, load_verb

PROGRAM = "medweave-step"


def check_verb(source: Source) -> Iterator[Finding]:
    """What the program would refuse, once the step is due."""
    words = source.data.get("baseCommand")
    if not isinstance(words, list) or len(words) < 2 or words[0] != PROGRAM:
        return
    verb = str(words[1])
    if verb not in VERBS:
        yield source.finding(
            "cwl-verb", ("baseCommand", 1), f"{PROGRAM} has no verb '{verb}'.", seen=verb, expected=one_of(VERBS),
            fix=closest(verb, list(VERBS)) or "choose one of these",
        )  # fmt: skip
        return
    options = [name for action in build_parser(load_verb(verb))._actions for name in action.option_strings]
    for field, option in _options(source.data):
        if option.startswith("-") and "$" not in option and option not in options:
            yield source.finding(
                "cwl-verb", field, f"`{PROGRAM} {verb}` has no option '{option}'.", seen=option, expected=one_of(options),
                fix=closest(option, options) or "take it away",
            )  # fmt: skip


def _options(tool: Any) -> Iterator[tuple[FieldPath, str]]:
    """What is put before the values of inputs, and stands among the arguments."""
    for number, each in enumerate(tool.get("arguments") or []):
        if isinstance(each, dict) and "prefix" in each:
            yield ("arguments", number, "prefix"), str(each["prefix"])
        elif isinstance(each, str):
            yield ("arguments", number), each.partition("=")[0]
    for name, each in named(tool.get("inputs")).items():
        bound = each.get("inputBinding") if isinstance(each, dict) else None
        if isinstance(bound, dict) and "prefix" in bound:
            yield ("inputs", name, "inputBinding", "prefix"), str(bound["prefix"]).removesuffix("=")
