"""`medweave schedule` in a real cluster: a CronJob of helm/runner that fires, delivers, skips, and waits for an active run."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from medweave_core.runlog.history import read_run
from support.chest_cohort import write_dicom
from support.cwl_files import ROOT
from support.exported import exported_model
from support.helm_release import ADMIN, TESTBED, Tenant, until
from support.images import build
from support.scheduled_pods import conditions, jobs, log_of, on_the_claim, runner_values, write_inference
from support.schedules import PROGRAM, ended, write_schedule
from support.testbed import unique

RUNNER = ROOT / "helm" / "runner"
WITH_HELM = {
    "PATH": f"{TESTBED / 'bin'}:/usr/bin:/bin",
    "KUBECONFIG": str(TESTBED / "laptop" / "home" / ".kube" / "tenant-a.kubeconfig"),
}


@pytest.fixture(scope="module", autouse=True)
def _images(tenant: Tenant) -> None:
    for role in ("driver", "segment"):
        build(role)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def data(tenant: Tenant, model: Path) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a cohort of one case and a model on the tenant's claim, and the job's inputs as the runner's pod sees them."""
    with on_the_claim() as (folder, inside):
        write_dicom(folder / "cohort", 1)
        subprocess.run(["cp", "-r", model, folder / "model"], check=True)
        subprocess.run(["chown", "-R", "10001:10001", folder], check=True)
        yield folder, {"cohort": f"{inside}/cohort", "segmentation_model": f"{inside}/model"}


def schedule(word: str, file: Path) -> str:
    code, out, err = ended(word, file, cwd=file.parent, **WITH_HELM)
    assert code == 0, err
    return out


def finished(tenant: Tenant, job: str, *, limit_s: float) -> str:
    """Wait for a Job's end; return its log."""

    def end() -> set[str]:
        status = json.loads(tenant.call("kubectl", "get", "job", job, "--output", "json"))
        return conditions(status) & {"Complete", "Failed"}

    assert until(end, limit_s=limit_s, what=f"the end of {job}") == {"Complete"}, log_of(tenant, job)
    return log_of(tenant, job)


def test_a_cronjob_fires_delivers_skips_and_is_paused_and_removed(
    tmp_path: Path, tenant: Tenant, data: tuple[Path, dict[str, str]], capsys: Any
) -> None:
    folder, inputs = data
    name = unique("nightly")[:30]
    values = runner_values(work={"existingClaim": "medweave-data", "folder": folder.name})
    own = {"timeZone": "Europe/Rome", "startWithin": 900, "history": {"succeeded": 2, "failed": 1}}
    file = write_inference(tmp_path / "definition", inputs=inputs, name=name, values=values, when="* * * * *", **own)
    try:
        output = schedule("create", file)
        assert f"schedule {name}: is a release in namespace tenant-a, and runs at * * * * *" in output
        assert cronjob(tenant, name) == {
            "schedule": "* * * * *", "timeZone": "Europe/Rome", "concurrencyPolicy": "Forbid", "suspend": False,
            "startingDeadlineSeconds": 900, "successfulJobsHistoryLimit": 2, "failedJobsHistoryLimit": 1,
        }  # fmt: skip
        account = f"--as=system:serviceaccount:tenant-a:{name}"
        requests = [
            ("create", "pods", "--subresource=exec"),
            ("create", "deployments.apps"),
            ("get", "secrets"),
            ("create", "jobs.batch"),
            ("get", "nodes"),
        ]
        admin = dataclasses.replace(tenant, kubeconfig=ADMIN)
        may = [admin.ended("kubectl", "auth", "can-i", *request, account).stdout.strip() for request in requests]
        assert may == ["yes", "yes", "no", "no", "no"], "what the StreamFlow file needs, and no more"
        first = until(lambda: jobs(tenant, name), limit_s=75, what="the first firing")[0]["metadata"]["name"]
        schedule("pause", file)
        assert cronjob(tenant, name)["suspend"] is True
        log = finished(tenant, first, limit_s=400)  # all of CI's cores may be busy
        assert "starting a run: no earlier run has completed" in log
        assert "completed after" in log
        delivered = list((folder / "results").rglob("lesion_mask.dcm"))
        assert len(delivered) == 1

        second = f"{name}-now"
        tenant.call("kubectl", "create", "job", second, f"--from=cronjob/{name}")
        log = finished(tenant, second, limit_s=60)
        assert "skipped: nothing has changed since run lung-nodule-segmentation-infer-" in log
        assert list((folder / "results").rglob("lesion_mask.dcm")) == delivered
        with capsys.disabled():
            print(log)
    finally:
        schedule("remove", file)
    until(
        lambda: not tenant.get("cronjobs,jobs,pods", f"app.kubernetes.io/instance={name}"),
        limit_s=60,
        what="nothing left",
    )


