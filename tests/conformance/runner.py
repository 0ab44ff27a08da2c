"""`cwl-runner`, forked from a process that has imported it: on a slow machine that is seconds a test.

python tests/conformance/runner.py serve SOCKET [--stock]    # --stock: without medweave's plug-in, which changes the engine, too
python tests/conformance/runner.py call SOCKET ARGUMENT …    # what cwl-runner does with the arguments, in this folder
"""

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

POLL_S = 0.05


def call(path: str, arguments: list[str]) -> int:
    """Run cwl-runner in the server with this process's folder, output and errors; return its exit code."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    request = json.dumps({"folder": str(Path.cwd()), "arguments": arguments}).encode()
    socket.send_fds(connection, [request], [1, 2])
    answer = connection.recv(16)
    return int(answer) if answer else 1


def serve(path: str, *, stock: bool) -> None:
    """Fork a process per call, until it is terminated."""
    import streamflow.cwl.runner

    if stock:
        import streamflow.ext.utils

        streamflow.ext.utils.entry_points = lambda **_: ()
    else:
        import medweave_connectors.plugin  # noqa: F401
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    signal.signal(signal.SIGCHLD, _forget)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            _answer(connection)
        connection.close()


def _forget(_number: int, _frame: FrameType | None) -> None:
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _answer(connection: socket.socket) -> None:
    request, streams, _, _ = socket.recv_fds(connection, 1 << 16, 2)
    child = os.fork()
    if child == 0:
        connection.close()
        _run(streams, **json.loads(request))
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if select.select([connection], [], [], POLL_S)[0]:  # the caller was killed: it ran out of time
            os.kill(child, signal.SIGKILL)
            os._exit(1)
    code = os.waitstatus_to_exitcode(ended[1])
    connection.send(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _run(streams: list[int], folder: str, arguments: list[str]) -> None:
    os.setsid()
    os.chdir(folder)
    for number, stream in enumerate(streams, start=1):
        os.dup2(stream, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    import streamflow.cwl.runner
    from streamflow.log_handler import defaultStreamHandler

    defaultStreamHandler.setStream(sys.stderr)
    code = streamflow.cwl.runner.main(arguments)
    sys.stdout.flush()
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], stock="--stock" in sys.argv[3:])
    else:
        sys.exit(call(sys.argv[2], sys.argv[3:]))
