"""The worker environment: its shell text in real shells, with fakes of `module` and `apptainer`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from medweave_connectors.jobs.worker_environment import WorkerEnvironment, read_environment
from medweave_connectors.sites.slurm.script import SlurmJobFiles, StepCommand, gang_script, node_script, single_script
from medweave_core.errors import UsageError
from support.engine import run, start, write_workflow
from support.engine_file import engine_file, ssh_site
from support.fake_cluster import NEVER_AGAIN, Cluster, fake_cluster

WHERE = "deployments.hpc.config.services.gpu.environment"
MODULE = 'module() { [ "$2" != bad/1 ] || return 1; echo "$@" >> "$LOADED"; }\n'
# Writes its words, then starts the command with the environment that `--cleanenv` leaves, as Apptainer's pages have it.
APPTAINER = f"""#!{sys.executable}
import os, sys
from pathlib import Path
with (Path(os.environ["RECORDED"]) / "words").open("a") as stream:
    print(*sys.argv[1:], sep="\\n", file=stream)
command = sys.argv[sys.argv.index("sh"):]
inside = {{name[13:]: value for name, value in os.environ.items() if name.startswith("APPTAINERENV_")}}
assert "HOME" not in inside and os.environ["APPTAINER_NO_EVAL"] == "1"
os.execve("/bin/sh", command, {{"PATH": "/usr/bin:/bin", "HOME": "/home/inside"}} | inside)
"""
SRUN = (
    '#!/bin/sh\nfor rank in 0 1; do SLURM_PROCID=$rank sh "{folder}/node.sh" 2> "{folder}/stderr.$rank" & done; wait\n'
)


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.fixture(params=["sh", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def did(shell: str, folder: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script after a syntax check by `bash -n`; return the result."""
    script = folder / "script.sh"
    script.write_text(text)
    subprocess.run(["bash", "-n", script], check=True)
    variables = {
        "PATH": f"{folder / 'programs'}:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "LOADED": str(folder / "loaded"),
        "RECORDED": str(folder),
    }
    words = [shell, str(script)]
    return subprocess.run(words, env=variables | environment, text=True, capture_output=True, check=False)


def with_environment(environment: WorkerEnvironment, line: str) -> str:
    return "\n".join((MODULE, *environment.lines(where=WHERE), environment.started(line), "exit $?", ""))


def virtual_environment(folder: Path) -> Path:
    """As `python -m venv` makes it, as far as shells see."""
    program(folder / "bin", "medweave-step", "#!/bin/sh\necho in the environment: $VIRTUAL_ENV\n")
    (folder / "bin" / "activate").write_text(
        f'VIRTUAL_ENV={shlex.quote(str(folder))}; PATH="$VIRTUAL_ENV/bin:$PATH"; export VIRTUAL_ENV PATH\n'
    )
    return folder


def test_an_empty_environment_changes_nothing() -> None:
    nothing = WorkerEnvironment()
    assert nothing.lines(where=WHERE) == ()
    assert nothing.started("( true )") == "( true )"
    assert nothing.inside("true", folder="/s", gpus=True) == "true"


def test_modules_are_loaded_in_their_order(shell: str, tmp_path: Path) -> None:
    text = with_environment(WorkerEnvironment(modules=["python/3.11", "cuda/12's"]), "echo done")
    ended = did(shell, tmp_path, text)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
    assert (tmp_path / "loaded").read_text() == "load python/3.11\nload cuda/12's\n"


def test_a_module_that_does_not_load_ends_the_job_with_its_setting(shell: str, tmp_path: Path) -> None:
    text = with_environment(WorkerEnvironment(modules=["good/1", "bad/1", "good/2"]), "echo done")
    ended = did(shell, tmp_path, text)
    assert (ended.returncode, ended.stdout) == (69, "")
    assert ended.stderr.startswith(f"medweave: {WHERE}.modules[1]: not found at the site.\n")
    assert f"  seen:     `module load bad/1` failed on {os.uname().nodename}\n" in ended.stderr
    assert (tmp_path / "loaded").read_text() == "load good/1\n"


