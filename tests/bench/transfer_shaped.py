"""A cohort of CT over a link of 1 Gbit/s: a direct stream of ours, with and without encoding.

    sudo python tests/bench/transfer_shaped.py [--cases 4] [--pairs 7] [--mbit 1000] [--syntax explicit]

Two network namespaces with a pair of interfaces between them, each shaped by tc's tbf. The two agents are those of any direct
copy: tar, TLS 1.3, tar; one without codecs is the reference. The digests of a whole copy are not in it. Bytes are those that the
sender's interface counts. The cohort is synthetic, of int16. Writes build/bench/transfer_shaped*.json.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import harness

sys.path.insert(0, str(harness.ROOT / "tests"))
FASTER, SHARE = 1.4, 0.6  # times as fast, with this share of the bytes at most
NAMES, ADDRESSES = ("medweave-bench-a", "medweave-bench-b"), ("192.0.2.1", "192.0.2.2")
LINK = "medweave0"
WITHOUT = "\ndef codecs():\n    return {}\n"


@contextmanager
def shaped(mbit: int) -> Iterator[None]:
    """Yield two namespaces and the link between them."""
    rate = f"rate {mbit}mbit burst 256kb latency 50ms"
    try:
        for name in NAMES:
            _ip(f"netns add {name}")
        _ip(f"link add {LINK} netns {NAMES[0]} type veth peer name {LINK} netns {NAMES[1]}")
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            for words in (f"addr add {address}/30 dev {LINK}", "link set lo up", f"link set {LINK} up"):
                _ip(f"-n {name} {words}")
            subprocess.run(["tc", "-n", name, *f"qdisc add dev {LINK} root tbf {rate}".split()], check=True)
        yield
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, stderr=subprocess.DEVNULL)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def sent_bytes(name: str = NAMES[0]) -> int:
    """Return the bytes sent by an interface, by default that of the first namespace."""
    words = ["ip", "netns", "exec", name, "cat", f"/sys/class/net/{LINK}/statistics/tx_bytes"]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@dataclass
class Copies:
    """Direct streams from one namespace to the other.

    Attributes:
        num_bytes: on the wire, of each copy, with and without encoding.
    """

    source: Path
    target: Path
    num_bytes: dict[bool, list[int]] = field(default_factory=lambda: {True: [], False: []})

    def send(self, *, encoded: bool) -> float:
        """Return the seconds from the connection to the end of both programs."""
        from medweave_connectors.transfer.agent import program_text

        shutil.rmtree(self.target, ignore_errors=True)
        self.target.mkdir()
        subprocess.run(["sync"], check=True)
        text, before = program_text.of("encoding"), sent_bytes()
        real = program_text.of
        changed = text + ("" if encoded else WITHOUT)
        program_text.of = lambda name: changed if name == "encoding" else real(name)
        try:
            seconds = asyncio.run(self._carried())
        finally:
            program_text.of = real
        self.num_bytes[encoded].append(sent_bytes() - before)
        return seconds

    async def _carried(self) -> float:
        from medweave_connectors.transfer import shell_commands
        from medweave_connectors.transfer.capabilities import Endpoint
        from medweave_connectors.transfer.routes.direct.commands import PORTS
        from medweave_connectors.transfer.routes.direct.direct_copy import Listener, PeerTask, copy_directly
        from medweave_connectors.transfer.streams import pieces
        from support.direct_ends import LocalEnd

        loop, ends = asyncio.get_running_loop(), []
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            local = LocalEnd(name)

            async def start(words: Sequence[str], name: str = name, local: LocalEnd = local) -> object:
                return await local.end.open(["ip", "netns", "exec", name, *words])

            ends.append(Endpoint(name, [address], address, start))
        began = [0.0]
        root = self.source.name
        source = PeerTask(ends[0], shell_commands.pack(str(self.source)))
        target = PeerTask(ends[1], shell_commands.unpack_files(str(self.target)), pieces.checker_settings(root, None))
        await copy_directly(
            source, target, Listener.TARGET, ports=PORTS, connected=lambda: began.__setitem__(0, loop.time())
        )
        return loop.time() - began[0]


def made(folder: Path, cases: int, syntax: str) -> Path:
    """Write a cohort of DICOM series; return its folder."""
    step = Path(sys.executable).with_name("medweave-step")
    words = f"phantom lung --cases {cases} --seed 3 --transfer-syntax {syntax} --format dicom --output {folder}/cohort"
    subprocess.run([step, *words.split()], check=True, cwd=folder, stderr=subprocess.DEVNULL)
    return folder / "cohort"


def measured(copies: Copies, options: argparse.Namespace, name: str = "transfer_shaped") -> None:
    """Measure the times of pairs, and the bytes sent in all of them."""
    bars = options.syntax == "explicit" and options.mbit == 1000
    name = name if bars else f"{name}_{options.syntax}_{options.mbit}"
    size = sum(path.stat().st_size for path in copies.source.rglob("*") if path.is_file())
    notes = {"mib": round(size / 2**20), "mbit": options.mbit, "syntax": options.syntax}
    harness.run_pairs(
        name,
        lambda: copies.send(encoded=True),
        lambda: copies.send(encoded=False),
        reference_tool="the same without encoding",
        pairs=options.pairs,
        bar=FASTER if bars else None,
        notes=notes,
    )
    share = sum(copies.num_bytes[True]) / sum(copies.num_bytes[False])
    notes["wire_mib"] = [round(sum(counts) / len(counts) / 2**20, 1) for counts in copies.num_bytes.values()]
    harness.single_figure(f"{name}_bytes", share, unit="of the bytes", bar=SHARE if bars else None, notes=notes)
    assert (
        subprocess.run(["diff", "-r", copies.source, copies.target / copies.source.name], check=False).returncode == 0
    )


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=4, metavar="N", help="series in the cohort")
    parser.add_argument("--pairs", type=int, default=7, metavar="N", help="alternating pairs")
    parser.add_argument("--mbit", type=int, default=1000, metavar="N", help="the link's, Mbit/s")
    parser.add_argument("--syntax", choices=("explicit", "rle", "jpeg2000"), default="explicit", help="of the pixels")
    options = parser.parse_args()
    if os.geteuid() or not all(shutil.which(program) for program in ("ip", "tc")):
        sys.exit("this benchmark shapes its own link: it needs root, and ip and tc of iproute2")
    with tempfile.TemporaryDirectory(prefix="medweave-bench-") as folder, shaped(options.mbit):
        measured(Copies(made(Path(folder), options.cases, options.syntax), Path(folder) / "target"), options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
