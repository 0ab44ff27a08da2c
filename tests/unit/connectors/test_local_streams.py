"""The output of local programs is read by a thread, which ends with its reader."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import time
from pathlib import Path

import pytest

from medweave_connectors.host.errors import StreamBroke
from medweave_connectors.transfer.agent.encoding import read_full
from medweave_connectors.transfer.streams import local_programs
from medweave_connectors.transfer.streams.local_programs import LocalReader


def open_files() -> int:
    gc.collect()  # close files of earlier tests
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
def test_output_is_read_in_complete_blocks() -> None:
    async def act() -> list[int]:
        async with LocalReader(["sh", "-c", "head -c 3000000 /dev/zero"], "a transfer") as reader:
            sizes = []
            while data := await reader.read(2**20):
                sizes.append(len(data))
        return sizes

    before = open_files()
    assert asyncio.run(act()) == [2**20, 2**20, 3000000 - 2 * 2**20]
    assert open_files() == before


def test_a_failed_program_is_reported() -> None:
    async def act() -> None:
        async with LocalReader(["sh", "-c", "echo some; echo 'Permission denied' >&2; exit 3"], "a transfer") as reader:
            while await reader.read(100):
                pass

    with pytest.raises(StreamBroke, match="Permission denied"):
        asyncio.run(act())


@pytest.mark.slow
def test_closing_does_not_wait_for_processes_that_keep_the_pipe_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may leave a process running that gets no signal from the driver."""
    monkeypatch.setattr(local_programs, "GRACE_S", 0.2)

    async def act() -> None:
        async with LocalReader(["sh", "-c", "setsid sleep 20 2>/dev/null & sleep 20"], "a transfer") as reader:
            await reader.read(100)

    async def given_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(act(), 0.5)

    before, began = open_files(), time.monotonic()
    asyncio.run(given_up())
    assert time.monotonic() - began < 15, "of 20 s"
    assert open_files() == before


def test_a_pipe_may_have_any_file_descriptor() -> None:
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD, 1100)
    os.write(writing, b"some")
    os.close(writing)
    assert (read_full(high, 100), read_full(high, 100)) == (b"some", b"")
    os.close(reading)
    os.close(high)
