"""What a Python has installed, as one digest: its version, its libraries by name and version, and the source of the steps.

It runs at sites, too, as the text of this file: it needs nothing but Python 3.8's own library.
"""

import hashlib
import importlib.util
import os
import sys
from pathlib import Path

STEPS, CORE = "medweave_steps", "medweave_core"


def installed(needs_steps: bool) -> str:
    """64 hexadecimal digits.

    Args:
        needs_steps: the steps are what is to be run.

    Raises:
        LookupError: they are not there.
    """
    whole = hashlib.sha256(sys.version.encode())
    for folder in sorted(filter(os.path.isdir, sys.path)):
        for name in sorted(each.name for each in Path(folder).glob("*.dist-info")):
            whole.update(f"{name}\n".encode())
    for package in (CORE, STEPS):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            source = Path(found.origin).parent
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
