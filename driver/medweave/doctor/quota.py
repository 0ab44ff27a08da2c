"""Judge the quotas of a namespace by what a run needs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from medweave.doctor.hop_result import Health, HopResult
from medweave.doctor.rights import of_kinds
from medweave.doctor.storage import classes_of
from medweave.doctor.trial_pods import templates

NAME = "quota"
NEAR = 0.9
# Quotas that each pod uses; a namespace with such a quota refuses pods without a request.
OF_EACH_POD = ("pods", "cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
OF_EACH_CLAIM = ("persistentvolumeclaims", "requests.storage")


def needed(objects: Sequence[Mapping[str, Any]], more: Collection[str] = ()) -> set[str]:
    """Return the quota resources that a run uses.

    Args:
        objects: objects that the run creates.
        more: further resources that it creates, in the plural (`jobs.batch`).
    """
    resources = set(OF_EACH_POD) | set(more)
    resources |= {right.name for right in of_kinds(((item["apiVersion"], item["kind"]) for item in objects), ())}
    for storage_class in classes_of(objects):
        prefix = f"{storage_class}.storageclass.storage.k8s.io/"
        resources |= {*OF_EACH_CLAIM, *(prefix + name for name in OF_EACH_CLAIM)}
    for template in templates(objects):
        for container in template["spec"]["containers"]:
            requests = container.get("resources") or {}
            for name in {**(requests.get("limits") or {}), **(requests.get("requests") or {})}:
                resources |= {f"requests.{name}", f"limits.{name}"}
    return resources


def hop_of(place: str, quota: Any, needs: Collection[str]) -> HopResult:
    """Return the hop of one ResourceQuota; the worst of its resources decides its health.

    Args:
        quota: the object of the API.
        needs: result of `needed`.
    """
    status, spec = quota.status, quota.spec
    hard, used = (status and status.hard) or {}, (status and status.used) or {}
    seen = ", ".join(f"{name} {used.get(name, '?')} of {value}" for name, value in sorted(hard.items()))
    # A scoped quota counts only some pods; the cluster decides whether a run's pods are among them.
    is_of_some = bool(spec and (spec.scopes or spec.scope_selector))
    health, problems = Health.OK, list[str]()
    for name in sorted(hard):
        worse, word = _judged(
            name, hard[name], used.get(name), is_needed=name.removeprefix("count/") in needs and not is_of_some
        )
        if worse is not Health.OK:
            health = max(health, worse, key=_ORDER.index)
            problems.append(f"{name} {word}")
    return HopResult(
        place=place, name=NAME, health=health, seen=f"{quota.metadata.name}: {seen or 'nothing counted yet'}",
        do=f"{', '.join(problems)}: {_fix(quota.metadata.name)}" if problems else "",
    )  # fmt: skip


_ORDER = (Health.OK, Health.WARNING, Health.UNKNOWN, Health.FAULT)


def _judged(name: str, hard: str, used: str | None, *, is_needed: bool) -> tuple[Health, str]:
    if used is None:
        return (Health.UNKNOWN if is_needed else Health.WARNING), "is not counted yet; run doctor again in a minute"
    most, taken = parse_quantity(hard), parse_quantity(used)
    if taken >= most:
        if is_needed:
            return Health.FAULT, "is used up"
        # A quota of 0 for unneeded kinds, such as load balancers, is intended.
        return (Health.WARNING, "is used up, if a run needs it") if most else (Health.OK, "")
    return (Health.WARNING, "is nearly used up") if taken >= most * parse_quantity(str(NEAR)) else (Health.OK, "")


def _fix(name: str) -> str:
    return (
        "remove unneeded objects (`medweave clean`, `kubectl get all`), wait for running workflows, or ask the "
        f"namespace's administrator to raise ResourceQuota {name}"
    )


def forbidden(place: str, status: int | None) -> HopResult:
    """Return the hop for quotas that may not be listed."""
    return HopResult(
        place=place, name=NAME, health=Health.UNKNOWN, seen=f"listing ResourceQuotas is not permitted ({status})",
        do="ask the namespace's administrator for the permission to list resourcequotas, or for the output of "
            "`kubectl describe quota`",
    )  # fmt: skip
