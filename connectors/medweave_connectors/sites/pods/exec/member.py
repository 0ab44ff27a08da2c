"""A step's command in one pod or in several at once, and what its end means. One pod takes the same path as many."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medweave_connectors.jobs.retries.policy import FailureKind
from medweave_connectors.jobs.supervised_group import LOST_CODE, GroupMember, describe_failure
from medweave_connectors.runlog.job import CommandOutcome
from medweave_connectors.sites.pods.exec import commands
from medweave_connectors.sites.pods.exec.commands import Counters
from medweave_connectors.sites.pods.objects.pod import Pod
from medweave_connectors.sites.pods.objects.pod_states import (
    describe_loss,
    describe_lost_node,
    event_loss_kind,
    loss_kind,
)


@dataclass(slots=True, kw_only=True)
class Member(GroupMember):
    """One node of the group, in a container.

    Attributes:
        variables: its environment, as the step sees it.
        line: command line for its shell, ending in `exec`.
        lost_kind: kind of the loss; UNKNOWN for a broken connection, since the command's end is unknown.
        unreachable: its pod could not be reached again, for an unknown reason.
        on_stderr_line: called with every line of its standard error.
    """

    pod: Pod
    container: str
    variables: Mapping[str, str]
    line: str
    before: Counters = field(default_factory=Counters)
    after: Counters = field(default_factory=Counters)
    lost_kind: FailureKind = FailureKind.UNKNOWN
    unreachable: bool = False
    on_stderr_line: Callable[[str], None] = lambda _line: None

    @property
    def place(self) -> str:
        """Pod and container, as `pod:container`."""
        return f"{self.pod.name}:{self.container}"

    @property
    def failure(self) -> FailureKind:
        """Return the kind of its failure."""
        if self.lost or self.exit_code is None:
            return self.lost_kind
        return (
            FailureKind.OUT_OF_MEMORY if commands.count_oom_kills(self.before, self.after) else FailureKind.STEP_FAILED
        )

    def look_at(self, pod: Pod | None) -> bool:
        """Check the current state of its pod; return True if the pod is lost."""
        if why := describe_loss(self.pod, pod, self.container):
            self.lost, self.lost_kind = why, loss_kind(self.pod, pod, self.container)
        return bool(why)

    def record_event(self, reason: str, text: str) -> None:
        """Record the reason in an event of its lost pod."""
        if (kind := event_loss_kind(reason)) is not None:
            self.lost, self.lost_kind = f"pod {self.pod.name}: {reason}: {text}", kind

    def take(self, line: str) -> None:
        """Process a line of the member's standard error."""
        self.on_stderr_line(line)
        if not self.before.take(line):
            GroupMember.take(self, line)


def build_outcome(
    members: Sequence[Member],
    culprit: Member,
    *,
    seconds: float,
    limit_s: int | None,
    kept_at: str,
    reports: Path | None,
    site: Mapping[str, Any],
) -> CommandOutcome:
    """Return the outcome of a job, decided by the culprit.

    Args:
        limit_s: the time limit if it was reached, s.
        kept_at: where its files are, for messages.
        reports: folder with copies of its reports, on the driver.
        site: facts about the pods, for the event log.
    """
    spent = [
        member.after.cpu_seconds - member.before.cpu_seconds
        for member in members
        if member.after.cpu_seconds is not None and member.before.cpu_seconds is not None
    ]
    code = culprit.code if limit_s is None else culprit.code or LOST_CODE
    word = culprit.lost or commands.explain_failure(code, culprit.before, culprit.after)
    if culprit.lost and culprit.failure is FailureKind.NODE_FAIL:
        word = describe_lost_node(culprit.pod, culprit.lost)
    kind = FailureKind.TIMEOUT if limit_s is not None else culprit.failure
    return culprit.output.outcome(
        exit_code=code,
        seconds=seconds,
        cpu_seconds=sum(spent) if len(spent) == len(members) else None,
        site_word=describe_failure(members, culprit, word, limit_s=limit_s),
        kept_at=kept_at,
        report_folder=reports,
        site={**site, **({"failure": kind} if code else {})},
    )