def test_a_shell_without_module_reads_its_file(shell: str, tmp_path: Path) -> None:
    (tmp_path / "lmod" / "init").mkdir(parents=True)
    (tmp_path / "lmod" / "init" / "sh").write_text(MODULE)
    environment = WorkerEnvironment(modules=["python/3.11"])
    text = "\n".join((*environment.lines(where=WHERE), environment.started("echo done"), "exit $?"))
    assert did(shell, tmp_path, text, LMOD_PKG=str(tmp_path / "lmod")).stdout == "done\n"
    assert (tmp_path / "loaded").read_text() == "load python/3.11\n"


@pytest.mark.parametrize("name", ["~/my env", "{folder}/it's"])
def test_a_virtual_environment_is_activated(shell: str, tmp_path: Path, name: str) -> None:
    (tmp_path / "home").mkdir()
    path = name.format(folder=tmp_path)
    there = virtual_environment(Path(path.replace("~", str(tmp_path / "home"))))
    ended = did(shell, tmp_path, with_environment(WorkerEnvironment(virtualEnvironment=path), "medweave-step"))
    assert ended.stdout == f"in the environment: {there}\n", ended.stderr


def test_a_missing_virtual_environment_is_reported_with_its_path(shell: str, tmp_path: Path) -> None:
    ended = did(shell, tmp_path, with_environment(WorkerEnvironment(virtualEnvironment="~/100% it's"), "medweave-step"))
    assert ended.returncode == 69
    assert ended.stderr.splitlines() == [
        f"medweave: {WHERE}.virtualEnvironment: not found at the site.",
        f"  seen:     no ~/100% it's/bin/activate on {os.uname().nodename}",
        "  expected: a virtual environment that login node and nodes share",
        "  do:       create it with `medweave provision`, or correct the path",
    ]


def single(folder: Path, script: str, environment: WorkerEnvironment, *, gpus: bool = False, **keys: str) -> str:
    """A job script whose output folder is `run/out`."""
    output = folder / "run" / "out"
    output.mkdir(parents=True, exist_ok=True)
    step = StepCommand(
        words=["sh", "-c", f"'{script}'"],
        environment={"TMPDIR": f"{folder}/run/tmp", "HOME": str(output), "VALUE": "$(touch harm) 'c'\nMEDWEAVE_X=1"},
        output_directory=str(output), worker=environment, worker_setting=WHERE, gpus=gpus, **keys,
    )  # fmt: skip
    return MODULE + single_script(step, SlurmJobFiles(str(folder / "run" / "job")), prologue="", title="key")


@pytest.mark.parametrize("checkpoint", ["", "checkpoints"])
def test_a_command_runs_in_the_image(shell: str, tmp_path: Path, checkpoint: str) -> None:
    program(tmp_path / "programs", "apptainer", APPTAINER)
    image = tmp_path / "my image.sif"
    image.touch()
    (tmp_path / "run" / "job").mkdir(parents=True)
    script = 'env > seen; pwd; echo "$MEDWEAVE_RESUME_FROM"; exit 3'
    environment = WorkerEnvironment(modules=["apptainer"], apptainer=str(image))
    text = single(tmp_path, script, environment, gpus=True, stdout="o u t", checkpoint_folder=checkpoint)
    outside = {"SLURM_JOB_ID": "17", "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "/wrong", "MEDWEAVE_NOTE": "a\nb $HOME"}
    ended = did(shell, tmp_path, text, **outside)
    assert ended.returncode == 3, ended.stderr
    out = tmp_path / "run" / "out"
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:8] == ["exec", "--cleanenv", "--bind", f"{out.parent}:{out.parent}", "--nv", str(image), "sh", "-c"]
    seen = (out / "seen").read_text()
    for name in ("SLURM_JOB_ID=17", "CUDA_VISIBLE_DEVICES=1", "MEDWEAVE_NOTE=a\nb $HOME"):
        assert f"{name}\n" in seen
    assert "PYTHONPATH" not in seen
    assert f"HOME={out}\n" in seen, "Apptainer sets its own, so the step's is set inside"
    assert "VALUE=$(touch harm) 'c'\nMEDWEAVE_X=1\n" in seen
    assert (out / "o u t").read_text().startswith(f"{out}\n")
    assert (tmp_path / "run" / "job" / "exit").read_text().startswith("3 ")


