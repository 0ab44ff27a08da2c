"""Site files: which deployments there are, and which role runs where."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from medweave.project.deployments import PlaceFault, as_fault, faults_of_deployments, unknown
from medweave.project.prices import Prices, read_prices
from medweave_core.documents.binding_names import too_few_hosts
from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import FieldFault, fault_at, faults
from medweave_core.documents.line_numbers import FieldPath, shown
from medweave_core.documents.source_documents import DocumentReader, SourceDocument
from medweave_core.documents.yaml_documents import Entry, entries
from medweave_core.errors import UsageError

OF_GATE: FieldPath = ("roles", "gate")
SITES = Path("deployments/sites")
WHAT = "site file"
WITHOUT_SERVICES = ("medweave.local", "medweave.ssh")
ROLE_OPTION = re.compile(
    r"(?P<role>[a-z-]+)=(?P<deployment>[^/:]+)(/(?P<service>[^/:]+))?(:(?P<locations>[1-9][0-9]*))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of a role or of an input.

    Attributes:
        service: variant inside the deployment, or None.
        locations: nodes or pods of one job.
        workdir: folder at the deployment that contains an input; None for a role.
        holds: data class of an input, if the site overrides that of the workflow.
    """

    deployment: str
    service: str | None = None
    locations: int = 1
    workdir: str | None = None
    holds: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A valid site file.

    Attributes:
        document: content of the file.
        may_hold: data classes that a deployment may hold, by its name; empty if the site has no data rules.
        transfers: settings of the data manager.
        prices: prices of computing, or None.
        options: `--role` options of the command line, by role.
        deployments: its deployments as data.
        entries: its deployments as text.
    """

    path: Path
    title: str
    document: SourceDocument
    roles: Mapping[str, Place]
    inputs: Mapping[str, Place]
    may_hold: Mapping[str, Sequence[str]]
    transfers: Mapping[str, Any]
    prices: Prices | None
    deployments: Mapping[str, Mapping[str, Any]]
    entries: Sequence[Entry]
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return the text of the file."""
        return self.document.text

    @property
    def name(self) -> str:
        """Return the name of the site, such as `testbed` for testbed.yml."""
        return self.path.stem

    def place_of(self, role: str, *, gang: bool) -> Place:
        """Return the place of a step of a role: on one of the role's nodes, unless its command may be started once per node."""
        place = self.roles[role]
        return place if gang else dataclasses.replace(place, locations=1)


def find_site(name: str, start: Path) -> Path:
    """Return the file of a site.

    Args:
        name: a path where it has a `/` or ends in `.yml`, else a name in the next `deployments/sites/` at or above `start`.
        start: folder from which to look upwards.

    Raises:
        UsageError: no site has this name; lists those there are.
    """
    if "/" in name or name.endswith((".yml", ".yaml")):
        return Path(name)
    folder = next((parent / SITES for parent in [start, *start.parents] if (parent / SITES).is_dir()), None)
    if folder is not None and (folder / f"{name}.yml").is_file():
        return folder / f"{name}.yml"
    known = sorted(path.stem for path in folder.glob("*.yml") if _may_be_site(path)) if folder else []
    raise UsageError(
        f"there is no site '{name}'.",
        seen=f"no {name}.yml in {shown(folder)}" if folder else f"no folder {SITES} in or above {shown(start)}",
        expected=f"one of {', '.join(known)}, or the path of a site file" if known else "the path of a site file",
        do=closest(name, known) or "write --site path/to/site.yml",
    )


def _may_be_site(path: Path) -> bool:
    """Return whether a file of the folder of sites has a site's key `deployments`; manifests of pods lie there too."""
    return any(
        line.startswith("deployments:") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()
    )


def read_site(path: Path, reader: DocumentReader | None = None) -> Site:
    """Return the site that a file describes.

    Args:
        reader: reader of the command, which reads each file once.

    Raises:
        UserInputError: the file is not YAML, or something in it is wrong; the message has the path to the field.
    """
    reader = reader or DocumentReader()
    source = reader.mapping(path, WHAT)
    document = source.data
    if path not in reader.checked:
        for fault in faults_of_site(document, path):
            raise fault
        reader.checked.add(path)
    deployments = document["deployments"]
    return Site(
        path=path,
        title=" ".join(document["title"].split()),
        document=source,
        roles=_places(document, "roles"),
        inputs=_places(document, "inputs"),
        may_hold=document.get("mayHold") or {},
        transfers=document.get("transfers") or {},
        prices=read_prices(path.stem, document.get("prices")),
        deployments=deployments,
        entries=_entries(source.text, path),
    )


