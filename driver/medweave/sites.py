"""Site files: which deployments there are, and which role runs where."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from medweave.documents import Entry, FieldPath, entries, parse_mapping, read_text, shown, spelled
from medweave_steps.contracts.errors import BackendMissingError, UsageError, UserInputError

SITES = Path("deployments/sites")
OUR_TYPES = "medweave."
WHAT = "site file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a role runs, or where an input lies.

    Attributes:
        service: variant inside the deployment, or None.
        locations: nodes or pods of one job.
        workdir: folder at the deployment below which an input lies; None for a role.
    """

    deployment: str
    service: str | None = None
    locations: int = 1
    workdir: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site file that was found right.

    Attributes:
        text: the file as it stands.
        deployments: its deployments as data.
        entries: the same, as they stand in the text.
    """

    path: Path
    title: str
    text: str
    roles: Mapping[str, Place]
    inputs: Mapping[str, Place]
    deployments: Mapping[str, Mapping[str, Any]]
    entries: Sequence[Entry]

    @property
    def name(self) -> str:
        """`testbed` for testbed.yml."""
        return self.path.stem


def find_site(name: str, start: Path) -> Path:
    """The file of a site.

    Args:
        name: a path where it has a `/` or ends in `.yml`, else a name in the next `deployments/sites/` at or above `start`.
        start: folder from which to look upwards.

    Raises:
        UsageError: no site has this name; lists those there are.
    """
    if "/" in name or name.endswith((".yml", ".yaml")):
        return Path(name)
    folder = next((above / SITES for above in [start, *start.parents] if (above / SITES).is_dir()), None)
    if folder is not None and (folder / f"{name}.yml").is_file():
        return folder / f"{name}.yml"
    known = sorted(path.stem for path in folder.glob("*.yml")) if folder else []
    raise UsageError(
        f"there is no site '{name}'.",
        seen=f"no {name}.yml in {shown(folder)}" if folder else f"no folder {SITES} in or above {shown(start)}",
        expected=f"one of {', '.join(known)}, or the path of a site file" if known else "the path of a site file",
        do=_closest(name, known) or "write --site path/to/site.yml",
    )


def read_site(path: Path) -> Site:
    """Reads a site file.

    Raises:
        UserInputError: the file is no YAML, or something in it is wrong; the message has the path to the field.
    """
    text = read_text(path, WHAT)
    document = parse_mapping(text, path, WHAT)
    check(document, schema(), path, ())
    deployments = document["deployments"]
    for name, deployment in deployments.items():
        _check_deployment(name, deployment, deployments, path)
    site = Site(
        path=path,
        title=" ".join(document["title"].split()),
        text=text,
        roles={role: Place(**place) for role, place in document["roles"].items()},
        inputs={name: Place(**place) for name, place in (document.get("inputs") or {}).items()},
        deployments=deployments,
        entries=_entries(text, path),
    )
    for section, places in (("roles", site.roles), ("inputs", site.inputs)):
        for name, place in places.items():
            _check_place(place, deployments, path, (section, name))
    _check_gate(site)
    return site


def schema() -> dict[str, Any]:
    """The JSON Schema of a site file."""
    document: dict[str, Any] = json.loads(files("medweave").joinpath("site.schema.json").read_text("utf-8"))
    return document


def connector_schemas() -> dict[str, dict[str, Any]]:
    """Schema of `config` by type, of medweave's own connectors."""
    found = {}
    for folder in files("medweave_connectors").iterdir():
        file = folder.joinpath("schema.json") if folder.is_dir() else None
        if file is not None and file.is_file():
            document = json.loads(file.read_text("utf-8"))
            if "/connectors/" in document["$id"]:
                found[document["title"]] = document
    return dict(sorted(found.items()))


def check(value: Any, schema: Mapping[str, Any], path: Path, field: FieldPath) -> None:
    """Holds a value of a site file against a schema.

    Args:
        path: the site file, for messages.
        field: where the value stands in it.

    Raises:
        UserInputError: the first fault, with the path to its field.
    """
    try:
        import jsonschema
    except ImportError as error:
        raise BackendMissingError(
            "the library 'jsonschema' is not installed.",
            seen=str(error),
            expected="medweave installed with its extra 'driver'",
            do="pip install 'medweave[driver]'",
        ) from error
    faults = jsonschema.Draft202012Validator(schema).iter_errors(value)
    # A fault of the whole comes before one inside it, which it may have caused.
    fault = min(faults, key=lambda found: (len(found.absolute_path), str(found.absolute_path)), default=None)
    if fault is not None:
        raise _told(fault, path, field)


def fault_at(path: Path, field: FieldPath, what: str, **parts: str) -> UserInputError:
    """`deployments/sites/x.yml: roles.train.service: WHAT` with its further lines."""
    where = f"{shown(path)}: {spelled(field)}" if field else shown(path)
    return UserInputError(f"{where}: {what}", **parts)


