"""Work that is done at the same time, and is over when all of it is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Value = TypeVar("Value")


async def every(work: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """What all of it returns. When one fails, the others have ended too before that is told: nothing goes on behind it."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
