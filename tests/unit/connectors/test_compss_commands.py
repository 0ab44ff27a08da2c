"""COMPSs: its XML files, the line of runcompss, and what pods answer."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from medweave_connectors.sites.compss import commands, xml
from medweave_connectors.sites.compss.commands import Facts

WORKERS = ["r-worker-0.r-pods", "r-worker-1.r-pods"]
FACTS = Facts(
    python="/env/bin/python",
    compss="/opt/COMPSs",
    runcompss="/opt/COMPSs/Runtime/scripts/user/runcompss",
    java="/usr/lib/jvm/java-17-openjdk-amd64",
    port="2222",
    steps="/env/lib/python3.11/site-packages/medweave_steps",
)


def test_project_names_each_worker_with_its_folders() -> None:
    text = xml.build_project(
        WORKERS, install_dir="/opt/COMPSs", working_dir="/work/j/compss", app_dir="/a&b", python_path="/site"
    )
    root = ElementTree.fromstring(text)
    assert root.tag == "Project"
    assert [child.tag for child in root] == ["MasterNode", "ComputeNode", "ComputeNode"]
    assert [node.get("Name") for node in root.iter("ComputeNode")] == WORKERS
    node = root.findall("ComputeNode")[1]
    assert [(element.tag, element.text) for element in node.iter() if (element.text or "").strip()] == [
        ("InstallDir", "/opt/COMPSs"),
        ("WorkingDir", "/work/j/compss"),
        ("AppDir", "/a&b"),
        ("Pythonpath", "/site"),
    ]
    application = node.find("Application")
    assert application is not None
    assert [element.tag for element in application] == ["AppDir", "Pythonpath"]


def test_resources_name_ports_that_compss_accepts() -> None:
    root = ElementTree.fromstring(xml.build_resources(WORKERS, ssh_port=2222))
    assert root.tag == "ResourcesList"
    for node, name in zip(root.findall("ComputeNode"), WORKERS, strict=True):
        assert node.get("Name") == name
        assert node.findtext("Processor/ComputingUnits") == "1"
        adaptor = node.find("Adaptors/Adaptor")
        assert adaptor is not None
        assert adaptor.get("Name") == "es.bsc.compss.nio.master.NIOAdaptor"
        assert adaptor.find("SubmissionSystem/Interactive") is not None
        ports = {element.tag: int(element.text or "") for element in adaptor.find("Ports") or []}
        assert ports["MinPort"] != ports["MaxPort"], "COMPSs refuses equal ones"
        assert ports["SpawnerPort"] == 2222


def test_the_step_becomes_an_application() -> None:
    command = ["medweave-step train-distributed", "--output", shlex.quote("it's-a-model")]
    words = commands.build_runcompss_command(
        command, FACTS, project="/w/project.xml", resources="/w/resources.xml", master="r-master-0.r-pods"
    )
    assert shlex.split(" ".join(words)) == [
        "/opt/COMPSs/Runtime/scripts/user/runcompss",
        "--lang=python",
        "--python_interpreter=/env/bin/python",
        "--project=/w/project.xml",
        "--resources=/w/resources.xml",
        "--master_name=r-master-0.r-pods",
        "--pythonpath=/env/lib/python3.11/site-packages",
        "--jvm_master_opts=-Dcom.sun.xml.bind.v2.bytecode.ClassTailor.noOptimize=true",
        "/env/lib/python3.11/site-packages/medweave_steps/compss/application.py",
        "train-distributed",
        "--output",
        "it's-a-model",
    ]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python3 train.py"], "the program python3"),
        (["medweave-step train", "--output", "'a model'"], "the word 'a model'"),
        (["medweave-step train", "--output", "'a*'"], "the word 'a[*]'"),
        (["medweave-step train", "--note", "''"], "the word ''"),
    ],
)
def test_what_runcompss_would_take_apart_is_refused(command: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        commands.build_runcompss_command(command, FACTS, project="p", resources="r", master="m")


def test_a_pod_tells_what_it_has(tmp_path: Path) -> None:
    java = tmp_path / "jvm" / "bin" / "java"
    runcompss = tmp_path / "COMPSs" / "Runtime" / "scripts" / "user" / "runcompss"
    for program in (java, runcompss):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    environment = {
        "PATH": f"{java.parent}:/usr/bin:/bin",
        "POD_PYTHON": sys.executable,
        "POD_SSH_PORT": "2222",
        "COMPSS_HOME": str(tmp_path / "COMPSs"),
    }
    facts = commands.parse_facts(printed_facts(environment))
    assert not facts.missing()
    assert (facts.python, facts.port, facts.runcompss) == (sys.executable, "2222", str(runcompss))
    assert facts.java == str(tmp_path / "jvm")
    assert facts.application.endswith("/medweave_steps/compss/application.py")
    assert Path(facts.python_path, "medweave_steps").is_dir()


def test_a_pod_tells_what_is_missing() -> None:
    facts = commands.parse_facts(
        printed_facts({"PATH": "/bin", "POD_PYTHON": "/nowhere/python", "COMPSS_HOME": "/nowhere"})
    )
    assert facts.missing()[-1] == "runcompss on the PATH"
    assert facts.missing()[0] == "the package medweave_steps in /nowhere/python"


def printed_facts(environment: dict[str, str]) -> str:
    script = " ".join(commands.build_facts_command())
    return subprocess.run(["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=True).stdout


def test_workers_that_do_not_answer_are_named(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nfor word; do case $word in r-worker-0*) exit 0;; esac; done\n"
        'echo "Host key verification failed." >&2; exit 255\n'
    )
    ssh.chmod(0o755)
    script = " ".join(commands.build_reach_command(WORKERS, "2222"))
    output = subprocess.run(
        ["sh", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=True
    ).stdout
    assert commands.parse_unreachable(output, WORKERS) == {"r-worker-1.r-pods": "Host key verification failed."}
    assert commands.parse_unreachable("", WORKERS) == dict.fromkeys(WORKERS, "no answer")


def test_only_what_compss_left_is_cleared(tmp_path: Path) -> None:
    home = str(tmp_path / "COMPSs")
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", f"{home}/Runtime/engine.jar"])
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    server = tmp_path / "sshd"  # the workers' own has the path among its settings
    server.symlink_to(shutil.which("sleep") or "")
    serves = subprocess.Popen([f"sshd -o SetEnv=COMPSS_HOME={home}", "60"], executable=server)
    try:
        subprocess.run(["sh", "-c", " ".join(commands.build_kill_command(home))], check=True)
        assert left.wait(timeout=5) == -9
        assert other.poll() is None
        assert serves.poll() is None
    finally:
        for process in (left, other, serves):
            process.kill()
            process.wait()


@pytest.mark.parametrize(("is_external", "names_release"), [(True, True), (False, False)])
def test_a_release_that_is_removed_is_not_named_for_a_test(is_external: bool, names_release: bool) -> None:
    advice = commands.describe_release_test("cluster-1a2b3c", "research", is_external=is_external)
    assert "helm test" in advice
    assert ("cluster-1a2b3c" in advice) is names_release
