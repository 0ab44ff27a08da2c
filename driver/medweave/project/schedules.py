"""The schedule's file as data."""

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

WHAT = "file of a schedule"
SOURCES = ("folder", "dicomweb", "receive")
Overlap = Literal["forbid", "replace", "allow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule that was found right; what each key means stands in its schema.

    Attributes:
        path, file, folder: absolute; `file` is the StreamFlow file.
        place: `kubernetes` and the like, with its settings; None where nothing but `run` is asked of it.
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
    """The JSON Schema of the file."""
    document: dict[str, Any] = json.loads(files("medweave").joinpath("schedule.schema.json").read_text("utf-8"))
    return document


def faults_of_schedule(document: Mapping[str, Any], path: Path) -> Iterator[FieldFault]:
    """All that is wrong in the file of a schedule; with a fault of its schema, nothing that would follow from it."""
    of_schema = list(faults(document, schema(), path, ()))
    yield from of_schema
    if of_schema:
        return
    file = path.parent / Path(document["file"]).expanduser()
    if not file.is_file():
        yield fault_at(
            path, ("file",), "there is no such StreamFlow file.", seen=shown(file), expected="a file as `medweave bind` writes it",
            do=near(file)[1] or "correct the path",
        )  # fmt: skip
    if "when" in document and (fault := fault_of_times(document["when"], path)) is not None:
        yield fault
    if "timeZone" in document and (fault := _fault_of_zone(document["timeZone"], path)) is not None:
        yield fault
    named = [each for each in SOURCES if each in document.get("watch", {})]
    if len(named) != 1 and "watch" in document:
        yield fault_at(
            path, ("watch",), "studies come from one place.", seen=", ".join(named) or "none",
            expected=f"one of {', '.join(SOURCES)}", do="write one of these keys",
        )  # fmt: skip


def _fault_of_zone(name: str, path: Path) -> FieldFault | None:
    """A zone that systemd and Kubernetes would refuse, or take for another time; none where this machine knows no zones at all."""
    try:
        zoneinfo.ZoneInfo(name)
        return None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, such as Europe
        known = sorted(zoneinfo.available_timezones())
    if not known:
        return None
    return fault_at(
        path, ("timeZone",), "there is no such time zone.", seen=f"'{name}'",
        expected="a name of the IANA time zone database, such as Europe/Rome or UTC",
        do=closest(name, known) or "write one that `timedatectl list-timezones` lists",
    )  # fmt: skip


def read_schedule(path: Path) -> Schedule:
    """Reads the file of a schedule.

    Raises:
        UserInputError: it is no YAML, or something in it is wrong; the message has the path to the field.
    """
    path = path.absolute()
    document = read_mapping(path, WHAT)
    for fault in faults_of_schedule(document, path):
        raise fault
    file = path.parent / Path(document["file"]).expanduser()
    ((place, settings),) = (document.get("place") or {None: {}}).items()
    properties = schema()["properties"]

    def given(key: str) -> Any:
        return document.get(key, properties[key].get("default"))

    return Schedule(
        path=path,
        name=document["name"],
        file=file,
        folder=path.parent / Path(document.get("folder") or f"schedules/{document['name']}").expanduser(),
        when=document.get("when"),
        time_zone=document.get("timeZone"),
        skips_unchanged=given("unchanged") == "skip",
        overlap=given("overlap"),
        start_within_s=given("startWithin"),
        history=_with_defaults(document.get("history") or {}, properties["history"]),
        place=place,
        settings=settings,
        watch=_watch(document["watch"], properties["watch"]) if "watch" in document else None,
        notify=_notify(document["notify"], properties["notify"]) if "notify" in document else None,
    )


def _notify(given: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    mail = {"mail": _with_defaults(given["mail"], described["properties"]["mail"])} if "mail" in given else {}
    return _with_defaults(given, described) | mail


def _watch(given: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    source = next(each for each in SOURCES if each in given)
    inner = described["properties"][source]
    kept = _with_defaults(given[source], inner) if inner["type"] == "object" else given[source]
    return _with_defaults(given, described) | {source: kept}


def _with_defaults(given: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    defaults = {key: each["default"] for key, each in described["properties"].items() if "default" in each}
    return defaults | dict(given)
