"""Encoded streams: the agent's program at a site, and the driver's transcoder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.host.errors import StreamBroke, StreamCut, StreamRefused
from medweave_connectors.host.stdin_command import stdin_of
from medweave_connectors.jobs.remote_environment import stream_line
from medweave_connectors.sites.pods.exec.commands import build_exit_code_wrapper
from medweave_connectors.transfer.agent import encoding, program_text
from medweave_connectors.transfer.agent.archive import LengthChecker
from medweave_connectors.transfer.agent.encoding import BLOCK, HEAD
from medweave_connectors.transfer.streams import pieces, transcoding
from medweave_connectors.transfer.streams.transcoding import LOCAL_LEG, StreamLeg, Transcoder
from support.direct_ends import PATH
from support.old_python import assert_is_python
from support.transfers import slices

MIB = 2**20
MOST_WORD_BYTES = 2**17  # Linux's limit for one argument
ENCODED_LEG = StreamLeg(is_remote=True, codecs=frozenset(encoding.codecs()))
PLAIN = StreamLeg(is_remote=True, codecs=frozenset())


# ---- the agent


def run_agent(words: Sequence[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    path = {"PATH": PATH}
    stdin = stdin_of(words) + data
    return subprocess.run(words, input=stdin, env=os.environ | path, capture_output=True, timeout=60, check=False)


def encoded(data: bytes) -> bytes:
    """Return the encoded stream of some data."""
    return b"".join(transcode(LOCAL_LEG, ENCODED_LEG, data, MIB)[0])


def test_the_agent_reads_its_own_stream(tmp_path: Path) -> None:
    data = slices(3 * BLOCK + 7) + os.urandom(BLOCK)
    (tmp_path / "scan").write_bytes(data)
    written = run_agent(ENCODED_LEG.packing(["cat", str(tmp_path / "scan")]))
    assert written.returncode == 0
    assert len(written.stdout) < 0.8 * len(data)
    read = run_agent(ENCODED_LEG.unpacking(["cat"]), written.stdout)
    assert (read.returncode, read.stdout) == (0, data)


@pytest.mark.parametrize("script", ["exit 7", "kill -9 $$", "head -c 1000000; exit 3"])
@pytest.mark.parametrize("what", ["packing", "unpacking"])
def test_the_agent_returns_the_exit_status_of_its_command(what: str, script: str) -> None:
    words = ["sh", "-c", f"echo 'tar: why' >&2; {script}"]
    result = run_agent(getattr(ENCODED_LEG, what)(words), encoded(slices(3 * MIB)) if what == "unpacking" else b"")
    assert result.returncode == {"exit 7": 7, "kill -9 $$": 137}.get(script, 3)
    assert result.stderr == b"tar: why\n"


def test_a_command_may_stop_before_the_end() -> None:
    result = run_agent(ENCODED_LEG.unpacking(["head", "-c", "5"]), encoded(b"x" * 3 * MIB))
    assert (result.returncode, result.stdout) == (0, b"xxxxx")


@pytest.mark.parametrize("cut", [0, 5, 9, 1000, -1, -17])
def test_the_agent_fails_on_truncated_input(cut: int) -> None:
    result = run_agent(ENCODED_LEG.unpacking(["cat"]), encoded(slices(2 * MIB))[:cut])
    assert result.returncode == 1
    assert result.stderr == b"medweave: the stream was cut\n"


def test_the_agent_fails_on_invalid_input() -> None:
    result = run_agent(ENCODED_LEG.unpacking(["cat"]), b"\x99" * 1000)
    assert (result.returncode, result.stdout, result.stderr) == (
        1,
        b"",
        b"medweave: the stream is not in the expected encoding\n",
    )


def test_the_agent_runs_in_old_python_versions_and_leaves_space_for_names() -> None:
    assert_is_python(program_text.of("stream_peer"))
    names = [f"case '{n:06}/" + "ü" * 40 for n in range(5000)]
    for piece in pieces.some_files("/data/cohort", names, "/there", num_bytes=0):
        for words in (ENCODED_LEG.packing(piece.packing), ENCODED_LEG.unpacking(piece.unpacking)):
            assert len(os.fsencode(stream_line(words))) < MOST_WORD_BYTES
            assert max(len(os.fsencode(word)) for word in build_exit_code_wrapper(words, "mark")) < MOST_WORD_BYTES


@pytest.mark.parametrize(
    ("text", "codecs"),
    [
        ("Welcome!\nmedweave-codecs 1,2.\n", {1, 2}),
        ("medweave-codecs 2.", {2}),
        ("medweave-codecs 7,2.", {2}),
        ("medweave-codecs 9.", set()),
        ("medweave-codecs ,.", set()),
        ("medweave-codecs " + "1" * 5000 + ".", set()),
        ("sh: python3: not found", set()),
        ("", set()),
    ],
)
def test_codecs_of_a_site_are_parsed(text: str, codecs: set[int]) -> None:
    assert transcoding.parse_codecs(text) == codecs & set(encoding.codecs())


def test_several_sites_use_the_codecs_that_all_support() -> None:
    known = {"zstd": {1, 2}, "zlib": {2}, "none": set()}
    codecs = SimpleNamespace(known=lambda name: frozenset(known[name]))

    class Location(str):
        local = False

    def leg(*names: str) -> frozenset[int]:
        return transcoding.leg(codecs, *map(Location, names)).codecs  # type: ignore[arg-type]

    assert leg("zstd") == {1, 2}
    assert leg("zstd", "zlib") == {2}
    assert leg("zstd", "none", "zlib") == set()


# ---- the driver's transcoder


def transcode(
    source: StreamLeg, target: StreamLeg, data: bytes, step: int, guard: LengthChecker | None = None
) -> tuple[list[bytes], int, int]:
    """Return the written blocks, the number of decoded bytes, and the number of bytes on the wire."""
    position, transcoder = [0], Transcoder(source, target, guard)

    async def read(size: int) -> bytes:
        begins = position[0]
        position[0] = min(begins + min(size, step), len(data))
        return data[begins : position[0]]

    async def act() -> tuple[list[bytes], int, int]:
        blocks = [block async for block in transcoder.blocks(read, MIB)]
        written = [block.data for block in blocks]
        return (
            [*written, transcoder.end()],
            sum(block.num_bytes for block in blocks),
            sum(block.wire_bytes for block in blocks),
        )

    return asyncio.run(act())


@settings(deadline=None, max_examples=40)
@given(
    st.binary(max_size=50),
    st.integers(1, 70_000),
    st.sampled_from([(LOCAL_LEG, ENCODED_LEG), (PLAIN, ENCODED_LEG)]),
    st.integers(1, 2**20),
)
def test_any_bytes_are_decoded_unchanged(seed: bytes, times: int, legs: tuple[StreamLeg, StreamLeg], step: int) -> None:
    data = seed * times
    written, num_bytes, wire_bytes = transcode(*legs, data, max(step, len(data) // 500))
    on_wire = b"".join(written)
    assert num_bytes == len(data)
    assert wire_bytes == max(len(data) if legs[0].is_remote else 0, len(on_wire) - HEAD.size - 8)
    for last in (LOCAL_LEG, PLAIN, ENCODED_LEG):
        back, num_bytes, _ = transcode(ENCODED_LEG, last, on_wire, step + 7, LengthChecker(len(data)))
        assert num_bytes == len(data)
        assert (
            b"".join(back)
            if last is not ENCODED_LEG
            else b"".join(transcode(ENCODED_LEG, LOCAL_LEG, b"".join(back), MIB)[0])
        ) == data


SOME = encoded(slices(BLOCK + 5000) + bytes(5000))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(SOME) - 1))
def test_a_truncated_stream_is_detected(cut: int) -> None:
    with pytest.raises(StreamCut):
        transcode(ENCODED_LEG, LOCAL_LEG, SOME[:cut], MIB)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(SOME) - 1), st.integers(1, 255))
def test_a_changed_stream_is_refused_or_has_the_same_length(place: int, change: int) -> None:
    changed = bytearray(SOME)
    changed[place] ^= change
    try:
        _, num_bytes, _ = transcode(ENCODED_LEG, LOCAL_LEG, bytes(changed), MIB)
    except (StreamCut, StreamRefused):
        return
    assert num_bytes == BLOCK + 10_000


def test_a_checker_gets_the_decoded_bytes() -> None:
    with pytest.raises(StreamRefused, match="more bytes than the source"):
        transcode(ENCODED_LEG, ENCODED_LEG, encoded(b"x" * 5000), MIB, LengthChecker(4999))
    with pytest.raises(StreamRefused, match="is truncated"):
        transcode(ENCODED_LEG, LOCAL_LEG, encoded(b"x" * 5000), MIB, LengthChecker(5001))


def test_items_are_read_ahead() -> None:
    produced: list[int] = []

    async def items() -> Any:
        for n in range(4):
            produced.append(n)
            yield n

    async def act() -> list[int]:
        seen = []
        async for _ in transcoding.read_ahead(items()):
            await asyncio.sleep(0)
            seen.append(len(produced))
        return seen

    assert asyncio.run(act()) == [2, 3, 4, 4]


def test_an_error_of_a_read_ahead_item_is_raised_after_earlier_items() -> None:
    async def items() -> Any:
        yield 1
        raise StreamBroke("it broke", "", 1)

    seen = []

    async def act() -> None:
        async for item in transcoding.read_ahead(items()):
            seen.append(item)

    with pytest.raises(StreamBroke):
        asyncio.run(act())
    assert seen == [1]


@pytest.mark.slow
def test_finished_streams_release_their_memory() -> None:
    script = (
        "from medweave_connectors.transfer.agent.encoding import *\n"
        "def rss(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "def stream(): Decoder().content(*[(how, bytearray(body), size) for (how, _, _), body, size in "
        "[(HEAD.unpack(head), body, size) for head, body, size in [Encoder([ZSTD]).block_of(bytearray(BLOCK))]]][0])\n"
        "for _ in range(5): stream()\n"
        "before = rss()\n"
        "for _ in range(300): stream()\n"
        "print((rss() - before) / 2**20)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 30
