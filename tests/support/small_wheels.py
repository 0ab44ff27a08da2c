"""Wheels of a few lines, and a constraints.txt that pins them: an index for pip without a network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

STEP = """
import sys

def main():
    import small_helper
    print("medweave-step", "{version}" if "--version" in sys.argv else small_helper.WORD)
"""


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    modules: Mapping[str, str] | None = None,
    scripts: Mapping[str, str] | None = None,
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel.

    Args:
        requires: its Requires-Dist lines.
        modules: file name to text.
        scripts: command to `module:function`.
        tag: of its file name.
    """
    spelled = name.replace("-", "_")
    info = f"{spelled}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: >=3.11\n"
    files = dict(modules or {}) | {
        f"{info}/METADATA": head + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    if scripts:
        lines = "".join(f"{command} = {place}\n" for command, place in scripts.items())
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}"
    path = folder / f"{spelled}-{version}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(zipfile.ZipInfo(file, (2026, 1, 1, 0, 0, 0)), text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={digest},{len(text.encode())}\n"
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD", (2026, 1, 1, 0, 0, 0)), f"{record}{info}/RECORD,,\n")
    return path


NEEDS = (
    'medweave[dicom]; extra == "segment"',
    'small-helper>=1; extra == "dicom"',
    'never-there; python_version < "3" and extra == "segment"',
    'small-trainer; extra == "train"',
)


def own_wheel(folder: Path, version: str, requires: Sequence[str] = NEEDS) -> Path:
    """Write a wheel of medweave whose `medweave-step` needs the package of its extra `segment`; each round is one call of pip."""
    return make_wheel(
        folder, "medweave", version, requires=requires,
        modules={"small_step.py": STEP.format(version=version)}, scripts={"medweave-step": "small_step:main"},
    )  # fmt: skip


def index_of(folder: Path) -> Path:
    """Return a folder with the wheels that `own_wheel` may need, for pip's --find-links."""
    folder.mkdir()
    make_wheel(
        folder, "small-helper", "1.5", requires=["small_deeper[fast]"], modules={"small_helper.py": "WORD = 'helped'\n"}
    )
    make_wheel(folder, "small-deeper", "2.0", requires=['small-quick; extra == "fast"'])
    make_wheel(folder, "small-quick", "0.1", tag="cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64")
    make_wheel(folder, "small-trainer", "3.0")
    return folder


def constraints_of(index: Path) -> str:
    """Return the text of a constraints.txt that pins all wheels of a folder."""
    blocks = []
    for path in sorted(index.glob("*.whl")):
        name, version, _ = path.name.split("-", 2)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        blocks.append(
            f"{name.replace('_', '-')}=={version} \\\n    --hash=sha256:{'0' * 64} \\\n    --hash=sha256:{digest}\n"
        )
    return "".join(blocks)
