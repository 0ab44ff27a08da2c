"""Classes of a classification: their names, their order and their DICOM codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medweave_core.contracts.codec import omitted
from medweave_core.contracts.labels import CodedTerm
from medweave_core.errors import UserInputError

CLASS_SEPARATOR = "|"
"""Between the classes of a case in a table, as in the tables of public chest X-ray data sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageClass:
    """One class that an image or a volume can have; its place in the list of classes is its output channel.

    Attributes:
        name: as the table of targets has it, such as MEL.
        code: what the class means, if the cohort or the card declares it.
        is_scored: False for a class that the mean F1 of recordings leaves out, such as recordings without a readable rhythm.
    """

    name: str
    code: CodedTerm | None = None
    is_scored: bool = omitted(True)


def check_classes(classes: Sequence[ImageClass]) -> None:
    """Check that a model can tell the classes apart.

    Raises:
        UserInputError: a name is empty or occurs twice.
    """
    names = [one.name for one in classes]
    if any(not name.strip() for name in names) or len(set(names)) < len(names):
        raise UserInputError(
            "the classes need different names.",
            seen=", ".join(map(repr, names)),
            expected="names that are not empty and occur once",
            do="correct the names of the classes",
        )
