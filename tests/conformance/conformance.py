"""The public CWL v1.2 conformance suite, by `cwl-runner --streamflow-file` with everything bound to one site.

    git clone https://github.com/common-workflow-language/cwl-v1.2
    make conformance SUITE=$PWD/cwl-v1.2 [SITES='stock local slurm helm'] [CASES=id,id…] [KEEP=1]

A site is sites/<site>.yml next to this file; `stock` is StreamFlow's local connector without our plug-in. `slurm` and `helm` are
those of the testbed (`make testbed`), as its laptop's user. Each writes build/conformance/<site>.json; KEEP=1 puts its line into
docs/reference/conformance.json, which `make docs` turns into a page; a site that is not tried keeps its row. The exit
code is 0 if every test that passes with `stock` passes, except those that reasons.yml explains.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "conformance"
TABLE = ROOT / "docs" / "reference" / "conformance.json"
RUNNER, REASONS = HERE / "runner.py", HERE / "reasons.yml"
ENDS = ("passed", "failed", "unsupported")
SITES = ("stock", "local", "slurm", "helm")
CHART = ROOT / "helm" / "segmentation-worker"
IMAGE, RELEASE = "localhost/medweave-conformance:1", "conformance"
sys.path.insert(0, str(ROOT / "tests"))


def options() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path, metavar="SUITE", help="a checkout of common-workflow-language/cwl-v1.2")
    parser.add_argument("--sites", nargs="+", choices=SITES, default=SITES[:2], metavar="SITE", help="(stock local)")
    parser.add_argument(
        "--cases", default="", metavar="ID,ID", help="of these tests only: their ends take the place of those before"
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="tests at once (2)")
    parser.add_argument("--timeout", type=int, default=180, metavar="S", help="of one test, in s (180)")
    parser.add_argument("--cwltest", default="cwltest", metavar="PROGRAM", help="(cwltest)")
    parser.add_argument("--keep", action="store_true", help=f"put the results into {TABLE.relative_to(ROOT)}")
    return parser.parse_args()


@contextmanager
def runner(site: str, environment: Mapping[str, str]) -> Iterator[list[str]]:
    """Serve cwl-runner while the block lasts; yield the words of its command."""
    place = BUILD / site / "runner.sock"
    words = [sys.executable, str(RUNNER), "serve", str(place), *(["--stock"] if site == "stock" else [])]
    server = subprocess.Popen(words, env=dict(environment))
    try:
        while not place.exists():
            if server.poll() is not None:
                sys.exit(f"conformance: {site}: cwl-runner could not be imported")
            time.sleep(0.2)
        yield [sys.executable, "-I", "-S", str(RUNNER), "call", str(place)]
    finally:
        server.terminate()
        server.wait()


@contextmanager
def environment_of(site: str) -> Iterator[dict[str, str]]:
    """Yield the environment of the site's runs; for `helm`, the release is installed while the block lasts."""
    folder = BUILD / site
    own = {"TMPDIR": str(folder), "MEDWEAVE_RUNS_DIR": str(folder / "runs"), "OMP_WAIT_POLICY": "passive"}
    if site not in ("slurm", "helm"):
        yield {**os.environ, **own}
        return
    from support.hybrid_runs import laptop
    from support.testbed import call, sites

    testbed = {**os.environ, **laptop(sites()), **own}
    if site == "slurm":
        yield testbed
        return
    made = call("image", IMAGE, "--file", str(HERE / "Containerfile"), timeout_s=600)
    if made.returncode:
        sys.exit(f"conformance: helm: the image could not be made:\n{made.stderr}")
    access = ["--kubeconfig", f"{testbed['HOME']}/.kube/tenant-a.kubeconfig"]
    values = ["--values", str(HERE / "sites" / "helm-values.yml"), "--wait"]
    subprocess.run(["helm", *access, "upgrade", "--install", RELEASE, str(CHART), *values], env=testbed, check=True)
    try:
        yield testbed
    finally:
        subprocess.run(["helm", *access, "uninstall", RELEASE], env=testbed, check=False)


