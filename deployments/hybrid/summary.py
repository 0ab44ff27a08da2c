"""What a hybrid run amounts to, from its event log and from what the sites themselves answered. Pure functions."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

SACCT_FIELDS = ("JobID", "JobName", "State", "ExitCode", "NodeList", "NNodes", "Elapsed", "Start", "End", "AllocTRES")
MASK_FILE = "lesion_mask.nii.gz"
WEIGHTS = (".safetensors", ".bin")  # as trained, and of the bundle that segments
Event = Mapping[str, Any]


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run's folder, in order."""
    lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()]


def json_stream(text: str) -> Iterator[Any]:
    """JSON values that follow one another, as `kubectl get --watch -o json` prints them; a cut last one is left out."""
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            value, place = decoder.raw_decode(text, place)
        except ValueError:
            return
        yield value


def slurm_jobs(sacct: str) -> list[dict[str, str]]:
    """Rows of `sacct --parsable2 --noheader --format=<SACCT_FIELDS>`: one per job."""
    rows = (line.split("|") for line in sacct.splitlines() if line.strip())
    return [dict(zip(SACCT_FIELDS, row, strict=True)) for row in rows]


def own_jobs(events: Iterable[Event]) -> set[str]:
    """Slurm's ids of the run's jobs, all attempts; the account may have others."""
    return {str(site["slurm_job_id"]) for site in _sites(events) if "slurm_job_id" in site}


def own_pods(events: Iterable[Event], step: str = "") -> set[str]:
    """UIDs of the pods that the run's jobs, or those of a step, ran in; the namespace may have others."""
    chosen = (event for event in events if step in ("", event.get("step")))
    return {pod["uid"] for site in _sites(chosen) for pod in site.get("pods", ())}


def shortfalls(result: Mapping[str, Any], segment_pods: Collection[str]) -> list[str]:
    """Return what a run lacks that is to have crossed all three sites, a sentence for each; none if it did.

    Args:
        result: the summary.
        segment_pods: UIDs of the pods that segmented.
    """
    hosts = {step: {rank["host"] for rank in ranks} for step, ranks in result["ranks"].items()}
    nodes, train = set(result["slurm_nodes"]), hosts.get("train", set())
    wrong = []
    if not result["model_equal_laptop"]:
        wrong.append(f"the model differs from the laptop's: {', '.join(result['weights_that_differ']) or 'no model'}")
    if not result["masks_equal_laptop"]:
        wrong.append(f"masks differ from the laptop's: {', '.join(result['masks_that_differ']) or 'no masks'}")
    if len(nodes) < 2 or len(train) < 2 or not train <= nodes:
        wrong.append(f"train: ranks on {_names(train)}, Slurm's nodes are {_names(nodes)}; two or more were to train")
    workers, trained = result["compss_workers"], hosts.get("train_distributed", set())
    if len(workers) < 2 or (result["compss_engine"] == "ddp" and len(trained) < 2):
        wrong.append(
            f"train_distributed: {len(workers)} workers, ranks on {_names(trained)}; two or more were to train"
        )
    if len(segment_pods) < 2:
        wrong.append(f"segment: {len(segment_pods)} pods; two or more were to segment")
    failed = [f"{job['JobID']} {job['State']}" for job in result["slurm_jobs"] if job["State"] != "COMPLETED"]
    if failed:
        wrong.append(f"Slurm jobs that did not do well: {', '.join(failed)}")
    return wrong


def slurm_nodes(jobs: Iterable[Mapping[str, str]], expand: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the nodes that jobs ran on.

    Args:
        expand: host list expression, as sacct writes it (`n[1-2]`), to names, as `scontrol show hostnames` gives them.
    """
    return sorted({node for job in jobs for node in expand[job["NodeList"]]})


def pods_seen(objects: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Pods that ran, by their UID: the last state that the API server reported.

    Args:
        objects: Pods, or Lists of them, as the API server sent them.
    """
    found: dict[str, dict[str, Any]] = {}
    for thing in objects:
        for pod in thing.get("items", [thing]):
            if pod.get("kind", "Pod") == "Pod" and _has_run(pod):
                found[pod["metadata"]["uid"]] = pod
    return found


def component(pod: Mapping[str, Any]) -> str:
    """`<chart>/<component>` by the recommended labels."""
    labels = pod["metadata"].get("labels", {})
    return f"{labels.get('app.kubernetes.io/name', '?')}/{labels.get('app.kubernetes.io/component', '?')}"


def bytes_by_route(events: Iterable[Event]) -> dict[str, int]:
    """Bytes of verified copies, by `<from> -> <to> (<route>)`."""
    moved: dict[str, int] = {}
    for event in events:
        if event["type"] == "transfer.ended":
            data = event["data"]
            key = f"{data['from']} -> {event['deployment']} ({data['route']})"
            moved[key] = moved.get(key, 0) + data["bytes"]
    return moved


def overhead_s(events: Sequence[Event]) -> float:
    """Seconds of a run in which no step's command ran, no job waited in a queue and nothing was copied."""
    begin, end = _moment(events[0]), _moment(events[-1])
    spans = []
    for event in events:
        seconds = event["data"].get("seconds")
        if event["type"] in ("job.ended", "transfer.ended") and seconds is not None:
            over = _moment(event)
            queue_s = event["data"].get("site", {}).get("queue_seconds") or 0.0
            spans.append((over - seconds - queue_s, over))
    return (end - begin) - _covered(spans, begin, end)


def mask_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each case's mask (NIfTI), by the case's folder name, wherever it lies below a folder.

    Raises:
        ValueError: a case appears twice.
    """
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob(MASK_FILE)):
        case = path.parent.name
        if case in digests:
            raise ValueError(f"{case} was segmented twice below {folder.name}")
        digests[case] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


def weight_digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file of weights below a folder, by its path there."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.suffix in WEIGHTS
    }


def equal(digests: Mapping[str, Mapping[str, str]]) -> tuple[bool, list[str]]:
    """Return whether there is something and it is the same at both places, and the names of differing files.

    Args:
        digests: of each of two places, by name.
    """
    one, other = digests.values()
    return bool(one) and one == other, sorted(
        name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
    )


def _sites(events: Iterable[Event]) -> Iterator[Mapping[str, Any]]:
    for event in events:
        if event["type"] == "job.ended":
            yield event["data"].get("site", {})


def _names(names: Collection[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _has_run(pod: Mapping[str, Any]) -> bool:
    states = pod.get("status", {}).get("containerStatuses", [])
    return any(state.get("started") or "running" in state.get("state", {}) for state in states)


def _moment(event: Event) -> float:
    return datetime.datetime.fromisoformat(event["time"]).timestamp()


def _covered(spans: Iterable[tuple[float, float]], begin: float, end: float) -> float:
    total, reached = 0.0, begin
    for first, last in sorted(spans):
        first, last = max(first, reached), min(last, end)
        if last > first:
            total, reached = total + last - first, last
    return total
