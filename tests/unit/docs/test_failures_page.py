"""The page about failures has the table that is in force."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from medweave.project.deployments import connector_schemas
from medweave_connectors.jobs.retries.policy import DEFAULTS, MOST_ATTEMPTS, FailureKind
from medweave_connectors.sites.slurm.service import Service
from medweave_core.errors import PARTIAL

PAGE = (Path(__file__).parents[3] / "docs" / "explanation" / "failures.md").read_text(encoding="utf-8")


def test_each_kind_has_its_row_with_the_defaults() -> None:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `")]
    rows, in_pods = ({row[0].strip("`"): row for row in cells if len(row) == columns} for columns in (5, 3))
    assert set(rows) == set(in_pods) == set(FailureKind)
    for kind, (_, _, follows, retries, pause) in rows.items():
        row = DEFAULTS.get(FailureKind(kind))
        if row is None or row.do == "stop":
            assert (follows.partition(";")[0], retries, pause) == ("stop", "", "")
            continue
        assert int(retries) == row.retries
        assert pause == (f"{row.wait} s, doubled each time" if row.wait else "none")
    assert f"{DEFAULTS[FailureKind.OUT_OF_MEMORY].factor:g} times the memory" in rows["OutOfMemory"][2]
    assert f"A job has at most {MOST_ATTEMPTS} attempts" in " ".join(PAGE.split())
    assert f"`signalLeadTime` of the service ({Service().signalLeadTime} s" in PAGE
    assert f"**exit code {PARTIAL}**" in PAGE


@pytest.mark.parametrize("name", ["cluster", "cloud"])
def test_the_examples_are_accepted(name: str) -> None:
    text = re.search(rf"```yaml\n(  {name}:.*?)```", PAGE, re.DOTALL)
    assert text is not None
    deployment = yaml.safe_load(text[1])[name]
    Draft202012Validator(connector_schemas()[deployment["type"]]).validate(deployment["config"])