def faults_of_site(document: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
    """Yield the errors of a site file; if the schema is violated, only those errors."""
    schema_faults = list(faults(document, schema(), path, ()))
    yield from schema_faults
    if schema_faults:
        return
    deployments = document["deployments"]
    yield from faults_of_deployments(deployments, path)
    yield from faults(document.get("transfers") or {}, _schema_of_transfers(), path, ("transfers",))
    references: list[FieldPath] = [("mayHold", name) for name in document.get("mayHold") or {}]
    references += [("prices", "deployments", name) for name in (document.get("prices") or {}).get("deployments", {})]
    for field_path in references:
        if (name := str(field_path[-1])) not in deployments:
            yield as_fault(path, field_path, unknown("deployment", name, deployments))
    misplaced = False
    for section in ("roles", "inputs"):
        for name, place in _places(document, section).items():
            fault = fault_of_place(place, deployments)
            if fault is not None:
                misplaced = True
                yield as_fault(path, (section, name, fault.key) if fault.key else (section, name), fault)
    if not misplaced and (of_gate := _fault_of_gate(path, _places(document, "roles"))):
        yield of_gate


def _places(document: Mapping[str, Any], section: str) -> dict[str, Place]:
    return {name: Place(**place) for name, place in (document.get(section) or {}).items()}


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a site file."""
    document: dict[str, Any] = json.loads(files("medweave").joinpath("site.schema.json").read_text("utf-8"))
    return document


def _schema_of_transfers() -> dict[str, Any]:
    """Return the schema of the data manager's settings, without the data rules, which `bind` writes."""
    text = files("medweave_connectors").joinpath("engine", "data", "schema.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    del document["properties"]["dataRules"]
    return document


def fault_of_place(place: Place, deployments: Mapping[str, Mapping[str, Any]]) -> PlaceFault | None:
    """Return the error of a place at a site with these deployments; None if it is valid."""
    if place.deployment not in deployments:
        return unknown("deployment", place.deployment, deployments)
    deployment = deployments[place.deployment]
    services = deployment["config"].get("services", {})
    services = services if isinstance(services, Mapping) else {}  # reported with the deployment
    if place.service is not None and not services and deployment["type"] in WITHOUT_SERVICES:
        return PlaceFault(
            key="service",
            what=f"deployment '{place.deployment}' has no services.",
            seen=f"'{place.service}'",
            expected=f"no service: {deployment['type']} has none",
            do="remove `service`",
        )
    if services and place.service is None:
        return PlaceFault(
            key=None,
            what=f"deployment '{place.deployment}' has services, but no service is chosen.",
            seen="no service",
            expected=f"a service: one of {', '.join(services)}",
            do="add `service`",
        )
    if services and place.service not in services:
        return unknown("service", str(place.service), services, inside=f" in deployment '{place.deployment}'")
    if place.locations > 1 and deployment["type"] == "medweave.local":
        return PlaceFault(
            key="locations",
            what="a deployment on this machine has only one location.",
            seen=str(place.locations),
            expected="1",
            do="choose a deployment with several nodes or pods, or set locations to 1",
        )
    if (problem := too_few_hosts(place.deployment, deployment, {"locations": place.locations})) is not None:
        what, expected, do = problem
        return PlaceFault(key="locations", what=what, seen=str(place.locations), expected=expected, do=do)
    return None


def role_names() -> list[str]:
    """Return the roles that a site file may place."""
    return list(schema()["properties"]["roles"]["properties"])


def with_role(site: Site, text: str) -> Site:
    """Return the site with another place for one role.

    Args:
        text: `ROLE=DEPLOYMENT[/SERVICE][:LOCATIONS]`, as on the command line.

    Raises:
        UsageError: it has another form, or no such place exists.
    """
    match = ROLE_OPTION.fullmatch(text)
    roles = role_names()
    if match is None or match["role"] not in roles:
        raise UsageError(
            f"--role {text}: invalid value.",
            seen=text,
            expected=f"ROLE=DEPLOYMENT[/SERVICE][:LOCATIONS], with ROLE one of {', '.join(roles)}",
            do=(closest(match["role"], roles) or "use the role of the step in roles.yml, not the step's name")
            if match
            else "write for example --role train=hpc/gpu:2",
        )
    place = Place(deployment=match["deployment"], service=match["service"], locations=int(match["locations"] or 1))
    fault = fault_of_place(place, site.deployments)
    if fault is not None:
        raise UsageError(f"--role {text}: {fault.what}", seen=fault.seen, expected=fault.expected, do=fault.do)
    role = match["role"]
    changed = dataclasses.replace(site, roles={**site.roles, role: place}, options={**site.options, role: text})
    of_gate = _fault_of_gate(changed.path, changed.roles)
    if of_gate is not None:
        raise of_gate
    return changed


def _fault_of_gate(path: Path, roles: Mapping[str, Place]) -> FieldFault | None:
    gate = roles.get("gate")
    for name in ("segment", "classify"):
        role = roles.get(name)
        if not gate or not role or (gate.deployment, gate.service) == (role.deployment, role.service):
            continue
        here, there = (f"{place.deployment}/{place.service or '-'}" for place in (gate, role))
        return fault_at(
            path, OF_GATE, f"role gate must run on the same machines as role {name}.",
            seen=f"gate on {here}, {name} on {there}", expected="the same deployment and service for both",
            do=f"give role gate the deployment and service of {name}",
        )  # fmt: skip
    return None


def _entries(text: str, path: Path) -> Sequence[Entry]:
    try:
        return entries(text, "deployments")
    except ValueError as error:
        raise fault_at(
            path, ("deployments",), "the deployments cannot be copied.", seen="`deployments: {…}` on one line",
            expected="each deployment on its own lines below `deployments:`", do="use YAML block style",
        ) from error  # fmt: skip
