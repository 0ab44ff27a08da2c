"""`make validate-seeded`: single mistakes in a copy of the repository, and the findings of `medweave validate`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.mistakes import MISTAKES  # noqa: E402
from support.seeding import copy_repository, fault, seed_and_validate  # noqa: E402


def main() -> int:
    """Write build/validate/summary.json; return 0 if every mistake is found and there is no false alarm."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="words of the names of mistakes")
    only = parser.parse_args().only
    started = time.perf_counter()
    ended = subprocess.run(
        [Path(sys.executable).with_name("medweave"), "validate", "--format", "json", str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - started
    alarms = json.loads(ended.stdout)["findings"] if ended.returncode in (0, 1, 65) else [{"what": ended.stderr}]
    chosen = [mistake for mistake in MISTAKES if any(words in mistake.name for words in only)]
    missed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_repository(folder)
        for mistake in chosen:
            why = fault(folder, mistake, *seed_and_validate(folder, mistake))
            print(f"{'found ' if not why else 'MISSED'} {mistake.name}{': ' + why if why else ''}", flush=True)
            missed += [mistake.name] if why else []
    summary = {
        "seeded": len(chosen),
        "found": len(chosen) - len(missed),
        "false_alarms": len(alarms),
        "seconds": round(seconds, 2),
    }
    path = ROOT / "build" / "validate" / "summary.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**summary, "missed": missed, "alarms": alarms}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(summary))
    return 1 if missed or alarms else 0


if __name__ == "__main__":
    sys.exit(main())
