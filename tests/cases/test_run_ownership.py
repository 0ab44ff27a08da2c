"""A run removes nothing that it did not create, whatever its id is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.engine import FILE, run, write_workflow

GOOD = "echo done > result.txt"
SITE = FILE.replace("type: medweave.local, config: {}", "type: medweave.local, workdir: scratch, config: {}")
BAD_IDS = ["../x", "a/b", "/tmp/x", ".", "..", ".kept", "-rf", "a b", "a\nb", "é", "$(id)", "x" * 65]


def users_folder(folder: Path) -> Path:
    """Create a folder with a file that no run has made."""
    folder.mkdir(parents=True)
    (folder / "thesis.txt").write_text("ten years of work", encoding="utf-8")
    return folder / "thesis.txt"


@pytest.mark.slow
@pytest.mark.case("run-id-removes-folder", expected="the run is refused and the folder at the site stays")
def test_a_folder_at_the_site_with_the_name_of_the_run_stays(tmp_path: Path, seen: Callable[[object], None]) -> None:
    write_workflow(tmp_path, {"first": GOOD}, file=SITE)
    file = users_folder(tmp_path / "scratch" / "results")
    ended = run(tmp_path, environment={"MEDWEAVE_RUN_ID": "results"})
    seen(f"exit code {ended.exit_code}; {'stays' if file.exists() else 'deleted'}")
    assert ended.exit_code == 1
    assert "the folder of run results exists already, and this run did not create it" in ended.stderr
    assert [path.name for path in file.parent.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
@pytest.mark.case("run-id-removes-folder", expected="the run is refused and the folder in the folder of runs stays")
def test_a_folder_in_the_folder_of_runs_with_the_name_of_the_run_stays(
    tmp_path: Path, seen: Callable[[object], None]
) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    file = users_folder(tmp_path / "runs" / "results" / "work")
    ended = run(tmp_path, environment={"MEDWEAVE_RUN_ID": "results"})
    seen(f"exit code {ended.exit_code}; {'stays' if file.exists() else 'deleted'}")
    assert ended.exit_code == 1
    assert "a run or another file named 'results' exists already" in ended.stderr
    assert [path.name for path in file.parents[1].rglob("*")] == ["work", "thesis.txt"]


@pytest.mark.slow
@pytest.mark.case("run-id-removes-folder", expected="exit code 2 under StreamFlow, nothing is written")
def test_streamflow_ends_before_anything_is_written(tmp_path: Path, seen: Callable[[object], None]) -> None:
    write_workflow(tmp_path, {"first": GOOD}, file=SITE)
    ended = run(tmp_path, environment={"MEDWEAVE_RUN_ID": "../x"})
    seen(ended.exit_code)
    assert ended.exit_code == 2
    assert "medweave: MEDWEAVE_RUN_ID: invalid run id.\n  seen:     '../x'" in ended.stderr
    assert not any((tmp_path / name).exists() for name in ("runs", "scratch", "results"))


@pytest.mark.case("run-id-removes-folder", expected="exit code 2, nothing is written")
@pytest.mark.parametrize("run_id", BAD_IDS)
def test_a_run_id_is_a_plain_name(
    tmp_path: Path,
    run_id: str,
    seen: Callable[[object], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    before = sorted(tmp_path.iterdir())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEDWEAVE_RUN_ID", run_id)
    code = main(["run"])
    message = capsys.readouterr().err
    seen(f"exit code {code}: {message.splitlines()[0]}")
    assert code == 2
    assert "MEDWEAVE_RUN_ID: invalid run id." in message
    assert all(f"  {word}:" in message for word in ("seen", "expected", "do"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_taken_name_is_refused_before_the_engine_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_workflow(tmp_path, {"first": GOOD})
    file = users_folder(tmp_path / "runs" / "results")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEDWEAVE_RUN_ID", "results")
    assert main(["run"]) == 2
    assert "a run or another file named 'results' exists already" in capsys.readouterr().err
    assert [path.name for path in file.parent.iterdir()] == ["thesis.txt"]
