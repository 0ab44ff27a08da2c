"""docs/explanation/engine-faults.md lists every fault, and names tests that exist."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "explanation" / "engine-faults.md").read_text(encoding="utf-8")
LAST = (("Q", 12), ("N", 4), ("K", 13), ("D", 9), ("C", 24))
IDS = [f"{letter}{n}" for letter, last in LAST for n in range(1, last + 1)]
REPORT = """<testsuites><testsuite>
<testcase name="test_c1_a"/>
<testcase name="test_q2_b[x]"><failure message="support.engine_faults.FaultIsGone: two lines&#10;more"/></testcase>
<testcase name="test_k3_c"><failure message="TypeError: no such argument"/></testcase>
<testcase name="test_every_fault_is_listed"/>
</testsuite></testsuites>"""


def test_every_fault_is_listed() -> None:
    assert re.findall(r"^\| ([QNKDC]\d+) \|", PAGE, re.MULTILINE) == IDS


def test_the_tests_that_the_page_names_exist() -> None:
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    exist = set(re.findall(r"def (test_\w+)", written))
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert named - exist == set()
    # And none of ours is left out.
    files = (*Path(__file__).parent.glob("test_*.py"), *(ROOT / "tests" / "hybrid").glob("test_engine_faults_*.py"))
    ours = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert set(re.findall(r"def (test_[qnkdc]\d+_\w+)", ours)) - named == set()


def test_each_fault_of_a_site_has_a_hybrid_test_or_a_reason_on_the_page() -> None:
    rows = dict(re.findall(r"^\| ([QNK]\d+) \|(.*)$", PAGE, re.MULTILINE))
    shown = {fault for fault in rows if re.search(rf"`test_{fault.lower()}_\w+_on_(slurm|kubernetes)`", rows[fault])}
    assert {fault for fault in rows if "not on the testbed" in rows[fault]} == rows.keys() - shown


def test_each_fault_has_a_test_or_a_reason_on_the_page() -> None:
    rows = dict(re.findall(r"^\| ([QNKDC]\d+) \|(.*)$", PAGE, re.MULTILINE))
    shown = {fault for fault in rows if re.search(rf"`test_{fault.lower()}_\w+`", rows[fault])}
    assert {fault for fault in rows if re.search(r"\| none: \w+", rows[fault])} == rows.keys() - shown


def test_verdicts_about_another_version() -> None:
    module = module_of(Path(__file__).parent / "try_streamflow.py")
    verdicts = [(fault.id, fault.verdict) for fault in module.read_report(ElementTree.fromstring(REPORT))]
    assert verdicts == [("C1", "still there"), ("Q2", "gone"), ("K3", "not tried")]


def test_faults_with_hybrid_tests_only_are_listed_too() -> None:
    module = module_of(Path(__file__).parent / "try_streamflow.py")
    verdicts = {fault.id: fault.verdict for fault in module.of_sites()}
    rows = dict(re.findall(r"^\| ([QNKDC]\d+) \|(.*)$", PAGE, re.MULTILINE))
    shown = {fault for fault in rows if re.search(rf"`test_{fault.lower()}_\w+`", rows[fault])}
    files = Path(__file__).parent.glob("test_*.py")
    tried = {
        fault.upper() for file in files for fault in re.findall(r"^def test_([qnkdc]\d+)_", file.read_text(), re.M)
    }
    assert verdicts == dict.fromkeys(shown - tried, "needs the testbed")
    assert {"Q9", "N4"} <= verdicts.keys()
