"""`make leaks`: fifty identifiers and secrets in inputs and configuration of real runs, looked for in all that is written."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.leak_markers import Marker, all_markers, environment, owned, write_inputs  # noqa: E402
from support.leak_runs import BIN_DIR, Scene, begin, failing, killed_and_resumed, notified, report_and_export  # noqa: E402
from support.leak_search import Leak, search  # noqa: E402
from support.ssh_server import ssh_server  # noqa: E402

HOME = "home"  # the output of `deidentify` that stays with those who hold the data
LINKS = ".home"  # in a folder of runs: the links to the data
EXPECTED = {"killed": 137, "refused": 1, "foreign": 1, "scheduled": 1, "doctor": 65}  # its cluster does not answer


def act(folder: Path) -> tuple[Scene, tuple[Marker, ...]]:
    """Make all runs in an empty folder, and the reports of them."""
    inputs = write_inputs(folder / "data")
    programs = {"PATH": f"{BIN_DIR}{os.pathsep}{os.environ['PATH']}"}
    with ssh_server(inputs.root / "ssh", environment=programs) as server:
        scene = begin(folder / "work", inputs, port=server.port)
        killed_and_resumed(scene)
        failing(scene)
        notified(scene)
        report_and_export(scene)
    return scene, all_markers(inputs)


def find_leaks(scene: Scene, words: tuple[Marker, ...]) -> list[Leak]:
    """Return the leaks into files written outside the home of the data."""
    own = owned(scene.inputs)

    def is_exempt(path: Path) -> bool:
        return path in own or (path.is_relative_to(scene.folder) and HOME in path.relative_to(scene.folder).parts)

    def leads_home(link: Path) -> bool:
        return link.parent.name == LINKS and link.parent.parent.name == "runs"

    return search([scene.folder, scene.inputs.user], words, is_exempt=is_exempt, leads_home=leads_home)


def markers_in_inputs(scene: Scene, words: tuple[Marker, ...]) -> set[str]:
    """Return the markers that the same search finds in the inputs of the runs."""
    there = {leak.what for leak in search([scene.inputs.root], words)}
    return there | {
        marker.what for marker in words if marker.text in environment(scene.inputs, programs=BIN_DIR).values()
    }


def main() -> int:
    """Write build/leaks/summary.json; return 0 if there is no leak."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="leaks-") as name:
        scene, words = act(Path(name).resolve())
        num_markers, leaks = len(markers_in_inputs(scene, words)), find_leaks(scene, words)
    summary = {
        "markers": num_markers,
        "found": len({leak.what for leak in leaks}),
        "seconds": round(time.perf_counter() - started, 1),
        "exit_codes": scene.codes,
        "leaks": [f"{leak.what} as {leak.form} in {leak.place}" for leak in leaks],
    }
    path = ROOT / "build" / "leaks" / "summary.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for line in summary["leaks"]:
        print(f"LEAK {line}")
    print(json.dumps({key: summary[key] for key in ("markers", "found", "seconds")}))
    wrong = {name: code for name, code in scene.codes.items() if code != EXPECTED.get(name, 0)}
    if wrong:
        print(f"unexpected exit codes: {wrong}")
    return 1 if leaks or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
