"""`medweave purge CASE`: data of one case in runs, on this machine and at a site over real ssh."""

from __future__ import annotations

import fcntl
import json
import signal
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.runs.purge import PURGED, without
from medweave_connectors.policy.pseudonym_home import Home
from support.engine import wait_until, write_workflow
from support.engine_file import engine_file, ssh_site
from support.fake_cluster import fake_cluster
from support.recorded import Recorder, failed_run
from support.ssh_server import ssh_server

CASE, OTHER = "case-0000000a", "case-0000000b"


def trained_run(folder: Path) -> Path:
    """Record a run with both cases in its reports, one of them in its training set, and a picture and a page."""
    run = Recorder(folder)
    run.job("/check/0", 1, 20)
    rows = ({"case_id": CASE, "split": "train"}, {"case_id": OTHER, "split": "test"})
    run.report(21, "/preprocess/0", "laptop", cases=rows, notices=(f"{CASE}: 3 mm slices every 2 mm",))
    report_folder = run.report(22, "/report/0", "laptop")
    (report_folder / CASE).mkdir()
    (report_folder / CASE / "axial.png").write_bytes(b"\x89PNG")
    (report_folder / "fragment.html").write_text(f"<p>{CASE}, {OTHER}</p>")
    run.event(23, "job.progress", "/preprocess/0", deployment="laptop", text=f"case 1/2: {CASE}")
    run.end(30)
    (folder / "report.html").write_text(f"<p>{CASE}</p>")
    return folder


def everything(folder: Path) -> bytes:
    return b"\n".join(
        str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in sorted(folder.rglob("*"))
    )


def test_nothing_is_left_of_the_case_and_the_others_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained_run(tmp_path / "runs" / "one")
    Recorder(tmp_path / "runs" / "another").end(1)
    entry = tmp_path / "runs" / ".kept" / "ab" / "abcd" / "outputs" / CASE
    entry.mkdir(parents=True)
    home = Home(tmp_path / "runs")
    (tmp_path / "Doe_Jane.nii.gz").touch()
    link = home.link_of(str(tmp_path / "Doe_Jane.nii.gz"), "scan", what="")
    home.make()
    assert main(["purge", CASE, "--runs", str(tmp_path / "runs")]) == 0
    output = capsys.readouterr().out
    assert "the model of this run was trained with this case (train)" in output
    assert "cache entries: removed" in output
    assert f"1 of 2 runs had data of {CASE}" in output
    assert "links from pseudonyms to the paths in job files: removed" in output
    assert [path.name for path in (tmp_path / "runs" / ".home").iterdir()] == ["key"]
    assert Home(tmp_path / "runs").link_of(str(tmp_path / "Doe_Jane.nii.gz"), "scan", what="") == link
    assert CASE.encode() not in everything(tmp_path)
    report = json.loads((run / "reports" / "preprocess" / "run_report.json").read_text())
    assert [row["case_id"] for row in report["cases"]] == [OTHER]
    assert report["notices"] == [f"{PURGED}: 3 mm slices every 2 mm"]
    assert main(["report", str(run)]) == 0, "the rest is still a run"
    assert main(["purge", CASE, "--runs", str(tmp_path / "runs")]) == 0
    assert f"0 of 2 runs had data of {CASE}" in capsys.readouterr().out


def test_links_stay_while_a_run_is_running(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    trained_run(runs / "one")
    running = Recorder(runs / "another").folder / "events.jsonl"
    (runs / ".home").mkdir()
    (runs / ".home" / "scan-000000000000").symlink_to(tmp_path)
    with running.open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)  # as its driver does
        main(["purge", CASE, "--runs", str(runs)])
        assert (runs / ".home" / "scan-000000000000").is_symlink(), "it may read by the link"


