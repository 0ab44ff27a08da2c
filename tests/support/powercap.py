"""Folders like Linux' /sys/class/powercap, whose counters a thread moves on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

TICK_S = 0.002


def zone(powercap: Path, name: str, title: str, *, energy_uj: int, range_uj: int = 262_143_328_850) -> Path:
    """Create one zone: `intel-rapl:0` with the title `package-0`."""
    folder = powercap / name
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{title}\n")
    (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
    set_energy(folder, energy_uj)
    return folder


def set_energy(folder: Path, energy_uj: int) -> None:
    """Set a zone's counter atomically, like the kernel's file."""
    (folder / "new").write_text(f"{energy_uj}\n")
    (folder / "new").replace(folder / "energy_uj")


@contextlib.contextmanager
def consuming(folder: Path, *, each_uj: int, range_uj: int) -> Iterator[list[int]]:
    """Increase a zone's counter by `each_uj` at every tick, wrapping at its range; yield the total, µJ."""
    added, ended = [0], threading.Event()
    start = int((folder / "energy_uj").read_text())

    def go_on() -> None:
        while not ended.wait(TICK_S):
            set_energy(folder, (start + added[0] + each_uj) % range_uj)
            added[0] += each_uj

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield added
    finally:
        ended.set()
        thread.join()
