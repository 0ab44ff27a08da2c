"""How the failure of a command is told."""

from __future__ import annotations

from medweave.documents import shown
from medweave.field_faults import FieldFault
from medweave_steps.contracts.errors import StepError


def told(error: StepError) -> str:
    """Its four parts; what is wrong in a file with the line, as compilers write it: `site.yml:12: roles.train: …`."""
    text = str(error)
    if not isinstance(error, FieldFault):
        return text
    from medweave.validate.source import read

    documents, _ = read(error.path)
    if not documents:
        return text
    line, _ = documents[0].position(error.field)
    return text.replace(shown(error.path), f"{shown(error.path)}:{line}", 1)