@pytest.mark.slow
def test_a_failed_run_loses_its_folders_at_the_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster(tmp_path) as cluster:
        running = cluster.begin({"first": f"echo '{CASE}: a slice is missing' >&2; touch {CASE}.dcm; sleep 120"})
        wait_until(lambda: any((cluster.folder / "site").rglob(f"{CASE}.dcm")), 60)
        assert main(["purge", CASE, "--runs", str(running.record.parent)]) == 75, (
            "it may have data of the case, and is running"
        )
        assert f"0 of 1 runs had data of {CASE}" in capsys.readouterr().out
        running.signal(signal.SIGKILL)
        running.wait()
        with (running.record / "events.jsonl").open("a") as log:
            event = json.loads((running.record / "events.jsonl").read_text().splitlines()[-1])
            log.write(json.dumps(event | {"type": "notice", "data": {"text": f"{CASE}: a slice is missing"}}) + "\n")
        assert main(["purge", CASE, "--runs", str(running.record.parent)]) == 0
        assert CASE.encode() not in everything(cluster.folder / "site") + everything(running.record.parent)
        assert cluster.word() == "CANCELLED"
        assert f"1 of 1 runs had data of {CASE}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_completed_run_loses_its_files_at_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Recorder(tmp_path / "runs" / "one")
    run.job("/check/0", 1, 20)
    sent = {"from": "laptop", "route": "from-driver", "bytes": 4}
    run.event(21, "transfer.ended", deployment="there", **sent)
    run.event(22, "notice", text=f"{CASE}: 3 mm slices every 2 mm")
    run.end(30)
    blobs = [tmp_path / "site" / ".medweave-store" / "00" / name for name in ("unused", "of another run")]
    blobs[0].parent.mkdir(parents=True)
    for blob in blobs:
        blob.write_text("scan")
    (tmp_path / "site" / "used").hardlink_to(blobs[1])
    with ssh_server(tmp_path / "server") as server:
        deployments = {"there": ssh_site(server.port, str(tmp_path / "site"))}
        write_workflow(tmp_path, {"first": "true"}, file=engine_file(deployments, {"/": {"deployment": "there"}}))
        assert main(["purge", CASE, "--runs", str(tmp_path / "runs")]) == 0
    assert [blob.exists() for blob in blobs] == [False, True]
    assert "there: " in capsys.readouterr().out


@pytest.mark.slow
def test_a_running_run_is_not_purged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_cluster(tmp_path) as cluster:
        running = cluster.begin({"first": "sleep 120"})
        wait_until(lambda: bool(cluster.submitted), 60)
        (running.record / "reports").mkdir(exist_ok=True)
        (running.record / "reports" / "report.json").write_text(json.dumps({"cases": [CASE]}))
        assert main(["purge", CASE, "--runs", str(running.record.parent)]) == 65
        assert "is running" in capsys.readouterr().err
        running.signal(signal.SIGINT)
        running.wait()


def test_runs_that_ended_before_recording_their_cases_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = failed_run(tmp_path / "runs" / "early")
    (run.folder / "work").mkdir()
    assert main(["purge", "case-ffffffff", "--runs", str(tmp_path / "runs")]) == 75
    assert "seen:     early\n" in (err := capsys.readouterr().err)
    assert "medweave clean" in err


@pytest.mark.parametrize("case", ["lung_001", "case-1", "case-0000000a/.."])
def test_only_the_id_of_a_case_is_taken(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", case, "--runs", str(tmp_path)]) == 2
    assert "case- and 8 hexadecimal digits" in capsys.readouterr().err


def test_a_missing_folder_of_runs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["purge", CASE, "--runs", str(tmp_path / "none")]) == 65
    assert "--runs FOLDER" in capsys.readouterr().err


def test_entries_keys_and_texts_about_the_case_go() -> None:
    data = {CASE: 1, "cases": [CASE, OTHER], "best": {"case_id": CASE}, "text": f"of {CASE}", "dice": [0.5, None]}
    assert without(data, CASE) == {"cases": [OTHER], "text": f"of {PURGED}", "dice": [0.5, None]}
