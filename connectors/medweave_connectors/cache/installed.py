"""Digest of a Python installation: its version, its libraries by name and version, and the source of the steps.

Also runs at sites, from the text of this file: standard library of Python 3.8 only.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

STEPS, CORE = "medweave_steps", "medweave_core"


def installed(needs_steps: bool) -> str:
    """Return the digest of this Python installation: 64 hexadecimal digits.

    Args:
        needs_steps: the package of the steps is required.

    Raises:
        LookupError: the steps are required and not installed.
    """
    whole = hashlib.sha256(sys.version.encode())
    for folder in sorted(filter(os.path.isdir, sys.path)):
        for name in sorted(info.name for info in Path(folder).glob("*.dist-info")):
            whole.update(f"{name}\n".encode())
    for package in (CORE, STEPS):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            source = Path(spec.origin).parent
            for path in sorted(source.rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    whole.update(
                        f"{path.relative_to(source)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
                    )
        elif needs_steps:
            raise LookupError(package)
    return whole.hexdigest()


if __name__ == "__main__":
    print("medweave-installed", installed(needs_steps=sys.argv[1:] == [STEPS]))