def test_without_gpus_the_image_gets_none() -> None:
    line = WorkerEnvironment(apptainer="~/i.sif").inside("true", folder="/scratch/r", gpus=False)
    assert line == 'exec apptainer exec --cleanenv --bind /scratch/r:/scratch/r "$HOME"/i.sif sh -c true'


@pytest.mark.parametrize(("there", "seen"), [(True, "no /no/image.sif"), (False, "no program `apptainer`")])
def test_a_missing_image_or_program_is_reported(shell: str, tmp_path: Path, there: bool, seen: str) -> None:
    if there:
        program(tmp_path / "programs", "apptainer", APPTAINER)
    (tmp_path / "run" / "job").mkdir(parents=True)
    ended = did(shell, tmp_path, single(tmp_path, "true", WorkerEnvironment(apptainer="/no/image.sif")))
    assert ended.returncode == 69
    assert ended.stderr.startswith(f"medweave: {WHERE}.apptainer: not found at the site.\n  seen:     {seen} on ")
    assert (tmp_path / "run" / "job" / "exit").read_text().startswith("69 "), (
        "its end is known, also without accounting"
    )


@pytest.mark.parametrize("image", [False, True], ids=["virtual environment", "image"])
def test_each_rank_of_a_node_group_loads_the_environment(shell: str, tmp_path: Path, image: bool) -> None:
    (tmp_path / "out").mkdir()
    program(tmp_path / "programs", "srun", f'#!/bin/sh\necho "$@" > {tmp_path}/srun\n' + SRUN.format(folder=tmp_path))
    program(tmp_path / "programs", "scontrol", "#!/bin/sh\necho localhost\n")
    program(tmp_path / "programs", "apptainer", APPTAINER)
    there = virtual_environment(tmp_path / "env")
    environment = WorkerEnvironment(apptainer=str(there)) if image else WorkerEnvironment(virtualEnvironment=str(there))
    command = StepCommand(
        words=["sh", "-c", '\'env > "env.$MEDWEAVE_NODE_RANK"; medweave-step > "output.$MEDWEAVE_NODE_RANK"\''],
        environment={"TMPDIR": str(tmp_path / "tmp")}, output_directory=str(tmp_path / "out"),
        worker=environment, worker_setting=WHERE,
    )  # fmt: skip
    job = SlurmJobFiles(str(tmp_path))
    (tmp_path / "node.sh").write_text(node_script(command, job))
    text = gang_script(command, job, num_nodes=2, cores=1, prologue="", title="key")
    ended = did(shell, tmp_path, text, SLURM_JOB_ID="17", SLURM_JOB_NODELIST="n[1-2]")
    assert ended.returncode == 0, ended.stderr
    assert "--export=ALL" in (tmp_path / "srun").read_text().split()
    for rank in (0, 1):
        variables = (tmp_path / "out" / f"env.{rank}").read_text()
        assert "MEDWEAVE_NUM_NODES=2\n" in variables
        assert "MEDWEAVE_RENDEZVOUS=localhost:" in variables
        assert f"TMPDIR={tmp_path}/tmp/node-{rank}\n" in variables
        expected = f"in the environment: {there}\n" if not image else ""
        assert (tmp_path / "out" / f"output.{rank}").read_text() == expected


