"""Mistakes to seed into a copy of this repository's files, with the place and the rule that `medweave validate` must report."""

from __future__ import annotations

from support.mistake import Mistake
from support.mistakes_at_sites import AT_SITES
from support.mistakes_in_workflows import IN_WORKFLOWS

MISTAKES: tuple[Mistake, ...] = (*IN_WORKFLOWS, *AT_SITES)
