"""Streams in blocks: what the program at a site does with them, and what passes this machine."""

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
MOST_WORD_BYTES = 2**17  # in one word: Linux
FAR = StreamLeg(is_remote=True, codecs=frozenset(encoding.codecs()))
PLAIN = StreamLeg(is_remote=True, codecs=frozenset())


# ---- the agent


def far(words: Sequence[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    path = {"PATH": PATH}
    given = stdin_of(words) + data
    return subprocess.run(words, input=given, env=os.environ | path, capture_output=True, timeout=60, check=False)


def encoded(data: bytes) -> bytes:
    """What this machine writes."""
    return b"".join(passing_of(LOCAL_LEG, FAR, data, MIB)[0])


def test_what_the_agent_writes_it_reads(tmp_path: Path) -> None:
    data = slices(3 * BLOCK + 7) + os.urandom(BLOCK)
    (tmp_path / "scan").write_bytes(data)
    written = far(FAR.packing(["cat", str(tmp_path / "scan")]))
    assert written.returncode == 0
    assert len(written.stdout) < 0.8 * len(data)
    read = far(FAR.unpacking(["cat"]), written.stdout)
    assert (read.returncode, read.stdout) == (0, data)


@pytest.mark.parametrize("script", ["exit 7", "kill -9 $$", "head -c 1000000; exit 3"])
@pytest.mark.parametrize("what", ["packing", "unpacking"])
def test_a_commands_end_is_that_of_the_agent(what: str, script: str) -> None:
    words = ["sh", "-c", f"echo 'tar: why' >&2; {script}"]
    told = far(getattr(FAR, what)(words), encoded(slices(3 * MIB)) if what == "unpacking" else b"")
    assert told.returncode == {"exit 7": 7, "kill -9 $$": 137}.get(script, 3)
    assert told.stderr == b"tar: why\n"


def test_a_command_may_stop_before_the_end() -> None:
    told = far(FAR.unpacking(["head", "-c", "5"]), encoded(b"x" * 3 * MIB))
    assert (told.returncode, told.stdout) == (0, b"xxxxx")


@pytest.mark.parametrize("cut", [0, 5, 9, 1000, -1, -17])
def test_an_agent_whose_input_was_cut_has_failed(cut: int) -> None:
    told = far(FAR.unpacking(["cat"]), encoded(slices(2 * MIB))[:cut])
    assert told.returncode == 1
    assert told.stderr == b"medweave: the stream was cut\n"


def test_an_agent_that_gets_something_else_has_failed() -> None:
    told = far(FAR.unpacking(["cat"]), b"\x99" * 1000)
    assert (told.returncode, told.stdout, told.stderr) == (1, b"", b"medweave: the stream is none\n")


def test_its_program_is_for_an_old_python_and_leaves_room_for_names() -> None:
    assert_is_python(program_text.of("stream_peer"))
    names = [f"case '{n:06}/" + "ü" * 40 for n in range(5000)]
    for piece in pieces.some_files("/data/cohort", names, "/there", num_bytes=0):
        for words in (FAR.packing(piece.packing), FAR.unpacking(piece.unpacking)):
            assert len(os.fsencode(stream_line(words))) < MOST_WORD_BYTES
            assert max(len(os.fsencode(each)) for each in build_exit_code_wrapper(words, "mark")) < MOST_WORD_BYTES


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
def test_what_a_place_says_of_itself(text: str, codecs: set[int]) -> None:
    assert transcoding.parse_codecs(text) == codecs & set(encoding.codecs())


def test_places_get_what_all_of_them_know() -> None:
    known = {"zstd": {1, 2}, "zlib": {2}, "none": set()}
    codecs = SimpleNamespace(known=lambda name: frozenset(known[name]))

    class Place(str):
        local = False

    def leg(*names: str) -> frozenset[int]:
        return transcoding.leg(codecs, *map(Place, names)).codecs  # type: ignore[arg-type]

    assert leg("zstd") == {1, 2}
    assert leg("zstd", "zlib") == {2}
    assert leg("zstd", "none", "zlib") == set()


# ---- what passes this machine


def passing_of(
    source: StreamLeg, target: StreamLeg, data: bytes, step: int, guard: LengthChecker | None = None
) -> tuple[list[bytes], int, int]:
    """What is written, bytes that it stands for, and bytes on the wire."""
    places, passing = [0], Transcoder(source, target, guard)

    async def read(size: int) -> bytes:
        begins = places[0]
        places[0] = min(begins + min(size, step), len(data))
        return data[begins : places[0]]

    async def act() -> tuple[list[bytes], int, int]:
        blocks = [each async for each in passing.blocks(read, MIB)]
        written = [each.data for each in blocks]
        return (
            [*written, passing.end()],
            sum(each.num_bytes for each in blocks),
            sum(each.wire_bytes for each in blocks),
        )

    return asyncio.run(act())


@settings(deadline=None, max_examples=40)
@given(
    st.binary(max_size=50),
    st.integers(1, 70_000),
    st.sampled_from([(LOCAL_LEG, FAR), (PLAIN, FAR)]),
    st.integers(1, 2**20),
)
def test_any_bytes_come_back(seed: bytes, times: int, way: tuple[StreamLeg, StreamLeg], step: int) -> None:
    data = seed * times
    written, num_bytes, wire_bytes = passing_of(*way, data, max(step, len(data) // 500))
    on_wire = b"".join(written)
    assert num_bytes == len(data)
    assert wire_bytes == max(len(data) if way[0].is_remote else 0, len(on_wire) - HEAD.size - 8)
    for last in (LOCAL_LEG, PLAIN, FAR):
        back, num_bytes, _ = passing_of(FAR, last, on_wire, step + 7, LengthChecker(len(data)))
        assert num_bytes == len(data)
        assert (
            b"".join(back) if last is not FAR else b"".join(passing_of(FAR, LOCAL_LEG, b"".join(back), MIB)[0])
        ) == data


SOME = encoded(slices(BLOCK + 5000) + bytes(5000))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(SOME) - 1))
def test_a_stream_that_is_cut_anywhere_is_known_to_be(cut: int) -> None:
    with pytest.raises(StreamCut):
        passing_of(FAR, LOCAL_LEG, SOME[:cut], MIB)


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(SOME) - 1), st.integers(1, 255))
def test_a_changed_stream_is_refused_or_as_long(place: int, change: int) -> None:
    changed = bytearray(SOME)
    changed[place] ^= change
    try:
        _, num_bytes, _ = passing_of(FAR, LOCAL_LEG, bytes(changed), MIB)
    except (StreamCut, StreamRefused):
        return
    assert num_bytes == BLOCK + 10_000