def test_a_rank_without_the_environment_writes_its_exit_record(tmp_path: Path) -> None:
    command = StepCommand(
        words=["true"], environment={"TMPDIR": str(tmp_path / "tmp")}, output_directory=str(tmp_path),
        worker=WorkerEnvironment(virtualEnvironment="/no/env"), worker_setting=WHERE,
    )  # fmt: skip
    ended = did("sh", tmp_path, node_script(command, SlurmJobFiles(str(tmp_path))), SLURM_PROCID="1")
    assert ended.returncode == 69
    assert (tmp_path / "exit.1").read_text().startswith("69 ")
    assert "no /no/env/bin/activate" in ended.stderr


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"virtualEnvironment": "/e", "apptainer": "/i.sif"}, "apptainer: an image and a virtual environment"),
        ({"virtualEnvironment": "env"}, "virtualEnvironment: not a path"),
        ({"apptainer": "docker://image"}, "apptainer: not a path"),
    ],
)
def test_invalid_keys_are_refused_with_their_path(keys: dict[str, str], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_environment(keys, where=WHERE)
    assert str(caught.value).startswith(f"{WHERE}.{field}")


def test_both_connectors_have_the_same_keys() -> None:
    def schema(name: str) -> dict[str, object]:
        text = files("medweave_connectors").joinpath("sites", name, "schema.json").read_text("utf-8")
        keys: dict[str, object] = json.loads(text, object_hook=without_description)["properties"]
        return keys

    def without_description(of_key: dict[str, object]) -> dict[str, object]:
        return {name: value for name, value in of_key.items() if not isinstance(value, str) or name != "description"}

    services: dict[str, object] = schema("slurm")["services"]["additionalProperties"]["properties"]  # type: ignore[index]
    own, slurms = schema("ssh")["environment"], services["environment"]
    assert own["properties"] == slurms["properties"]  # type: ignore[index]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fake_cluster(tmp_path) as started:
        yield started


def file_of(cluster: Cluster, environment: dict[str, object], kind: str) -> str:
    """A streamflow.yml whose step finds its worker by `environment`, in a job or on the login node itself."""
    login = ssh_site(cluster.server.port, f"{cluster.folder}/site")
    if kind == "ssh":
        login["config"]["environment"] = environment
        return engine_file({"login": login})
    config = {"services": {"usual": {"environment": environment}}, "reactions": NEVER_AGAIN}
    hpc = {"type": "medweave.slurm", "wraps": "login", "config": config}
    return engine_file({"login": login, "hpc": hpc}, {"/": {"deployment": "hpc", "service": "usual"}})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_step_runs_in_its_worker_environment(cluster: Cluster, kind: str) -> None:
    there = virtual_environment(cluster.folder / "env")
    file = file_of(cluster, {"virtualEnvironment": str(there)}, kind)
    write_workflow(cluster.folder, {"first": "medweave-step > result.txt"}, file=file)
    ended = start(cluster.folder).wait(90)
    assert ended.exit_code == 0, ended.stderr
    assert (cluster.folder / "results" / "result.txt").read_text() == f"in the environment: {there}\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_a_missing_worker_is_reported_as_the_cause(cluster: Cluster, kind: str) -> None:
    write_workflow(cluster.folder, {"first": "true"}, file=file_of(cluster, {"virtualEnvironment": "/no/env"}, kind))
    ended = start(cluster.folder).wait(90)
    assert ended.exit_code != 0
    place = "services.usual.environment" if kind == "slurm" else "environment"
    assert f"config.{place}.virtualEnvironment: not found at the site." in ended.stderr
    assert "no /no/env/bin/activate on " in ended.stderr


@pytest.mark.parametrize("kind", ["slurm", "ssh"])
def test_keys_that_exclude_each_other_end_a_run_at_once(cluster: Cluster, kind: str) -> None:
    environment = {"virtualEnvironment": "/e", "apptainer": "/i.sif"}
    write_workflow(cluster.folder, {"first": "true"}, file=file_of(cluster, dict(environment), kind))
    ended = run(cluster.folder)
    assert ended.exit_code != 0
    place = "hpc.config.services.usual" if kind == "slurm" else "login.config"
    assert f"deployments.{place}.environment.apptainer: an image and a virtual environment" in ended.stderr
    assert not cluster.submitted
