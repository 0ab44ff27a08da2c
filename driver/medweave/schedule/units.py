"""The text of systemd's units for a schedule. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

CLEAN_UP_S = 120  # the driver cancels its jobs and removes what it made


def unit_name(schedule: str) -> str:
    """Of both units, without their ends."""
    return f"medweave-{schedule}"


def service(schedule: str, words: Sequence[str | Path], folder: Path, search: str) -> str:
    """What the timer starts.

    Args:
        words: of the command.
        folder: where it runs.
        search: PATH of the one who made it: ssh, kubectl and helm lie there, too.
    """
    command = " ".join(
        quoted(str(word)) for word in ("/usr/bin/env", *words)
    )  # itself it takes no path with a quote in it
    return f"""\
[Unit]
Description=medweave: one firing of the schedule {schedule}

[Service]
Type=oneshot
WorkingDirectory={specifiers_off(str(folder))}
Environment={quoted(f"PATH={search}")}
ExecStart={command}
# TERM to the driver alone: it ends its own jobs.
KillMode=mixed
TimeoutStopSec={CLEAN_UP_S}
"""


def receiver(schedule: str, words: Sequence[str | Path], folder: Path, search: str) -> str:
    """What listens for a DICOM node, always; arguments as of `service`."""
    command = " ".join(quoted(str(word)) for word in ("/usr/bin/env", *words))
    return f"""\
[Unit]
Description=medweave: takes what a DICOM node sends to the schedule {schedule}

[Service]
WorkingDirectory={specifiers_off(str(folder))}
Environment={quoted(f"PATH={search}")}
ExecStart={command}
Restart=on-failure
RestartSec=10

[Install]
WantedBy=default.target
"""


def timer(schedule: str, times: Sequence[str], *, catches_up: bool) -> str:
    """When it is started.

    Args:
        times: as systemd writes them.
        catches_up: whether one that was missed is started when the machine is up again.
    """
    lines = "\n".join(f"OnCalendar={each}" for each in times)
    return f"""\
[Unit]
Description=medweave: times of the schedule {schedule}

[Timer]
{lines}
AccuracySec=1s
Persistent={"true" if catches_up else "false"}

[Install]
WantedBy=timers.target
"""


def specifiers_off(text: str) -> str:
    """A text in which systemd finds nothing to replace."""
    return text.replace("%", "%%")


def quoted(word: str) -> str:
    """A word as systemd reads it back: no variable, no specifier, no blank that would divide it."""
    text = specifiers_off(word).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"' if set(text) & set(" \t\"';") else text