def test_a_guard_looks_at_what_was_decoded() -> None:
    with pytest.raises(StreamRefused, match="holds more"):
        passing_of(FAR, FAR, encoded(b"x" * 5000), MIB, LengthChecker(4999))
    with pytest.raises(StreamRefused, match="ends too soon"):
        passing_of(FAR, LOCAL_LEG, encoded(b"x" * 5000), MIB, LengthChecker(5001))


def test_items_are_made_ahead() -> None:
    made: list[int] = []

    async def items() -> Any:
        for n in range(4):
            made.append(n)
            yield n

    async def act() -> list[int]:
        seen = []
        async for _ in transcoding.read_ahead(items()):
            await asyncio.sleep(0)
            seen.append(len(made))
        return seen

    assert asyncio.run(act()) == [2, 3, 4, 4]


def test_what_fails_ahead_is_told_in_its_turn() -> None:
    async def items() -> Any:
        yield 1
        raise StreamBroke("it broke", "", 1)

    seen = []

    async def act() -> None:
        async for each in transcoding.read_ahead(items()):
            seen.append(each)

    with pytest.raises(StreamBroke):
        asyncio.run(act())
    assert seen == [1]


@pytest.mark.slow
def test_streams_that_have_ended_hold_no_memory() -> None:
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
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert told.returncode == 0, told.stderr
    assert float(told.stdout) < 30
