"""Scatter over thousands of items, without StreamFlow's searches through all of them for each one.

StreamFlow looks at all tags for each new token, at all tokens of a list for each of its items, and at all jobs for the job of a
token. With 5,000 jobs that takes longer than the rest of its work. The results here are the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, MutableSequence
from typing import Any

import streamflow.workflow.utils
from streamflow.core.utils import get_tag
from streamflow.core.workflow import Token, Workflow
from streamflow.cwl.processor import CWLTokenProcessor
from streamflow.workflow.combinator import DotProductCombinator
from streamflow.workflow.token import JobToken

_stock_process_file_token: Callable[..., Awaitable[Any]] = CWLTokenProcessor._process_file_token
_stock_get_job_token: Callable[..., JobToken] = streamflow.workflow.utils.get_job_token


class MedweaveDotProductCombinator(DotProductCombinator):
    """Combines the items of several lists. A new token concerns its own tag and those above it, which are found by name."""

    def __init__(self, name: str, workflow: Workflow) -> None:
        super().__init__(name, workflow)
        self._levels: set[int] = set()  # of all tags
        self._concerned: MutableMapping[str, Any] = {}  # by the last token

    def _add_to_list(
        self, token: Token | MutableMapping[str, Any], port_name: str, depth: int = 0, propagate: bool = True
    ) -> None:
        tag = token.tag if isinstance(token, Token) else get_tag([item["token"] for item in token.values()])
        parts = tag.split(".")
        above = [name for end in range(1, len(parts)) if (name := ".".join(parts[:end])) in self._token_values]
        # The token also goes to all tags below its own. With several tags above, their order counts.
        is_simple = len(above) <= 1 and all(level <= len(parts) for level in self._levels)
        every = self._token_values
        self._concerned = {name: every[name] for name in (*above, tag) if name in every} if is_simple else every
        self._token_values = self._concerned
        try:
            super()._add_to_list(token, port_name, depth, propagate)
        finally:
            self._token_values = every
        every.update(self._concerned)
        self._levels.add(len(parts))

    async def _product(self) -> AsyncIterator[MutableMapping[str, Any]]:
        every, self._token_values = self._token_values, self._concerned
        try:
            schemas = [schema async for schema in super()._product()]
        finally:
            self._token_values = every
        for schema in schemas:
            yield schema


async def process_file_token(self: CWLTokenProcessor, inputs: MutableMapping[str, Token], token_value: Any) -> Any:
    """Return the value of a File or Directory; the values of all inputs are computed only if an expression may use them."""
    has_expressions = bool(self.file_format or self.secondary_files)
    return await _stock_process_file_token(self, inputs if has_expressions else {}, token_value)


def get_job_token(job_name: str, token_list: MutableSequence[Token]) -> JobToken:
    """Return the token of a job. The newest come first: a job that runs was scheduled recently."""
    return _stock_get_job_token(job_name, token_list[::-1])
