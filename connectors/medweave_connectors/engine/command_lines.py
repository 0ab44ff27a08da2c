"""The command line of a step, built by functions that replace StreamFlow's.

StreamFlow's builder changes values (see `command_words`) and leaves the items of some lists unquoted, so that a shell splits names
at blanks and executes them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import cwl_utils.parser
import streamflow.cwl.translator
import streamflow.cwl.utils
from streamflow.core.workflow import CommandOptions, CommandToken, CommandTokenProcessor, Token
from streamflow.cwl.command import CWLCommandOptions

from medweave_connectors.engine.command_words import command_words

_BINDING_KEYS = ("position", "prefix", "separate", "itemSeparator", "valueFrom", "shellQuote")
_stock_create_command: Callable[..., Any] = streamflow.cwl.translator._create_command


class CommandWords(CommandTokenProcessor):
    """Builds all words of a tool's command that follow its baseCommand.

    Attributes:
        arguments, inputs: as `command_words` takes them; the engine's database stores them for a retry.
        is_shell_command: a shell reads the words, so that those with `shellQuote: false` stay unquoted.
    """

    def __init__(self, arguments: list[Any], inputs: list[Any], is_shell_command: bool) -> None:
        super().__init__(None)  # of no single input
        self.arguments = arguments
        self.inputs = inputs
        self.is_shell_command = is_shell_command

    def bind(self, token: Token | None, position: int | None, options: CommandOptions) -> CommandToken:
        """Return the words, each quoted for the shell that the engine's connectors use."""
        assert isinstance(options, CWLCommandOptions)

        def evaluate(expression: Any, value: Any) -> Any:
            return streamflow.cwl.utils.eval_expression(
                expression=expression, context=options.context | {"self": value},
                full_js=options.full_js, expression_lib=options.expression_lib,
            )  # fmt: skip

        words = command_words(self.arguments, self.inputs, options.context["inputs"], evaluate)
        quoted = [shlex.quote(word.text) if word.quoted or not self.is_shell_command else word.text for word in words]
        return CommandToken(name=None, position=0, value=quoted)

    def check_type(self, token: Token) -> bool:
        """Return True: the engine calls it for alternatives of a type, which `command_words` chooses."""
        return True

    async def _save_additional_params(self, database: Any) -> MutableMapping[str, Any]:
        return {"arguments": self.arguments, "inputs": self.inputs, "is_shell_command": self.is_shell_command}

    @classmethod
    async def _load(cls, row: Mapping[str, Any], loading_context: Any) -> CommandWords:
        return cls(**row)


def create_command(
    *, cwl_element: Any, cwl_name_prefix: str, schema_def_types: Mapping[str, Any], **keywords: Any
) -> Any:
    """Return StreamFlow's command of a tool, with our builder of its words."""
    inputs = [
        _plain_field(port, streamflow.cwl.utils.get_name("", cwl_name_prefix, port.id), schema_def_types)
        for port in cwl_element.inputs
    ]
    arguments = [word if isinstance(word, str) else _plain_binding(word) for word in cwl_element.arguments or ()]
    command = _stock_create_command(
        cwl_element=cwl_element, cwl_name_prefix=cwl_name_prefix, schema_def_types=schema_def_types, **keywords
    )
    command.processors = [CommandWords(arguments, inputs, command.is_shell_command)]
    return command


def _plain_field(field: Any, name: str, named: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "type": _plain_type(field.type_, named), "inputBinding": _plain_binding(field.inputBinding)}


def _plain_type(kind: Any, named: Mapping[str, Any]) -> Any:
    """Return a type of the parser as plain data; a name of SchemaDefRequirement becomes its type."""
    if isinstance(kind, str):
        return _plain_type(named[kind], named) if kind in named else kind
    if isinstance(kind, list):
        return [_plain_type(alternative, named) for alternative in kind]
    plain = {"type": kind.type_, "inputBinding": _plain_binding(getattr(kind, "inputBinding", None))}
    if isinstance(kind, cwl_utils.parser.ArraySchema):
        return plain | {"items": _plain_type(kind.items, named)}
    if isinstance(kind, cwl_utils.parser.EnumSchema):
        return plain | {"symbols": [_last(symbol) for symbol in kind.symbols]}
    return plain | {"fields": [_plain_field(field, _last(field.name), named) for field in kind.fields or ()]}


def _last(name: str) -> str:
    return name.rpartition("#")[2].rpartition("/")[2]


def _plain_binding(binding: Any) -> dict[str, Any] | None:
    if binding is None:
        return None
    return {key: value for key in _BINDING_KEYS if (value := getattr(binding, key, None)) is not None}


def no_input_processor(**_: Any) -> None:
    """Return no builder for a single input: StreamFlow's is not used, and would mark bindings as unquoted."""
