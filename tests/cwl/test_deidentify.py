"""The tool `deidentify` under cwltool: its outputs, and the key of an earlier run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support import engine
from support.cwl_files import ROOT
from support.engine_file import LOCAL, OURS, engine_file, ssh_site
from support.identified import SECRETS, write_identified
from support.ssh_server import ssh_server

BIN = Path(sys.executable).parent


WORKFLOW = f"""
cwlVersion: v1.2
class: Workflow
inputs: {{cohort: Directory}}
outputs:
  seen: {{type: File, outputSource: look/seen}}
  home: {{type: Directory, outputSource: deidentify/home}}
steps:
  deidentify: {{run: {ROOT}/workflows/tools/deidentify.cwl, in: {{cohort: cohort}}, out: [deidentified_cohort, home]}}
  look:
    run:
      class: CommandLineTool
      baseCommand: [sh, -c, 'find "$0"/ > seen; find "$0"/ -type f -exec cat {{}} + | base64 >> seen']
      inputs: {{cohort: {{type: Directory, inputBinding: {{}}}}}}
      outputs: {{seen: {{type: File, outputBinding: {{glob: seen}}}}}}
    in: {{cohort: deidentify/deidentified_cohort}}
    out: [seen]
"""
RULES = {
    "carries": {
        "/": {"cohort": "identified", "seen": "de-identified", "home": "identified"},
        "/deidentify": {"cohort": "identified", "deidentified_cohort": "de-identified", "home": "identified"},
        "/look": {"cohort": "de-identified", "seen": "de-identified"},
    },
    "mayHold": {"there": ["de-identified"], "here": ["identified", "de-identified"]},
    "driver": ["identified", "de-identified"],
}


def run(folder: Path, name: str, job: dict[str, Any]) -> Path:
    (folder / f"{name}.json").write_text(json.dumps(job))
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    tool = ROOT / "workflows" / "tools" / "deidentify.cwl"
    ended = subprocess.run(
        [BIN / "cwltool", "--quiet", "--outdir", name, tool, f"{name}.json"],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return folder / name


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_key_of_the_first_run_gives_equal_pseudonyms_in_the_second(tmp_path: Path) -> None:
    write_identified(tmp_path / "cohort")
    cohort = {"class": "Directory", "path": "cohort"}
    first = run(tmp_path, "first", {"cohort": cohort})
    assert {path.name for path in first.iterdir()} == {"de-identified", "home", "run_report.json"}
    assert names(first / "home") == {"pseudonym.key", "way_back.json"}
    key = {"class": "File", "path": "first/home/pseudonym.key", "format": "http://edamontology.org/format_2333"}
    second = run(tmp_path, "second", {"cohort": cohort, "pseudonym_key": key, "retain_patient_characteristics": True})
    assert names(second / "home") == {"way_back.json"}
    assert names(second / "de-identified") == names(first / "de-identified")
    assert json.loads((second / "run_report.json").read_text())["config"]["retain_patient_characteristics"] is True


def test_a_folder_named_after_a_patient_reaches_no_other_site(tmp_path: Path) -> None:
    write_identified(tmp_path / f"{SECRETS[0]} scans")
    (tmp_path / "streamflow").mkdir()
    with ssh_server(tmp_path / "streamflow" / "server") as server:
        folder = tmp_path / "streamflow"
        managers = OURS | {"dataManager": {"type": "medweave.transfer", "config": {"dataRules": RULES}}}
        targets = {"/deidentify": {"deployment": "here"}, "/look": {"deployment": "there"}}
        deployments = {"here": LOCAL, "there": ssh_site(server.port, "${SITE}")}
        (folder / "tiny.cwl").write_text(WORKFLOW)
        (folder / "job.yml").write_text(
            json.dumps({"cohort": {"class": "Directory", "path": f"../{SECRETS[0]} scans"}})
        )
        (folder / "streamflow.yml").write_text(engine_file(deployments, targets, managers=managers))
        path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        ended = engine.run(
            folder, environment={"SITE": str(tmp_path / "site"), "PATH": path, "MEDWEAVE_KEEP_WORK": "1"}
        )
    assert ended.exit_code == 0, ended.stderr
    retained = list((tmp_path / "site").rglob("*"))
    assert retained, "the store has the sent files"
    message = "\n".join(str(item.relative_to(tmp_path)) for item in retained).lower()
    content = b"".join(item.read_bytes() for item in retained if item.is_file()).lower()
    for secret in SECRETS:
        assert secret.lower() not in message
        assert secret.lower().encode() not in content
    home = folder / "results" / "home"
    assert names(home) == {"pseudonym.key", "way_back.json"}
    assert {item.stat().st_mode & 0o077 for item in (home, *home.iterdir())} == {0}, "only the owner may read it"
