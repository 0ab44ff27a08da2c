"""Real runs over the inputs of `support.leak_markers`: one killed and resumed, some that fail, and reports of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from support.cwl_files import ROOT
from support.leak_markers import ENVIRONMENT, Inputs, environment, site
from support.listeners import webhook

BIN_DIR = Path(sys.executable).parent
INFER = ROOT / "workflows" / "lung-nodule-segmentation" / "infer.cwl"
KILLED_AT, WITHIN_S = "/preprocess", 900  # a machine may be busy with other things
FOREIGN = {  # a program that knows nothing of medweave, and prints its arguments
    "cwlVersion": "v1.2",
    "class": "Workflow",
    "requirements": {"ScatterFeatureRequirement": {}},
    "inputs": {"cohort": "Directory", "cases": "File[]"},
    "outputs": {"seen": {"type": "File", "outputSource": "look/seen"}},
    "steps": {
        "look": {
            "run": {
                "class": "CommandLineTool",
                "baseCommand": ["sh", "-c", 'echo "$@" > seen; echo "cannot open $*" >&2; exit 3'],
                "inputs": {
                    "cohort": {"type": "Directory", "inputBinding": {"position": 1}},
                    "cases": {"type": "File[]", "inputBinding": {"position": 2}},
                },
                "outputs": {"seen": {"type": "File", "outputBinding": {"glob": "seen"}}},
            },
            "in": {"cohort": "cohort", "cases": "cases"},
            "out": ["seen"],
        }
    },
}


@dataclass(slots=True, kw_only=True)
class Scene:
    """A user's folder, in which runs are made.

    Attributes:
        folder: where the commands are started; holds all that they write.
        site_folder: the folder of the other machine.
        codes: exit codes of the started commands, by name.
    """

    folder: Path
    inputs: Inputs
    site_folder: Path
    codes: dict[str, int] = field(default_factory=dict)

    @property
    def runs(self) -> list[Path]:
        """Return the folders of the runs, in the order of their names."""
        return sorted(log.parent for log in (self.folder / "runs").glob("[!.]*/events.jsonl"))

    def start(self, name: str, *words: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command; its output goes to `<name>.out` and `<name>.err`."""
        out, err = ((self.folder / "printed" / f"{name}.{kind}").open("wb") for kind in ("out", "err"))
        own = {
            "TMPDIR": str(self.folder / "tmp"),
            "MEDWEAVE_KEEP_WORK": "1",
            "MEDWEAVE_RUNS_DIR": str(self.folder / "runs"),
        } | dict(more or {})
        return subprocess.Popen(
            [str(BIN_DIR / words[0]), *words[1:]], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            env=environment(self.inputs, programs=BIN_DIR) | own, start_new_session=True,
        )  # fmt: skip

    def do(self, name: str, *words: str) -> int:
        """Start a command and wait for it; return its exit code."""
        self.codes[name] = self.start(name, *words).wait(WITHIN_S)
        return self.codes[name]

    def output_of(self, name: str) -> str:
        """Return the output of a command, both streams."""
        return "".join(
            (self.folder / "printed" / f"{name}.{kind}").read_text(errors="replace") for kind in ("out", "err")
        )


def begin(folder: Path, inputs: Inputs, *, port: int) -> Scene:
    """Create the folder and its site file; return the scene."""
    scene = Scene(folder=folder, inputs=inputs, site_folder=folder / "server")
    for name in ("printed", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "site.yml").write_text(site(inputs, port=port, folder=scene.site_folder), encoding="utf-8")
    return scene


def killed_and_resumed(scene: Scene) -> None:
    """Run `medweave run`, kill its driver in the middle, and complete it by `medweave run --resume`."""
    words = ("medweave", "run", str(INFER), "--site", "site.yml", "--job", str(scene.inputs.job), "--outdir", "results")
    front = scene.start("killed", *words)
    log = _log_of(scene, front)
    _wait_for(log, KILLED_AT, front)
    first = json.loads(log.read_text(encoding="utf-8").splitlines()[0])
    os.kill(first["data"]["pid"], signal.SIGKILL)
    scene.codes["killed"] = front.wait(WITHIN_S)
    scene.do("resumed", "medweave", "run", "--resume", str(log.parent), "--outdir", "results", "--json")


