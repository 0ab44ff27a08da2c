"""`up`: start all parts, each as soon as its dependencies are healthy, and print how long each took."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from .commands import Cancelled
from .errors import TestbedError
from .part import Part, Testbed, bring_up

_HEARTBEAT_s = 30.0


def say(line: str) -> None:
    """One line of progress."""
    print(line, flush=True)


class Upbringing:
    """One `up` in progress."""

    def __init__(self, parts: Sequence[Part], testbed: Testbed, report: Callable[[str], None] = say) -> None:
        self._testbed = testbed
        self._waiting = list(parts)
        self._running: dict[Future[bool], tuple[Part, float]] = {}
        self._healthy: set[str] = set()
        self._report = report
        self.failed: dict[str, TestbedError] = {}
        self.started: list[str] = []

    def run(self) -> None:
        """Bring all up; `failed` then says which could not be, `not_tried` which were waiting for those."""
        with ThreadPoolExecutor(max_workers=16) as pool:
            try:
                self._begin(pool)
                while self._running:
                    done, _ = wait(self._running, timeout=_HEARTBEAT_s, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._settle(future)
                    if not done:
                        self._heartbeat()
                    self._begin(pool)
            except KeyboardInterrupt:
                self._testbed.commands.cancel()
                raise

    @property
    def not_tried(self) -> list[str]:
        """Parts that still wait for others."""
        return [part.name for part in self._waiting]

    @property
    def unfinished(self) -> list[Part]:
        """Parts that were being started and never became healthy."""
        return [part for part, _ in self._running.values()]

    def _begin(self, pool: ThreadPoolExecutor) -> None:
        for part in [part for part in self._waiting if self._healthy.issuperset(part.needs)]:
            self._waiting.remove(part)
            self._running[pool.submit(bring_up, part, self._testbed)] = (part, time.monotonic())

    def _settle(self, future: Future[bool]) -> None:
        """Notes how a part ended."""
        part, began = self._running[future]
        seconds = time.monotonic() - began
        try:
            started = future.result()
        except TestbedError as error:
            del self._running[future]
            self.failed[part.name] = error.about(part.name)
            self._report(f"  {part.name:<14} FAILED  {seconds:7.1f} s\n{self.failed[part.name]}")
            return
        except Cancelled:
            return
        del self._running[future]
        self._healthy.add(part.name)
        if started:
            self.started.append(part.name)
        self._report(f"  {part.name:<14} {'up' if started else 'was up':<7} {seconds:7.1f} s")

    def _heartbeat(self) -> None:
        working = [f"{part.name} ({part.slow or 'starting'})" for part, _ in self._running.values()]
        self._report(f"  … still working on {', '.join(working)}")


def up(parts: Sequence[Part], testbed: Testbed, clean: Callable[[Sequence[Part]], None], *, state: str) -> int:
    """Bring all parts up and print a line for each; return the exit code.

    Args:
        state: the word for the testbed that has all of them.
        clean: called with the parts that were being started when the user interrupted; removes their incomplete work.
    """
    began = time.monotonic()
    say(f"testbed in {testbed.layout.folder}")
    upbringing = Upbringing(parts, testbed)
    try:
        upbringing.run()
    except KeyboardInterrupt:
        names = ", ".join(part.name for part in upbringing.unfinished) or "nothing"
        print(f"\ntestbed: interrupted; ending the parts that were starting: {names}", file=sys.stderr, flush=True)
        clean(upbringing.unfinished)
        return 130
    seconds = time.monotonic() - began
    if upbringing.failed:
        rest = f"; not tried: {', '.join(upbringing.not_tried)}" if upbringing.not_tried else ""
        say(f"testbed: not {state} after {seconds:.1f} s; failed: {', '.join(upbringing.failed)}{rest}")
        return 1
    say(f"testbed: {state} after {seconds:.1f} s; {len(upbringing.started)} of {len(parts)} parts had to be started")
    return 0
