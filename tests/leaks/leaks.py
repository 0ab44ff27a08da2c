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

from support.leak_runs import BESIDE, Scene, begin, failing, killed_and_resumed, notified, told  # noqa: E402
from support.leak_search import Leak, search  # noqa: E402
from support.planted import Planted, environment, owned, planted, write_inputs  # noqa: E402
from support.ssh_server import ssh_server  # noqa: E402

HOME = "home"  # the output of `deidentify` that stays with those who hold the data
LINKS = ".home"  # in a folder of runs: the links to the data
EXPECTED = {"killed": 137, "refused": 1, "foreign": 1, "scheduled": 1, "doctor": 65}  # its cluster does not answer


def act(folder: Path) -> tuple[Scene, tuple[Planted, ...]]:
    """Makes all runs in an empty folder, and has them told of."""
    inputs = write_inputs(folder / "data")
    programs = {"PATH": f"{BESIDE}{os.pathsep}{os.environ['PATH']}"}
    with ssh_server(inputs.root / "ssh", environment=programs) as server:
        scene = begin(folder / "work", inputs, port=server.port)
        killed_and_resumed(scene)
        failing(scene)
        notified(scene)
        told(scene)
    return scene, planted(inputs)


def found(scene: Scene, words: tuple[Planted, ...]) -> list[Leak]:
    """What leaked into anything that was written outside the home of the data."""
    own = owned(scene.inputs)

    def spared(path: Path) -> bool:
        return path in own or (path.is_relative_to(scene.folder) and HOME in path.relative_to(scene.folder).parts)

    def leads_home(link: Path) -> bool:
        return link.parent.name == LINKS and link.parent.parent.name == "runs"

    return search([scene.folder, scene.inputs.user], words, spared=spared, leads_home=leads_home)


def reached(scene: Scene, words: tuple[Planted, ...]) -> set[str]:
    """The words that stand in what the runs were given, as the same search finds them there."""
    there = {leak.what for leak in search([scene.inputs.root], words)}
    return there | {each.what for each in words if each.text in environment(scene.inputs, programs=BESIDE).values()}


def main() -> int:
    """Writes build/leaks/summary.json; 0 if nothing is found."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="leaks-") as name:
        scene, words = act(Path(name).resolve())
        num_planted, leaks = len(reached(scene, words)), found(scene, words)
    summary = {
        "planted": num_planted,
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
    print(json.dumps({key: summary[key] for key in ("planted", "found", "seconds")}))
    wrong = {name: code for name, code in scene.codes.items() if code != EXPECTED.get(name, 0)}
    if wrong:
        print(f"not as they should have ended: {wrong}")
    return 1 if leaks or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
