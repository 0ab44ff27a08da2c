"""CWL types as plain values, and which type fits which. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import FieldPath

PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "string", "File", "Directory", "Any")
NUM_BITS = {"int": 32, "long": 64}  # signed
STREAMS = ("stdin", "stdout", "stderr")
# CWL types of Python literals.
_LITERALS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("int", "long", "float", "double")),
    (float, ("float", "double")),
    (str, ("string",)),
)


@dataclass(frozen=True, slots=True)
class Array:
    """An array; each item has one of these types."""

    items: frozenset[Any]


@dataclass(frozen=True, slots=True)
class Enum:
    """One of several words."""

    symbols: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Record:
    """Named fields."""

    fields: tuple[tuple[str, frozenset[Any]], ...]


Type = frozenset[Any]  # the alternatives
ANY: Type = frozenset(["Any"])
NULL: Type = frozenset(["null"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BadType(Exception):
    """An error in a type; `field` is its place in the type."""

    field: FieldPath
    seen: str
    fix: str


def parse(raw: Any, declared: bool, field: FieldPath = ()) -> Type:
    """Return the type that a document declares.

    Args:
        declared: the document declares types; an unknown name counts as Any then.

    Raises:
        BadType: it is not a type.
    """
    if isinstance(raw, list):
        return frozenset().union(
            *(parse(alternative, declared, (*field, number)) for number, alternative in enumerate(raw))
        )
    if isinstance(raw, Mapping):
        return _parse_mapping(raw, declared, field)
    if not isinstance(raw, str) or not raw:
        raise BadType(field=field, seen=str(raw), fix="write a type, such as File or int?")
    if raw.endswith("?"):
        return frozenset(["null"]) | parse(raw[:-1], declared, field)
    if raw.endswith("[]"):
        return frozenset([Array(parse(raw[:-2], declared, field))])
    if raw in STREAMS:
        return frozenset(["File"])
    if raw in PRIMITIVE:
        return frozenset([raw])
    if declared or "#" in raw or raw.endswith((".yml", ".yaml")):
        return ANY
    near = closest(raw, PRIMITIVE)
    raise BadType(field=field, seen=raw, fix=near or f"write one of {', '.join(PRIMITIVE)}, with [] or ? after it")


def _parse_mapping(raw: Mapping[str, Any], declared: bool, field: FieldPath) -> Type:
    if "$import" in raw or "$include" in raw:
        return ANY
    kind = raw.get("type")
    if kind == "array":
        return frozenset([Array(parse(raw.get("items"), declared, (*field, "items")))])
    if kind == "enum":
        symbols = raw.get("symbols")
        if not isinstance(symbols, list) or not symbols:
            raise BadType(field=(*field, "symbols"), seen=str(symbols), fix="write the allowed words: symbols: [a, b]")
        return frozenset([Enum(tuple(str(member).split("#")[-1].split("/")[-1] for member in symbols))])
    if kind == "record":
        fields = raw.get("fields") or {}
        if not isinstance(fields, (Mapping, list)) or (isinstance(fields, list) and not all(map(_is_field, fields))):
            raise BadType(field=(*field, "fields"), seen=str(fields), fix="write the fields by name")
        named = fields.items() if isinstance(fields, Mapping) else [(member["name"], member) for member in fields]
        inner = [
            (str(name), parse(member.get("type") if isinstance(member, Mapping) else member, declared, (*field, "fields", name)))
            for name, member in named
        ]  # fmt: skip
        return frozenset([Record(tuple(sorted(inner, key=lambda pair: pair[0])))])
    return parse(kind, declared, (*field, "type"))


def _is_field(described: Any) -> bool:
    return isinstance(described, Mapping) and isinstance(described.get("name"), str)


def spelled_type(kind: Type) -> str:
    """Return a type as a document writes it: `File[]?`."""
    names = sorted(_name(alternative) for alternative in kind if alternative != "null")
    text = names[0] if len(names) == 1 else f"[{', '.join(names)}]" if names else "null"
    return text + ("?" if "null" in kind and names else "")


def _name(alternative: Any) -> str:
    if isinstance(alternative, Array):
        return f"{spelled_type(alternative.items)}[]"
    if isinstance(alternative, Enum):
        return f"enum ({', '.join(alternative.symbols)})"
    if isinstance(alternative, Record):
        return f"record ({', '.join(name for name, _ in alternative.fields)})"
    return str(alternative)


def alternative_fits(source: Any, target: Any) -> bool:
    """Return whether one alternative fits another, as in cwltool; an enum with fewer words fits one with more."""
    if "Any" in (source, target):
        return True
    if isinstance(source, Array) and isinstance(target, Array):
        return fits(source.items, target.items)
    if isinstance(source, Enum) and isinstance(target, Enum):
        return set(source.symbols) <= set(target.symbols)
    if isinstance(source, Record) and isinstance(target, Record):
        fields = dict(source.fields)
        return all(fits(fields.get(name, frozenset(["null"])), kind) for name, kind in target.fields)
    return bool(source == target)


def fits(source: Type, target: Type) -> bool:
    """Return whether every value of a type fits another type."""
    return all(any(alternative_fits(alternative, other) for other in target) for alternative in source)


def may_fit(source: Type, target: Type) -> bool:
    """Return whether some value of a type other than null may fit another type, also inside arrays."""
    return any(
        any(_may_fit_one(alternative, other) for other in target) for alternative in source if alternative != "null"
    )


def _may_fit_one(source: Any, target: Any) -> bool:
    if isinstance(source, Array) and isinstance(target, Array):
        return may_fit(source.items, target.items)
    return alternative_fits(source, target)


def of_value(value: Any, kind: Type) -> bool:
    """Return whether a literal of a job file or default has a type."""
    return any(_is(value, alternative) for alternative in kind)


def _is(value: Any, alternative: Any) -> bool:
    if alternative == "Any":
        return value is not None
    if value is None or alternative == "null":
        return value is None and alternative == "null"
    if isinstance(alternative, Array):
        return isinstance(value, list) and all(of_value(item, alternative.items) for item in value)
    if isinstance(alternative, Enum):
        return value in alternative.symbols
    if isinstance(alternative, Record):
        return isinstance(value, Mapping) and all(of_value(value.get(name), kind) for name, kind in alternative.fields)
    if alternative in ("File", "Directory"):
        return isinstance(value, Mapping) and value.get("class") == alternative
    names = next((names for kind, names in _LITERALS if isinstance(value, kind)), ())
    return alternative in names and (alternative not in NUM_BITS or is_in_range(value, alternative))


def is_in_range(value: int, name: str) -> bool:
    """Return whether an integer fits the type `int` or `long`, as cwltool judges it."""
    return -(1 << (NUM_BITS[name] - 1)) <= value < 1 << (NUM_BITS[name] - 1)


def misfits(value: Any, kind: Type, field: FieldPath = ()) -> Iterator[tuple[FieldPath, Any, Type]]:
    """Yield the innermost values of a literal that do not have its type: field, value and expected type.

    Args:
        field: of the literal.
    """
    if of_value(value, kind):
        return
    faults = [inner for alternative in kind if (inner := [*_misfits_inside(value, alternative, field)])]
    yield from min(faults, key=len, default=[(field, value, kind)])  # of the closest alternative


def _misfits_inside(value: Any, alternative: Any, field: FieldPath) -> Iterator[tuple[FieldPath, Any, Type]]:
    if isinstance(alternative, Array) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from misfits(item, alternative.items, (*field, number))
    elif isinstance(alternative, Record) and isinstance(value, Mapping) and "class" not in value:
        for name, kind in alternative.fields:
            if name in value:
                yield from misfits(value[name], kind, (*field, name))
            elif "null" not in kind:
                yield field, value, frozenset([alternative])


def named(section: Any) -> dict[str, Any]:
    """Return inputs, outputs or steps by name, from the mapping or the list form of CWL."""
    if isinstance(section, Mapping):
        return {str(name): value for name, value in section.items()}
    if isinstance(section, list):
        return {str(item["id"]).lstrip("#"): item for item in section if isinstance(item, Mapping) and "id" in item}
    return {}


def required(document: Mapping[str, Any], *sections: str) -> dict[str, tuple[str, Any]]:
    """Return requirements and hints by class, each with its section and value."""
    by_class: dict[str, tuple[str, Any]] = {}
    for section in sections or ("hints", "requirements"):
        listed = document.get(section)
        members = listed if isinstance(listed, list) else []
        pairs = (
            listed.items()
            if isinstance(listed, Mapping)
            else [(member.get("class"), member) for member in members if isinstance(member, Mapping)]
        )
        by_class.update({str(name): (section, value) for name, value in pairs if name and name != "$import"})
    return by_class


def type_of(described: Any, document: Mapping[str, Any]) -> Type:
    """Return the type of an input or output; Any for an error, which is reported elsewhere."""
    raw = described.get("type") if isinstance(described, Mapping) else described
    try:
        return parse(raw, "SchemaDefRequirement" in required(document))
    except BadType:
        return ANY


def has_files(kind: Type, *, any_counts: bool = False) -> bool:
    """Return whether a value of a type may hold files or folders.

    Args:
        any_counts: whether `Any` may.
    """
    names = ("File", "Directory", "Any") if any_counts else ("File", "Directory")
    for alternative in kind:
        if isinstance(alternative, Array):
            inner = [alternative.items]
        elif isinstance(alternative, Record):
            inner = [field_type for _, field_type in alternative.fields]
        elif alternative in names:
            return True
        else:
            continue
        if any(has_files(inner_type, any_counts=any_counts) for inner_type in inner):
            return True
    return False
