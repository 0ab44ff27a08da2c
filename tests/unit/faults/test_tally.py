"""The fault campaign's summary and table."""

from __future__ import annotations

from typing import Any

from faults.tally import is_good, summary, table


def row(fault: str = "node-down", **changes: Any) -> dict[str, Any]:
    usual = {
        "fault": fault,
        "injected": "n2 down, 3.0 s after the start",
        "scheduler": "NODE_FAIL 0:0 on n2, seen by sacct",
        "medweave": {"failure": "NodeFail", "job": "failed"},
        "seconds_to_know": 2.0,
        "counts": True,
        "false_success": False,
        "lost": False,
        "doubled": False,
        "orphans": [],
        "why": [],
    }
    return usual | changes


def summarize(*rows: dict[str, Any]) -> dict[str, Any]:
    return summary(rows, seed=3, jobs_per_kind=2, seconds=61.04)


def test_the_summary_counts_faults_that_happened() -> None:
    result = summarize(row(), row("scancel"), row("scancel", counts=False))
    assert {name: result[name] for name in ("seed", "jobs", "kinds", "not_counted", "seconds")} == {
        "seed": 3,
        "jobs": 2,
        "kinds": 2,
        "not_counted": 1,
        "seconds": 61.0,
    }
    assert not is_good(result)
    assert is_good(summarize(row()))


def test_an_empty_campaign_is_not_good() -> None:
    assert not is_good(summarize())


def test_each_wrong_result_is_counted() -> None:
    for name, change in (
        ("false_successes", {"false_success": True}),
        ("lost", {"lost": True}),
        ("doubled", {"doubled": True}),
        ("orphans", {"orphans": ["job 7 RUNNING"]}),
    ):
        result = summarize(row(), row(**change))
        assert result[name] == 1
        assert not is_good(result)


def test_a_wrong_result_counts_even_if_the_fault_did_not_happen() -> None:
    assert summarize(row(counts=False, false_success=True))["false_successes"] == 1


def test_the_table_has_a_line_per_kind_and_the_wrong_results() -> None:
    text = table(
        summarize(
            row(),
            row(seconds_to_know=6.5),
            row(
                "scancel",
                counts=False,
                why=["it did not happen: the scheduler reported COMPLETED"],
                seconds_to_know=None,
            ),
        )
    )
    head, first, second, wrong, _, last = text.splitlines()
    assert head.split("  ")[0] == "fault"
    assert " ".join(first.split()) == "node-down 2 0 0 0 0 4.2 to 6.5 2 x NODE_FAIL 0:0 on n2; NodeFail"
    assert second.split()[:8] == ["scancel", "0", "of", "1", "0", "0", "0", "0"]
    assert wrong == "! scancel (n2 down, 3.0 s after the start): it did not happen: the scheduler reported COMPLETED"
    assert last == "2 jobs of 1 kinds: 0 false successes, 0 lost, 0 doubled, 0 orphans, 1 not counted; seed 3, 61 s"
