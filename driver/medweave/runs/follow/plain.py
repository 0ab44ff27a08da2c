"""A run as lines of text: one for each change, none twice, and of what changes all the time one every ten seconds.

How many jobs a scattered step will have is told by nobody before they have their places, so none is counted in advance.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from medweave_core.runlog.run_state import Job, State
from medweave_core.runlog.engine_names import place_label
from medweave.runs.follow.formatting import end_of, size, took
from medweave_core.contracts.events import Event, step_label

PAUSE_S = 10.0
FEW_JOBS = 20  # of a scattered step: the end of each has its line
SMALL_BYTES, SHORT_S = 2**20, 1.0  # copies below both have none
LABEL_WIDTH = 12


@dataclass(slots=True)
class PlainLines:
    """Makes the lines; remembers what was told.

    Attributes:
        last_s: when a line of this kind was told last, s since the run's start.
    """

    last_s: dict[str, float] = field(default_factory=dict)
    told: set[tuple[str, str]] = field(default_factory=set)

    def of(self, event: Event, state: State) -> list[str]:
        """The lines of an event.

        Args:
            state: with the event.
        """
        job = state.jobs.get(event.job or "")
        if event.type == "run.started":
            return [f"medweave: run {state.run_id} of {state.workflow}"]
        if event.type.startswith("transfer."):
            return self._of_transfer(event, state)
        if event.type in ("notice", "job.reaction"):
            return self._once(job.label if job else place_label(event.deployment or "run"), f"note: {event.data.get('text')}")
        if job is None:
            return []
        if event.type == "job.started":
            return self._of_start(job, state)
        if event.type == "job.progress":
            text = f"{job.text} ({job.label})" if job.label != step_label(job.step) else job.text
            return self._sometimes(step_label(job.step), text, state.now_s)
        return self._of_end(job, state) if event.type == "job.ended" else []

    def _of_start(self, job: Job, state: State) -> list[str]:
        again = f", attempt {job.attempt}" if job.attempt > 1 else ""
        label = step_label(job.step)
        scattered = job.label != label
        return self._once(label if scattered and not again else job.label, f"started on {place_label(job.where)}{again}")

    def _of_end(self, job: Job, state: State) -> list[str]:
        label = step_label(job.step)
        if job.label == label:
            return [_line(label, end_of(job))]
        own = [each for each in state.jobs.values() if each.step == job.step]
        done, known = sum(each.state == "completed" for each in own), len(own)
        text = f"{end_of(job)} ({done} done so far)"
        if known > FEW_JOBS and job.state == "completed" and done < known:
            return self._sometimes(label, text, state.now_s, name=job.label)
        return [_line(job.label, text)]

    def _of_transfer(self, event: Event, state: State) -> list[str]:
        data, label = event.data, place_label(event.deployment or "?")
        origin = place_label(str(data.get("from", "?")))
        if event.type == "transfer.progress":
            return self._sometimes(
                f"copy {origin} {label}", f"copy from {origin}: {data.get('text')}", state.now_s, name=label
            )
        num_bytes, seconds = int(data.get("bytes", 0)), float(data.get("seconds", 0.0))
        if num_bytes < SMALL_BYTES and seconds < SHORT_S:
            return []
        there = int(data.get("reused_bytes", 0))
        more = f", {size(there)} were there" if there else ""
        text = f"copy from {origin}: {size(num_bytes)} in {took(seconds)}, {data.get('route')}{more}"
        return self._sometimes(f"copied {origin} {label}", text, state.now_s, name=label)

    def _sometimes(self, kind: str, text: str, now_s: float, *, name: str = "") -> list[str]:
        if now_s - self.last_s.get(kind, now_s - PAUSE_S) < PAUSE_S:
            return []
        self.last_s[kind] = now_s
        return [_line(name or kind, text)]

    def _once(self, label: str, text: str) -> list[str]:
        if (label, text) in self.told:
            return []
        self.told.add((label, text))
        return [_line(label, text)]


def _line(label: str, text: str) -> str:
    return f"  {label:<{LABEL_WIDTH}} {text}"
