"""Before another attempt: pods that took the places of lost ones are waited for, and given what those had.

All pods of the cluster have what its steps read, at the same paths; so any that is left has it for the new one.
"""

from __future__ import annotations

import asyncio
import posixpath
import secrets
import shlex
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

from streamflow.core.deployment import ExecutionLocation

from medweave_connectors.host.transfer_reasons import reason_in
from medweave_connectors.runlog import console
from medweave_connectors.sites.pods.api.cluster import Cluster, Refused
from medweave_connectors.sites.pods.errors import PodLost
from medweave_connectors.sites.pods.startup.pod import Pod
from medweave_connectors.sites.pods.startup.states import PodState, describe, judge
from medweave_connectors.transfer.routes.via_driver import pump

POLL_S, TOLD_S = 1.0, 10.0


async def ready_again(
    cluster: Cluster,
    before: Sequence[Pod],
    *,
    within_s: float,
    deployment: str,
    closing: Callable[[], bool],
) -> list[Pod]:
    """The pods that bear the names of these, once all of them are ready.

    Args:
        deployment: in whose name it is told what is waited for, when that has changed, every 10 s at most.
        closing: true once nobody wants them any more.

    Raises:
        PodLost: one was not ready in time; names it, with its state.
    """
    began = told_at = time.monotonic()
    told = ""
    while True:
        pods: list[Pod] = []
        missing = []
        for each in before:
            try:
                pod = await cluster.pod(each.name)
            except Refused as error:
                pod = None
                missing.append(f"{each.name}: {error}")
            else:
                if pod is not None and judge(pod)[0] == PodState.READY:
                    pods.append(pod)
                else:
                    missing.append(describe(pod) if pod is not None else f"{each.name}: gone")
        if not missing:
            return pods
        if closing():
            raise asyncio.CancelledError
        now, states = time.monotonic(), "; ".join(missing)
        if now > began + within_s:
            raise PodLost(f"no other attempt after {within_s:.0f} s without all pods of the cluster: {states}")
        if now > told_at + TOLD_S and states != told:
            told_at, told = now, states
            left_s = began + within_s - now
            console.say(
                f"medweave: {deployment}: {len(pods)} of {len(before)} pods ready; waits for up to {left_s:.0f} s: {states}"
            )
        await asyncio.sleep(POLL_S)


async def give_what_is_missing(
    connector: Any,
    places: Sequence[ExecutionLocation],
    new: Container[str],
    work: Sequence[ExecutionLocation],
    folder: str,
    checkpoint_folder: str,
) -> None:
    """Gives new pods all that the first of the others has, and the places of a step the checkpoints of the first that has some.

    Args:
        connector: of the pods.
        places: all of the cluster.
        new: the names of the new pods, each with a colon behind it.
        work: the places in which the step runs.
        folder: the step's output folder; what its steps read lies beside it.
        checkpoint_folder: name of the folder for checkpoints in there; empty for none.

    Raises:
        PodLost: a pod was lost, or all are new.
    """
    left = [each for each in places if each.name.partition(":")[0] + ":" not in new]
    if not left:
        raise PodLost(
            f"deployment '{connector.deployment_name}': all its pods are new, and none has what the step reads"
        )
    for each in (each for each in places if each not in left):
        await connector.forget(each.name)
        await give(connector, left[0], each, posixpath.dirname(folder.rstrip("/")))
    if not checkpoint_folder or len(work) < 2:
        return
    look = [f"test -d {shlex.quote(posixpath.join(folder, checkpoint_folder))}"]
    has = [each for each in work if each in left and (await connector.alone(each, look))[1] == 0]
    for each in work if has else ():
        if each.name != has[0].name:
            await give(connector, has[0], each, folder, [checkpoint_folder])


async def give(
    connector: Any, source: ExecutionLocation, target: ExecutionLocation, root: str, names: Sequence[str] = ()
) -> None:
    """Gives a pod what another one of the cluster has in a folder, unless both see the same one. The driver hands it on.

    Args:
        connector: of the pods.
        root: the folder, at the same path in both.
        names: what in it; it is put in the place of what is there. All where none are named.

    Raises:
        PodLost: one of the two was lost.
        StreamBroke: tar failed in one of them.
    """
    folder = shlex.quote(root)
    mark = shlex.quote(posixpath.join(root, f".medweave-{secrets.token_hex(8)}"))
    await _done(connector, source, f": > {mark}")
    try:
        # Behind volumes of kinds that are not known may lie the same folder.
        await _done(connector, target, f"mkdir -p {folder}")
        if (await connector.alone(target, [f"test -e {mark}"]))[1] == 0:
            return
    finally:
        await _done(connector, source, f"rm -f {mark}")
    chosen = list(names) or (await _done(connector, source, f"ls -A {folder}")).splitlines()
    if not chosen:
        return
    if names:
        there = " ".join(shlex.quote(posixpath.join(root, name)) for name in names)
        await _done(connector, target, f"rm -rf {there}")
    reader = await connector.get_stream_reader(["tar", "-C", root, "-cf", "-", "--", *chosen], source)
    writer = await connector.get_stream_writer(["tar", "-C", root, "-xf", "-"], target)
    await connector.while_reachable(
        [source.name, target.name],
        pump(reader, [writer], int(connector.transferBufferSize), where=connector.deployment_name),
    )


async def _done(connector: Any, place: ExecutionLocation, line: str) -> str:
    text, code = await connector.alone(place, [line])
    if code:
        raise PodLost(
            f"{place.name}: files of the run could not be handed on: {reason_in(text) or f'exit code {code}'}"
        )
    return str(text)
