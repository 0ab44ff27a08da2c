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
        await cancel_and_wait(*tasks)


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and return when all have ended; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
