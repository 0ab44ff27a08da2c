"""`make hybrid`: the lung pipeline over a real Slurm, a real COMPSs release and real pods, and the same on the laptop alone.

    make hybrid [STEPS=N] [COMPSS_HOME=/path/of/an/installation]

`make` brings the testbed up before. Everything runs as the laptop's user behind the laptop's walls; what the sites themselves
answer (sacct, the API server) is stored in build/hybrid/evidence/, and build/hybrid/summary.json is made from it. With COMPSS_HOME,
PyCOMPSs spreads train-distributed over the release's pods; without it, torch.distributed does.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import summary
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deployments" / "demo"))
sys.path.insert(0, str(ROOT / "deployments" / "testbed"))
import demo  # noqa: E402

from medweave_testbed.layout import PRIVATE_FOLDERS  # noqa: E402

OUTPUT = ROOT / "build" / "hybrid"
EVIDENCE = OUTPUT / "evidence"
TESTBED = ROOT / "deployments" / "testbed" / "testbed.py"
DEMO_COHORT = ROOT / "build" / "demo" / "cohort"
USER = "medweave-laptop"
SITES = ("laptop", "testbed")
COMPSS_CLAIM = "medweave-compss"


def say(text: str) -> None:
    """A line for people."""
    print(f"make hybrid: {text}", flush=True)


def testbed(*words: str | Path) -> list[str]:
    """Return the command line of a testbed command."""
    return [sys.executable, str(TESTBED), *map(str, words)]


def on_laptop(*words: str | Path) -> list[str]:
    """Return the command line that runs a program as the laptop's user."""
    return testbed("laptop", "--", *words)


def answer(words: Sequence[str]) -> str:
    """Standard output of a program; leaves with its own words if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"\nmake hybrid: '{' '.join(words[2:5])}' ended with {done.returncode}; see above.", file=sys.stderr)
        sys.exit(done.returncode if done.returncode > 0 else 1)
    return done.stdout


def build_images(roles: Sequence[str]) -> None:
    """The images that the site file names; what has not changed is taken from the builder's cache.

    The training environment stays out of its images: on the testbed it comes through a volume claim.
    """
    for role in roles:
        say(f"image localhost/medweave-{role}:1")
        recipe = ROOT / "deployments" / "images" / role / "Containerfile"
        without = [] if role == "segment" else ["--build-arg", "WITH_TORCH=0"]
        base = "BASE_IMAGE=localhost/medweave-base:1"
        answer(testbed("image", f"localhost/medweave-{role}:1", "--file", recipe, "--build-arg", base, *without))


def compss_installation(named: str) -> Path | None:
    """Return the installation that COMPSS_HOME names; None if it names none.

    Exit with an error if there is none, or pods cannot mount it: later, the images would have been built for nothing.
    """
    if not named:
        return None
    folder = Path(named).expanduser().resolve()
    starter = folder / "Runtime" / "scripts" / "user" / "runcompss"
    if not starter.is_file():
        print(
            "make hybrid: COMPSS_HOME does not name an installation of COMPSs.\n"
            f"  seen:     no {starter}\n"
            "  expected: the folder that holds Runtime/, Bindings/ and Dependencies/, usually /opt/COMPSs\n"
            "  do:       correct COMPSS_HOME, or leave it out: then torch.distributed trains over the pods",
            file=sys.stderr,
        )
        sys.exit(2)
    if hidden := [str(private) for private in PRIVATE_FOLDERS if folder.is_relative_to(private)]:
        print(
            "make hybrid: COMPSS_HOME is in a folder that no pod can see.\n"
            f"  seen:     {folder}, below {hidden[0]}\n"
            f"  expected: a folder outside {', '.join(map(str, PRIVATE_FOLDERS))}, which a volume claim can stand for\n"
            "  do:       copy the installation to such a place, for example /opt/COMPSs, and name that",
            file=sys.stderr,
        )
        sys.exit(2)
    return folder


def bind_to_compss(folder: Path, compss_home: Path) -> None:
    """Give the pods an installation of COMPSs, and bind train-distributed to the release that runs it."""
    answer(testbed("volume", COMPSS_CLAIM, compss_home))
    checkout = folder / "checkout"
    pipeline = checkout / "workflows" / "lung-nodule-segmentation"
    bind = [
        str(Path(sys.executable).with_name("medweave")), "bind", str(pipeline / "train.cwl"),
        "--site", str(checkout / "deployments" / "sites" / "testbed.yml"),
        "--role", "train-distributed=training-compss",
        "--job", str(pipeline / "jobs" / "hybrid-train.yml"), "--output", str(bound_file(folder, "testbed")),
    ]  # fmt: skip
    answer(bind)


def bound_file(folder: Path, site: str) -> Path:
    """Return the file that `streamflow run` reads."""
    return folder / "checkout" / "deployments" / "bindings" / f"streamflow.{site}-hybrid.yml"


def laptop_folder() -> Path:
    """Return the folder of this run at the laptop's home."""
    return Path(answer(on_laptop("pwd")).strip()) / "hybrid"


