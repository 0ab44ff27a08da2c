"""The end of a run that failed: tasks of the engine that are left."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE

import pytest

from medweave_connectors.engine.shutdown import cancel_leftovers


@pytest.mark.parametrize("turns", range(4))
def test_a_task_that_starts_a_process_is_canceled_while_the_process_starts(turns: int) -> None:
    async def go() -> bool:
        start = asyncio.create_subprocess_exec("sleep", "600", stdin=PIPE, stdout=PIPE, stderr=PIPE)
        starting = asyncio.create_task(start)
        for _ in range(1 + turns):
            await asyncio.sleep(0)
        await cancel_leftovers()
        return starting.cancelled()

    # Not asyncio.run, which waits for the tasks that are left: forever, if this fails.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        assert loop.run_until_complete(go())
    finally:
        loop.close()
        asyncio.set_event_loop(None)
