"""Faults D1, D2 and D7 of the engine's copies: each is shown on stock StreamFlow, and is not there with medweave."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from streamflow.core.deployment import ExecutionLocation
from streamflow.data.manager import DefaultDataManager
from streamflow.deployment.connector.base import BaseConnector
from streamflow.deployment.connector.local import LocalConnector

from support.engine_faults import end, outcome, shown

HERE = ExecutionLocation(name="__LOCAL__", deployment="laptop", local=True)
THERE = ExecutionLocation(name="there", deployment="site")
HANG_S, ENDS_S = 1.0, 20.0  # the copies take milliseconds: time to watch the engine, and limit for ours
ERRORS_BYTES = 2**20  # a pipe holds 64 KiB
DYING = """#!/bin/sh
case "$1" in x*) exec {tar} "$@" ;; esac
{tar} chf - -C "$4" --no-recursion "$5" "$5/1" "$5/2"
exit 2
"""


def streams(kind: type[BaseConnector]) -> Any:
    """Return a connector whose programs run here, and whose copies are those of its class for other machines."""
    away = type("Away", (kind,), {name: getattr(kind, name) for name in ("get_stream_reader", "get_stream_writer")})
    away.copy_remote_to_local = BaseConnector.copy_remote_to_local
    return away("site", "/")


def test_d1_a_tar_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stock_only: bool) -> None:
    programs, source = tmp_path / "programs", tmp_path / "source"
    programs.mkdir()
    (programs / "tar").write_text(DYING.format(tar=shutil.which("tar")))
    (programs / "tar").chmod(0o755)
    source.mkdir()
    for n in range(8):
        (source / str(n)).write_text(f"scan {n}")
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    def copied(connector: Any, target: Path) -> tuple[Any, int]:
        error = asyncio.run(outcome(connector.copy_remote_to_local(str(source), str(target), THERE)))
        return error, len(list(target.iterdir())) if target.exists() else 0

    error, count = copied(streams(LocalConnector), tmp_path / "stock")
    shown(error is None and count == 2, (error, count))
    if stock_only:
        return
    from medweave_connectors.host.errors import StreamBroke
    from medweave_connectors.sites.local.connector import MedweaveLocalConnector
    from medweave_connectors.transfer.routes.via_driver import TarCopies

    class Away(TarCopies, MedweaveLocalConnector):
        pass

    error, _ = copied(Away("site", "/"), tmp_path / "ours")
    assert isinstance(error, StreamBroke)
    assert error.exit_status == 2
    assert list(tmp_path.glob(".*")) == []


class Breaking(LocalConnector):  # type: ignore[misc]
    """A connector whose first copy breaks off after a part was written."""

    broken = False

    async def copy_local_to_remote(self, src: str, dst: str, locations: Any, read_only: bool = False) -> None:
        if not self.broken:
            self.broken = True
            Path(dst).write_text("ha")
            await asyncio.sleep(0.2)
            raise OSError("the connection was lost")
        await super().copy_local_to_remote(src, dst, locations, False)


def test_d2_waiting_for_a_copy_that_breaks_does_not_hang(tmp_path: Path, stock_only: bool) -> None:
    (tmp_path / "scan").write_text("half")

    async def act(kind: type[DefaultDataManager], target: Path, within_s: float) -> list[Any]:
        target.mkdir()
        connectors: dict[str, Any] = {"laptop": LocalConnector("laptop", "/"), "site": Breaking("site", "/")}
        context: Any = SimpleNamespace(
            deployment_manager=SimpleNamespace(get_connector=connectors.__getitem__),
            checkpoint_manager=SimpleNamespace(register=lambda _: None),
        )
        manager = context.data_manager = kind(context)
        manager.register_path(HERE, str(tmp_path / "scan"))
        # One that breaks, another that waits for it, and the first once more: a retry.
        sent = [
            manager.transfer_data(HERE, str(tmp_path / "scan"), [THERE], str(target / name))
            for name in ("one", "two", "one")
        ]
        first = asyncio.create_task(outcome(asyncio.wait_for(sent[0], ENDS_S)))
        while not connectors["site"].broken:  # else the second one may be first on a busy machine
            await asyncio.sleep(0.01)
        together = await asyncio.gather(first, outcome(asyncio.wait_for(sent[1], within_s)))
        outcomes = [*together, await outcome(asyncio.wait_for(sent[2], within_s))]
        for connector in connectors.values():
            await connector.undeploy(False)
        return outcomes

    first, second, again = asyncio.run(act(DefaultDataManager, tmp_path / "stock", HANG_S))
    shown(isinstance(first, OSError) and isinstance(again, TimeoutError), (first, second, again))
    if stock_only:
        return
    from medweave_connectors.engine.data.manager import MedweaveDataManager
    from medweave_connectors.host.errors import TransferFailed

    first, second, again = asyncio.run(act(MedweaveDataManager, tmp_path / "ours", ENDS_S))
    assert isinstance(first, TransferFailed)
    assert (second, again) == (None, None)
    assert {path.name: path.read_text() for path in (tmp_path / "ours").iterdir()} == {"one": "half", "two": "half"}


def test_d7_large_stderr_of_a_program_blocks_no_stream(tmp_path: Path, stock_only: bool) -> None:
    script = tmp_path / "talks.py"
    script.write_text(f"import sys; sys.stderr.write('x' * {ERRORS_BYTES}); print('content')")

    async def read(connector: Any, within_s: float) -> bytes:
        context = await connector.get_stream_reader([sys.executable, str(script)], THERE)
        stream = await context.__aenter__()
        try:
            content = bytes(await asyncio.wait_for(stream.read(100), within_s))
        except TimeoutError:
            end_of(script)
            context.proc._transport.close()
            raise  # the stock stream waits for ever at its end too
        await context.__aexit__(None, None, None)
        return content

    error = asyncio.run(outcome(read(streams(LocalConnector), HANG_S)))
    shown(isinstance(error, TimeoutError), error)
    if stock_only:
        return
    from medweave_connectors.sites.local.connector import MedweaveLocalConnector

    assert asyncio.run(read(MedweaveLocalConnector("site", "/"), ENDS_S)) in (b"content", b"content\n")


def end_of(script: Path) -> None:
    """Kill the process of a script that the stock stream would wait for."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if str(script).encode() in words:
            end(int(process.name))
