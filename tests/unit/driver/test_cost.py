"""Cost of runs by the prices of a site file, in the plan and in the report. An unknown cost is reported as such, never as 0."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.placement.bind import fit
from medweave.plan.past_runs import read_past
from medweave.plan.planner import make_plan
from medweave.plan.text import text_of
from medweave.project.prices import Prices, amount_text, read_prices
from medweave.project.sites import read_site
from medweave_core.errors import UserInputError
from medweave_core.runlog.history import read_run
from medweave_core.runlog.jobs import Job
from support.cwl_files import ROOT
from support.recorded import Recorder

TRAIN = ROOT / "workflows" / "lung-nodule-segmentation" / "train.cwl"

PRICES = {"currency": "EUR", "deployments": {"site-a": {"coreHour": 0.02, "gpuHour": 1.5}, "laptop": {"coreHour": 0}}}
SITE = """title: one machine and a cluster
deployments:
  laptop: {type: medweave.local, config: {}}
prices:
  currency: EUR
  deployments:
    laptop: {coreHour: 0.5}
roles:
  check: {deployment: laptop}
"""


def prices() -> Prices:
    parsed = read_prices("a", PRICES)
    assert parsed is not None
    return parsed


def job(deployment: str = "site-a", **values: object) -> Job:
    defaults = {
        "name": "/train/0", "step": "/train", "attempt": 1, "service": None, "location": "a", "scheduled_s": 0.0, "started_s": 1.0,
        "ended_s": 1801.0, "state": "completed", "seconds": 1800.0, "requested": {"cores": 4, "memory_mib": 1024},
        "site": {"gpus": 2, "num_nodes": 2},
    }  # fmt: skip
    return Job(deployment=deployment, **(defaults | values))  # type: ignore[arg-type]


def test_an_attempt_costs_its_time_by_its_requests() -> None:
    # 0.5 h × 4 cores × 2 nodes × 0.02, and 0.5 h × 2 GPUs × 1.5.
    assert prices().of_job(job()) == pytest.approx(0.08 + 1.5)
    assert prices().of_job(job(state="failed")) == pytest.approx(1.58), "a failed attempt costs, too"
    assert prices().of_job(job(reused_from="before")) == 0
    assert prices().of_job(job(started_s=None, seconds=None)) == 0, "it never began"
    assert prices().of_job(job("laptop", site={})) == 0, "an explicit price of 0"


@pytest.mark.parametrize(
    "values",
    [
        {"deployment": "elsewhere"},
        {"requested": {}},
        {"seconds": None, "ended_s": None},
        {"site": {}},  # its GPUs have a price, and their number is unknown
        {"deployment": "laptop", "site": {"gpus": 1}},  # it had one, which has no price
    ],
)
def test_an_unknown_cost_is_not_zero(values: dict[str, object]) -> None:
    unknown = job(**values)  # type: ignore[arg-type]
    assert prices().of_job(unknown) is None
    assert prices().total_text([None], "job").startswith("unknown")
    assert prices().total_text([1.5, None], "job") == "about 1.50 EUR, without 1 job of unknown hours or prices"


def test_amounts_as_people_read_them() -> None:
    assert [amount_text(amount, "EUR") for amount in (0, 0.0042, 1234.5)] == ["0.00 EUR", "0.0042 EUR", "1,234.50 EUR"]


@pytest.mark.parametrize(
    ("seen", "written", "words"),
    [
        ("    laptop: {coreHour", "    lapto: {coreHour", ("prices.deployments.lapto", "laptop")),
        ("coreHour: 0.5", "coreHour: -1", ("prices.deployments.laptop.coreHour",)),
        ("EUR", "euros", ("prices.currency", "euros")),
        ("coreHour: 0.5", "corehour: 0.5", ("prices.deployments.laptop", "corehour")),
    ],
)
def test_a_wrong_price_is_an_error(tmp_path: Path, seen: str, written: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "site.yml"
    file.write_text(SITE.replace(seen, written))
    with pytest.raises(UserInputError) as caught:
        read_site(file)
    for word in words:
        assert word in str(caught.value.what) + str(caught.value.seen) + str(caught.value.do), str(caught.value)


@pytest.mark.slow
def test_the_plan_has_the_cost(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "runs" / "one", workflow_file="workflows/lung-nodule-segmentation/train.cwl")
    run.job("/check/0", 0, 3600.6)
    run.end(3700)
    fitted = fit(TRAIN, "laptop")
    past = read_past([tmp_path / "runs"], TRAIN)
    without = make_plan(fitted, past)
    assert (without.currency, without.cost, without.steps[0].cost) == (None, None, None)
    assert "Cost: unknown; the site file has no `prices`." in text_of(without)
    priced = dataclasses.replace(
        fitted.site, prices=read_prices("a", {"currency": "EUR", "deployments": {"laptop": {"coreHour": 0.5}}})
    )
    plan = make_plan(dataclasses.replace(fitted, site=priced), past)
    check = next(step for step in plan.steps if step.step == "/check")
    assert check.cost == pytest.approx(1.0), "an hour of two cores"
    assert (plan.currency, plan.cost) == ("EUR", None), "the times of the other steps are unknown"
    text = text_of(plan)
    assert re.search(r"^  check .*; 2.00 core-hours; 1.00 EUR$", text, re.MULTILINE), text
    assert re.search(r"^  whole run .*; cost unknown$", text, re.MULTILINE)


def test_the_report_has_the_cost(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "runs" / "one")
    run.job("/check/0", 0, 3600.6)
    run.end(3700)
    (tmp_path / "site.yml").write_text(SITE)
    page = tmp_path / "runs" / "one" / "report.html"
    assert main(["report", str(page.parent)]) == 0
    assert "unknown: no site file with `prices` given" in page.read_text()
    assert main(["report", str(page.parent), "--site", str(tmp_path / "site.yml")]) == 0
    job_record = read_run(page.parent).jobs[0]
    assert job_record.duration_s == pytest.approx(3600)
    assert "about 1.00 EUR" in page.read_text(), "an hour of the two cores that it requested"
    assert "at the prices of site" in page.read_text()
    other = Recorder(tmp_path / "runs" / "two")
    other.job("/check/0", 0, 7200.6)
    other.end(7300)
    words = ["--site", str(tmp_path / "site.yml"), "--compare", str(tmp_path / "runs" / "two")]
    assert main(["report", str(page.parent), *words]) == 0
    assert "2.00 EUR" in page.read_text()