@pytest.mark.long
def test_a_firing_whose_time_comes_while_one_runs_waits_and_then_skips(tmp_path: Path, tenant: Tenant) -> None:
    """Firings of the cluster itself, each minute: the second is not started while the first runs, and comes when that has ended."""
    name, admin = unique("minutely")[:30], dataclasses.replace(tenant, kubeconfig=ADMIN)
    with on_the_claim() as (folder, inside):
        (folder / "scans").mkdir()
        values = runner_values(work={"existingClaim": "medweave-data", "folder": folder.name})
        place = {"kubernetes": {"chart": str(RUNNER), "values": values}}
        script = f"while [ ! -e {inside}/go-on ]; do sleep 0.1; done; echo done > result.txt"
        file = write_schedule(
            tmp_path / "x", script, scans=Path(inside) / "scans", name=name, when="* * * * *", place=place
        )
        try:
            schedule("create", file)
            spec = cronjob(tenant, name)
            assert (spec["concurrencyPolicy"], spec["startingDeadlineSeconds"]) == ("Forbid", 3600)
            assert (spec["successfulJobsHistoryLimit"], spec["failedJobsHistoryLimit"]) == (3, 3)
            assert "timeZone" not in spec, "the place's own"
            first = until(lambda: jobs(tenant, name), limit_s=75, what="the first firing")[0]["metadata"]["name"]
            until(lambda: "started on here" in log_of(tenant, first), limit_s=120, what="its run")

            def is_forbidden() -> bool:
                chosen = f"involvedObject.kind=CronJob,involvedObject.name={name},reason=JobAlreadyActive"
                words = ("get", "events", "--field-selector", chosen, "--output", "name")
                return bool(admin.call("kubectl", *words).strip())

            until(is_forbidden, limit_s=130, what="a time at which the cluster starts nothing, for one runs")
            assert [job["metadata"]["name"] for job in jobs(tenant, name)] == [first]
            assert jobs(tenant, name)[0]["status"].get("active") == 1
            (folder / "go-on").touch()
            assert "completed after" in finished(tenant, first, limit_s=60)

            def others() -> list[str]:
                return [job["metadata"]["name"] for job in jobs(tenant, name) if job["metadata"]["name"] != first]

            second = until(others, limit_s=130, what="the second firing")[0]
            assert "skipped: nothing has changed since run tiny-" in finished(tenant, second, limit_s=60)
            assert ended_runs(folder) == ["completed"]
        finally:
            schedule("remove", file)


def cronjob(tenant: Tenant, name: str) -> dict[str, Any]:
    """Return the CronJob's spec in the API server, without its job template."""
    spec = json.loads(tenant.call("kubectl", "get", "cronjob", name, "--output", "json"))["spec"]
    return {key: value for key, value in spec.items() if key != "jobTemplate"}


def test_overlapping_firing_waits_and_the_run_in_the_pod_is_attached_and_canceled(
    tmp_path: Path, tenant: Tenant
) -> None:
    name = unique("overlap")
    with on_the_claim() as (folder, inside):
        (folder / "scans").mkdir()
        values = runner_values(work={"existingClaim": "medweave-data", "folder": folder.name})
        place = {"kubernetes": {"chart": str(RUNNER), "values": values}}  # no rights: a tenant may do all of this
        script = f"while [ ! -e {inside}/go-on ]; do sleep 0.1; done; echo done > result.txt"
        file = write_schedule(
            tmp_path / "x", script, scans=Path(inside) / "scans", name=name, when="0 0 1 1 *", place=place
        )
        try:
            schedule("create", file)
            tested = tenant.call("helm", "test", name, "--logs", "--timeout", "2m")
            assert "/definition/schedule.yml is there" in tested
            for number in (1, 2):
                tenant.call("kubectl", "create", "job", f"{name}-{number}", f"--from=cronjob/{name}")
                if number == 1:
                    until(lambda: "started on here" in log_of(tenant, f"{name}-1"), limit_s=60, what="the first run")
            assert "skipped: the previous run is still running" in finished(tenant, f"{name}-2", limit_s=60)
            code, out, _ = ended("list", "--json", cwd=tmp_path / "x", **WITH_HELM)
            (row,) = json.loads(out)
            assert (code, row["state"], row["last"]["outcome"]) == (0, "running", "done")
            assert row["last"]["why"] == "skipped: the previous run is still running"
            following = attached(tmp_path / "x", name)
            assert following.stderr is not None
            seen = [following.stderr.readline() for _ in range(2)]
            assert "copy         started on here" in "".join(seen)
            (folder / "go-on").touch()
            assert following.wait(60) == 0
            assert "completed after" in following.stderr.read()
            assert "completed after" in finished(tenant, f"{name}-1", limit_s=30)

            (folder / "scans" / "new").write_text("1")
            (folder / "go-on").unlink()
            tenant.call("kubectl", "create", "job", f"{name}-3", f"--from=cronjob/{name}")
            until(lambda: "input scans changed" in log_of(tenant, f"{name}-3"), limit_s=60, what="the third run")
            until(lambda: "started on here" in log_of(tenant, f"{name}-3"), limit_s=60, what="its job")
            tenant.call("kubectl", "delete", "job", f"{name}-3")
            states = until(lambda: ended_runs(folder), limit_s=30, what="the end of the run whose pod was deleted")
            assert states == ["cancelled", "completed"], "the driver has cleaned up"
        finally:
            schedule("remove", file)


def attached(folder: Path, name: str) -> subprocess.Popen[str]:
    """Start `medweave attach --schedule`, by the account that created the schedule."""
    own = os.environ | {"XDG_STATE_HOME": str(folder / "state")} | WITH_HELM
    words = [PROGRAM, "attach", "--schedule", name]
    return subprocess.Popen(words, cwd=folder, env=own, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended_runs(folder: Path) -> list[str]:
    """Return the states of the runs; empty while one is active."""
    states = sorted(read_run(log.parent).state for log in (folder / "runs").glob("*/events.jsonl"))
    return states if "unfinished" not in states else []
