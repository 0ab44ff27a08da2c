from collections.abc import AsyncIterator, MutableMapping
from typing import Any

from streamflow.workflow.step import Combinator

class DotProductCombinator(Combinator):
    def _product(self) -> AsyncIterator[MutableMapping[str, Any]]: ...
    def combine(self, port_name: str, token: Any) -> AsyncIterator[MutableMapping[str, Any]]: ...