def failing(scene: Scene) -> None:
    """Run plain `streamflow run` twice: a step of medweave refuses the data, and a foreign program fails."""
    cohort = next(path for path in scene.inputs.root.iterdir() if path.name.endswith(" scans"))
    slices = sorted(cohort.rglob("*.dcm"))
    damaged = scene.inputs.root / f"{cohort.name} damaged" / slices[0].parent.name
    damaged.mkdir(parents=True)
    (damaged / slices[0].name).write_bytes(slices[0].read_bytes()[:-3000])
    (damaged / slices[1].name).write_bytes(slices[1].read_bytes())
    refused = json.loads(scene.inputs.job.read_text(encoding="utf-8"))
    refused["cohort"]["path"] = str(damaged.parent)
    for name in ("pseudonym_key", "segmentation_model"):
        refused[name]["path"] = str(scene.inputs.root / refused[name]["path"])
    foreign = {
        "cohort": {"class": "Directory", "location": cohort.as_uri()},
        "cases": [{"class": "File", "path": str(path)} for path in slices[:2]],
    }
    (scene.folder / "foreign.cwl").write_text(json.dumps(FOREIGN), encoding="utf-8")
    for name, workflow, job in (("refused", INFER, refused), ("foreign", scene.folder / "foreign.cwl", foreign)):
        settings = scene.inputs.job.with_name(f"{scene.inputs.job.stem} {name}.json")
        settings.write_text(json.dumps(job), encoding="utf-8")
        document = {
            "version": "v1.0",
            "workflows": {name: {
                "type": "cwl", "config": {"file": str(workflow), "settings": str(settings)},
                "bindings": [{"step": "/", "target": {"deployment": "ward"}}],
            }},
            "deployments": {"ward": {"type": "medweave.local", "config": {}}},
            "scheduling": {"scheduler": {"type": "medweave.scheduler", "config": {}}},
            "dataManager": {"type": "medweave.transfer", "config": {}},
            "database": {"type": "medweave.database", "config": {}},
        }  # fmt: skip
        file = scene.inputs.root / f"{name}.yml"  # the user's own: it names the job file
        file.write_text(yaml.safe_dump(document), encoding="utf-8")
        scene.do(name, "streamflow", "run", "--outdir", "results", str(file))


def notified(scene: Scene) -> None:
    """Run a schedule that fails; write what its webhook receives to `printed/notices`."""
    schedule = {"name": "nightly", "file": "foreign.yml", "notify": {"at": "end", "webhook": "${HOOK}"}}
    file = scene.inputs.root / "schedule.yml"
    file.write_text(yaml.safe_dump(schedule), encoding="utf-8")
    with webhook() as hook:
        more = {"HOOK": f"{hook.url}?token={ENVIRONMENT['webhook_token']}"}
        words = ("medweave", "schedule", "run", str(file), "--folder", str(scene.folder / "schedule"))
        scene.codes["scheduled"] = scene.start("scheduled", *words, more=more).wait(WITHIN_S)
    (scene.folder / "printed" / "notices").write_text("\n".join(hook.came), encoding="utf-8")


def report_and_export(scene: Scene) -> None:
    """Run the other commands on the runs, all at the same time."""
    last = str(next(run for run in reversed(scene.runs) if "-infer-" in run.name))
    workflow = (str(INFER), "--site", "site.yml", "--job", str(scene.inputs.job))
    commands: dict[str, tuple[str, ...]] = {
        "report": ("report", last, "--output", "report.html"),
        "ps": ("ps",),
        "logs": ("logs", "deidentify", "--run", last),
        "plan": ("plan", *workflow),
        "plan-json": ("plan", *workflow, "--format", "json"),
        "explain": ("explain", "deidentify", "--run", last),
        "doctor": ("doctor", "--site", "site.yml"),
        "export": ("export", last, "--crate", "crate", "--include-outputs", "results"),
    }
    for name in ("refused", "foreign"):
        (run,) = (str(run) for run in scene.runs if run.name.startswith(name))
        file = str(scene.inputs.root / f"{name}.yml")
        commands[f"report-{name}"] = ("report", run)
        commands[f"export-{name}"] = ("export", run, "--crate", f"crate-{name}.zip", "--file", file)
    started = {name: scene.start(name, "medweave", *workflow) for name, workflow in commands.items()}
    scene.codes |= {name: process.wait(WITHIN_S) for name, process in started.items()}


def _log_of(scene: Scene, front: subprocess.Popen[bytes]) -> Path:
    deadline = time.monotonic() + WITHIN_S
    while not scene.runs and time.monotonic() < deadline and front.poll() is None:
        time.sleep(0.05)
    assert scene.runs, scene.output_of("killed")
    return scene.runs[0] / "events.jsonl"


def _wait_for(log: Path, step: str, front: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline and front.poll() is None:
        events = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        if any(event["type"] == "job.started" and event["step"] == step for event in events):
            return
        time.sleep(0.05)
    raise AssertionError(f"{step} did not start")
