"""The estimate of energy and CO2e, by hand and on a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave.report.energy import Model, energy_wh, gpu_wh, spelled_co2e, total
from medweave_core.contracts.energy import spelled
from medweave_core.runlog.jobs import Job
from support.recorded import Recorder, completed_run
from support.reported import run_report

DEPLOYMENTS = {"laptop": "medweave.local", "site-a": "medweave.slurm"}


def job(**changes: object) -> Job:
    fields = {
        "name": "/train/0", "step": "/train", "attempt": 1, "deployment": "site-a", "service": "gpu4", "location": "n1",
        "scheduled_s": 0.0, "seconds": 3600.0, "cpu_seconds": 7200.0, "requested": {"memory_mib": 4e9 / 2**20},
    }  # fmt: skip
    return Job(**(fields | changes))  # type: ignore[arg-type]


def test_the_formula_of_green_algorithms() -> None:
    # Two cores for an hour, 4 GB: (2 × 12 W + 4 × 0.3725 W) × 1.67 h
    assert energy_wh(job(), DEPLOYMENTS, Model()) == pytest.approx((24 + 1.49) * 1.67)
    assert energy_wh(job(), DEPLOYMENTS, Model(pue=1.2)) == pytest.approx((24 + 1.49) * 1.2)
    assert Model(co2e_g_per_kwh=60).co2e_g(500) == pytest.approx(30)


def test_this_machine_has_no_data_center() -> None:
    assert energy_wh(job(deployment="laptop"), DEPLOYMENTS, Model()) == pytest.approx(25.49)


def test_each_node_of_a_job_has_its_memory() -> None:
    assert energy_wh(job(location="n1,n2,n3"), DEPLOYMENTS, Model(pue=1)) == pytest.approx(24 + 3 * 1.49)


def test_unknown_energy_is_not_guessed_and_a_cache_hit_takes_none() -> None:
    assert energy_wh(job(cpu_seconds=None), DEPLOYMENTS, Model()) is None
    assert energy_wh(job(reused_from="run-1", cpu_seconds=None), DEPLOYMENTS, Model()) == 0
    assert total([1.5, None, 2.5, 0.0]) == (4.0, 1)


@pytest.mark.parametrize(
    ("wh", "text"), [(0, "0 Wh"), (0.0312, "0.031 Wh"), (3.14, "3.1 Wh"), (42.4, "42 Wh"), (1234, "1.2 kWh")]
)
def test_energy_as_people_read_it(wh: float, text: str) -> None:
    assert spelled(wh) == text
    assert spelled_co2e(wh) == text.replace("kWh", "kg").replace("Wh", "g")


def test_the_report_names_sum_method_and_what_is_missing(tmp_path: Path) -> None:
    run = completed_run(tmp_path / "run")
    words = ["report", str(run.folder)]
    assert main(words) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Green Algorithms (doi 10.1002/advs.202100707)" in page
    assert "475 g CO2e per kWh" in page
    assert "without" not in page.partition("<dt>Energy</dt>")[2].partition("</dd>")[0]
    assert main([*words, "--carbon-intensity", "56", "--pue", "1.1"]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "PUE of the data center (1.1;" in page
    assert "56 g CO2e per kWh" in page
    lost = Recorder(tmp_path / "lost")
    lost.job("/check/0", 1, 20)
    lost.job("/train/0", 21, 40, deployment="site-a", cpu_seconds=None)
    lost.end(50)
    assert main(["report", str(lost.folder)]) == 0
    assert "without 1 job of unknown processor time" in (tmp_path / "lost" / "report.html").read_text()


def test_measured_energy_of_a_training_is_shown_next_to_the_estimate(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    for name, each_wh, missing in (("/train/0", [0.5, 1.0], []), ("/train-distributed/0", [None], ["no counter"])):
        run.job(name, 1, 20)
        energy = {"each_wh": each_wh, "counters": {"RAPL of a processor package": 1}, "missing": missing}
        run.report(20, name, "laptop", results={"training": {"energy": energy}})
    run.end(50)
    assert main(["report", str(run.folder)]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "estimated</dd>" in page.partition("<dt>Energy</dt>")[2]
    assert (
        "<dt>Energy of train</dt><dd>1.5 Wh, 0.75 Wh per epoch, measured by RAPL of a processor package (1) for the whole machine"
        in page
    )
    assert "<dt>Energy of train-distributed</dt><dd>not measured: no counter</dd>" in page


def components(**wh_of: float) -> dict[str, object]:
    """Return the energy block of a training."""
    parts = [
        {"component": name, "kind": "measured", "source": "NVML", "wh": wh, "covered_share": 1.0}
        for name, wh in wh_of.items()
    ]
    return {"each_wh": [], "counters": {}, "missing": [], "components": parts}


def test_measured_energy_of_gpus_enters_the_estimate_and_its_co2e() -> None:
    # Of a training and of its folds; not the parent's that prune passes on, nor that of another version.
    trained = run_report("train", results={"training": {"energy": components(gpu=100.0, processor=7.0)}})
    folds = run_report("train", results={"fold_energies": [components(gpu=1.0), components(gpu=2.0), components()]})
    assert gpu_wh(job(report=trained)) == 100
    assert gpu_wh(job(report=folds)) == 3
    assert energy_wh(job(report=trained), DEPLOYMENTS, Model()) == pytest.approx((24 + 1.49 + 100) * 1.67)
    for report in (
        run_report("prune", results=dict(trained.results)),
        run_report("train", results={"training": {"energy": components(memory=1.0)}}),
        run_report("train", results={"training": {"energy": {"from": "another version"}}}),
    ):
        assert gpu_wh(job(report=report)) is None
        assert energy_wh(job(report=report), DEPLOYMENTS, Model(pue=1)) == pytest.approx(25.49)
    assert energy_wh(job(report=trained, reused_from="run-1"), DEPLOYMENTS, Model()) == 0


def test_the_report_names_the_energy_of_gpus(tmp_path: Path) -> None:
    run = Recorder(tmp_path / "run")
    run.job("/train/0", 1, 20)
    run.report(20, "/train/0", "laptop", results={"training": {"energy": components(gpu=1000.0)}})
    run.end(50)
    assert main(["report", str(run.folder)]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    energy = page.partition("<dt>Energy</dt>")[2].partition("</dd>")[0]
    assert "about 1.0 kWh, 475 g CO2e, estimated, with 1.0 kWh measured on GPUs" in energy


@pytest.mark.parametrize("value", ["0", "-3", "nan", "inf", "much"])
def test_a_wrong_number_is_an_error(tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path), f"--pue={value}"])
    assert ended.value.code == 2
    assert f"argument --pue: {value!r} is not a number above 0" in capsys.readouterr().err