def try_site(site: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the suite, and write and return the result."""
    shutil.rmtree(BUILD / site, ignore_errors=True)
    (BUILD / site).mkdir(parents=True)
    xml, log = BUILD / site / "junit.xml", BUILD / f"{site}.log"
    with environment_of(site) as environment, runner(site, environment) as command, log.open("w") as output:
        words = [arguments.cwltest, "--test", "conformance_tests.yaml", "--tool", command[0], "-j", str(arguments.jobs)]
        words += [
            "--timeout",
            str(arguments.timeout),
            "--junit-xml",
            str(xml),
            *(["-s", arguments.cases] if arguments.cases else []),
        ]
        words += ["--", *command[1:], "--streamflow-file", str(HERE / "sites" / f"{site}.yml")]
        subprocess.run(words, cwd=arguments.suite, env=environment, stdout=output, stderr=output, check=False)
    if not xml.exists():
        sys.exit(f"conformance: {site}: cwltest made no report, and says why in {log}")
    cases = arguments.cases.split(",") if arguments.cases else []
    result = {**read(xml, cases), "suite": commit(arguments.suite), "streamflow": version("streamflow")}
    file = BUILD / f"{site}.json"
    if cases and file.exists():
        result = merged(json.loads(file.read_text(encoding="utf-8")), result)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(BUILD / site)
    return result


def read(xml: Path, cases: Sequence[str] = ()) -> dict[str, Any]:
    """Return the ids of the tests by outcome, from cwltest's report; its names are wrong if `cases` were selected."""
    ended: dict[str, list[str]] = {how: [] for how in ENDS}
    elements = list(ElementTree.parse(xml).iter("testcase"))
    for name, case in zip(cases or [case.attrib["file"] for case in elements], elements, strict=True):
        how = (
            "unsupported"
            if case.find("skipped") is not None
            else "passed"
            if case.find("failure") is None
            else "failed"
        )
        ended[how].append(name)
    return {how: sorted(ids) for how, ids in ended.items()}


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a whole run, updated with the tests that were tried again."""
    again = {name for how in ENDS for name in now[how]}
    return {**now, **{how: sorted({*before[how]} - again | {*now[how]}) for how in ENDS}}


def commit(suite: Path) -> str:
    """Return the commit of the checkout."""
    words = ["git", "-C", str(suite), "rev-parse", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def row(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a site's row of the table: a number, and the ids of the tests that did not pass."""
    return {"passed": len(result["passed"]), "failed": result["failed"], "unsupported": result["unsupported"]}


def known(suite: str) -> dict[str, dict[str, Any]]:
    """Return the rows of the table, if it is of this suite and this StreamFlow."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    same = (table["suite"], table["streamflow"]) == (suite, version("streamflow"))
    return dict(table["sites"]) if same else {}


def not_passed(line: Mapping[str, Any]) -> set[str]:
    """Return the ids in a row."""
    return {*line["failed"], *line["unsupported"]}


def main() -> int:
    """Try each site, and print which tests pass with the stock connector only."""
    arguments = options()
    suite = commit(arguments.suite)
    lines = known(suite)
    for site in arguments.sites:
        ended = try_site(site, arguments)
        lines[site] = row(ended)
        print(f"{site}: " + ", ".join(f"{len(ended[how])} {how}" for how in ENDS), flush=True)
    stock = not_passed(lines["stock"]) if "stock" in lines else None
    if stock is None:
        print(
            "nothing is known of the stock connector with this suite: try it too, with SITES='stock …'", file=sys.stderr
        )
        return 1
    lost = {site: sorted(not_passed(line) - stock) for site, line in lines.items()}
    for site, ids in lost.items():
        if ids:
            print(f"{site}: fails, and passes with the stock connector: {', '.join(ids)}")
    if arguments.keep:
        table = {
            "suite": suite,
            "streamflow": version("streamflow"),
            "sites": {name: lines[name] for name in SITES if name in lines},
        }
        TABLE.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
    explained = yaml.safe_load(REASONS.read_text(encoding="utf-8"))["with_ours"]
    return 1 if any(set(ids) - set(explained) for ids in lost.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
