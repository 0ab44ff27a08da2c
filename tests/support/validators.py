"""Independent programs that judge what we write."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.built_once import alone
from support.cwl_files import ROOT

# Its pins are not medweave's (rich), so it has its own environment; ro-crate-py 0.14 has RO-Crate 1.1's JSON-LD context.
CRATE_VALIDATOR = ("roc-validator==0.13.0", "rocrate==0.14.2")


def crate_issues(*crates: Path) -> list[dict[str, Any]]:
    """Return violations of the Provenance Run Crate profile in crates (folders or .zip) that `roc-validator` reports."""
    environment = ROOT / "build" / "roc-validator"
    python = environment / "bin" / "python"
    with alone(environment.with_suffix(".lock")):
        if not (environment / "complete").exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", *CRATE_VALIDATOR], check=True)
            (environment / "complete").touch()
    words = [python, ROOT / "tests" / "crate" / "validate.py", *crates]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    answers = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert [answer["crate"] for answer in answers] == list(map(str, crates)), ended.stdout + ended.stderr
    for answer in answers:
        assert answer["profile"] == "provenance-run-crate"
        assert answer["passed"] == (not answer["issues"])
    return [issue for answer in answers for issue in answer["issues"]]


def dciodvfy_errors(path: Path) -> list[str]:
    """Return the lines in which David Clunie's `dciodvfy` (Debian package dicom3tools) calls something an error."""
    if shutil.which("dciodvfy") is None:
        pytest.skip("dciodvfy is missing: apt-get install dicom3tools")
    ended = subprocess.run(["dciodvfy", str(path)], text=True, capture_output=True, check=False, errors="replace")
    lines = (ended.stdout + ended.stderr).splitlines()
    assert lines, "dciodvfy printed nothing at all"
    return [line for line in lines if line.startswith("Error")]


def plastimatch_masks(structure_set: Path, ct: Path, output: Path) -> dict[str, Any]:
    """Return the voxels of each ROI as plastimatch (Debian package plastimatch) finds them on the grid of a CT series.

    Args:
        structure_set: RT Structure Set; the names of its ROIs are plain words.
        ct: folder with the files of the series.
        output: folder for its images; it does not exist.
    Returns:
        SimpleITK image by ROIName; contours of one ROI are combined by XOR.
    """
    import SimpleITK

    if shutil.which("plastimatch") is None:
        pytest.skip("plastimatch is missing: apt-get install plastimatch")
    words = ["plastimatch", "convert", "--input", structure_set, "--referenced-ct", ct, "--xor-contours"]
    words += ["--output-prefix", output, "--prefix-format", "nrrd"]
    ended = subprocess.run(words, text=True, capture_output=True, check=False, errors="replace")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return {path.stem: SimpleITK.ReadImage(str(path)) for path in output.glob("*.nrrd")}
