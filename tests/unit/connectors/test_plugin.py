"""What StreamFlow gets from us: one entry point, prefixed types, closed schemas."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib import metadata

import jsonschema
import pytest
from streamflow.config.schema import SfSchema
from streamflow.ext.plugin import extension_points
from streamflow.ext.utils import load_extensions
from streamflow.log_handler import logger

from medweave_connectors.engine.log_filter import ShortFailures
from medweave_connectors.plugin import MedweavePlugin

OURS = MedweavePlugin()
OURS.register()
REGISTERED = [
    pytest.param(entry["class"], id=f"{point}:{entry['name']}")
    for point, entries in OURS.classes_.items()
    for entry in entries
]


def test_there_is_one_entry_point() -> None:
    (point,) = (p for p in metadata.entry_points(group="unito.streamflow.plugin") if p.name == "medweave")
    assert point.load() is MedweavePlugin


def test_every_type_is_ours_by_name() -> None:
    names = [entry["name"] for entries in OURS.classes_.values() for entry in entries]
    assert {"medweave.local", "medweave.ssh", "medweave.slurm", "medweave.scheduler", "medweave.database"} <= set(names)
    assert all(name.startswith("medweave.") for name in names)
    for point, entries in OURS.classes_.items():
        for entry in entries:
            assert extension_points[point][entry["name"]] is entry["class"]


@pytest.mark.parametrize("registered", REGISTERED)
def test_schemas_are_closed_and_described(registered: type) -> None:
    schema = json.loads(registered.get_schema())  # type: ignore[attr-defined]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"].startswith("https://medweave.dev/schemas/")
    assert schema["additionalProperties"] is False
    assert schema["title"].startswith("medweave.")
    assert schema["description"]
    for name, option in schema["properties"].items():
        assert option["description"].endswith("."), name
        assert "default" in option or name in schema["required"], name
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"retryDelay": 1}, schema)


def test_streamflow_accepts_the_merged_schema() -> None:
    load_extensions()
    merged = json.loads(SfSchema().dump("v1.0"))
    types = merged["$defs"]["deployment"]["properties"]["type"]["enum"]
    assert "medweave.local" in types
    assert "local" in types, "the stock types stay"


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    seen: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    keep, short = Keep(), ShortFailures()
    before = logger.handlers, logger.filters, logger.level
    logger.handlers, logger.filters = [keep], [short]
    yield seen
    logger.handlers, logger.filters = before[:2]
    logger.setLevel(before[2])


def log_failures() -> None:
    for _ in range(3):
        try:
            raise ValueError("the first cause")
        except ValueError as error:
            logger.exception(error)
    logger.warning("Job /a/0 failure can not be recovered. Failure manager is not enabled.")


def test_a_failure_is_logged_once_without_a_traceback(records: list[logging.LogRecord]) -> None:
    logger.setLevel(logging.INFO)
    log_failures()
    assert [record.getMessage() for record in records] == ["the first cause"]
    assert records[0].exc_info is None


def test_a_failure_without_words_is_no_line_of_its_own(records: list[logging.LogRecord]) -> None:
    # Of two deployments that fail for one reason, the second was sometimes logged as an empty line.
    logger.setLevel(logging.INFO)
    log_failures()
    for _ in range(2):
        logger.error(OSError())
    assert [record.getMessage() for record in records] == ["the first cause"]


def test_debug_shows_everything(records: list[logging.LogRecord]) -> None:
    logger.setLevel(logging.DEBUG)
    log_failures()
    assert len(records) == 4
    assert records[0].exc_info
