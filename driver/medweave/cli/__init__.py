"""The `medweave` command line."""

from __future__ import annotations

from medweave.cli.main_command import main

__all__ = ["main"]
