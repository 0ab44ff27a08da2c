"""Volumes that pods reach through claims: a pod of a namespace with enforced pod security may not name a host's folder itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import TestbedError
from .layout import PRIVATE_FOLDERS, TENANTS, Layout
from .part import Part, Testbed, as_list

ENVIRONMENT_CLAIM, DATA_CLAIM = "medweave-environment", "medweave-data"
READ, WRITE = "ReadOnlyMany", "ReadWriteMany"


def volume_and_claim(claim: str, tenant: str, folder: Path, mode: str) -> list[dict[str, Any]]:
    """Return a volume of one of the machine's folders and the one claim, in one tenant's namespace, that may use it."""
    name = f"testbed-{tenant}-{claim}"
    shared = {"accessModes": [mode], "storageClassName": ""}
    volume = {
        **shared,
        "capacity": {"storage": "10Gi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "claimRef": {"namespace": tenant, "name": claim},
        "hostPath": {"path": str(folder), "type": "Directory"},
    }
    request = {**shared, "resources": {"requests": {"storage": "10Gi"}}, "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": tenant},
            "spec": request,
        },
    ]


def standard(layout: Layout) -> list[dict[str, Any]]:
    """Return the worker environment, read by all, and each tenant's own data folder."""
    documents = []
    for tenant in TENANTS:
        documents += volume_and_claim(ENVIRONMENT_CLAIM, tenant, layout.environment, READ)
        documents += volume_and_claim(DATA_CLAIM, tenant, layout.pods / tenant, WRITE)
    return documents


def add(testbed: Testbed, claim: str, folder: Path) -> None:
    """Create one of the machine's folders readable for pods of both tenants, by a claim; a later call may name another one.

    Raises:
        TestbedError: there is no such folder, pods cannot see it, or they use the earlier one.
    """
    hidden = [str(private) for private in PRIVATE_FOLDERS if folder.is_relative_to(private)]
    if not folder.is_absolute() or not folder.is_dir() or hidden:
        raise TestbedError(
            f"no volume claim '{claim}' can be made of that folder.",
            seen=f"{folder}" + (f", below {hidden[0]}" if hidden else ", which is no absolute path of a folder"),
            expected="a folder outside " + ", ".join(map(str, PRIVATE_FOLDERS)),
            do="copy it to such a place and name that",
        )
    documents = [document for tenant in TENANTS for document in volume_and_claim(claim, tenant, folder, READ)]
    drop_others(testbed, claim, folder)
    testbed.kubectl("apply", "--server-side", "-f", "-", text=as_list(documents))


def drop_others(testbed: Testbed, claim: str, folder: Path) -> None:
    """Remove a claim of another folder: the path of a volume cannot be changed."""
    items = json.loads(testbed.kubectl("get", "persistentvolumes", "-o", "json"))["items"]
    paths = {item["metadata"]["name"]: item["spec"].get("hostPath", {}).get("path") for item in items}
    for tenant in TENANTS:
        volume = f"testbed-{tenant}-{claim}"
        if paths.get(volume, str(folder)) != str(folder):
            wait = ("--ignore-not-found", "--timeout=30s")  # while a pod uses it, it stays
            testbed.kubectl("delete", "persistentvolumeclaim", claim, "--namespace", tenant, *wait)
            testbed.kubectl("delete", "persistentvolume", volume, *wait)


def trouble(testbed: Testbed) -> str | None:
    """Which claim is not bound."""
    for tenant in TENANTS:
        words = testbed.kubectl_words("get", "persistentvolumeclaims", "-n", tenant, "-o", "json")
        code, output, errors = testbed.commands.outcome(words, timeout_s=15)
        if code != 0:
            return " ".join(errors.split())[:200]
        phases = {item["metadata"]["name"]: item["status"].get("phase") for item in json.loads(output)["items"]}
        unbound = [claim for claim in (ENVIRONMENT_CLAIM, DATA_CLAIM) if phases.get(claim) != "Bound"]
        if unbound:
            return f"{tenant}: claim {unbound[0]} is {phases.get(unbound[0], 'absent')}"
    return None


def start(testbed: Testbed) -> None:
    """Create the standard volumes and their claims."""
    drop_released(testbed)
    testbed.kubectl("apply", "--server-side", "-f", "-", text=as_list(standard(testbed.layout)))


def drop_released(testbed: Testbed) -> None:
    """Remove volumes whose claim was deleted: such a volume waits for that very claim for ever. The data stay."""
    items = json.loads(testbed.kubectl("get", "persistentvolumes", "-o", "json"))["items"]
    phases = {item["metadata"]["name"]: item["status"].get("phase") for item in items}
    released = [name for name, phase in phases.items() if name.startswith("testbed-") and phase == "Released"]
    if released:
        testbed.kubectl("delete", "persistentvolumes", *released)


def parts() -> list[Part]:
    """Return the volumes' part."""
    return [Part(name="volumes", needs=("tenants",), trouble=trouble, start=start)]
