"""A verb's configuration is a frozen dataclass; this turns its fields into command-line options and back."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from medweave_core.contracts.codec import hints_of
from medweave_core.errors import UsageError

C = TypeVar("C")
Choices = tuple[str, ...] | Callable[[], tuple[str, ...]]


def option(
    help_text: str, *, default: Any = dataclasses.MISSING, metavar: str | None = None, positional: bool = False,
    choices: Choices = (), expected: str = "",
) -> Any:  # fmt: skip
    """Return a configuration field that is also an option.

    Args:
        help_text: meaning and unit, as `--help` shows it.
        default: left out for a required option.
        metavar: what the value is called in `--help`; by default the unit or the type.
        positional: written without the option's name (for a word that selects a kind of output).
        choices: of a string, where they are not known to the type (Literal); `--help` lists them, the configuration refuses others.
        expected: which values can be used, for the error where a variant without this option is selected.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "help": help_text, "metavar": metavar, "positional": positional, "choices": choices, "expected": expected,
        },
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variants:
    """The variants that one option selects among; each has an options dataclass.

    Attributes:
        selector: name of the field that selects the variant.
        built_in: returns the options classes of medweave's own variants; their options are always accepted.
        options_of: returns the options class of a variant by name; raises StepError for a name that is not known. The options of
            variants from other packages are accepted only if the variant is selected, so that no other package is imported.
    """

    selector: str
    built_in: Callable[[], Mapping[str, type]]
    options_of: Callable[[str], type]

    def fields(self, selected: str | None = None) -> list[dataclasses.Field[Any]]:
        """Return the options of the built-in variants and of the selected one, each name once."""
        classes = [*self.built_in().values(), *([self.options_of(selected)] if selected else [])]
        by_name = {field.name: field for options in classes for field in dataclasses.fields(options)}
        return list(by_name.values())

    def hints(self, selected: str | None = None) -> dict[str, Any]:
        """Return the types of these options."""
        classes = [*self.built_in().values(), *([self.options_of(selected)] if selected else [])]
        return {name: hint for options in classes for name, hint in hints_of(options).items()}

    def build(self, selected: str, values: Mapping[str, Any]) -> Any:
        """Return the options of the selected variant.

        Args:
            values: values of options by name, of any variant.
        Raises:
            UsageError: an option that the selected variant does not have has another value than its default.
        """
        options = self.options_of(selected)
        own = {field.name for field in dataclasses.fields(options)}
        for field in self.fields(selected):
            value = values.get(field.name, field.default)
            if field.name not in own and value != field.default:
                check_option(False, field.name, value, self._expected(field))
        return options(**{name: value for name, value in values.items() if name in own})

    def reported(self, options: Any) -> dict[str, Any]:
        """Return the options of all built-in variants and of the selected one; those that it does not have with their default."""
        own = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        return {field.name: field.default for field in self.fields()} | own

    def _expected(self, field: dataclasses.Field[Any]) -> str:
        if field.metadata["expected"]:
            return str(field.metadata["expected"])
        names = [name for name, options in self.built_in().items() if field.name in _names(options)]
        return f"no value: the option applies only to --{self.selector.replace('_', '-')} {' and '.join(names)}"


def variant_options(variants: Variants, *, default: Any) -> Any:
    """Return a configuration field that holds the options of the selected variant.

    Args:
        default: options of the variant that is selected by default.
    """
    return dataclasses.field(default=default, metadata={"variants": variants})


def _names(options: type) -> set[str]:
    return {field.name for field in dataclasses.fields(options)}


def all_fields(config: type, selected: Mapping[str, str] = types.MappingProxyType({})) -> list[dataclasses.Field[Any]]:
    """Return the fields that are options; the field of variants is replaced by the variants' options.

    Args:
        selected: name of the selected variant by the name of its selector.
    """
    parts = []
    for field in dataclasses.fields(config):
        variants = field.metadata.get("variants")
        parts.append(variants.fields(selected.get(variants.selector)) if variants else [field])
    return list(itertools.chain(*parts))


def all_hints(config: type, selected: Mapping[str, str] = types.MappingProxyType({})) -> dict[str, Any]:
    """Return the types of `all_fields` by name."""
    hints = dict(hints_of(config))
    for _, variants in _variants(config):
        hints |= variants.hints(selected.get(variants.selector))
    return hints


