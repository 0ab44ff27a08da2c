"""`medweave COMMAND` in the test's process, with the environment of a user who sets none of medweave's variables."""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from medweave.cli import main_command


def call(*words: str | Path, cwd: Path, **variables: str) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        for name in [name for name in os.environ if name.startswith("MEDWEAVE_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        code = main_command.main([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()
