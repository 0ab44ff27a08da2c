"""Before another attempt: wait for the replacements of lost pods, and copy to them the files that the lost pods had.

All pods of the cluster have the inputs of its steps at the same paths, so any surviving pod can be the source.
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
from medweave_connectors.sites.pods.api.errors import PodLost
from medweave_connectors.sites.pods.api.namespace_client import ApiServerError, NamespaceClient
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.pod_states import PodState, describe, judge
from medweave_connectors.transfer.routes.via_driver import pump

POLL_S, NOTICE_S = 1.0, 10.0


async def wait_until_ready(
    cluster: NamespaceClient,
    before: Sequence[Pod],
    *,
    within_s: float,
    deployment: str,
    closing: Callable[[], bool],
) -> list[Pod]:
    """Wait until pods with these names are ready again, and return them.

    Args:
        deployment: name for the notices, which are printed when the states change, every 10 s at most.
        closing: true once the pods are not needed any more.

    Raises:
        PodLost: a pod was not ready in time; the message names it, with its state.
    """
    began = reported_s = time.monotonic()
    reported = ""
    while True:
        pods: list[Pod] = []
        missing = []
        for previous in before:
            try:
                pod = await cluster.pod(previous.name)
            except ApiServerError as error:
                pod = None
                missing.append(f"{previous.name}: {error}")
            else:
                if pod is not None and judge(pod)[0] == PodState.READY:
                    pods.append(pod)
                else:
                    missing.append(describe(pod) if pod is not None else f"{previous.name}: gone")
        if not missing:
            return pods
        if closing():
            raise asyncio.CancelledError
        now, states = time.monotonic(), "; ".join(missing)
        if now > began + within_s:
            raise PodLost(f"no other attempt after {within_s:.0f} s without all pods of the cluster: {states}")
        if now > reported_s + NOTICE_S and states != reported:
            reported_s, reported = now, states
            left_s = began + within_s - now
            console.say(
                f"medweave: {deployment}: {len(pods)} of {len(before)} pods ready; waits for up to {left_s:.0f} s: {states}"
            )
        await asyncio.sleep(POLL_S)


async def copy_missing_files(
    connector: Any,
    places: Sequence[ExecutionLocation],
    new: Container[str],
    work: Sequence[ExecutionLocation],
    folder: str,
    checkpoint_folder: str,
) -> None:
    """Copy the files of a surviving pod to the new pods, and the checkpoints of the first pod that has some to the step's pods.

    Args:
        connector: of the pods.
        places: all locations of the cluster.
        new: the names of the new pods, followed by a colon.
        work: the locations in which the step runs.
        folder: the step's output folder; its parent folder has the inputs.
        checkpoint_folder: name of the folder for checkpoints in there; empty for none.

    Raises:
        PodLost: a pod was lost, or all are new.
    """
    surviving = [place for place in places if place.name.partition(":")[0] + ":" not in new]
    if not surviving:
        raise PodLost(
            f"deployment '{connector.deployment_name}': all its pods were replaced, and none has the inputs of the step"
        )
    for replacement in (location for location in places if location not in surviving):
        await connector.close_shells(replacement.name)
        await copy_folder(connector, surviving[0], replacement, posixpath.dirname(folder.rstrip("/")))
    if not checkpoint_folder or len(work) < 2:
        return
    look = [f"test -d {shlex.quote(posixpath.join(folder, checkpoint_folder))}"]
    with_checkpoints = [
        location for location in work if location in surviving and (await connector.alone(location, look))[1] == 0
    ]
    for location in work if with_checkpoints else ():
        if location.name != with_checkpoints[0].name:
            await copy_folder(connector, with_checkpoints[0], location, folder, [checkpoint_folder])


async def copy_folder(
    connector: Any, source: ExecutionLocation, target: ExecutionLocation, root: str, names: Sequence[str] = ()
) -> None:
    """Copy a folder from one pod of the cluster to another through the driver, unless both share the volume.

    Args:
        connector: of the pods.
        root: the folder, at the same path in both.
        names: entries of the folder, which replace those of the target; empty for all.

    Raises:
        PodLost: one of the two was lost.
        StreamBroke: tar failed in one of them.
    """
    folder = shlex.quote(root)
    mark = shlex.quote(posixpath.join(root, f".medweave-{secrets.token_hex(8)}"))
    await _run_checked(connector, source, f": > {mark}")
    try:
        # Volumes of unknown kinds may be the same folder.
        await _run_checked(connector, target, f"mkdir -p {folder}")
        if (await connector.alone(target, [f"test -e {mark}"]))[1] == 0:
            return
    finally:
        await _run_checked(connector, source, f"rm -f {mark}")
    chosen = list(names) or (await _run_checked(connector, source, f"ls -A {folder}")).splitlines()
    if not chosen:
        return
    if names:
        replaced = " ".join(shlex.quote(posixpath.join(root, name)) for name in names)
        await _run_checked(connector, target, f"rm -rf {replaced}")
    reader = await connector.get_stream_reader(["tar", "-C", root, "-cf", "-", "--", *chosen], source)
    writer = await connector.get_stream_writer(["tar", "-C", root, "-xf", "-"], target)
    await connector.while_reachable(
        [source.name, target.name],
        pump(reader, [writer], int(connector.transferBufferSize), where=connector.deployment_name),
    )


async def _run_checked(connector: Any, place: ExecutionLocation, line: str) -> str:
    text, code = await connector.alone(place, [line])
    if code:
        raise PodLost(f"{place.name}: files of the run could not be copied: {reason_in(text) or f'exit code {code}'}")
    return str(text)