def _variants(config: type) -> Iterator[tuple[str, Variants]]:
    for field in dataclasses.fields(config):
        if variants := field.metadata.get("variants"):
            yield field.name, variants


def add_options(parser: argparse.ArgumentParser, config: type, words: Sequence[str] = ()) -> None:
    """Add one `--kebab-case` option per field; tuples take several values, booleans have a `--no-` form.

    Args:
        words: the command line, which selects variants from other packages.
    Raises:
        StepError: a selected variant does not exist or cannot be imported, or one of its options exists already.
    """
    selected = {variants.selector: _last_value(variants.selector, words) for _, variants in _variants(config)}
    chosen = {name: value for name, value in selected.items() if value}
    hints = all_hints(config, chosen)
    for field in all_fields(config, chosen):
        required = field.default is dataclasses.MISSING
        shown = "" if required or field.default in (None, ()) else f" (default: {_show(field.default)})"
        keywords: dict[str, Any] = {"help": field.metadata["help"].replace("%", "%%") + shown, "dest": field.name}
        # Without a default, so that the namespace has the options of the command line only; `build_config` adds the defaults.
        keywords |= {"required": required, "default": argparse.SUPPRESS}
        keywords |= _value_keywords(hints[field.name], field.metadata["metavar"])
        choices = field.metadata["choices"]
        if choices:
            keywords["metavar"] = f"{{{','.join(choices() if callable(choices) else choices)}}}"
        if field.metadata["positional"]:
            del keywords["dest"], keywords["required"]
            parser.add_argument(field.name, **keywords)
            continue
        try:
            parser.add_argument(f"--{field.name.replace('_', '-')}", **keywords)
        except argparse.ArgumentError as error:
            raise UsageError(
                f"two options are named --{field.name.replace('_', '-')}.",
                seen=" and ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items()),
                expected="option names that differ from medweave's, in the options class of a package",
                do="rename the option in the package that defines it",
            ) from error


def _last_value(name: str, words: Sequence[str]) -> str:
    """Return the last value of an option on a command line, empty where it is absent."""
    last, long = "", f"--{name.replace('_', '-')}"
    for word, following in itertools.pairwise([*words, ""]):
        if word == long:
            last = following
        elif word.startswith(f"{long}="):
            last = word.removeprefix(f"{long}=")
    return last


def read_options(config: type[C], namespace: argparse.Namespace) -> C:
    """Return the checked configuration.

    Raises:
        UsageError: a value cannot be used, as `__post_init__` of the configuration or of a variant's options finds.
    """
    return build_config(config, vars(namespace))


def build_config(config: type[C], values: Mapping[str, Any]) -> C:
    """Return a configuration from values by option name; those of variants go into their options.

    A configuration may have other defaults than its fields for some values: those that its `defaults_for(values)` returns.

    Raises:
        UsageError: as in `read_options`.
    """
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if defaults_for := getattr(config, "defaults_for", None):
        plain = {**defaults_for(plain), **plain}
    own = {name: value for name, value in plain.items() if name in _names(config)}
    for field, variants in _variants(config):
        selector = config.__dataclass_fields__[variants.selector]  # type: ignore[attr-defined]
        taken = {part.name for part in variants.fields(plain.get(variants.selector, selector.default))}
        own[field] = variants.build(
            plain.get(variants.selector, selector.default), {n: v for n, v in plain.items() if n in taken}
        )
    return config(**own)


def reported(config: Any) -> dict[str, Any]:
    """Return the configuration for the run report: every value but paths, which may hold names of people."""
    shown: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        variants, value = field.metadata.get("variants"), getattr(config, field.name)
        shown |= variants.reported(value) if variants else {field.name: value}
    return {name: value for name, value in shown.items() if not _holds_path(value)}


def check_option(holds: bool, name: str, seen: Any, expected: str) -> None:
    """Refuse the value of an option.

    Args:
        name: the field of the configuration.
        seen: its value.
    Raises:
        UsageError: unless `holds`.
    """
    if not holds:
        shown = " ".join(map(str, seen)) if isinstance(seen, tuple) else str(seen)
        raise UsageError(f"invalid value of --{name.replace('_', '-')}.", seen=shown, expected=expected)


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
