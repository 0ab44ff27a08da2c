"""Concurrent work that ends together, and background tasks that end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Value = TypeVar("Value")


async def gather_all(work: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """Return the results in order. When one coroutine fails, the others are canceled and awaited before the error is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cancel_and_wait(task: asyncio.Task[Any] | None) -> None:
    """Cancel a task, if there is one, and return when it has ended, however it does."""
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
