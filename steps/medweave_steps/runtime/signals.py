"""INT and TERM end a step within two seconds and leave nothing half written."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from medweave_steps.runtime import partials

GRACE_S = 1.2


class Terminated(BaseException):
    """Raised in the main thread when the process receives INT or TERM."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


_received: list[int] = []
_cleaning: list[Callable[[], None]] = []
_grace_s = GRACE_S
_senders: list[socket.socket] = []  # of the active watchdogs; signals are sent to the last one


def _raise(signal_number: int, _frame: object) -> None:
    _received.append(signal_number)
    # A second one would cut off the clean-up of the first, or be a traceback at the interpreter's end.
    if len(_received) == 1:
        raise Terminated(signal_number)


def exit_code_of(error: BaseException) -> int | None:
    """Return 130 or 143 if a signal caused this error, else None.

    A library may turn the `Terminated` that a signal raised inside it into another error: an extension module that was being
    imported raised ImportError.
    """
    if isinstance(error, Terminated):
        return error.exit_code
    return 128 + _received[-1] if _received else None


def install() -> Callable[[], None]:
    """Turn INT and TERM into `Terminated`, with a watchdog for code that blocks the main thread; return a function that undoes it.

    Python runs signal handlers only between two instructions of the main thread, and a call into a numerical library
    may last for minutes. The watchdog thread is woken by the interpreter's own C handler; if the process is still alive
    `GRACE_S` seconds later it removes partial outputs and leaves.
    """
    _received.clear()
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    woken_before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    # A scheduler announces its time limit to whoever may be there; where nothing can be saved yet, or any more, it changes nothing.
    handlers: dict[int, Any] = {signal.SIGINT: _raise, signal.SIGTERM: _raise, signal.SIGUSR1: signal.SIG_IGN}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    over = threading.Event()
    _senders.append(sender)

    def watch() -> None:
        with receiver:
            while number := receiver.recv(1):
                if number[0] in (signal.SIGINT, signal.SIGTERM) and not over.wait(_grace_s):
                    _leave(128 + number[0])

    def restore() -> None:
        # A caller of a verb as a function continues after it: the watchdog must not end it later.
        over.set()
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        _senders.remove(sender)
        sender.close()

    threading.Thread(target=watch, name="signal-watchdog", daemon=True).start()
    return restore


def _in_child() -> None:
    # A child made by fork would write its own signals there: whoever ended it would end this process.
    if _senders:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)


def _leave(exit_code: int) -> None:
    for clean_up in _cleaning:
        with contextlib.suppress(Exception):
            clean_up()
    partials.remove_all()
    sys.stderr.write("interrupted; removed partial outputs\n")
    sys.stderr.flush()
    os._exit(exit_code)


@dataclass(slots=True)
class Deferred:
    """Signals that arrived while they were deferred.

    Attributes:
        ending: INT or TERM, or None.
        wants_checkpoint: USR1 arrived since this was last set to False.
    """

    ending: int | None = None
    wants_checkpoint: bool = False

    def raise_if_ending(self) -> None:
        """Raise `Terminated` if INT or TERM has arrived."""
        if self.ending is not None:
            raise Terminated(self.ending)


@contextlib.contextmanager
def before_leaving(clean_up: Callable[[], None]) -> Iterator[None]:
    """Make the watchdog of `install` call `clean_up` before it ends the process: for anything that would outlive the process."""
    _cleaning.append(clean_up)
    try:
        yield
    finally:
        _cleaning.remove(clean_up)


@contextlib.contextmanager
def deferred(*, grace_s: float = GRACE_S) -> Iterator[Deferred]:
    """Defer INT and TERM inside the block: they only set a flag, so that no change of state is left incomplete.

    The block must check the flag often: the watchdog of `install` still ends the process `grace_s` seconds after the signal. USR1,
    with which a scheduler announces its time limit, requests a checkpoint and ends nothing. Outside the main thread, where Python
    allows no signal handlers, the flags stay unset.
    """
    state = Deferred()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def end(number: int, _frame: object) -> None:
        state.ending = number

    def save(_number: int, _frame: object) -> None:
        state.wants_checkpoint = True

    global _grace_s
    handlers = {signal.SIGINT: end, signal.SIGTERM: end, signal.SIGUSR1: save}
    _grace_s = grace_s
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield state
        state.raise_if_ending()
    finally:
        _grace_s = GRACE_S
        for number, handler in before.items():
            signal.signal(number, handler)
