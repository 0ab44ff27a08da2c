"""A Job before and after it ran: its object, the script of its pod, and its status. Pure, or plain sh."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medweave_connectors.jobs.job_requests import JobRequest, StepHints
from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.sites.kubernetes.job.manifest import SUBMISSION, build_job, build_job_name
from medweave_connectors.sites.kubernetes.job.script import (
    KubernetesJobFiles,
    build_end_command,
    build_follow_command,
    build_job_script,
    read_end,
)
from medweave_connectors.sites.kubernetes.job.states import JobStatus, KubernetesJobState, judge_job
from medweave_connectors.sites.pods.exec.commands import PodStep
from medweave_connectors.sites.pods.objects.pod import Pod, parse_pod
from support.api_server import pod_document
from support.engine import wait_until
from support.job_server import standing_pod

# ---- the object


def template() -> dict[str, Any]:
    """Return the JSON of a standing pod, with the additions of admission plugins and the scheduler."""
    pod = standing_pod()
    worker = pod["spec"]["containers"][0]
    worker |= {
        "command": ["sleep", "infinity"],
        "env": [{"name": "SITE", "value": "a"}],
        "readinessProbe": {"exec": {"command": ["true"]}},
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "1Gi"},
            "limits": {"memory": "128Mi", "ephemeral-storage": "2Gi", "amd.com/gpu": "1"},
        },
        "securityContext": {"runAsUser": 10001, "readOnlyRootFilesystem": False},
    }
    worker["volumeMounts"] = [
        {"name": "work", "mountPath": "/work"},
        {"name": "kube-api-access-x7", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ]
    pod["spec"]["containers"].append({"name": "sidecar", "image": "y"})
    pod["spec"] |= {
        "nodeName": "node-1",
        "hostname": "w-0",
        "priority": 1000,
        "priorityClassName": "research",
        "imagePullSecrets": [{"name": "registry"}],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "restartPolicy": "Always",
        "initContainers": [{"name": "init", "image": "z"}],
    }
    pod["spec"]["volumes"].append({"name": "kube-api-access-x7", "projected": {}})
    return pod


def job(limit_s: int | None = None, *, gpus: int = 0, **changes: Any) -> dict[str, Any]:
    return build_job(
        template() | changes,
        "worker",
        'echo "$HOME" $(date)',
        name="segment-0-3-ab",
        own_labels={SUBMISSION: "ab"},
        job="/segment/0.3",
        request=JobRequest(cores=2.5, memory_mib=1000.2, hints=StepHints(gpus_min=gpus, gpus_max=gpus)),
        limit_s=limit_s,
    )


def pod_spec(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["spec"]["template"]["spec"]
    return found


def test_a_job_asks_for_what_the_step_asks_for() -> None:
    (container,) = pod_spec(job(gpus=2))["containers"]
    amounts = {"cpu": "2.5", "memory": "1001Mi"}
    assert container["resources"] == {
        "requests": amounts | {"ephemeral-storage": "1Gi"},
        "limits": amounts | {"ephemeral-storage": "2Gi", "amd.com/gpu": "2"},
    }
    assert "amd.com/gpu" not in pod_spec(job())["containers"][0]["resources"]["limits"]


def test_a_job_keeps_of_the_template_what_is_the_sites() -> None:
    spec = pod_spec(job())
    assert spec["priorityClassName"] == "research"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert not {"nodeName", "hostname", "priority", "initContainers"} & spec.keys()
    (container,) = spec["containers"]
    assert (container["name"], container["image"], container["env"]) == (
        "worker",
        "x",
        [{"name": "SITE", "value": "a"}],
    )
    assert "readinessProbe" not in container
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/work", "/tmp"]
    assert [volume["name"] for volume in spec["volumes"]] == ["work", "medweave-tmp"]


def test_a_jobs_pod_runs_once_as_nobody_special() -> None:
    spec = pod_spec(job(90))
    security = spec["containers"][0]["securityContext"]
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"], security["runAsUser"]) == (True, True, 10001)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 90
    assert "activeDeadlineSeconds" not in pod_spec(job())


def test_a_pod_that_is_taken_away_is_replaced_and_an_exit_code_is_the_end() -> None:
    spec = job()["spec"]
    disruption, own = spec["podFailurePolicy"]["rules"]
    assert (disruption["action"], disruption["onPodConditions"][0]["type"]) == ("Count", "DisruptionTarget")
    assert (own["action"], own["onExitCodes"]["operator"], own["onExitCodes"]["values"]) == ("FailJob", "NotIn", [0])
    assert spec["backoffLimit"] > 0
    assert spec["ttlSecondsAfterFinished"] > 0


def test_kubernetes_puts_no_variables_into_the_command() -> None:
    assert pod_spec(job())["containers"][0]["command"] == ["sh", "-c", 'echo "$$HOME" $$(date)']


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/segment/0.3", "segment-0-3-ab"),
        ("/lung/Train_X/0", "lung-train-x-0-ab"),
        ("/" + "x" * 90 + "/0", "x" * 60 + "-ab"),
    ],
)
def test_the_name_of_a_job(name: str, expected: str) -> None:
    assert build_job_name(name, "ab") == expected


# ---- the script


def script(
    folder: Path,
    command: str,
    *,
    checkpoint_folder: str = "",
    limit_s: int | None = None,
    token: str = "ab",
    **streams: str,
) -> tuple[str, KubernetesJobFiles]:
    output = folder / "my out"
    output.mkdir(exist_ok=True)
    files = KubernetesJobFiles.next_to(str(output), token)
    step = PodStep(
        name="/segment/0",
        words=["sh", "-c", f"'{command}'"],
        environment={"TMPDIR": str(folder / "tmp"), "VALUE": "a $HOME 'b'"},
        output_directory=str(output),
        streams={"stdin": None, "stdout": None, "stderr": None} | streams,
        limit_s=limit_s,
    )
    home = KubernetesJobFiles.next_to(str(output), "ab").folder
    return build_job_script(step, files, home=home, checkpoint_folder=checkpoint_folder, signal_lead_s=1), files


def end_of(files: KubernetesJobFiles) -> int:
    end = read_end(
        subprocess.run(["sh", "-c", build_end_command(files)], capture_output=True, text=True, check=True).stdout
    )
    assert end is not None
    return end.exit_code


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_script_ends_as_its_command_and_keeps_its_words(tmp_path: Path, code: int) -> None:
    text, files = script(tmp_path, f'echo "$VALUE"; echo oops >&2; pwd > where; exit {code}')
    assert subprocess.run(["sh", "-c", text], check=False).returncode == code
    assert end_of(files) == code
    assert Path(files.stdout).read_text() == "a $HOME 'b'\n"
    assert Path(files.stderr).read_text() == "oops\n"
    assert (tmp_path / "my out" / "where").read_text() == f"{tmp_path}/my out\n"


def test_files_that_the_tool_names_lie_in_the_output_folder(tmp_path: Path) -> None:
    text, files = script(tmp_path, "cat; echo oops >&2", stdout="out.txt", stderr="err.txt")
    subprocess.run(["sh", "-c", text], check=True, input="not read", text=True)
    assert [(tmp_path / "my out" / name).read_text() for name in ("out.txt", "err.txt")] == ["", "oops\n"]
    assert Path(files.stderr).read_text() == ""


def test_a_term_reaches_the_command_and_its_own_code_counts(tmp_path: Path) -> None:
    text, files = script(tmp_path, 'trap "echo saved > saved; exit 75" TERM; touch ready; while :; do sleep 0.1; done')
    process = subprocess.Popen(["sh", "-c", text])
    wait_until(lambda: (tmp_path / "my out" / "ready").exists())
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 75
    assert end_of(files) == 75
    assert (tmp_path / "my out" / "saved").exists()


def test_a_second_start_finds_a_clean_folder_and_the_checkpoints(tmp_path: Path) -> None:
    text, _ = script(
        tmp_path,
        'ls > ../seen; echo x > part; mkdir -p saved; echo 1 >> saved/c; echo "$MEDWEAVE_RESUME_FROM" >> ../from; exit 3',
        checkpoint_folder="saved",
    )
    for _ in range(2):
        assert subprocess.run(["sh", "-c", text], check=False).returncode == 3
    assert (tmp_path / "seen").read_text() == "saved\n", "nothing of the first start but its checkpoints"
    assert (tmp_path / "from").read_text() == f"\n{tmp_path}/my out/saved\n"
    assert (tmp_path / "my out" / "saved" / "c").read_text() == "1\n1\n"


def test_a_further_job_of_the_step_finds_a_clean_folder_and_the_checkpoints(tmp_path: Path) -> None:
    save = "ls > ../seen; mkdir -p saved; echo 1 >> saved/c; echo x > part; exit 75"
    for token in ("ab", "cd"):
        text, _ = script(tmp_path, save, checkpoint_folder="saved", token=token)
        assert subprocess.run(["sh", "-c", text], check=False).returncode == 75
    assert (tmp_path / "seen").read_text() == "saved\n"
    assert (tmp_path / "my out" / "saved" / "c").read_text() == "1\n1\n"


@pytest.mark.slow
@pytest.mark.parametrize(("checkpoint_folder", "code"), [("saved", 4), ("", 0)])
def test_a_step_with_checkpoints_gets_a_signal_before_its_time_limit(
    tmp_path: Path, checkpoint_folder: str, code: int
) -> None:
    loops = 600 if checkpoint_folder else 25
    waits = f'trap "exit 4" USR1; n=0; while [ $n -lt {loops} ]; do sleep 0.1; n=$((n+1)); done'
    text, files = script(tmp_path, waits, checkpoint_folder=checkpoint_folder, limit_s=2)
    assert subprocess.run(["sh", "-c", text], check=False).returncode == code
    assert end_of(files) == code


def test_what_a_command_says_is_read_from_where_reading_stopped(tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(b"12345\xff6")
    followed = subprocess.run(
        ["sh", "-c", build_follow_command(str(tmp_path / "a file"), 4)], capture_output=True, text=True, check=True
    )
    assert followed.stdout == "Nf82\n"
    missing = subprocess.run(
        ["sh", "-c", build_follow_command(str(tmp_path / "none"), 0)], capture_output=True, text=True, check=True
    )
    assert (missing.stdout, missing.stderr) == ("", "")


def test_an_end_file_that_is_none() -> None:
    assert read_end("") is None
    assert read_end("medweave-code 3") is None
    end = read_end("medweave-code 137 12\nmedweave-pod /sys/fs/cgroup/memory.events oom_kill 1\n")
    assert end is not None
    assert (end.exit_code, end.seconds, end.counters.oom_kills) == (137, 12, 1)


# ---- what its end means

FAILED = (
    "Failed",
    "PodFailurePolicy",
    "Container worker for pod tenant-a/x failed with exit code 3 matching FailJob rule at index 1",
)


def job_with(*condition: str, failed: int = 0) -> dict[str, Any]:
    named = [dict(zip(("type", "reason", "message"), condition, strict=True)) | {"status": "True"}] if condition else []
    return {"status": {"conditions": named, "failed": failed}}


def pod(
    phase: str = "Running",
    *,
    code: int | None = None,
    reason: str = "",
    metadata: dict[str, Any] | None = None,
    **status: Any,
) -> Pod:
    document = pod_document("x")
    document["metadata"] |= metadata or {}
    state = {"running": {}} if code is None else {"terminated": {"reason": reason or "Error", "exitCode": code}}
    document["status"] |= {
        "phase": phase,
        "containerStatuses": [{"name": "worker", "restartCount": 0, "state": state}],
    } | status
    return parse_pod(document)


def disrupted(reason: str) -> dict[str, Any]:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "it must go"}]}


BYE = {"deletionTimestamp": "2026-11-22T10:00:00Z"}
COMPLETE = ("Complete", "CompletionsReached", "")


def test_a_success_is_the_jobs_condition_and_the_containers_exit_code() -> None:
    good = pod("Succeeded", code=0, reason="Completed")
    assert judge_job(job_with(*COMPLETE), [good], "worker").state is KubernetesJobState.COMPLETED
    for pods in ([], [pod("Succeeded", code=3)], [pod()]):
        status = judge_job(job_with(*COMPLETE), pods, "worker")
        assert (status.state, status.kind) == (KubernetesJobState.FAILED, FailureKind.UNKNOWN)
    assert judge_job(job_with(), [good], "worker").state is KubernetesJobState.WAITING, (
        "the Job has no such condition yet"
    )


@pytest.mark.parametrize(
    ("found", "kind", "word"),
    [
        (pod("Failed", code=3), FailureKind.STEP_FAILED, ""),
        (pod("Failed", code=137, reason="OOMKilled"), FailureKind.OUT_OF_MEMORY, "exit code 3"),
        (pod("Failed", code=143, **disrupted("EvictionByEvictionAPI")), FailureKind.PREEMPTED, "PodFailurePolicy"),
        (pod("Failed", code=143, **disrupted("DeletionByTaintManager")), FailureKind.NODE_FAIL, "PodFailurePolicy"),
        (pod("Failed", code=143, metadata=BYE), FailureKind.CANCELLED, "is being deleted"),
    ],
)
def test_a_failure_has_the_kind_of_what_was_done_to_its_pod(found: Pod, kind: FailureKind, word: str) -> None:
    status = judge_job(job_with(*FAILED), [found], "worker")
    assert (status.state, status.kind) == (KubernetesJobState.FAILED, kind)
    assert word in status.word


@pytest.mark.parametrize(
    ("reason", "kind"), [("Evicted", FailureKind.PREEMPTED), ("DeadlineExceeded", FailureKind.TIMEOUT)]
)
def test_a_pods_own_reason_counts_before_the_exit_code(reason: str, kind: FailureKind) -> None:
    document = pod_document("x")
    ended = {"terminated": {"reason": "Error", "exitCode": 137}}
    document["status"] |= {"phase": "Failed", "reason": reason, "message": "Usage of EmptyDir volume exceeds"}
    document["status"]["containerStatuses"] = [{"name": "worker", "restartCount": 0, "state": ended}]
    assert judge_job(job_with(*FAILED), [parse_pod(document)], "worker").kind is kind


def test_a_pod_past_its_time_limit_is_the_end_whatever_the_job_makes_of_it() -> None:
    """Seen on 1.34: failed before its container had ended, so the Job saw no exit code and made another pod."""

    def late(code: int | None = None) -> Pod:
        return replace(pod("Failed", code=code), reason="DeadlineExceeded")

    ending = judge_job(job_with(failed=1), [late()], "worker")
    assert (ending.state, ending.num_disrupted) == (KubernetesJobState.RUNNING, 0), "its command gets its time to end"
    for pods in ([late(143)], [late(143), pod("Pending")]):
        status = judge_job(job_with(failed=1), pods, "worker")
        assert (status.state, status.kind, status.exit_code) == (KubernetesJobState.FAILED, FailureKind.TIMEOUT, 143)
    lost = judge_job(job_with(*FAILED, failed=1), [late()], "worker")
    assert (lost.state, lost.kind) == (KubernetesJobState.FAILED, FailureKind.TIMEOUT)


def test_a_pod_that_is_gone_was_deleted() -> None:
    assert judge_job(job_with(*FAILED), [], "worker", last=pod()).kind is FailureKind.CANCELLED
    assert judge_job(job_with(*FAILED), [], "worker", last=pod("Failed", code=3)).kind is FailureKind.STEP_FAILED
    status = judge_job(None, [], "worker", last=pod())
    assert (status.state, status.kind, status.word) == (
        KubernetesJobState.FAILED,
        FailureKind.CANCELLED,
        "it was deleted",
    )


@pytest.mark.parametrize(
    ("pods", "state"),
    [
        ([], KubernetesJobState.WAITING),
        ([pod("Pending")], KubernetesJobState.WAITING),
        ([pod()], KubernetesJobState.RUNNING),
        ([pod(metadata=BYE)], KubernetesJobState.WAITING),
        ([pod("Failed", code=143, **disrupted("EvictionByEvictionAPI")), pod()], KubernetesJobState.RUNNING),
        ([pod("Failed", code=143, **disrupted("EvictionByEvictionAPI"))], KubernetesJobState.WAITING),
    ],
)
def test_a_job_without_a_condition_goes_on(pods: list[Pod], state: KubernetesJobState) -> None:
    status: JobStatus = judge_job(job_with(failed=1), pods, "worker")
    assert (status.state, status.num_disrupted) == (state, 1)
    assert not status.ended
