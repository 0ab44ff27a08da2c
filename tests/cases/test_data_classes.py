"""A tool's own program at a site that may hold derived data only: bind, plan, validate and run judge alike."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.engine import run
from support.ssh_server import ssh_server

FILES = {
    "workflows/wm/wm.cwl": """\
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {scans: "File[]"}
outputs: {sizes: {type: "File[]", outputSource: measure/size}}
steps:
  measure: {run: measure.cwl, scatter: scan, in: {scan: scans}, out: [size]}
""",
    "workflows/wm/measure.cwl": """\
cwlVersion: v1.2
class: CommandLineTool
baseCommand: sh
inputs:
  program: {type: File, default: {class: File, location: measure.sh}, inputBinding: {position: 1}}
  scan: {type: File, inputBinding: {position: 2}}
stdout: size.txt
outputs: {size: stdout}
""",
    "workflows/wm/measure.sh": "wc -c <$1\n",
    "workflows/wm/roles.yml": """\
wm.cwl: {/measure: preprocess}
holds: {inputs: {scans: derived}, outputs: {preprocess: {size: derived}}}
""",
    "workflows/wm/jobs/demo-wm.yml": "scans: [{class: File, path: one.txt}, {class: File, path: two.txt}]\n",
    "workflows/wm/jobs/one.txt": "scan 1",
    "workflows/wm/jobs/two.txt": "second scan",
    "deployments/sites/hospital.yml": """\
title: a login node that may hold derived data
deployments:
  laptop: {type: medweave.local, config: {}}
  login:
    type: medweave.ssh
    workdir: ${SITE}
    config: {nodes: ["127.0.0.1:PORT"], username: me, sshKey: "${KEYS}/id_ed25519", knownHosts: "${KEYS}/known_hosts"}
roles: {preprocess: {deployment: login}}
mayHold: {laptop: [derived], login: [derived]}
""",
}


@pytest.mark.case(
    "mayhold-program", expected="bind, plan and validate accept a tool's default file, and the run sends it"
)
def test_default_file_of_a_tool_is_allowed_at_every_site_of_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Callable[[object], None]
) -> None:
    project = tmp_path / "project"
    with ssh_server(tmp_path / "server") as server:
        for name, text in FILES.items():
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            (project / name).write_text(text.replace("PORT", str(server.port)))
        monkeypatch.chdir(project)
        variables = {"SITE": str(tmp_path / "site"), "KEYS": str(tmp_path / "server")}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        workflow = ["workflows/wm/wm.cwl", "--site", "hospital"]
        assert main(["plan", *workflow]) == 0
        assert main(["bind", *workflow, "--output", "streamflow.yml"]) == 0
        assert main(["validate"]) == 0
        result = run(project, environment=os.environ | variables)
        seen(f"exit code {result.exit_code}")
        assert result.exit_code == 0, result.stderr
        assert sorted(int(path.read_text()) for path in (project / "results").iterdir()) == [6, 11]
