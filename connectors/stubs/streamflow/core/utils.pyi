from collections.abc import Iterable

from streamflow.core.workflow import Token

def get_tag(tokens: Iterable[Token]) -> str: ...
