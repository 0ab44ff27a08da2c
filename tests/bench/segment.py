"""From a 512 x 512 x 300 CT series to its DICOM SEG: medweave against MONAI, eager torch and highdicom, with the same weights.

Both sides are processes that have imported their libraries and loaded the network before the clock starts, and take turns.
Ours is called as library functions, `preprocess.case.prepare_case` and `segment.command.segment_case`: it reads the series,
searches the lungs, writes the prepared case, predicts, goes back, and writes NIfTI, DICOM SEG, DICOM SR and table. The
reference (`reference_pipeline.py`) gets grid and crop for nothing and writes the DICOM SEG only; its allocator is tuned, ours is
as any user's. Both masks are compared after each pair.

    python tests/bench/segment.py [--model DIR] [--pairs 7] [--syntaxes explicit jpeg2000]

Without --model it takes the one that `make demo` accepted; if there is none, a small network is trained for it (minutes, once).
Both sides compute in float32, also where the gate accepted int8.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import harness
import reference_pipeline

DATA = harness.ROOT / "build" / "bench" / "data"
NUM_SLICES, SEED = 300, 20
BARS = {"explicit": 4.0, "jpeg2000": 3.0}
NAMES = {"explicit": "segment-uncompressed", "jpeg2000": "segment-jpeg2000"}


class Worker:
    """A process that answers requests, one JSON line each."""

    def __init__(self, script: str, arguments: list[str], environment: Mapping[str, str]) -> None:
        path = Path(__file__).with_name(script)
        command = [sys.executable, str(path), *arguments]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.ready = self.answer()["ready"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the next line of the answer."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a benchmark process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def step(*words: str | Path) -> None:
    """Run a verb with its progress on the terminal."""
    subprocess.run([sys.executable, "-m", "medweave_steps", *map(str, words)], check=True, cwd=DATA)


def make_series(num_cases: int, syntax: str) -> Path:
    """Write a cohort of phantoms of 512 x 512 x 300 voxels, 0.7 x 0.7 x 1.0 mm, once; return its folder."""
    from medweave_core.contracts import codec
    from medweave_core.contracts.labels import PRESETS

    cohort = DATA / f"scans-{syntax}-{num_cases}"
    if not cohort.is_dir():
        aside = cohort.with_suffix(".partial")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        if syntax == "explicit":
            _draw(aside, num_cases)
        else:
            _compress(make_series(num_cases, "explicit"), aside)
        card = {
            "synthetic": True,
            "generator": "tests/bench/segment.py",
            "labels": codec.to_json(PRESETS["lung-nodule"]),
        }
        (aside / "cohort_card.json").write_text(json.dumps(card))
        aside.rename(cohort)
    index = cohort.with_suffix(".json")
    if not index.is_file():
        step("check", "--cohort", cohort, "--output", index)
    return cohort


def _draw(folder: Path, num_cases: int) -> None:
    from medweave_steps.phantom.chest import ChestSpec, generate_chest
    from medweave_steps.phantom.dicom_writer import write_patient
    from medweave_steps.phantom.patient import Patient

    for ordinal in range(1, num_cases + 1):
        harness.say("segment", f"making series {ordinal}/{num_cases}")
        patient = Patient(seed=SEED, ordinal=ordinal, held_out=False)
        spec = ChestSpec(
            seed=patient.chest_seed,
            num_slices=NUM_SLICES,
            in_plane_spacing_mm=(0.7, 0.7),
            slice_spacing_mm=(1.0, 1.0),
            num_nodules=(5, 6),
        )
        write_patient(folder, patient, generate_chest(spec), "explicit")


def _compress(source: Path, folder: Path) -> None:
    import pydicom

    harness.say("segment", "compressing the series (JPEG 2000 lossless)")
    for file in sorted(source.rglob("*.dcm")):
        dataset = pydicom.dcmread(file)
        if dataset.Modality == "CT":
            dataset.compress(pydicom.uid.JPEG2000Lossless, generate_instance_uid=False)
        target = folder / file.relative_to(source)
        target.parent.mkdir(exist_ok=True)
        dataset.save_as(target, enforce_file_format=True)


def find_model() -> Path:
    """Return the demo's model, or one that finds nodules well enough for masks of real size: few cases, few steps; made once."""
    accepted = harness.ROOT / "build" / "demo" / "output" / "accepted_model"
    if accepted.is_dir():
        return accepted
    model = DATA / "model"
    if not model.is_dir():
        step("phantom", "lung", "--output", "small", "--cases", "10", "--grid", "demo", "--seed", "3")
        step("check", "--cohort", "small", "--output", "small.json")
        step("preprocess", "--cohort", "small", "--cohort-index", "small.json", "--output", "small-prepared")
        step("train", "--training-set", "small-prepared/training_set", "--output", "trained", "--steps", "300")
        step("export", "--trained-model", "trained", "--output", model)
    return model


