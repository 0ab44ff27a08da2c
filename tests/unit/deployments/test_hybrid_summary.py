"""Summary of a hybrid run from the event log and the sites' answers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.scripts import module_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def summary() -> ModuleType:
    return module_of(ROOT / "deployments" / "hybrid" / "summary.py")


def event(second: float, kind: str, **data: Any) -> dict[str, Any]:
    return {"time": f"2026-01-01T00:00:{second:06.3f}+00:00", "type": kind, "deployment": "pods", "data": data}


def test_overhead_is_what_neither_computes_nor_waits_nor_copies(summary: ModuleType) -> None:
    events = [
        event(0, "run.started"),
        event(6, "job.ended", seconds=4.0),  # 2 to 6
        event(7, "job.ended", seconds=2.0),  # 5 to 7, overlaps
        event(12, "transfer.ended", seconds=1.0),  # 11 to 12
        event(20, "job.ended", seconds=3.0, site={"queue_seconds": 2.0}),  # 15 to 20
        event(22, "run.ended", seconds=22.0),
    ]
    assert summary.overhead_s(events) == pytest.approx(22 - 5 - 1 - 5)


def test_a_job_without_a_command_is_overhead(summary: ModuleType) -> None:
    assert summary.overhead_s([event(0, "run.started"), event(3, "job.ended"), event(3, "run.ended")]) == 3


def test_sacct_rows_and_nodes(summary: ModuleType) -> None:
    text = "7|medweave|COMPLETED|0:0|n[1-2]|2|00:01:00|a|b|cpu=2\n8|medweave|FAILED|3:0|n1|1|00:00:02|a|b|cpu=1,gres/gpu=1\n"
    jobs = summary.slurm_jobs(text)
    assert [job["State"] for job in jobs] == ["COMPLETED", "FAILED"]
    assert summary.slurm_nodes(jobs, {"n[1-2]": ["n1", "n2"], "n1": ["n1"]}) == ["n1", "n2"]


def test_pods_are_counted_by_uid_and_only_if_they_ran(summary: ModuleType) -> None:
    def pod(uid: str, running: bool) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "compss-cluster", "app.kubernetes.io/component": "worker"}
        state = {"state": {"running": {}} if running else {"waiting": {}}}
        return {
            "kind": "Pod",
            "metadata": {"uid": uid, "labels": labels},
            "status": {"containerStatuses": [state]},
        }

    text = "".join(
        json.dumps(item, indent=1)
        for item in ({"kind": "List", "items": [pod("a", False)]}, pod("a", True), pod("b", False), pod("a", True))
    )
    seen = summary.pods_seen(summary.json_stream(text + '{"kind": "Po'))
    assert list(seen) == ["a"]
    assert summary.component(seen["a"]) == "compss-cluster/worker"


def test_what_others_run_meanwhile_is_not_counted(summary: ModuleType) -> None:
    def job(step: str, **site: Any) -> dict[str, Any]:
        return {**event(1, "job.ended", site=site), "step": step}

    events = [
        event(0, "run.started"),
        job("/train", slurm_job_id="7"),
        job("/train", slurm_job_id="8"),  # a further attempt
        job("/gate", pods=[{"uid": "a"}]),
        job("/segment", pods=[{"uid": "a"}]),
        job("/segment", pods=[{"uid": "b"}]),
        {**event(2, "job.ended"), "step": "/report"},
    ]
    assert summary.own_jobs(events) == {"7", "8"}
    assert summary.own_pods(events) == {"a", "b"}
    assert summary.own_pods(events, "/gate") == {"a"}


GOOD = {
    "model_equal_laptop": True,
    "weights_that_differ": [],
    "masks_equal_laptop": True,
    "masks_that_differ": [],
    "slurm_jobs": [{"JobID": "7", "State": "COMPLETED"}],
    "slurm_nodes": ["n1", "n2"],
    "compss_workers": ["u", "v"],
    "compss_engine": "ddp",
    "ranks": {"train": [{"host": "n1"}, {"host": "n2"}], "train_distributed": [{"host": "w-0"}, {"host": "w-1"}]},
}


@pytest.mark.parametrize(
    ("change", "pods", "expected"),
    [
        ({}, 2, ""),
        ({"masks_equal_laptop": False, "masks_that_differ": ["case-1"]}, 2, "masks differ .* case-1"),
        (
            {"model_equal_laptop": False, "weights_that_differ": ["models/m.safetensors"]},
            2,
            "model differs .* models/m.s",
        ),
        ({"slurm_nodes": ["n1"]}, 2, "train: ranks on n1, n2, Slurm's nodes are n1"),
        ({"ranks": {**GOOD["ranks"], "train": [{"host": "laptop"}]}}, 2, "train: ranks on laptop"),
        ({"compss_workers": ["u"]}, 2, "train_distributed: 1 workers"),
        ({"ranks": {"train": GOOD["ranks"]["train"]}}, 2, "train_distributed: 2 workers, ranks on none"),
        ({}, 1, "segment: 1 pods"),
        ({"slurm_jobs": [{"JobID": "7", "State": "TIMEOUT"}]}, 2, "7 TIMEOUT"),
    ],
)
def test_a_run_that_did_not_cross_all_sites_is_no_success(
    summary: ModuleType, change: dict[str, Any], pods: int, expected: str
) -> None:
    sentences = summary.shortfalls(GOOD | change, [str(number) for number in range(pods)])
    assert len(sentences) == bool(expected)
    assert re.search(expected, "".join(sentences))


def test_bytes_are_added_up_by_route(summary: ModuleType) -> None:
    sent = {"from": "laptop", "route": "from-driver"}
    events = [event(1, "transfer.ended", bytes=5, **sent), event(2, "transfer.ended", bytes=7, **sent)]
    assert summary.bytes_by_route(events) == {"laptop -> pods (from-driver)": 12}


def test_masks_are_found_by_case(summary: ModuleType, tmp_path: Path) -> None:
    for batch, case in (("a", "case-1"), ("b", "case-2")):
        (tmp_path / batch / case).mkdir(parents=True)
        (tmp_path / batch / case / "lesion_mask.nii.gz").write_bytes(case.encode())
    digests = summary.mask_digests(tmp_path)
    assert list(digests) == ["case-1", "case-2"]
    assert len(set(digests.values())) == 2
    (tmp_path / "b" / "case-1").mkdir()
    (tmp_path / "b" / "case-1" / "lesion_mask.nii.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match="twice"):
        summary.mask_digests(tmp_path)


def test_a_model_is_the_same_where_all_its_weights_are(summary: ModuleType, tmp_path: Path) -> None:
    for site in ("testbed", "laptop"):
        (tmp_path / site / "models").mkdir(parents=True)
        (tmp_path / site / "model_card.json").write_text(site)  # says where and when
        (tmp_path / site / "models" / "model.safetensors").write_bytes(b"weights")
        (tmp_path / site / "models" / "model.bin").write_bytes(b"of a bundle")

    def compared() -> tuple[bool, list[str]]:
        same: tuple[bool, list[str]] = summary.equal(
            {site: summary.weight_digests(tmp_path / site) for site in ("testbed", "laptop")}
        )
        return same

    assert compared() == (True, [])
    (tmp_path / "laptop" / "models" / "model.bin").write_bytes(b"of a bundlE")
    assert compared() == (False, ["models/model.bin"])
    (tmp_path / "testbed" / "models" / "model.safetensors").unlink()
    assert compared() == (False, ["models/model.bin", "models/model.safetensors"])


def test_two_places_without_anything_are_not_the_same(summary: ModuleType) -> None:
    assert summary.equal({"testbed": {}, "laptop": {}}) == (False, [])
