"""The names that the engine gives to jobs, steps and folders. Pure."""

from __future__ import annotations

import functools
import posixpath
import re

HERE = "__LOCAL__"  # the engine's name of the machine that drives the run
# It gives each job folders of its own, named by chance.
FOLDER = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def place_label(deployment: str) -> str:
    """Return the name of a deployment for people."""
    return "this machine" if deployment == HERE else deployment


@functools.cache
def step_of(job_name: str) -> str:
    """Path of a job's step: `/train` of `/train/0`."""
    return posixpath.dirname(job_name)


def nameless(text: str, run_id: str) -> str:
    """A text without the names of the run and of the engine's folders: the same for the same work of another run."""
    return FOLDER.sub("*", text).replace(f"/{run_id}/", "/*/")
