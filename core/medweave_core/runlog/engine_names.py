"""The engine's names of jobs, steps and folders. Pure."""

from __future__ import annotations

import functools
import posixpath
import re

HERE = "__LOCAL__"  # the engine's name of the machine that drives the run
# The engine creates folders with random names for each job.
FOLDER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def place_label(deployment: str) -> str:
    """Return the name of a deployment for people."""
    return "this machine" if deployment == HERE else deployment


@functools.cache
def step_of(job_name: str) -> str:
    """Return the path of a job's step: `/train` for `/train/0`."""
    return posixpath.dirname(job_name)


def nameless(text: str, run_id: str) -> str:
    """Replace run ids and engine folders in a text, so that it is the same for the same job of another run."""
    return FOLDER.sub("*", text).replace(f"/{run_id}/", "/*/")
