"""`medweave report RUN`: one self-contained page, for completed and for other runs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave_core.contracts import codec
from medweave_steps.cli import main as step_main
from support.page import check
from support.recorded import Recorder, completed_run, failed_run
from support.reported import evaluated, run_report


@pytest.fixture(scope="module")
def fragment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the fragment of a real report step."""
    root = tmp_path_factory.mktemp("fragment")
    _, options = evaluated(root)
    assert step_main(["report", *options, "--output", str(root / "report")]) == 0
    return root / "report"


def with_fragment(folder: Path, fragment: Path) -> Path:
    run = completed_run(folder)
    folder_of_report = run.report(500, "/report/0", "laptop")
    shutil.copytree(fragment, folder_of_report / "report")
    return folder


@pytest.mark.slow
def test_a_completed_run_becomes_one_page(tmp_path: Path, fragment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = with_fragment(tmp_path / "run 1", fragment)
    assert main(["report", str(folder), "--output", str(tmp_path / "out" / "a report.html")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "a report.html")
    page = check((tmp_path / "out" / "a report.html").read_text())
    summary = json.loads((fragment / "summary.json").read_text())
    for text in (
        "completed",
        "1 August 2026, 10:00:00 UTC",
        "10 min 00 s",
        "site-a/gpu4",
        "site-a (medweave.slurm)",
        "Research use only",
        "Synthetic data",
        f"{summary['figures'][0]['value']:.2f}",
        "int8 refused",
        "the batch holds no case",
        "streamflow0.2.0rc3",
        "A processor, up to 2 threads per step",
    ):
        assert text in page.text, text
    headings = [text for level, text in page.headings if level == 2]
    assert headings[:2] == ["Results", "Segmentations in three planes"]
    assert headings[-3:] == ["Jobs by place and time", "Notices", "Versions"]
    assert len(page.images) == 3 * 4 + 1
    assert len(page.links) == len(headings) + 2  # contents, the skip link, and the link to the gate
    assert "no evaluation" not in page.text


def test_default_output_lies_in_the_run(tmp_path: Path) -> None:
    completed_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["events.jsonl", "report.html", "reports"]


def test_transfers_to_this_machine_are_shown_in_words(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    transfer = {"from": "site-a", "route": "to-driver", "bytes": 2**20, "files": 1, "seconds": 1.0}
    run.event(590, "transfer.ended", deployment="__LOCAL__", **transfer)
    assert main(["report", str(run.folder)]) == 0
    page = (run.folder / "report.html").read_text()
    assert "<td>this machine</td><td>to-driver" in page
    assert "__LOCAL__" not in page


def test_a_failed_run_says_what_failed_and_what_to_do(tmp_path: Path) -> None:
    failed_run(tmp_path / "run")
    assert main(["report", str(tmp_path / "run")]) == 0
    html = (tmp_path / "run" / "report.html").read_text()
    page = check(html)
    for text in (
        "First cause: preprocess on laptop: exit code 65, bad data.",
        "Last progress: case 3/22: case-0000000a",
        "positions <12.0> and <16.0> mm",
        "do: copy the series again",
        "This run has no evaluation: it ended before the report step.",
        "cancelled",
    ):
        assert text in page.text, text
    assert html.index("First cause") < html.index("Jobs by place and time</h2>")


def test_the_wait_in_a_queue_is_no_computing(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.job("/check/0", 1, 20)
    in_queue = {"slurm_job_id": "17", "queue_seconds": 7200.0, "num_nodes": 1}
    run.job("/train/0", 21, 7284, deployment="site-a", seconds=60.0, site=in_queue)
    run.end(7285)
    assert main(["report", str(run.folder)]) == 0
    text = check((run.folder / "report.html").read_text()).text
    assert "Waiting time, sum of all jobs2 h 00 min, of which 2 h 00 min in queues" in text
    assert "Computing time, sum of all jobs1 min 18 s" in text
    assert "site-a/gpu4completed+2 h 00 min2 h 00 min1 min 00 s" in text  # the row: started, waited, took


def test_a_run_without_end_says_so(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_text("".join(run.lines[:5]))
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "The event log has no end." in check((tmp_path / "run" / "report.html").read_text()).text


def test_an_interrupted_run_names_the_signal(tmp_path: Path) -> None:
    run = failed_run(tmp_path / "run")
    run.lines.pop()
    run.end(40, "cancelled", signal=2)
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "The run was cancelled by signal 2." in check((tmp_path / "run" / "report.html").read_text()).text


def test_a_run_of_inference_alone_lists_what_was_delivered(tmp_path: Path) -> None:
    completed_run(tmp_path / "run")
    cases = ({"case_id": "case-00000007", "num_lesions": 4, "lesion_volume_mm3": 512.5},)
    report = run_report("segment", cases=cases, notices=("a note of the step",))
    (tmp_path / "run" / "reports" / "segment.2" / "run_report.json").write_text(codec.dumps(report))
    assert main(["report", str(tmp_path / "run")]) == 0
    text = check((tmp_path / "run" / "report.html").read_text()).text
    assert "case-000000074512.5" in text  # the row: case, 4 lesions, 512.5 mm³
    assert "segment.2: a note of the step" in text
    assert "its workflow has no step that compares masks with a ground truth" in text


@pytest.mark.parametrize(
    ("file", "content"), [("summary.json", "{}"), ("summary.json", None), ("fragment.html", "<p>")]
)
def test_results_that_cannot_be_read_are_an_error(
    tmp_path: Path, fragment: Path, file: str, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = with_fragment(tmp_path / "run", fragment)
    path = folder / "reports" / "report" / "report" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    assert main(["report", str(folder)]) == 65
    assert not (folder / "report.html").exists()
    assert "medweave report:" in capsys.readouterr().err


def test_versions_that_differ_name_their_steps(tmp_path: Path) -> None:
    completed_run(tmp_path / "run")
    report = run_report("train", versions={"python": "3.12.1", "numpy": "2.0.0"})
    (tmp_path / "run" / "reports" / "train" / "run_report.json").write_text(codec.dumps(report))
    assert main(["report", str(tmp_path / "run")]) == 0
    text = check((tmp_path / "run" / "report.html").read_text()).text
    assert "3.11.7 (check, segment); 3.12.1 (train)" in text


def test_a_folder_that_is_no_run_ends_with_65(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 65
    text = capsys.readouterr().err
    assert "this folder is not a run" in text
    assert "do:" in text
    assert list(tmp_path.iterdir()) == []


def test_a_missing_run_is_an_error_with_the_closest_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    completed_run(tmp_path / "runs" / "lung-20260801-b167")
    monkeypatch.chdir(tmp_path)
    for named in ("lung-20260801-b167", "runs/lung-20260801-b176"):
        assert main(["report", named]) == 65
        assert "write 'runs/lung-20260801-b167' (closest match)" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_ends_with_74(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    completed_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "run"), "--output", str(tmp_path / "file" / "report.html")]) == 74
    assert "cannot write this file" in capsys.readouterr().err


def test_without_the_drivers_extra_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    completed_run(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", str(tmp_path / "run")]) == 69
    assert "pip install 'medweave[driver]'" in capsys.readouterr().err


def test_the_driver_needs_contracts_and_nothing_else_of_the_steps() -> None:
    code = (
        "import sys, medweave.cli, medweave.report; "
        "print(sorted(name for name in sys.modules if name.startswith(('medweave', 'streamflow', 'numpy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout
    assert "medweave_core.contracts" in modules
    for foreign in ("medweave_steps.runtime", "medweave_steps.io", "medweave_connectors", "streamflow", "numpy"):
        assert foreign not in modules
