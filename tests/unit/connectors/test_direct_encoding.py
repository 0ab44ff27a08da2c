"""Blocks of a direct stream: what becomes smaller, when that pays, and what is made of those that nobody of ours would send."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medweave_connectors.transfer.agent import encoding, program_text
from medweave_connectors.transfer.agent.encoding import (
    AHEAD,
    BLOCK,
    HEAD,
    RAW,
    TRUST,
    ZLIB,
    ZSTD,
    Decoder,
    Encoder,
    NotDecoded,
)
from medweave_connectors.transfer.agent.pace import FILL, FIRST, FIRST_TRY, PROBE, REST, TRY, WINDOW, Pace
from medweave_connectors.transfer.routes.direct import commands, dialogue
from medweave_connectors.transfer.routes.direct.carry import Broke, Carried, Half, Listener, carry
from support.direct_ends import LocalEnd

CODECS = encoding.codecs()


def slices(num_bytes: int, seed: int = 1) -> bytearray:
    """Pixels as CT has them: two bytes each, noise in the lower one, one of few values in the upper one."""
    some = random.Random(seed).randbytes(num_bytes)
    pixels = bytearray(some)
    pixels[1::2] = some[1::2].translate(bytes([4] * 8 + [3] * 248))
    return pixels


def floats(num_bytes: int) -> bytearray:
    """Numbers of four bytes, of which one is always the same."""
    data = bytearray(random.Random(2).randbytes(num_bytes))
    data[3::4] = bytes(len(data[3::4]))
    return data


def encoder(codec: int, pace: Any = None) -> Encoder:
    if codec not in CODECS:
        pytest.fail("this machine has no libzstd.so.1")
    return Encoder([codec], pace)


def pieces(data: bytes) -> Iterator[bytearray]:
    for at in range(0, len(data), BLOCK):
        yield bytearray(data[at : at + BLOCK])


def decoded(blocks: list[tuple[bytes, bytes, int]]) -> bytes:
    decoder, out = Decoder(), []
    for head, body, size in blocks:
        how, length, told = decoder.head(head)
        assert (length, told) == (len(body), size)
        out.append(decoder.content(how, bytearray(body), size))
    return b"".join(out)


def on_wire(blocks: list[tuple[bytes, bytes, int]]) -> int:
    return sum(len(head) + len(body) for head, body, _ in blocks)


# ---- what becomes smaller


@pytest.mark.parametrize("codec", [ZSTD, ZLIB])
@pytest.mark.parametrize(("made", "width", "share"), [(slices, 2, 0.6), (floats, 4, 0.8)])
def test_numbers_become_smaller_by_their_planes(codec: int, made: Any, width: int, share: float) -> None:
    data = bytes(made(3 * BLOCK + 12345))
    blocks = list(encoder(codec).blocks(pieces(data)))
    assert {head[0] for head, _, _ in blocks} == {codec << 4 | width}
    assert on_wire(blocks) < share * len(data)
    assert decoded(blocks) == data


def test_what_is_compressed_already_stays_as_it_is_and_is_hardly_looked_at() -> None:
    data = os.urandom(40 * BLOCK)
    coding = encoder(ZSTD)
    began = time.process_time()
    blocks = list(coding.blocks(pieces(data)))
    assert {head[0] for head, _, _ in blocks} == {RAW}
    assert on_wire(blocks) == len(data) + len(blocks) * HEAD.size
    assert time.process_time() - began < 2


@pytest.mark.slow
def test_each_part_of_a_stream_is_looked_at_for_itself() -> None:
    parts = [bytes(slices(20 * BLOCK)), os.urandom(20 * BLOCK), bytes(slices(40 * BLOCK)), bytes(floats(30 * BLOCK))]
    data = b"".join(parts)
    coding = encoder(
        ZSTD, SimpleNamespace(encodes=True, in_step=False, thorough=False, passed=lambda *_: None)
    )  # a slow link
    hows = [head[0] for head, _, _ in coding.blocks(pieces(data))]
    assert set(hows[:20]) == {ZSTD << 4 | 2}
    assert set(hows[20:40]) == {RAW}
    assert set(hows[40 + TRUST : 80]) == {ZSTD << 4 | 2}
    assert set(hows[80 + TRUST + 1 :]) == {ZSTD << 4 | 4}


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=70), st.sampled_from([1, 2, 4]), st.sampled_from(sorted(CODECS)))
def test_any_bytes_come_back(seed: bytes, width: int, codec: int) -> None:
    data = bytearray(seed * 100)
    assert encoding.numbers(encoding.planes(data, width), width) == data
    blocks = list(encoder(codec).blocks([data] if data else []))
    assert decoded(blocks) == data


def test_an_end_without_codecs_gets_everything_as_it_is() -> None:
    blocks = list(Encoder([]).blocks(pieces(bytes(slices(BLOCK)))))
    assert [head[0] for head, _, _ in blocks] == [RAW]


# ---- when it pays


class Link:
    """A link that takes so many bytes a second, behind what its kernels hold, and an encoder that gives so many.

    Args:
        share: of a block's bytes, once it is encoded.
        decoder: bytes a second that the other end decodes.
        holds: bytes that are taken at once.
    """

    def __init__(
        self,
        *,
        link: float,
        encoder: float,
        share: float = 0.5,
        source: float = 1e12,
        decoder: float = 1e12,
        holds: int = 0,
    ) -> None:
        self.now, self.encoded, self.raw = 0.0, 0, 0
        self.pace = Pace(lambda: self.now)
        self._link, self._encoder, self._share, self._source, self._decoder = link, encoder, share, source, decoder
        self._holds = holds

    def send(self, num_bytes: int) -> float:
        """The share of blocks that were encoded."""
        self.encoded = self.raw = 0
        for _ in range(num_bytes // BLOCK):
            in_step, encodes = self.pace.in_step, self.pace.encodes
            size, busy, wire = BLOCK, 0.0, BLOCK / self._link
            if encodes:
                size = int(BLOCK * self._share)
                busy, wire = BLOCK / self._encoder, max(size / self._link, BLOCK / self._decoder)
                busy *= 1.5 if self.pace.thorough else 1
            self.encoded += encodes
            self.raw += not encodes
            if self._holds > 0:
                self._holds, wire = self._holds - size, 0.0
            apart = (busy, wire, BLOCK / self._source)
            if in_step:  # a block is made, and known, before it leaves
                self.now += busy + apart[2]
            self.pace.passed(BLOCK, size, busy) if in_step else None
            self.now += wire if in_step else max(apart)
            self.pace.passed(BLOCK, size, busy) if not in_step else None
        return self.encoded / (self.encoded + self.raw)


def test_a_slow_link_never_gets_what_is_not_encoded() -> None:
    link = Link(link=12e6, encoder=500e6)
    assert link.send(4096 * BLOCK) == 1
    assert link.pace.thorough, "there is time for it"


@pytest.mark.parametrize(("holds", "probed"), [(0, PROBE), (6 * BLOCK, PROBE + FILL + TRY)])
def test_a_link_of_a_gigabit_is_encoded_after_a_probe_or_where_kernels_hide_it_after_two(
    holds: int, probed: int
) -> None:
    link = Link(link=125e6, encoder=600e6, holds=holds)
    link.send(128 * BLOCK)
    assert link.raw <= probed / BLOCK
    assert link.send(384 * BLOCK) == 1, "what has paid is not tried without for long"
    assert link.send(4096 * BLOCK) > 0.95
    assert not link.pace.thorough


def test_an_encoder_that_may_pay_is_tried_after_a_while_and_kept() -> None:
    link = Link(link=125e6, encoder=200e6)
    assert link.send(FIRST_TRY) < 0.05, "the other end may need as long as this one"
    assert link.send(512 * BLOCK) > 0.9
    assert link.send(4096 * BLOCK) > 0.95
    assert not link.pace.thorough


def test_an_encoder_slower_than_the_link_is_left_out() -> None:
    link = Link(link=125e6, encoder=60e6)
    link.send(FIRST)
    assert link.send(512 * BLOCK) == 0


@pytest.mark.parametrize("link", [600e6, 2e9])
def test_a_quick_link_is_left_alone_after_four_blocks(link: float) -> None:
    quick = Link(link=link, encoder=600e6)
    assert quick.send(FIRST) == 1
    assert quick.send(4096 * BLOCK) == 0


def test_a_copy_that_waits_once_on_a_quick_link_is_left_alone() -> None:
    link = Link(link=2e9, encoder=600e6)
    for n in range(1024):
        link.now += 0.006 * (n % 7 == 3)  # another process had the processor
        link.send(BLOCK)
        assert link.encoded == (n < FIRST // BLOCK)


def test_a_receiver_that_decodes_slowly_is_noticed() -> None:
    link = Link(link=500e6, encoder=1e9, decoder=167e6)
    link.send(4 * WINDOW)
    assert link.send(4096 * BLOCK) < 0.05


def test_a_link_that_becomes_slow_is_noticed() -> None:
    link = Link(link=2e9, encoder=400e6)
    link.send(REST)
    link._link = 50e6
    link.send(2 * WINDOW)
    assert link.send(REST) == 1


def test_a_link_that_becomes_quick_is_noticed() -> None:
    link = Link(link=50e6, encoder=400e6)
    link.send(64 * BLOCK)
    link._link = 2e9
    link.send(2 * REST)
    assert link.send(2 * REST) < 0.1


def test_a_slow_source_is_encoded_on_any_link() -> None:
    link = Link(link=2e9, encoder=400e6, source=40e6)
    link.send(4096 * BLOCK)
    assert link.raw == 2, "in which it shows itself"


def test_what_stays_as_it_is_teaches_nothing() -> None:
    link = Link(link=125e6, encoder=600e6, share=1)
    link.send(256 * BLOCK)
    link._share = 0.5
    link.send(2 * WINDOW)
    assert link.send(512 * BLOCK) > 0.9


def test_the_first_blocks_are_made_when_those_before_them_have_left() -> None:
    taken: list[int] = []

    def counted() -> Iterator[bytearray]:
        for n in range(3 * TRUST):
            taken.append(n)
            yield bytearray(slices(BLOCK // 8))

    blocks = encoder(ZSTD, Pace(lambda: 0.0)).blocks(counted())
    for n in range(TRUST):
        next(blocks)
        assert len(taken) == n + 1
    blocks.close()


@pytest.mark.slow
def test_no_more_is_made_than_a_few_blocks_ahead() -> None:
    made: list[int] = []

    def items() -> Iterator[int]:
        for n in range(100):
            made.append(n)
            yield n

    taking = encoding.ahead(items())
    next(taking)
    time.sleep(0.3)
    assert len(made) <= AHEAD + 2
    before = threading.active_count()
    taking.close()
    time.sleep(1.5)
    assert threading.active_count() < before, "nobody makes what nobody takes"


def test_a_source_that_breaks_is_told_after_what_came_before() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    taking = encoding.ahead(items())
    assert next(taking) == 1
    with pytest.raises(OSError, match="gone"):
        next(taking)


# ---- what nobody of ours would send


def refused(data: bytes) -> None:
    """It is refused, or it is what it says; and little memory is taken in any case."""
    decoder = Decoder()
    tracemalloc.start()
    try:
        with contextlib.suppress(NotDecoded):
            how, length, size = decoder.head(data[: HEAD.size])
            body = data[HEAD.size :][:length]
            if len(body) == length and length:
                assert len(decoder.content(how, bytearray(body), size)) == size <= BLOCK
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * BLOCK


HEADS = st.tuples(st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
KNOWN_HEADS = st.tuples(
    st.sampled_from([RAW, *(codec << 4 | width for codec in (ZSTD, ZLIB, 3) for width in (0, 1, 2, 3, 4))]),
    st.integers(0, 200),
    st.integers(0, 2**21),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(HEADS | KNOWN_HEADS, st.binary(max_size=200))
def test_any_block_is_refused_or_what_it_says(head: tuple[int, int, int], body: bytes) -> None:
    refused(HEAD.pack(*head) + body)


BLOCKS = {codec: head + body for codec in CODECS for head, body, _ in Encoder([codec]).blocks([slices(8192)])}


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(st.sampled_from(sorted(CODECS)), st.data())
def test_a_changed_block_is_refused_or_what_it_says(codec: int, data: st.DataObject) -> None:
    block = bytearray(BLOCKS[codec])
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    refused(bytes(block[: data.draw(st.integers(HEAD.size, len(block)))]))


def bomb(codec: int) -> bytes:
    """A block that stands for 64 MiB and says that it is 1 MiB."""
    if codec == ZLIB:
        work = zlib.compressobj(9, zlib.DEFLATED, -15)
        body = work.compress(bytes(2**26)) + work.flush()
    else:  # one frame of zstd: no size, a window of 64 MiB, 511 blocks of 128 KiB of the same byte
        body = b"\x28\xb5\x2f\xfd\x00\x80" + b"".join(
            (last | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\0" for last in [0] * 511 + [1]
        )
    return HEAD.pack(codec << 4 | 2, len(body), BLOCK) + body


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_block_cannot_hold_more_than_it_says(codec: int) -> None:
    block = bomb(codec)
    decoder = Decoder()
    how, _, size = decoder.head(block[: HEAD.size])
    with pytest.raises(NotDecoded, match="a block is damaged"):
        decoder.content(how, bytearray(block[HEAD.size :]), size)
    refused(block)


# ---- from end to end


def carried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, sender: str = "", receiver: str = "") -> Carried:
    """CT from one process to another, as much as is always encoded; a text goes behind the program of an end."""
    file = tmp_path / "ct"
    file.write_bytes(slices(FIRST - 1))
    real = commands.line

    def line(told: Any, *, sends: bool) -> bytes:
        with monkeypatch.context() as patch:
            text = program_text.of("encoding") + (sender if sends else receiver)
            patch.setattr(program_text, "of", lambda name: text)
            return real(told, sends=sends)

    monkeypatch.setattr(dialogue.commands, "line", line)
    source = Half(LocalEnd("a").end, ["cat", str(file)])
    target = Half(LocalEnd("b").end, ["sh", "-c", f"cat > {tmp_path}/copy"])

    async def act() -> Carried:
        return await carry(source, target, Listener.TARGET, ports=commands.PORTS, connected=lambda: None)

    told = asyncio.run(asyncio.wait_for(act(), 40))
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    return told


WITHOUT_ZSTD = "\ndef codecs():\n    return {ZLIB: Zlib()}\n"
WITHOUT = "\ndef codecs():\n    return {}\n"


@pytest.mark.parametrize(
    ("sender", "receiver", "share"),
    [
        ("", "", 0.6),
        (WITHOUT_ZSTD, "", 0.6),
        ("", WITHOUT_ZSTD, 0.6),
        (WITHOUT, "", 1.01),
        ("", WITHOUT, 1.01),
    ],
)
def test_two_ends_agree_on_what_both_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sender: str, receiver: str, share: float
) -> None:
    told = carried(monkeypatch, tmp_path, sender=sender, receiver=receiver)
    assert told.num_bytes == FIRST - 1
    assert share - 0.2 < told.wire_bytes / told.num_bytes < share


BOMB = f"HEAD.pack(0x22, {len(bomb(ZLIB)) - HEAD.size}, BLOCK), bytes.fromhex('{bomb(ZLIB)[HEAD.size :].hex()}'), BLOCK"
HOSTILE = """
def _blocks(self, pieces):
    for piece in pieces:
        yield {block}
Encoder.blocks = _blocks
"""


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("HEAD.pack(0x77, 10, 20), bytes(10), 20", "the stream is none"),
        ("HEAD.pack(0, BLOCK + 1, BLOCK + 1), bytes(BLOCK + 1), BLOCK + 1", "the stream is none"),
        ("HEAD.pack(0x12, 2**31, BLOCK), bytes(10), BLOCK", "the stream is none"),
        ("HEAD.pack(0x22, 1000, BLOCK), bytes(1000), BLOCK", "a block is damaged"),
        (BOMB, "a block is damaged"),
    ],
)
def test_a_hostile_sender_is_told_and_nothing_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, block: str, why: str
) -> None:
    with pytest.raises(Broke, match=why):
        carried(monkeypatch, tmp_path, sender=HOSTILE.format(block=block))
