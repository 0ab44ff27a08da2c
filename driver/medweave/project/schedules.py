"""Read and check the file of a schedule."""

from __future__ import annotations

import functools
import json
import zoneinfo
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from medweave.project.cron_times import fault_of_times
from medweave.project.near_files import near
from medweave_core.documents.closest_match import closest
from medweave_core.documents.field_errors import FieldFault, fault_at, faults
from medweave_core.documents.line_numbers import shown
from medweave_core.documents.yaml_documents import read_mapping

WHAT = "schedule file"
SOURCES = ("folder", "dicomweb", "receive")
Overlap = Literal["forbid", "replace", "allow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A checked schedule; its schema describes each key.

    Attributes:
        path, file, folder: absolute paths; `file` is the StreamFlow file.
        place: `kubernetes`, `systemd` or `cron`, with its settings; None for a schedule that is only run by hand.
    """

    path: Path
    name: str
    file: Path
    folder: Path
    when: str | None
    time_zone: str | None
    skips_unchanged: bool
    overlap: Overlap
    start_within_s: int
    history: Mapping[str, int]
    place: str | None
    settings: Mapping[str, Any]
    watch: Mapping[str, Any] | None
    notify: Mapping[str, Any] | None


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of the file."""
    document: dict[str, Any] = json.loads(files("medweave").joinpath("schedule.schema.json").read_text("utf-8"))
    return document


def faults_of_schedule(document: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
    """Yield the errors in the file of a schedule; if the schema finds any, only those."""
    of_schema = list(faults(document, schema(), path, ()))
    yield from of_schema
    if of_schema:
        return
    file = path.parent / Path(document["file"]).expanduser()
    if not file.is_file():
        yield fault_at(
            path, ("file",), "no such StreamFlow file.", seen=shown(file), expected="a StreamFlow file from `medweave bind`",
            do=near(file)[1] or "correct the path",
        )  # fmt: skip
    if "when" in document and (fault := fault_of_times(document["when"], path)) is not None:
        yield fault
    if "timeZone" in document and (fault := _fault_of_zone(document["timeZone"], path)) is not None:
        yield fault
    sources = [source for source in SOURCES if source in document.get("watch", {})]
    if len(sources) != 1 and "watch" in document:
        yield fault_at(
            path, ("watch",), "watch needs exactly one source of studies.", seen=", ".join(sources) or "none",
            expected=f"one of {', '.join(SOURCES)}", do="keep exactly one of these keys",
        )  # fmt: skip


def _fault_of_zone(name: str, path: Path) -> FieldFault | None:
    """Return an error for an unknown time zone; None if it is known, or if this machine has no time zone database."""
    try:
        zoneinfo.ZoneInfo(name)
        return None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, such as Europe
        known = sorted(zoneinfo.available_timezones())
    if not known:
        return None
    return fault_at(
        path, ("timeZone",), "unknown time zone.", seen=f"'{name}'",
        expected="a name of the IANA time zone database, such as Europe/Rome or UTC",
        do=closest(name, known) or "write a time zone of `timedatectl list-timezones`",
    )  # fmt: skip


def read_schedule(path: Path) -> Schedule:
    """Read and check the file of a schedule.

    Raises:
        UserInputError: it is no YAML, or a value is wrong; the message has the path of the field.
    """
    path = path.absolute()
    document = read_mapping(path, WHAT)
    for fault in faults_of_schedule(document, path):
        raise fault
    file = path.parent / Path(document["file"]).expanduser()
    ((place, settings),) = (document.get("place") or {None: {}}).items()
    properties = schema()["properties"]

    def value_of(key: str) -> Any:
        return document.get(key, properties[key].get("default"))

    return Schedule(
        path=path,
        name=document["name"],
        file=file,
        folder=path.parent / Path(document.get("folder") or f"schedules/{document['name']}").expanduser(),
        when=document.get("when"),
        time_zone=document.get("timeZone"),
        skips_unchanged=value_of("unchanged") == "skip",
        overlap=value_of("overlap"),
        start_within_s=value_of("startWithin"),
        history=_with_defaults(document.get("history") or {}, properties["history"]),
        place=place,
        settings=settings,
        watch=_watch(document["watch"], properties["watch"]) if "watch" in document else None,
        notify=_notify(document["notify"], properties["notify"]) if "notify" in document else None,
    )


def _notify(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    mail = {"mail": _with_defaults(values["mail"], schema["properties"]["mail"])} if "mail" in values else {}
    return _with_defaults(values, schema) | mail


def _watch(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    source = next(source for source in SOURCES if source in values)
    inner = schema["properties"][source]
    settings = _with_defaults(values[source], inner) if inner["type"] == "object" else values[source]
    return _with_defaults(values, schema) | {source: settings}


def _with_defaults(values: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {key: property["default"] for key, property in schema["properties"].items() if "default" in property}
    return defaults | dict(values)
