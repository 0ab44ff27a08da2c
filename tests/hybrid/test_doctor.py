"""`medweave doctor` at the testbed's own site: a real login node, Slurm and cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

from support.hybrid_runs import SITE, laptop
from support.testbed import Sites


def looked_at(testbed: Sites, *words: str) -> tuple[int, list[dict[str, Any]]]:
    ended = subprocess.run(
        [sys.executable, "-m", "medweave.cli", "doctor", "--site", str(SITE), "--json", *words],
        env=os.environ | laptop(testbed), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return ended.returncode, json.loads(ended.stdout)


def test_all_is_well_and_no_pod_is_left(testbed: Sites) -> None:
    code, hops = looked_at(
        testbed, *(f"--deployment={name}" for name in ("laptop", "login", "slurm", "training-ddp", "inference"))
    )
    assert {hop["health"] for hop in hops} <= {"ok", "warning"}, hops
    assert code == 0
    names = {(hop["place"], hop["name"]) for hop in hops}
    assert {
        ("login", "ssh"),
        ("slurm", "service normal"),
        ("inference", "rights"),
        ("inference", "image"),
        ("inference", "bandwidth"),
    } <= names
    (speed,) = (hop["seen"] for hop in hops if (hop["place"], hop["name"]) == ("inference", "bandwidth"))
    assert re.fullmatch(r"[1-9]\d* MB/s to a pod, [1-9]\d* MB/s back, through the API server", speed), speed
    routes = {hop["place"]: hop["seen"] for hop in hops if hop["name"] == "route"}
    assert set(routes) == {"login - training-ddp", "login - inference", "training-ddp - inference"}
    for place, seen in routes.items():
        listens = place.rpartition(" ")[2]
        told = rf"direct: [1-9]\d* MB/s there, [1-9]\d* MB/s back, over one connection; {listens} listens, .*"
        assert re.fullmatch(told, seen), (place, seen)
    left = testbed.laptop(
        "kubectl", "get", "pods,networkpolicies", "-l", "app.kubernetes.io/managed-by=medweave-doctor", "-o", "name"
    )
    assert left.returncode == 0
    assert left.stdout == ""
