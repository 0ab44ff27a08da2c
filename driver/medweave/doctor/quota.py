"""What is left of a namespace's quotas, and whether a run needs it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from medweave.doctor.hop import Health, Hop
from medweave.doctor.rights import of_kinds
from medweave.doctor.storage import classes_of
from medweave.doctor.trial_pods import templates

NAME = "quota"
NEAR = 0.9
# What each pod takes, where its namespace has a quota of it: a pod that asks for none is refused.
OF_EACH_POD = ("pods", "cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
OF_EACH_CLAIM = ("persistentvolumeclaims", "requests.storage")


def needed(objects: Sequence[Mapping[str, Any]], more: Collection[str] = ()) -> set[str]:
    """The resources of a quota that a run takes from.

    Args:
        objects: what the run makes there.
        more: resources that it makes besides, in the plural (`jobs.batch`).
    """
    found = set(OF_EACH_POD) | set(more)
    found |= {each.name for each in of_kinds(((one["apiVersion"], one["kind"]) for one in objects), ())}
    for storage_class in classes_of(objects):
        own = f"{storage_class}.storageclass.storage.k8s.io/"
        found |= {*OF_EACH_CLAIM, *(own + each for each in OF_EACH_CLAIM)}
    for template in templates(objects):
        for container in template["spec"]["containers"]:
            asked = container.get("resources") or {}
            for name in {**(asked.get("limits") or {}), **(asked.get("requests") or {})}:
                found |= {f"requests.{name}", f"limits.{name}"}
    return found


def hop_of(place: str, quota: Any, needs: Collection[str]) -> Hop:
    """The line of one ResourceQuota; the worst of its resources decides.

    Args:
        quota: as the API has it.
        needs: of `needed`.
    """
    status, spec = quota.status, quota.spec
    hard, used = (status and status.hard) or {}, (status and status.used) or {}
    seen = ", ".join(f"{name} {used.get(name, '?')} of {value}" for name, value in sorted(hard.items()))
    # It counts some pods only: those of a priority, of a kind. Whether a run's are among them, the cluster decides.
    is_of_some = bool(spec and (spec.scopes or spec.scope_selector))
    health, told = Health.OK, list[str]()
    for name in sorted(hard):
        worse, word = _judged(
            name, hard[name], used.get(name), is_needed=name.removeprefix("count/") in needs and not is_of_some
        )
        if worse is not Health.OK:
            health = max(health, worse, key=_ORDER.index)
            told.append(f"{name} {word}")
    return Hop(
        place=place, name=NAME, health=health, seen=f"{quota.metadata.name}: {seen or 'nothing counted yet'}",
        do=f"{', '.join(told)}: {_fix(quota.metadata.name)}" if told else "",
    )  # fmt: skip


_ORDER = (Health.OK, Health.WARNING, Health.UNKNOWN, Health.FAULT)


def _judged(name: str, hard: str, used: str | None, *, is_needed: bool) -> tuple[Health, str]:
    if used is None:
        return (Health.UNKNOWN if is_needed else Health.WARNING), "is not counted yet, try again in a minute"
    most, taken = parse_quantity(hard), parse_quantity(used)
    if taken >= most:
        if is_needed:
            return Health.FAULT, "is used up"
        # None of a kind that a run does not make, such as load balancers, is a rule, and no lack.
        return (Health.WARNING, "is used up, should a run need it") if most else (Health.OK, "")
    return (Health.WARNING, "is nearly used up") if taken >= most * parse_quantity(str(NEAR)) else (Health.OK, "")


def _fix(name: str) -> str:
    return (
        f"remove what is no longer needed there (`medweave clean`, `kubectl get all`), wait for runs that go on, or ask the "
        f"namespace's administrator to raise ResourceQuota {name}"
    )


def closed(place: str, status: int | None) -> Hop:
    """The line where quotas may not be listed."""
    return Hop(
        place=place, name=NAME, health=Health.UNKNOWN, seen=f"quotas may not be listed ({status})",
        do="ask the namespace's administrator for the right to list resourcequotas, or what `kubectl describe quota` says there",
    )  # fmt: skip
