"""A verb's configuration is a frozen dataclass; this turns its fields into command-line options and back."""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

from medweave_core.contracts.codec import hints_of

C = TypeVar("C")


def option(
    help_text: str, *, default: Any = dataclasses.MISSING, metavar: str | None = None, positional: bool = False,
    choices: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    """A configuration field that is also an option.

    Args:
        help_text: meaning and unit, as `--help` shows it.
        default: left out for a required option.
        metavar: what the value is called in `--help`; by default the unit or the type.
        positional: given by its place, without a name (for a word that says what kind of thing is meant).
        choices: of a string, where they are not known to the type (Literal); `--help` lists them, the configuration refuses others.
    """
    return dataclasses.field(
        default=default,
        metadata={"help": help_text, "metavar": metavar, "positional": positional, "choices": choices},
    )


def add_options(parser: argparse.ArgumentParser, config: type) -> None:
    """Adds one `--kebab-case` option per field; tuples take several values, booleans have a `--no-` form."""
    hints = hints_of(config)
    for field in dataclasses.fields(config):
        required = field.default is dataclasses.MISSING
        shown = "" if required or field.default in (None, ()) else f" (default: {_show(field.default)})"
        keywords: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%") + shown, "dest": field.name}
        keywords |= {"required": required, "default": None if required else field.default}
        keywords |= _value_keywords(hints[field.name], field.metadata["metavar"])
        if field.metadata["choices"]:
            keywords["metavar"] = f"{{{','.join(field.metadata['choices'])}}}"
        if field.metadata["positional"]:
            del keywords["dest"], keywords["required"]
            parser.add_argument(field.name, **keywords)
            continue
        parser.add_argument(f"--{field.name.replace('_', '-')}", **keywords)


def read_options(config: type[C], namespace: argparse.Namespace) -> C:
    """The checked configuration; its `__post_init__` raises UsageError for values that cannot be used."""
    values = {field.name: getattr(namespace, field.name) for field in dataclasses.fields(config)}  # type: ignore[arg-type]
    return config(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def reported(config: Any) -> dict[str, Any]:
    """The configuration for the run report: every value but paths, which may hold names of people."""
    shown = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value for name, value in shown.items() if not _holds_path(value)}


def _holds_path(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, tuple) and any(isinstance(item, Path) for item in value))


def _show(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return {True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _value_keywords(hint: Any, metavar: str | None) -> dict[str, Any]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(argument for argument in arguments if argument is not type(None))
        arguments = typing.get_args(hint)
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if typing.get_origin(hint) is typing.Literal:
        return {"choices": arguments}
    if typing.get_origin(hint) is tuple:
        if arguments[-1] is Ellipsis:
            return {"nargs": "+", "type": arguments[0], "metavar": metavar}
        names = tuple(metavar.split()) if metavar and len(metavar.split()) == len(arguments) else metavar
        return {"nargs": len(arguments), "type": arguments[0], "metavar": names}
    return {"type": hint, "metavar": metavar or {Path: "PATH", int: "N", float: "X", str: "TEXT"}[hint]}
