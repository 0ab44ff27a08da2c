from collections.abc import Iterable
from typing import Any

from streamflow.core.workflow import Token

def check_termination(inputs: Token | Iterable[Token]) -> bool: ...
def get_token_value(token: Token) -> Any: ...
