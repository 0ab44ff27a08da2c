from abc import ABCMeta
from collections.abc import MutableSequence

from streamflow.core.workflow import Command, CommandTokenProcessor, Step

class TokenizedCommand(Command, metaclass=ABCMeta):
    processors: MutableSequence[CommandTokenProcessor]

    def __init__(self, step: Step, processors: MutableSequence[CommandTokenProcessor] | None = None) -> None: ...
