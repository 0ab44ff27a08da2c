"""The kept results of CWL's own suite, and the program that makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = module_of(ROOT / "tests" / "conformance" / "conformance.py")
REPORT = """<testsuites><testsuite>
<testcase name="One" file="one"/>
<testcase name="Two" file="two"><failure message="Returned non-zero"/></testcase>
<testcase name="Three" file="three"><skipped message="Unsupported"/></testcase>
</testsuite></testsuites>"""


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PROGRAM.TABLE.read_text(encoding="utf-8"))
    return found


def test_each_site_has_tried_each_test() -> None:
    sites = kept()["sites"]
    assert {"stock", "local"} <= set(sites) <= set(PROGRAM.SITES)
    tried = {each["passed"] + len(each["failed"]) + len(each["unsupported"]) for each in sites.values()}
    assert len(tried) == 1


def test_what_passes_with_the_stock_connector_passes_with_ours() -> None:
    missed = {site: {*each["failed"], *each["unsupported"]} for site, each in kept()["sites"].items()}
    explained = yaml.safe_load(PROGRAM.REASONS.read_text(encoding="utf-8"))
    assert missed["local"] <= missed["stock"]
    lost = set().union(*missed.values()) - missed["stock"]
    assert lost <= set(explained["with_ours"])
    assert missed["stock"] == set(explained["with_stock"])


def test_the_engine_is_the_one_that_the_project_pins() -> None:
    assert f"streamflow=={kept()['streamflow']}" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_a_report_of_cwltest_is_read(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_text(REPORT)
    ended = PROGRAM.read(tmp_path / "junit.xml")
    assert ended == {"passed": ["one"], "failed": ["two"], "unsupported": ["three"]}
    assert PROGRAM.merged(ended, {"passed": ["two"], "failed": ["one"], "unsupported": []}) == {
        "passed": ["two"], "failed": ["one"], "unsupported": ["three"],
    }  # fmt: skip