def _told(fault: Any, path: Path, field: FieldPath) -> UserInputError:
    """What a person needs to know of a fault that jsonschema found."""
    where, rule, limit = (*field, *fault.absolute_path), fault.validator, fault.validator_value
    known: Mapping[str, Any] = fault.schema.get("properties", {})
    if rule in ("additionalProperties", "unevaluatedProperties"):
        patterns = fault.schema.get("patternProperties", {})
        unknown = next(
            str(key) for key in fault.instance if key not in known and not any(re.search(p, str(key)) for p in patterns)
        )
        return fault_at(
            path,
            (*where, unknown),
            "there is no such key.",
            seen=f"'{unknown}'",
            expected=f"one of {', '.join(sorted(known))}" if known else "no keys here",
            do=_closest(unknown, list(known)) or f"take '{unknown}' away",
        )
    if rule == "required":
        missing = next(key for key in limit if key not in fault.instance)
        meaning = known.get(missing, {}).get("description", "")
        return fault_at(
            path,
            where,
            f"the key '{missing}' is missing.",
            seen=", ".join(map(str, fault.instance)) or "no keys",
            expected=f"{missing}: {meaning}" if meaning else f"{missing}: …",
            do=f"write '{missing}:' there",
        )
    if rule == "type":
        expected = " or ".join([limit] if isinstance(limit, str) else limit)
    elif rule == "enum":
        expected = f"one of {', '.join(map(str, limit))}"
    else:
        expected = fault.message
    meaning = fault.schema.get("description", "")
    return fault_at(
        path,
        where,
        "this value cannot be used.",
        seen=json.dumps(fault.instance, default=str)[:120],
        expected=f"{expected} ({meaning})" if meaning else expected,
        do="write such a value",
    )


def _check_deployment(name: str, deployment: Mapping[str, Any], all_of_them: Mapping[str, Any], path: Path) -> None:
    where: FieldPath = ("deployments", name)
    schemas, kind = connector_schemas(), deployment["type"]
    if kind.startswith(OUR_TYPES):
        if kind not in schemas:
            raise _unknown(path, (*where, "type"), "connector", kind, schemas)
        check(deployment["config"], schemas[kind], path, (*where, "config"))
    chain = [name]
    while (inner := wrapped(all_of_them[chain[-1]])) is not None:
        if inner not in all_of_them:
            raise _unknown(path, ("deployments", chain[-1], "wraps"), "deployment", inner, all_of_them)
        if inner in chain:
            raise fault_at(
                path, (*where, "wraps"), "these deployments wrap each other in a circle.",
                seen=" → ".join([*chain, inner]), expected="a chain that ends at a deployment that wraps none",
                do="take one `wraps` away",
            )  # fmt: skip
        chain.append(inner)


def wrapped(deployment: Mapping[str, Any]) -> str | None:
    """Name of the deployment through which this one is reached."""
    wraps = deployment.get("wraps")
    return wraps["deployment"] if isinstance(wraps, Mapping) else wraps


def _check_place(place: Place, deployments: Mapping[str, Mapping[str, Any]], path: Path, where: FieldPath) -> None:
    if place.deployment not in deployments:
        raise _unknown(path, (*where, "deployment"), "deployment", place.deployment, deployments)
    deployment = deployments[place.deployment]
    services = deployment["config"].get("services", {})
    if deployment["type"] in ("medweave.local", "medweave.ssh") and place.service is not None and not services:
        raise fault_at(
            path, (*where, "service"), f"deployment '{place.deployment}' has no services.", seen=f"'{place.service}'",
            expected=f"no service: {deployment['type']} has none", do="take `service` away",
        )  # fmt: skip
    if services and place.service not in services:
        if place.service is None:
            raise fault_at(
                path, where, f"deployment '{place.deployment}' has services, and none is chosen.", seen="no service",
                expected=f"service: one of {', '.join(services)}", do="choose one",
            )  # fmt: skip
        inside = f" in deployment '{place.deployment}'"
        raise _unknown(path, (*where, "service"), "service", place.service, services, inside=inside)
    if deployment["type"] == "medweave.local" and place.locations > 1:
        raise fault_at(
            path, (*where, "locations"), "this machine is one location.", seen=str(place.locations), expected="1",
            do="choose a deployment with several nodes or pods, or take `locations` away",
        )  # fmt: skip


def _check_gate(site: Site) -> None:
    gate, segment = site.roles.get("gate"), site.roles.get("segment")
    if gate and segment and (gate.deployment, gate.service) != (segment.deployment, segment.service):
        here, there = (f"{place.deployment}/{place.service or '-'}" for place in (gate, segment))
        raise fault_at(
            site.path, ("roles", "gate"), "gate would measure on other machines than segment runs on.",
            seen=f"gate on {here}, segment on {there}", expected="the same deployment and service for both",
            do="give gate the place of segment",
        )  # fmt: skip


def _unknown(
    path: Path, field: FieldPath, kind: str, name: str, known: Iterable[str], *, inside: str = ""
) -> UserInputError:
    names = list(known)
    return fault_at(
        path, field, f"there is no {kind} '{name}'{inside}.", seen=f"'{name}'", expected=f"one of {', '.join(names)}",
        do=_closest(name, names) or "choose one of these",
    )  # fmt: skip


def _closest(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f"write '{found[0]}' (closest name)" if found else ""


def _entries(text: str, path: Path) -> Sequence[Entry]:
    try:
        return entries(text, "deployments")
    except ValueError as error:
        raise fault_at(
            path, ("deployments",), "the deployments cannot be copied word for word.", seen="`deployments: {…}` on one line",
            expected="each deployment on lines of its own, below `deployments:`", do="write one below the other",
        ) from error  # fmt: skip
