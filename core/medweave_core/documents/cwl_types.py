"""CWL's types as plain values, and which may go where. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from medweave_core.documents.closest_match import closest
from medweave_core.documents.line_numbers import FieldPath

PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "string", "File", "Directory", "Any")
NUM_BITS = {"int": 32, "long": 64}  # signed
STREAMS = ("stdin", "stdout", "stderr")
# What a literal of Python may stand for.
_LITERALS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("int", "long", "float", "double")),
    (float, ("float", "double")),
    (str, ("string",)),
)


@dataclass(frozen=True, slots=True)
class Array:
    """An array of what one of these types is."""

    items: frozenset[Any]


@dataclass(frozen=True, slots=True)
class Enum:
    """One of some words."""

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
    """A type that is none; `field` leads to it from the type."""

    field: FieldPath
    seen: str
    fix: str


def parse(raw: Any, declared: bool, field: FieldPath = ()) -> Type:
    """The type that a document writes.

    Args:
        declared: the document declares types of its own, so that an unknown name may be one of them; taken for Any then.

    Raises:
        BadType: it is none.
    """
    if isinstance(raw, list):
        return frozenset().union(*(parse(each, declared, (*field, number)) for number, each in enumerate(raw)))
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
            raise BadType(
                field=(*field, "symbols"), seen=str(symbols), fix="write the words that it may be: symbols: [a, b]"
            )
        return frozenset([Enum(tuple(str(each).split("#")[-1].split("/")[-1] for each in symbols))])
    if kind == "record":
        fields = raw.get("fields") or {}
        if not isinstance(fields, (Mapping, list)) or (isinstance(fields, list) and not all(map(_is_field, fields))):
            raise BadType(field=(*field, "fields"), seen=str(fields), fix="write the fields by name")
        named = fields.items() if isinstance(fields, Mapping) else [(each["name"], each) for each in fields]
        inner = [
            (str(name), parse(each.get("type") if isinstance(each, Mapping) else each, declared, (*field, "fields", name)))
            for name, each in named
        ]  # fmt: skip
        return frozenset([Record(tuple(sorted(inner, key=lambda pair: pair[0])))])
    return parse(kind, declared, (*field, "type"))


def _is_field(described: Any) -> bool:
    return isinstance(described, Mapping) and isinstance(described.get("name"), str)


def spelled_type(kind: Type) -> str:
    """As a document writes it: `File[]?`."""
    names = sorted(_name(each) for each in kind if each != "null")
    text = names[0] if len(names) == 1 else f"[{', '.join(names)}]" if names else "null"
    return text + ("?" if "null" in kind and names else "")


def _name(each: Any) -> str:
    if isinstance(each, Array):
        return f"{spelled_type(each.items)}[]"
    if isinstance(each, Enum):
        return f"enum ({', '.join(each.symbols)})"
    if isinstance(each, Record):
        return f"record ({', '.join(name for name, _ in each.fields)})"
    return str(each)


def taken(given: Any, wanted: Any) -> bool:
    """Whether one alternative may go where another is wanted; as cwltool judges, but enums may have fewer words than is wanted."""
    if "Any" in (given, wanted):
        return True
    if isinstance(given, Array) and isinstance(wanted, Array):
        return fits(given.items, wanted.items)
    if isinstance(given, Enum) and isinstance(wanted, Enum):
        return set(given.symbols) <= set(wanted.symbols)
    if isinstance(given, Record) and isinstance(wanted, Record):
        fields = dict(given.fields)
        return all(fits(fields.get(name, frozenset(["null"])), kind) for name, kind in wanted.fields)
    return bool(given == wanted)


def fits(given: Type, wanted: Type) -> bool:
    """Whether each thing of a type may go where another type is wanted."""
    return all(any(taken(each, other) for other in wanted) for each in given)


def may_fit(given: Type, wanted: Type) -> bool:
    """Whether something of a type, other than null, may go there; what is in arrays too."""
    return any(any(_may_go(each, other) for other in wanted) for each in given if each != "null")


def _may_go(given: Any, wanted: Any) -> bool:
    if isinstance(given, Array) and isinstance(wanted, Array):
        return may_fit(given.items, wanted.items)
    return taken(given, wanted)


def of_value(value: Any, kind: Type) -> bool:
    """Whether a literal, as a job file or a default has it, is of a type."""
    return any(_is(value, each) for each in kind)


def _is(value: Any, each: Any) -> bool:
    if each == "Any":
        return value is not None
    if value is None or each == "null":
        return value is None and each == "null"
    if isinstance(each, Array):
        return isinstance(value, list) and all(of_value(item, each.items) for item in value)
    if isinstance(each, Enum):
        return value in each.symbols
    if isinstance(each, Record):
        return isinstance(value, Mapping) and all(of_value(value.get(name), kind) for name, kind in each.fields)
    if each in ("File", "Directory"):
        return isinstance(value, Mapping) and value.get("class") == each
    names = next((names for kind, names in _LITERALS if isinstance(value, kind)), ())
    return each in names and (each not in NUM_BITS or is_in_range(value, each))


def is_in_range(value: int, name: str) -> bool:
    """Return whether an integer fits the type `int` or `long`, as cwltool judges it."""
    return -(1 << (NUM_BITS[name] - 1)) <= value < 1 << (NUM_BITS[name] - 1)


def misfits(value: Any, kind: Type, field: FieldPath = ()) -> Iterator[tuple[FieldPath, Any, Type]]:
    """What in a literal is not of a type, as deep as that can be said: field, value and the type that is taken there.

    Args:
        field: of the literal.
    """
    if of_value(value, kind):
        return
    inside = [found for each in kind if (found := [*_inside(value, each, field)])]
    yield from min(inside, key=len, default=[(field, value, kind)])  # of the alternative that it is nearest to


def _inside(value: Any, each: Any, field: FieldPath) -> Iterator[tuple[FieldPath, Any, Type]]:
    if isinstance(each, Array) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from misfits(item, each.items, (*field, number))
    elif isinstance(each, Record) and isinstance(value, Mapping) and "class" not in value:
        for name, kind in each.fields:
            if name in value:
                yield from misfits(value[name], kind, (*field, name))
            elif "null" not in kind:
                yield field, value, frozenset([each])


def named(section: Any) -> dict[str, Any]:
    """Inputs, outputs or steps by name, from either of the two forms that CWL has for them."""
    if isinstance(section, Mapping):
        return {str(name): value for name, value in section.items()}
    if isinstance(section, list):
        return {str(item["id"]).lstrip("#"): item for item in section if isinstance(item, Mapping) and "id" in item}
    return {}


def required(document: Mapping[str, Any], *sections: str) -> dict[str, tuple[str, Any]]:
    """Requirements and hints by class: the section that each stands in, and what it says."""
    found: dict[str, tuple[str, Any]] = {}
    for section in sections or ("hints", "requirements"):
        listed = document.get(section)
        members = listed if isinstance(listed, list) else []
        pairs = (
            listed.items()
            if isinstance(listed, Mapping)
            else [(member.get("class"), member) for member in members if isinstance(member, Mapping)]
        )
        found.update({str(name): (section, said) for name, said in pairs if name and name != "$import"})
    return found


def type_of(described: Any, document: Mapping[str, Any]) -> Type:
    """The type of an input or output; Any where it is wrong, which is told elsewhere."""
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
        if any(has_files(each, any_counts=any_counts) for each in inner):
            return True
    return False
