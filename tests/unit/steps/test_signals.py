"""ECG recordings: WFDB records, R peaks, samples of five heartbeats, splits by recording, and what is refused."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medweave_core.contracts.volume import are_signals, ecg_channel, modality_of, unit_of
from medweave_steps.cli import main
from medweave_steps.io.cohort import signals
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.cohort.reference import REFERENCE_FILE
from medweave_steps.io.findings import FindingError, SeriesName
from medweave_steps.io.signals.beats import BEATS, SAMPLE, WINDOW, cut_beats, find_r_peaks, group_beats
from medweave_steps.io.signals.record import read_header, read_signal
from medweave_steps.phantom.ecg import RATE_HZ, RECORDINGS
from medweave_steps.phantom.patient import names_in_turn
from support.image_files import check, preprocess
from support.recordings import GAIN, ecg_cohort, recording, save_recording

NAME = SeriesName(case_id="A00001", ordinal=1, noun="recording")


# -- synthetic recordings -----------------------------------------------------------------------------------------


def test_the_whole_table_has_the_published_rhythms() -> None:
    assert sum(RECORDINGS.values()) == 8528
    assert Counter(names_in_turn(RECORDINGS, 8528)) == RECORDINGS
    few = Counter(names_in_turn(RECORDINGS, 100))
    assert all(abs(few[name] - 100 * count / 8528) <= 1 for name, count in RECORDINGS.items())


def test_fibrillation_is_irregular_and_a_normal_rhythm_is_not() -> None:
    variation = {}
    for rhythm in ("N", "A"):
        intervals = [np.diff(recording(rhythm, seed, 40.0).r_peaks) for seed in range(4)]
        variation[rhythm] = np.mean([np.std(one) / np.mean(one) for one in intervals])
    assert variation["A"] > 3 * variation["N"]


def test_phantom_writes_the_format_of_the_public_data_set(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ["--output", str(tmp_path / "ecg"), "--recordings", "4", "--run-report", str(report)]
    assert main(["phantom", "ecg", *words]) == 0
    folder = tmp_path / "ecg" / "training2017"
    rows = list(csv.reader((folder / REFERENCE_FILE).open()))
    assert [row[0] for row in rows] == [f"A{number:05d}" for number in range(1, 5)]
    assert json.loads(report.read_text())["results"]["recordings_by_class"] == dict(Counter(row[1] for row in rows)) | {
        name: 0 for name in RECORDINGS if name not in [row[1] for row in rows]
    }
    first, second = (folder / "A00001.hea").read_text().splitlines()
    assert first.split()[:3] == ["A00001", "1", "300"]
    assert second.split()[:3] == ["A00001.mat", "16+24", "1000(0)/mV"]
    for name, _ in rows:
        signal = read_signal(read_header(folder / f"{name}.hea", NAME), "ECG", NAME)
        assert 9 * RATE_HZ <= len(signal) <= 61 * RATE_HZ


# -- R peaks and samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rhythm", ["N", "A", "O"])
def test_r_peaks_are_within_one_sample_of_the_known_ones(rhythm: str) -> None:
    for seed in (3, 4):
        ecg = recording(rhythm, seed, 20.0)
        peaks = find_r_peaks(ecg.signal_mV)
        distance = np.abs(peaks[:, None] - ecg.r_peaks).min(axis=1)
        assert (distance <= 1).mean() >= 0.9
        beats = [beat for group in group_beats(peaks.tolist(), len(ecg.signal_mV)) for beat in group]
        assert np.abs(np.array(beats)[:, None] - ecg.r_peaks).min(axis=1).max() <= 1


def test_groups_of_five_beats_do_not_overlap_and_have_whole_windows() -> None:
    peaks = [129, 130, 400, 700, 1000, 1300, 1600, 1900, 2200, 2500, 2800, 2871]
    groups = group_beats(peaks, 3000)
    assert groups == [(130, 400, 700, 1000, 1300), (1600, 1900, 2200, 2500, 2800)]
    assert group_beats(peaks[:5], 3000) == []
    assert (BEATS, WINDOW, SAMPLE) == (5, 260, 1300)
    sample = cut_beats(np.arange(3000.0), groups[0])
    assert sample.shape == (1300,)
    assert sample[::260].tolist() == [peak - 130 for peak in groups[0]]
    assert sample[130::260].tolist() == list(groups[0])


def test_a_flat_or_short_signal_has_no_beats() -> None:
    assert find_r_peaks(np.zeros(3000)).tolist() == []
    assert find_r_peaks(np.arange(100.0)).tolist() == []


def test_a_recording_of_another_rate_is_resampled(tmp_path: Path) -> None:
    ecg = recording("N", 5)
    save_recording(tmp_path, "A00001", ecg.signal_mV[::2], rate_hz=150)
    signal = read_signal(read_header(tmp_path / "A00001.hea", NAME), "ECG", NAME)
    assert abs(len(signal) - len(ecg.signal_mV)) <= 1
    near = slice(300, 2400)
    assert np.corrcoef(signal[near], ecg.signal_mV[near])[0, 1] > 0.99


def test_channels_of_an_ecg_have_their_lead_and_millivolts() -> None:
    assert [ecg_channel(name) for name in ("ECG", "II", "ECG-V5", "aVR", "Resp", "")] == [
        "ECG", "ECG II", "ECG V5", "ECG aVR", "", "ECG",
    ]  # fmt: skip
    assert (modality_of(("ECG II",)), unit_of(("ECG",)), are_signals(("CT",))) == ("ECG", "mV", False)


# -- check and preprocess -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    labels = {f"A{number:05d}": rhythm for number, rhythm in enumerate("NNNNAAAAOOOO", start=1)}
    cohort = ecg_cohort(tmp_path_factory.mktemp("signals") / "cohort", labels, seconds=12.0)
    (cohort / "splits.json").write_text(json.dumps({"test": ["A00002", "A00006", "A00010"]}))
    (cohort / "cohort_card.json").write_text(json.dumps({"synthetic": True}))
    code, output, results = preprocess(cohort, "--cases-per-batch", "3")
    assert code == 0
    assert results["channels"] == ["ECG"]
    return cohort, output


def test_a_batch_has_whole_recordings(prepared: tuple[Path, Path]) -> None:
    folders = sorted((prepared[1] / "inference_batches").iterdir())
    recordings = [
        {signals.recording_of(case.case.case_id) for case in open_prepared(folder).cases()} for folder in folders
    ]
    assert len(folders) > 1
    assert [name for batch in recordings for name in sorted(batch)] == ["A00002", "A00006", "A00010"]


def test_samples_are_windows_of_their_recording_in_millivolts(prepared: tuple[Path, Path]) -> None:
    cohort, output = prepared
    index = check(cohort)[2]
    assert index is not None
    entries = {entry.case_id: entry for entry in index.cases}
    training_set = open_prepared(output / "training_set")
    assert training_set.cohort.channels == ("ECG",)
    cases = training_set.cases()
    assert len(cases) > 12
    for case in cases:
        entry = entries[case.case.case_id]
        volume = case.volume_CIJK()
        assert (volume.shape, volume.dtype, case.info().unit) == ((1, 1300, 1, 1), np.float32, "mV")
        signal = read_signal(read_header(cohort / entry.files[0], NAME), "ECG", NAME)
        for place, peak in enumerate(entry.beats):
            window = volume[0, 260 * place : 260 * (place + 1), 0, 0]
            np.testing.assert_allclose(window, signal[peak - 130 : peak + 130], atol=1e-6)


def test_a_recording_is_in_one_split_and_its_label_is_that_of_its_samples(prepared: tuple[Path, Path]) -> None:
    cohort, output = prepared
    labels = dict(csv.reader((cohort / REFERENCE_FILE).open()))
    splits, beats = defaultdict(set), defaultdict(list)
    batches = [open_prepared(folder) for folder in sorted((output / "inference_batches").iterdir())]
    cases = [case for folder in (open_prepared(output / "training_set"), *batches) for case in folder.cases()]
    for case in cases:
        record, _, number = case.case.case_id.rpartition("-w")
        assert case.case.classes == (labels[record],)
        splits[record].add(case.case.split)
        beats[record].append(int(number))
    assert set(splits) == set(labels)
    assert all(len(of_recording) == 1 for of_recording in splits.values())
    assert splits["A00002"] == {"test"}
    assert {next(iter(one)) for one in splits.values()} == {"train", "validation", "test"}
    assert all(sorted(numbers) == list(range(len(numbers))) for numbers in beats.values())


def test_each_recording_is_read_once(
    prepared: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cohort, _ = prepared
    reads = Counter[str]()

    def counted(header: Any, channel: str, name: SeriesName) -> Any:
        reads[header.record.record_name] += 1
        return read_signal(header, channel, name)

    monkeypatch.setattr(signals, "read_signal", counted)
    index = cohort.parent / "cohort-out" / "cohort_index.json"
    words = ["--cohort", str(cohort), "--cohort-index", str(index), "--output", str(tmp_path / "prepared")]
    report = tmp_path / "report.json"
    options = ["--purpose", "inference", "--num-threads", "1", "--run-report", str(report)]
    assert main(["preprocess", *words, *options]) == 0
    samples = len(json.loads(report.read_text())["cases"])
    assert dict(reads) == {f"A{number:05d}": 1 for number in range(1, 13)}
    assert samples > 12


def test_a_recording_that_changed_after_the_check_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort = ecg_cohort(tmp_path / "cohort", {"A1": "N", "A2": "N", "A3": "N"})
    assert check(cohort)[0] == 0
    save_recording(cohort, "A1", recording("N", 9).signal_mV)
    out = tmp_path / "cohort-out"
    words = [
        "--cohort",
        str(cohort),
        "--cohort-index",
        str(out / "cohort_index.json"),
        "--output",
        str(out / "prepared"),
    ]
    code = main(["preprocess", *words, "--purpose", "inference"])
    assert code in (0, 65)
    assert "the cohort has changed since `check` ran" in capsys.readouterr().err


# -- records that are refused -------------------------------------------------------------------------------------


def change_header(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "A00001.hea"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return change


def cut_data(folder: Path) -> None:
    path = folder / "A00001.mat"
    path.write_bytes(path.read_bytes()[:-200])


def remove_data(folder: Path) -> None:
    (folder / "A00001.mat").unlink()


def change_first_value(folder: Path) -> None:
    path = folder / "A00001.mat"
    data = bytearray(path.read_bytes())
    data[24] ^= 1
    path.write_bytes(bytes(data))


def change_last_value(folder: Path) -> None:
    path = folder / "A00001.mat"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))


def lose_samples(folder: Path) -> None:
    digital = np.rint(recording().signal_mV * GAIN).astype(np.int16) / GAIN
    digital[100:103] = -32.768
    save_recording(folder, "A00001", digital)


@pytest.mark.parametrize(
    ("change", "code", "seen"),
    [
        (cut_data, "header-and-data", "a data file of"),
        (remove_data, "header-and-data", "no data file"),
        (change_first_value, "header-and-data", "a first value of"),
        (change_last_value, "header-and-data", "checksum"),
        (change_header(" 300 2700", " 300 2600"), "header-and-data", "a data file of"),
        (change_header("/mV", "/mmHg"), "signal-unit", "unit 'mmHg'"),
        (change_header(" 300 ", " 50 "), "sampling-rate", "50 Hz"),
        (change_header("A00001.mat", "../A00001.mat"), "bad-header", "not a header of one segment"),
        (change_header("A00001.mat", "~"), "bad-header", "no data file in the folder of the header"),
        (change_header("A00001 1 300", "A00001 2 300"), "bad-header", "2 signals, and lines that describe 1 of them"),
        (change_header(" ECG", " Resp"), "missing-lead", "another signal"),
        (lose_samples, "missing-samples", "3 of 2700 samples"),
    ],
)
def test_a_record_that_cannot_be_read_is_refused(
    tmp_path: Path, change: Callable[[Path], None], code: str, seen: str
) -> None:
    save_recording(tmp_path, "A00001", recording().signal_mV)
    change(tmp_path)
    with pytest.raises(FindingError) as caught:
        read_signal(read_header(tmp_path / "A00001.hea", NAME), "ECG", NAME)
    assert caught.value.finding.code == code
    assert caught.value.finding.case_id == "A00001"
    assert seen in caught.value.finding.seen


# -- cohorts that are refused -------------------------------------------------------------------------------------


def short_recording(folder: Path) -> None:
    save_recording(folder, "A3", recording("N", 3).signal_mV[:900])


def another_lead(folder: Path) -> None:
    save_recording(folder, "A3", recording("N", 3).signal_mV, lead="V5")


def unknown_label(folder: Path) -> None:
    (folder / REFERENCE_FILE).write_text("A1,N\nA2,A\nA3,Q\n")


def record_without_label(folder: Path) -> None:
    (folder / REFERENCE_FILE).write_text("A1,N\nA2,A\n")


def label_without_record(folder: Path) -> None:
    (folder / REFERENCE_FILE).write_text("A1,N\nA2,A\nA3,N\nA9,N\n")


def two_labels(folder: Path) -> None:
    (folder / REFERENCE_FILE).write_text("A1,N\nA2,A\nA3,N\nA3,A\n")


def data_without_header(folder: Path) -> None:
    (folder / "A3.hea").unlink()
    (folder / REFERENCE_FILE).write_text("A1,N\nA2,A\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (short_recording, "fewer than 5 heartbeats were found"),
        (another_lead, "the recording has no leads ECG"),
        (unknown_label, "1 rows of the table of references (REFERENCE.csv) have an unknown label"),
        (record_without_label, "1 of 3 recordings have no row in the table of references"),
        (label_without_record, "1 rows of the table of references (REFERENCE.csv) do not name one recording"),
        (two_labels, "1 rows of the table of references (REFERENCE.csv) give a recording a second label"),
        (data_without_header, "1 data files have no header (.hea)"),
    ],
)
def test_a_cohort_with_an_error_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Callable[[Path], None], message: str
) -> None:
    cohort = ecg_cohort(tmp_path / "cohort", {"A1": "N", "A2": "A", "A3": "N"})
    change(cohort)
    code, _, index = check(cohort)
    assert (code, index) == (65, None)
    error = capsys.readouterr().err
    assert message in error
    assert "only one class" not in error


def test_recordings_of_one_class_are_reported_by_check_and_refused_by_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cohort = ecg_cohort(tmp_path / "cohort", {f"A{number}": "N" for number in range(3)})
    code, output, _ = preprocess(cohort)
    assert code == 0
    assert "the selected recordings have only one class" in capsys.readouterr().err
    words = ["--training-set", str(output / "training_set"), "--output", str(tmp_path / "model")]
    words += ["--task", "classification", "--network", "ecg-resnet", "--steps", "1", "--num-threads", "1"]
    assert main(["train", *words, "--run-report", str(tmp_path / "report.json")]) == 65
    error = capsys.readouterr().err
    assert "the training set has too few classes for a classification" in error
    assert "1 classes in cohort.json: N" in error
    assert not (tmp_path / "model").exists()


def test_recordings_with_errors_can_be_skipped(tmp_path: Path) -> None:
    cohort = ecg_cohort(tmp_path / "cohort", {"A1": "N", "A2": "A", "A3": "N"})
    short_recording(cohort)
    (cohort / "A9.mat").write_bytes(b"")
    exit_code, _, index = check(cohort, "--on-error", "skip")
    assert (exit_code, index is not None and len({entry.patient_key for entry in index.cases})) == (0, 2)


def test_several_leads_need_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cohort = tmp_path / "cohort"
    first, second = recording("N", 1), recording("N", 2)
    digital = np.stack([np.rint(one.signal_mV * GAIN) for one in (first, second)], axis=1).astype("<i2")
    cohort.mkdir()
    (cohort / "rec.dat").write_bytes(digital.tobytes())
    lines = [f"rec.dat 16 1000(0)/mV 16 0 {digital[0, place]} 0 0 {lead}" for place, lead in enumerate(("II", "V5"))]
    (cohort / "rec.hea").write_text("\n".join([f"rec 2 300 {len(digital)}", *lines, "# Jane Doe"]) + "\n")
    assert check(cohort)[0] == 65
    assert "name the lead with --channels" in capsys.readouterr().err
    (tmp_path / "lead.json").write_text(json.dumps([{"name": "V5"}]))
    code, _, index = check(cohort, "--channels", str(tmp_path / "lead.json"))
    assert code == 0
    assert index is not None
    assert index.channels == ("ECG V5",)
    known = np.array([beat for entry in index.cases for beat in entry.beats])
    assert np.abs(known[:, None] - second.r_peaks).min(axis=1).max() <= 1
    assert "Jane" not in capsys.readouterr().err


# -- de-identification --------------------------------------------------------------------------------------------


def test_deidentified_recordings_keep_their_values_and_labels_and_lose_names_and_comments(tmp_path: Path) -> None:
    cohort = ecg_cohort(tmp_path / "cohort", {"Doe1": "N", "Doe2": "A"})
    header = cohort / "Doe1.hea"
    header.write_text(header.read_text() + "# Jane Doe, 1950-01-01\n")
    classes = [{"name": "N"}, {"name": "A"}, {"name": "~", "is_scored": False}]
    (cohort / "cohort_card.json").write_text(json.dumps({"classes": classes}))
    output = tmp_path / "out"
    words = ["--cohort", str(cohort), "--output", str(output / "cohort"), "--home", str(output / "home")]
    assert main(["deidentify", *words, "--run-report", str(output / "report.json")]) == 0
    files = [path for path in sorted((output / "cohort").rglob("*")) if path.is_file()]
    assert not any(b"Doe" in path.read_bytes() or "Doe" in path.name for path in files)
    card = json.loads((output / "cohort" / "cohort_card.json").read_text())
    assert [one["name"] for one in card["classes"] if not one.get("is_scored", True)] == ["~"]
    (table,) = [path for path in files if path.name == REFERENCE_FILE]
    labels = dict(csv.reader(table.open()))
    values = {}
    for folder, names in ((cohort, {"Doe1": "N", "Doe2": "A"}), (table.parent, labels)):
        for name, label in names.items():
            signal = read_signal(read_header(folder / f"{name}.hea", NAME), "ECG", NAME)
            np.testing.assert_array_equal(values.setdefault(label, signal), signal)
    assert set(values) == {"N", "A"}