def stage(folder: Path) -> None:
    """Put the checkout's files and the cohort where the laptop's user can read them."""
    shutil.rmtree(folder, ignore_errors=True)
    checkout = folder / "checkout"
    for name in ("workflows", "helm", "deployments"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", ".mypy_cache"))
    if not DEMO_COHORT.is_dir():
        say("writing the demo's cohort first")
        demo.make_cohort(dict(os.environ))
    # Where the demo's job files look for it, seen from workflows/.
    shutil.copytree(DEMO_COHORT, checkout / "build" / "demo" / "cohort")
    subprocess.run(["chown", "-R", f"{USER}:", str(folder)], check=True)


def shorten(folder: Path, steps: int) -> None:
    """Write another number of training steps into the staged job file, for both runs; of the second training, as large a part."""
    path = folder / "checkout" / "workflows" / "lung-nodule-segmentation" / "jobs" / "hybrid-train.yml"
    job = YAML(typ="safe").load(path)
    for name in ("distributed_steps_per_round", "training_steps"):
        job[name] = max(1, job[name] * steps // job["training_steps"])
    path.write_text(json.dumps(job, indent=2) + "\n", encoding="utf-8")


def stream(folder: Path, site: str) -> float:
    """Run the pipeline bound to a site; return its seconds. INT, TERM and HUP reach the engine, which removes its pods and jobs."""
    words = on_laptop(
        "env", "--unset=MEDWEAVE_RUN_ID", f"MEDWEAVE_RUNS_DIR={folder / site / 'runs'}",
        "streamflow", "run", "--quiet", bound_file(folder, site), "--outdir", folder / site / "output",
    )  # fmt: skip
    started = time.monotonic()
    if exit_code := demo.exit_code_of(words, environment=os.environ, output=subprocess.DEVNULL):
        say(f"the run on {site} ended with {exit_code}; see above, and {folder / site / 'runs'}")
        sys.exit(exit_code)
    return time.monotonic() - started


def run_folder(site: Path) -> Path:
    """Return the folder of the only run of a site; its id is new each time, as the folder of an earlier run may be at the sites."""
    (log,) = site.glob("runs/*/events.jsonl")
    return log.parent


@contextmanager
def watched_pods(namespace: str) -> Iterator[None]:
    """Keep every state of every pod of a namespace, as the API server sends it, in the evidence."""
    kubectl = ["kubectl", "get", "pods", "--namespace", namespace, "--watch", "--output", "json"]
    with (EVIDENCE / "pods.json").open("wb") as evidence:
        process = subprocess.Popen(on_laptop(*kubectl), stdout=evidence, start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def slurm_evidence(since: str) -> list[dict[str, str]]:
    """Return the answer of sacct about the jobs since a time, and store it in the evidence."""
    fields = ",".join(summary.SACCT_FIELDS)
    sacct = f"sacct --allocations --starttime {since} --parsable2 --noheader --format {fields}"
    text = answer(on_laptop("ssh", "testbed-login", sacct))
    (EVIDENCE / "sacct.txt").write_text(fields.replace(",", "|") + "\n" + text, encoding="utf-8")
    return summary.slurm_jobs(text)


def hostnames(jobs: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    """Return the names behind each host list expression, by Slurm itself."""
    lists = sorted({job["NodeList"] for job in jobs if job["NodeList"] != "None assigned"})
    return {
        nodes: answer(on_laptop("ssh", "testbed-login", f"scontrol show hostnames '{nodes}'")).split()
        for nodes in lists
    }


def rank_nodes(run: Path) -> dict[str, list[dict[str, Any]]]:
    """Per step with several ranks, each rank's own word about where it ran."""
    ranks_by_step = {}
    for report in sorted(run.glob("reports/*/run_report.json")):
        ranks = json.loads(report.read_text(encoding="utf-8")).get("ranks")
        if ranks:
            ranks_by_step[report.parent.name] = ranks
    return ranks_by_step


def compose(folder: Path, seconds: dict[str, float], jobs: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Return the summary, from the event logs, the sites' answers and the delivered masks."""
    run = run_folder(folder / "testbed")
    events = summary.read_events(run)
    pods = summary.pods_seen(summary.json_stream((EVIDENCE / "pods.json").read_text(encoding="utf-8")))
    own_pods, own_jobs = summary.own_pods(events), summary.own_jobs(events)
    parts = {uid: summary.component(pod) for uid, pod in pods.items() if uid in own_pods}
    jobs = [job for job in jobs if job["JobID"] in own_jobs]
    masks = {site: summary.mask_digests(folder / site / "output") for site in SITES}
    weights = {site: summary.weight_digests(folder / site / "output" / "accepted_model") for site in SITES}
    (same_model, other_weights), (same_masks, other_masks) = summary.equal(weights), summary.equal(masks)
    ran = [job for job in jobs if job["NodeList"] != "None assigned"]
    overhead = summary.overhead_s(events)
    result: dict[str, Any] = {
        "slurm_jobs": [{key: job[key] for key in ("JobID", "State", "NodeList", "Elapsed")} for job in jobs],
        "slurm_nodes": summary.slurm_nodes(ran, hostnames(ran)),
        "pods": sorted(parts),
        "pods_by_component": {name: sum(part == name for part in parts.values()) for name in sorted(set(parts.values()))},
        "compss_workers": sorted(uid for uid, name in parts.items() if name == "compss-cluster/worker"),
        "compss_engine": engine_of(run),
        "ranks": rank_nodes(run),
        "cases": len(masks["testbed"]),
        "model_equal_laptop": same_model,
        "weights_that_differ": other_weights,
        "masks_equal_laptop": same_masks,
        "masks_that_differ": other_masks,
        "bytes_by_route": summary.bytes_by_route(events),
        "seconds": round(seconds["testbed"], 1),
        "seconds_laptop": round(seconds["laptop"], 1),
        "overhead_seconds": round(overhead, 1),
        "overhead_share": round(overhead / seconds["testbed"], 4),
        "synthetic_data": True,
    }  # fmt: skip
    return result | {"shortfalls": summary.shortfalls(result, summary.own_pods(events, "/segment") & parts.keys())}


def engine_of(run: Path) -> str | None:
    """Return the engine that train-distributed says it used."""
    report = run / "reports" / "train_distributed" / "run_report.json"
    engine: str | None = json.loads(report.read_text(encoding="utf-8"))["results"].get("engine")
    return engine


def publish(folder: Path) -> None:
    """Copy runs and outputs to build/hybrid, and write the HTML report of the hybrid run."""
    for site in SITES:
        shutil.copytree(folder / site, OUTPUT / site, dirs_exist_ok=True, symlinks=False)
    medweave = Path(sys.executable).with_name("medweave")
    run = run_folder(OUTPUT / "testbed")
    answer([str(medweave), "report", str(run), "--output", str(OUTPUT / "report.html")])


def show(result: dict[str, Any]) -> None:
    """The end of it, as a person reads it."""
    rows = [
        ("Slurm jobs", f"{len(result['slurm_jobs'])} on {', '.join(result['slurm_nodes'])}"),
        ("pods", ", ".join(f"{count} {name}" for name, count in result["pods_by_component"].items())),
        ("distributed training", f"engine {result['compss_engine']}, {len(result['compss_workers'])} workers"),
        ("model equal to the laptop's", "yes, bit for bit" if result["model_equal_laptop"] else "NO"),
        ("masks equal to the laptop's", f"{'yes' if result['masks_equal_laptop'] else 'NO'}, {result['cases']} cases"),
        ("wall time", f"{result['seconds']:.0f} s; the laptop alone {result['seconds_laptop']:.0f} s"),
        ("overhead", f"{result['overhead_seconds']:.0f} s, {100 * result['overhead_share']:.0f} % of the wall time"),
        *((f"moved {route}", f"{count / 2**20:.1f} MiB") for route, count in result["bytes_by_route"].items()),
    ]
    print()
    for name, text in rows:
        print(f"  {name:<34} {text}")
    for sentence in result["shortfalls"]:
        print(f"  NOT as it should be: {sentence}")
    print(f"\n  report   {(OUTPUT / 'report.html').relative_to(ROOT)}\n  summary  build/hybrid/summary.json")
    print("  Synthetic data. Research use only, not a medical device.")


def main() -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps",
        type=partial(demo.number, least=1, example=100),
        help="steps of the first training instead of the job file's, for both runs; the second one is made shorter in proportion",
    )
    steps = parser.parse_args().steps
    compss_home = compss_installation(os.environ.get("COMPSS_HOME", ""))
    shutil.rmtree(OUTPUT, ignore_errors=True)
    EVIDENCE.mkdir(parents=True)
    bed = Path(json.loads(answer(testbed("status", "--json")))["folder"])
    if not (bed / "run" / "existing-cluster.json").exists():  # there, images are the user's to build
        build_images(["train", "segment", *(["compss"] if compss_home else [])])
    folder = laptop_folder()
    stage(folder)
    if steps:
        shorten(folder, steps)
    if compss_home:
        bind_to_compss(folder, compss_home)
    seconds = {}
    say("the reference: every step on the laptop")
    seconds["laptop"] = stream(folder, "laptop")
    say("the hybrid run: Slurm, the COMPSs release, pods")
    since = datetime.datetime.now().strftime("%Y-%m-%dT%H:%M:%S")
    with watched_pods("tenant-a"):
        seconds["testbed"] = stream(folder, "testbed")
    result = compose(folder, seconds, slurm_evidence(since))
    (OUTPUT / "summary.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    publish(folder)
    show(result)
    return 1 if result["shortfalls"] else 0


if __name__ == "__main__":
    sys.exit(main())
