"""A stand-in for Slurm that understands the commands of StreamFlow's own connector; that for medweave's is tests/fakes/slurm."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from support.engine_file import STOCK, engine_file

# sbatch starts the script that it gets on stdin, as one process, and writes where Slurm would.
SBATCH = r"""#!/bin/bash
echo "sbatch $*" >> "$STANDIN/commands"
output=slurm-100.out
while [ $# -gt 0 ]; do
  case $1 in --chdir) cd "$2";; --output) output=$2;; esac; shift
done
cat > "$STANDIN/script"
setsid sh "$STANDIN/script" > "$output" 2>&1 < /dev/null &
echo $! > "$STANDIN/pid"
if [ -z "$STANDIN_KEEPS_RUNNING" ]; then wait; fi
echo 100
"""
SQUEUE = r"""#!/bin/sh
echo "squeue $*" >> "$STANDIN/commands"
if [ -n "$STANDIN_SQUEUE_FAILS" ]; then echo 'slurm_load_jobs error: Unable to contact slurm controller'; exit 1; fi
if [ -n "$STANDIN_KEEPS_RUNNING" ]; then echo 100; fi
"""
SCONTROL = r"""#!/bin/sh
if [ -n "$STANDIN_FORGETS" ]; then echo 'slurm_load_jobs error: Invalid job id specified'; exit 1; fi
echo "JobId=100 JobState=X ExitCode=${STANDIN_EXIT:-0:0} StdOut=/dev/null"
"""
SCANCEL = r"""#!/bin/sh
echo "scancel $*" >> "$STANDIN/commands"
kill "$(cat "$STANDIN/pid")"
"""


def stand_in(folder: Path, **knobs: str) -> dict[str, str]:
    """Write the programs; return the environment for a run that uses them.

    Args:
        knobs: KEEPS_RUNNING, SQUEUE_FAILS, FORGETS (any text), EXIT (scontrol's ExitCode).
    """
    programs = folder / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL), ("scancel", SCANCEL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "STANDIN": str(folder)}
    return environment | {f"STANDIN_{name}": value for name, value in knobs.items()}


def slurm_file(folder: Path, keys: str | None = None) -> str:
    """Return a streamflow.yml for the stock connector on this machine.

    Args:
        keys: of the one service, as in the file; without it the binding names none.
    """
    config = {"pollingInterval": 1, "services": {"usual": yaml.safe_load(keys or "{}")}}
    target = {"deployment": "hpc"} | ({"service": "usual"} if keys else {})
    hpc = {"type": "slurm", "workdir": f"{folder}/work", "config": config}
    return engine_file({"hpc": hpc}, {"/": target}, managers=STOCK)


def commands_run(folder: Path) -> str:
    """Return the command lines of sbatch, squeue and scancel."""
    file = folder / "commands"
    return file.read_text() if file.exists() else ""