class Ours:
    """Our side of the comparison, with its network compiled."""

    def __init__(self, model: Path, num_threads: int) -> None:
        import highdicom  # noqa: F401 the reference has imported it too
        import nibabel  # noqa: F401
        import scipy.ndimage  # noqa: F401

        from medweave_steps.inference.engine import open_engine
        from medweave_steps.io.model.folder import card_sha256, read_card
        from medweave_steps.runtime import environment
        from medweave_steps.segment.ensemble import SegmentationModel

        environment.limit_threads(num_threads)
        self.card = dataclasses.replace(read_card(model), precision="float32")
        self.num_threads = num_threads
        self.model = SegmentationModel(
            folders=(model,), cards=(self.card,), card=self.card, sha256=card_sha256(self.card)
        )
        self.engine = open_engine(model, self.card, num_threads=num_threads)

    def run(self, cohort: Path, case_id: str, output: Path) -> dict[str, float]:
        """Segment a series; return the seconds of each stage."""
        from medweave_core.contracts.cohort import PreparedCase
        from medweave_steps.io.cohort.prepared import CaseFolder, read_index
        from medweave_steps.preprocess.case import CaseJob, prepare_case
        from medweave_steps.preprocess.config import CaseSettings
        from medweave_steps.runtime.write import atomic_directory
        from medweave_steps.segment.command import segment_case

        entry = next(one for one in read_index(cohort.with_suffix(".json")).cases if one.case_id == case_id)
        wanted = self.card.input
        settings = CaseSettings(
            spacing_mm=wanted.spacing_mm, window_hu=wanted.window_hu, crop=wanted.crop, margin_mm=10.0
        )
        shutil.rmtree(output, ignore_errors=True)
        prepared = output / "prepared"
        prepared.mkdir(parents=True)
        started = time.perf_counter()
        job = CaseJob(
            cohort=cohort,
            entry=entry,
            settings=settings,
            folder=prepared,
            values=None,
            for_segment=True,
            keep_all_lesions=False,
            num_workers=self.num_threads,
        )
        done = prepare_case(job)
        prepared_s = time.perf_counter() - started
        case = PreparedCase(
            case_id=case_id, patient_key="", split="test", has_label=False, num_lesions=0, num_label_voxels=0
        )
        folder = CaseFolder(case=case, folder=prepared)
        # As the verb does: complete or absent, flushed to the disk (the reference does not wait for the disk).
        with atomic_directory(output / "results") as results:
            _, seconds = segment_case(results, folder, folder.info(), [self.engine], self.model)
        total = time.perf_counter() - started
        assert done.case_id == case_id
        flush_s = total - prepared_s - sum(seconds.values())
        return {"read and resample": prepared_s, **seconds, "flush to disk": flush_s, "total": total}

    def network_alone(self, output: Path) -> float:
        """Return the seconds of the sliding window over the case just prepared, with no other work."""
        import numpy as np

        from medweave_steps.inference.windows import predict_probability

        volume = np.load(output / "prepared" / "volume.npy")
        started = time.perf_counter()
        predict_probability(self.engine, volume[None], self.card)
        return time.perf_counter() - started

    def decode(self, cohort: Path, case_id: str) -> dict[str, float]:
        """Return the seconds to read and decode all slices, and how many of them the network's grid needs."""
        from medweave_steps.io.cohort.prepared import read_index
        from medweave_steps.io.cohort.source import open_source
        from medweave_steps.preprocess.resample import needed_planes, plan_resampling

        entry = next(one for one in read_index(cohort.with_suffix(".json")).cases if one.case_id == case_id)
        started = time.perf_counter()
        source = open_source(cohort, entry)
        for _ in source.planes(num_workers=self.num_threads):
            pass
        seconds = time.perf_counter() - started
        plan = plan_resampling(source.grid, self.card.input.spacing_mm)
        return {"decode": seconds, "needed_slices": len(needed_planes(plan, source.plane_axis))}


