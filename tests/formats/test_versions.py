"""A driver, and a worker (`medweave-step` at a site) of another version: they work together, or the cause is clear.

During a run, no worker is queried for its version (`medweave doctor` does, and warns: tests/unit/driver/test_doctor.py). The driver
reads what a worker writes and prints. The driver sends all other programs of ours to the site, so they have its version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.formats import cluster_at, events_of, good, medweave, restored, run_of

pytestmark = pytest.mark.slow

OLD, NEW = "0.0.1", "9.9.9"
# A worker of a version that has another field in its report and another figure in its progress.
WORKER = """\
#!/bin/sh
for option in "$@"; do case $option in --new-option)
  echo 'usage: medweave-step copy [-h]' >&2
  echo 'medweave-step copy: error: unrecognized arguments: --new-option' >&2
  exit 2;;
esac; done
echo 'medweave-progress {"verb": "copy", "unit": "case", "done": 1, "total": 1, "seconds_left": 0.0, "detail": "", "new": 1}' >&2
cp "$1" result.txt
cp {report} run_report.json
"""


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield a site whose worker is of another version."""
    with restored() as root:
        report = json.loads((root / "run_report.json").read_text())
        report |= {"medweave_version": request.param}
        if request.param == NEW:
            report |= {"new_field": {"a": 1}}
        (root / "run_report.json").write_text(json.dumps(report))
        (root / "bin" / "copy-step").write_text(WORKER.replace("{report}", str(root / "run_report.json")))
        yield root / "site"


@pytest.mark.parametrize("site", [OLD, NEW], indirect=True)
def test_run_with_a_worker_of_another_version_is_done_and_reported(site: Path, tmp_path: Path) -> None:
    old = run_of(site / "runs")
    with cluster_at(site):
        good(medweave(site, "run", "--outdir", "delivered"))
    (run,) = {log.parent for log in (site / "runs").glob("[!.]*/events.jsonl")} - {old}
    (progress,) = [event for event in events_of(run) if event["type"] == "job.progress"]
    assert (progress["data"]["done"], progress["data"]["total"]) == (1, 1)
    version = json.loads((run / "reports" / "copy" / "run_report.json").read_text())["medweave_version"]
    good(medweave(site, "report", run, "--output", tmp_path / "report.html"))
    assert version in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("site", [OLD], indirect=True)
def test_option_unknown_to_the_worker_is_reported_as_the_cause(site: Path) -> None:
    tool = site / "tools" / "copy.cwl"
    tool.write_text(tool.read_text().replace('"copy-step"', '"copy-step", "--new-option"'))
    old = run_of(site / "runs")
    with cluster_at(site):
        ended = medweave(site, "run", "--outdir", "delivered")
    assert ended.returncode == 1
    assert "unrecognized arguments: --new-option" in ended.stderr
    (run,) = {log.parent for log in (site / "runs").glob("[!.]*/events.jsonl")} - {old}
    (failed,) = [event for event in events_of(run) if event["type"] == "job.ended"]
    assert failed["data"]["exit_code"] == 2
