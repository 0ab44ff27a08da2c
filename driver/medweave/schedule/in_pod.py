"""The lines of a run's event log in a pod, as `medweave attach --json` there prints them, over the API's exec."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubernetes.stream import stream

ASK_S = 1.0
# What the runner's pod knows of itself; the shell expands it there.
COMMAND = ("bash", "-c", 'exec "$(dirname "$POD_PYTHON")/medweave" attach --json --runs "$RUN_FOLDER/runs"')


def lines_of(core: Any, namespace: str, pod: str) -> Iterator[str | None]:
    """The lines of the run that goes on in a pod, from its beginning to its end; None about once a second meanwhile.

    Args:
        core: a CoreV1Api.

    Raises:
        ApiException: this account may not, or the pod is gone.
    """
    connection = stream(
        core.connect_get_namespaced_pod_exec, pod, namespace, command=list(COMMAND), container="run",
        stdout=True, stderr=False, stdin=False, tty=False, _preload_content=False,
    )  # fmt: skip
    rest, is_open = "", True
    try:
        while is_open:
            is_open = connection.is_open()  # asked first: what came before its end is read after that
            connection.update(timeout=ASK_S)
            *whole, rest = (rest + str(connection.read_stdout(timeout=0))).split("\n")
            yield from filter(None, whole)
            yield None
    finally:
        connection.close()
