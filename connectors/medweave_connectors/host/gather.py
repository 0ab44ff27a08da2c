"""Concurrent work that ends together."""

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
