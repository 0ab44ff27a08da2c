"""What the event log counts as moved between sites is what lay in the files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.hybrid_runs import INFERENCE, TRAINING, shape
from support.testbed import Sites

# Bytes of the one file that each step makes; it goes to the next step's site, the last one to the laptop.
MADE = {"check": 100_001, "train": 2_000_002, "train_distributed": 3_000_003, "segment": 404}


def test_bytes_counted_as_transferred_are_those_of_the_files(tmp_path: Path, testbed: Sites) -> None:
    rank_0 = '[ "${MEDWEAVE_NODE_RANK:-0}" = 0 ] || exit 0; '
    scripts = {step: f"{rank_0}head -c {size} /dev/urandom > result.txt" for step, size in MADE.items()}
    ended = shape(tmp_path, testbed, scripts=scripts).begin().wait(300)
    assert ended.exit_code == 0, ended.stderr
    events = ended.of_type("transfer.ended")
    moved = {(event["data"]["from"], event["deployment"], event["data"]["bytes"]) for event in events}
    assert moved == {
        ("laptop", "slurm", MADE["check"]),
        ("slurm", TRAINING, MADE["train"]),
        (TRAINING, INFERENCE, MADE["train_distributed"]),
        (INFERENCE, "__LOCAL__", MADE["segment"]),
    }
    routes = {(event["data"]["from"], event["deployment"]): event["data"]["route"] for event in events}
    assert routes == {
        ("laptop", "slurm"): "from-driver",
        ("slurm", TRAINING): "direct",
        (TRAINING, INFERENCE): "direct",
        (INFERENCE, "__LOCAL__"): "to-driver",
    }, [event["data"]["reason"] for event in events]
    places = Counter(event["location"] for event in events if event["deployment"] == TRAINING)
    assert sorted(places.values()) == [1, 1], "each of the two pods got the file, once"
    assert (tmp_path / "results" / "result.txt").stat().st_size == MADE["segment"]
