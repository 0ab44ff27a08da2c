"""A pipeline's files as one archive, for a pod that has no checkout. The same files give the same bytes."""

from __future__ import annotations

import base64
import gzip
import io
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from medweave_core.documents.line_numbers import shown
from medweave_core.errors import UserInputError

MOST_BYTES = 700_000  # in base64 below what a ConfigMap takes, 1 MiB, and what Helm's own record of the release does


def archive_of(files: Sequence[Path], written: Mapping[Path, str]) -> tuple[str, Path]:
    """The archive in base64, and the folder at its top.

    Args:
        files: absolute.
        written: files that get another text in it.

    Raises:
        UserInputError: it is larger than a ConfigMap takes.
    """
    top = Path(os.path.commonpath([path.parent for path in {*files, *written}]))
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as tar:
        for path in sorted({*files, *written}):
            content = written[path].encode() if path in written else path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(top).as_posix())
            entry.size, entry.mode = len(content), 0o755 if os.access(path, os.X_OK) else 0o644
            tar.addfile(entry, io.BytesIO(content))
    if len(packed.getvalue()) > MOST_BYTES:
        largest = max(files, key=lambda path: path.stat().st_size)
        raise UserInputError(
            "the pipeline's files are too large for a ConfigMap.",
            seen=f"{len(packed.getvalue())} B compressed; the largest is {shown(largest)}",
            expected=f"at most {MOST_BYTES} B",
            do="put the folder on a volume and name it: place.kubernetes.values.definition.existingClaim",
        )
    return base64.b64encode(packed.getvalue()).decode(), top