def serve(model: Path, num_threads: int) -> None:
    """Answer requests for our side."""
    ours = Ours(model, num_threads)
    print(json.dumps({"ready": "medweave"}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        cohort = Path(request["cohort"])
        if "output" in request:
            output = Path(request["output"])
            answer = ours.run(cohort, request["case_id"], output) | {"network alone": ours.network_alone(output)}
        else:
            answer = ours.decode(cohort, request["case_id"])
        print(json.dumps(answer), flush=True)


def compare(ours: Path, reference: Path) -> dict[str, Any]:
    """Return the Dice between both masks, and the lesions that are in only one of them."""
    import numpy as np
    import pydicom

    from medweave_steps.metrics.lesions import match_lesions
    from medweave_steps.metrics.overlap import dice

    mask = pydicom.dcmread(ours / "results" / "lesion_mask.dcm").pixel_array.astype(bool)
    other = np.unpackbits(np.load(reference / "mask.npy"), count=mask.size).reshape(mask.shape).astype(bool)
    match = match_lesions(mask, other, spacing_mm=(1.0, 1.0, 1.0), plane_axis=0)
    return {
        "dice": round(dice(mask, other), 6),
        "lesions": match.num_predicted,
        "lesions_of_reference": len(match.reference_hit),
        "lesions_gained": match.num_false_positives,
        "lesions_lost": match.reference_hit.count(False),
        "differing_voxels": int((mask != other).sum()),
    }


def run_syntax(syntax: str, cohort: Path, ours: Worker, reference: Worker, pairs: int) -> dict[str, Any]:
    """Measure the pairs of one transfer syntax, each on the next series of the cohort."""
    from medweave_steps.io.cohort.prepared import read_index

    index = read_index(cohort.with_suffix(".json"))
    series = {case.case_id: cohort / Path(case.files[0]).parent for case in index.cases}
    cases = list(series)
    grid = f"512 x 512 x {NUM_SLICES}"
    notes: dict[str, Any] = {"grid": grid, "transfer_syntax": syntax, "called_as": "library functions"}
    stages: dict[str, list[dict[str, float]]] = {"ours": [], "reference": []}
    turn = {"ours": -1, "reference": -1}

    def next_case(side: str) -> str:
        turn[side] += 1
        return cases[max(turn[side] - 1, 0) % len(cases)]  # the warm-up and the first pair take the same series

    def mine() -> float:
        case_id = next_case("ours")
        seconds = ours.ask(cohort=str(cohort), case_id=case_id, output=str(DATA / "ours" / case_id))
        return finished("ours", case_id, seconds)

    def theirs() -> float:
        case_id = next_case("reference")
        info = DATA / "ours" / case_id / "prepared" / "volume_info.json"
        if not info.is_file():  # grid and crop are ours to give
            ours.ask(cohort=str(cohort), case_id=case_id, output=str(DATA / "ours" / case_id))
        output = DATA / "reference" / case_id
        seconds = reference.ask(series=str(series[case_id]), info=str(info), output=str(output))
        return finished("reference", case_id, seconds)

    def finished(side: str, case_id: str, seconds: dict[str, float]) -> float:
        if turn[side] > 0:
            stages[side].append(seconds)
        harness.say("segment", f"{side} {case_id}: " + ", ".join(f"{k} {v:.2f} s" for k, v in seconds.items()))
        if turn["ours"] == turn["reference"]:
            agreement = compare(DATA / "ours" / case_id, DATA / "reference" / case_id)
            notes.setdefault("agreement", {})[case_id] = agreement
            harness.say("segment", f"agreement {case_id}: {agreement}")
        if stages["ours"] and stages["reference"]:
            summarise(notes, stages)
        return seconds["total"]

    for _ in range(2):  # the first time the decoders start and the files are read from the disk
        floor = [ours.ask(cohort=str(cohort), case_id=case) for case in cases]
    notes["reading_and_decoding_floor_s"] = round(statistics.median(one["decode"] for one in floor), 3)
    # Our side leaves out slices that lie between the new ones; the reference reads all.
    notes["slices_read_by_ours"] = int(statistics.median(one["needed_slices"] for one in floor))
    return harness.run_pairs(
        NAMES[syntax],
        mine,
        theirs,
        reference_tool=f"{reference.ready}, allocator tuned",
        pairs=pairs,
        bar=BARS[syntax],
        notes=notes,
    )


def summarise(notes: dict[str, Any], stages: Mapping[str, list[dict[str, float]]]) -> None:
    """Add to the notes: medians per stage, the network alone, and whether the masks agree."""
    for side, runs in stages.items():
        notes[f"stages_{side}_s"] = {k: round(statistics.median(run[k] for run in runs), 3) for k in runs[0]}
    both = list(zip(stages["ours"], stages["reference"], strict=False))
    notes["network_alone_ratio"] = round(statistics.median(b["network"] / a["network alone"] for a, b in both), 3)
    agreements = notes.get("agreement", {}).values()
    notes["dice_min"] = min((one["dice"] for one in agreements), default=None)
    notes["masks_agree"] = all(
        one["dice"] >= 0.999 and one["lesions_gained"] == one["lesions_lost"] == 0 and one["lesions"]
        for one in agreements
    )


def measure_memory(cohort: Path, model: Path, num_threads: int) -> None:
    """Measure the peak memory of `preprocess` and `segment`, run separately as by a user."""
    output = DATA / "memory"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir()
    common = ["--num-threads", str(num_threads), "--run-report", str(output / "report.json")]
    verbs = {
        "preprocess": [
            "--cohort", cohort, "--cohort-index", cohort.with_suffix(".json"), "--purpose", "inference",
            "--segmentation-model", model, "--output", output / "prepared",
        ],
        "segment": [
            "--segmentation-model", model, "--case-batch", output / "prepared/inference_batches/batch-000",
            "--output", output / "segmentations",
        ],
    }  # fmt: skip
    peaks = {}
    for verb, words in verbs.items():
        child = harness.run_measuring_memory([sys.executable, "-m", "medweave_steps", verb, *map(str, words), *common])
        if child.exit_code:
            raise SystemExit(f"{verb} ended with {child.exit_code}")
        peaks[verb] = round(child.peak_memory_mib)
    harness.single_figure("segment-memory", max(peaks.values()), unit="MiB", bar=6144, notes={"peak_mib": peaks})


def main() -> None:
    """Run the benchmark, or one of its processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="exported or accepted model folder")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--cases", type=int, default=2, help="different series, taken in turn")
    parser.add_argument("--syntaxes", nargs="+", default=list(BARS), choices=list(BARS))
    parser.add_argument("--num-threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.model, options.num_threads)
        return
    DATA.mkdir(parents=True, exist_ok=True)
    model = (options.model or find_model()).resolve()
    cohorts = {syntax: make_series(options.cases, syntax) for syntax in options.syntaxes}
    arguments = ["--model", str(model), "--num-threads", str(options.num_threads)]
    ours = Worker("segment.py", ["--serve", *arguments], {})
    reference = Worker("reference_pipeline.py", arguments, reference_pipeline.ALLOCATOR)
    try:
        results = [run_syntax(syntax, cohort, ours, reference, options.pairs) for syntax, cohort in cohorts.items()]
    finally:
        ours.close()
        reference.close()
    measure_memory(next(iter(cohorts.values())), model, options.num_threads)
    for result in results:
        notes = result["notes"]
        harness.say(
            result["name"], f"network alone {notes['network_alone_ratio']}; masks agree: {notes['masks_agree']}"
        )
    if not all(result["notes"]["masks_agree"] for result in results):
        raise SystemExit("the masks do not agree: the figures above compare different work")


if __name__ == "__main__":
    main()
