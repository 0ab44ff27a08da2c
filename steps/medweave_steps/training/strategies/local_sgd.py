"""Local SGD: every rank takes its own steps on its share of the patches; the weights are averaged after a number of steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medweave_core.errors import UserInputError
from medweave_steps.runtime.options import check_option, option
from medweave_steps.training.data.case_cache import MIB, cases_that_fit, sample_bytes
from medweave_steps.training.device import move_to_device
from medweave_steps.training.distributed.average import averaged, num_bytes_of, packed, unpacked
from medweave_steps.training.loop.chunks import Chunk, ChunkProgress, Weights, chunk_of, weights_of
from medweave_steps.training.strategies import Strategy, StrategyOptions, SyncResult, TrainingFacts

if TYPE_CHECKING:
    from medweave_steps.training.data.batch import Batch
    from medweave_steps.training.loop.stepper import Stepper

_INTERVAL = "at least 1, with --strategy local-sgd only"
_CHUNK_MIB = "at least 1, with --strategy local-sgd and --epochs, and without --sync-interval (weights are averaged once per epoch)"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgdOptions(StrategyOptions):
    """Options of `--strategy local-sgd`."""

    sync_interval: int | None = option(
        "optimizer steps of local-sgd between two synchronization points (default: one epoch)",
        default=None,
        expected=_INTERVAL,
    )
    chunk_mib: int | None = option(
        "with --epochs: MiB of cases that a rank of local-sgd keeps in memory. The cases of an epoch are divided into as few "
        "chunks as possible. Each chunk is trained from the last average; the chunks of all ranks are averaged, weighted by their "
        "numbers of cases (default: one chunk)",
        default=None,
        expected=_CHUNK_MIB,
    )

    def check(self, training: TrainingFacts) -> None:
        """Check the options before any case is opened.

        Raises:
            UsageError: a number is less than 1, or chunks are wanted without epochs or with another interval.
        """
        interval, mib = self.sync_interval, self.chunk_mib
        check_option(interval is None or interval >= 1, "sync_interval", interval, _INTERVAL)
        fits = mib is None or (mib >= 1 and training.epochs is not None and interval is None)
        check_option(fits, "chunk_mib", mib, _CHUNK_MIB)

    def check_cases(self, training: TrainingFacts) -> None:
        """Check that a chunk holds the cases of one step.

        Raises:
            UserInputError: it does not.
        """
        if self.chunk_mib is None:
            return
        in_step = -(-training.batch_size // training.ranks)
        shape, channels = training.patch_shape, training.num_channels
        fitting = cases_that_fit(self.chunk_mib, shape, channels)
        if fitting < in_step:
            needed = sample_bytes(shape, channels) * in_step / MIB
            raise UserInputError(
                "--chunk-mib is too small for the cases of one step.",
                seen=f"{self.chunk_mib} MiB fit {fitting} case{'' if fitting == 1 else 's'}; a rank needs {in_step} per step",
                expected=f"at least {math.ceil(needed)} MiB: {in_step} × ({channels} + 1) arrays of "
                f"{' x '.join(map(str, shape))} voxels in float32",
                do="increase --chunk-mib or --ranks, or reduce --batch-size, so that a rank needs fewer cases per step",
            )

    @property
    def cache_mib(self) -> int | None:
        """Memory in MiB for the cases of a chunk."""
        return self.chunk_mib


class LocalSgdStrategy(Strategy):
    """A strategy that averages weights every `--sync-interval` steps and at the end of every epoch, weighted by samples.

    Running statistics are averaged with the weights.

    Epochs, validations and checkpoints are those of every other strategy. Each rank has its own optimizer. Every rank computes the
    average in the order of the ranks, so the bits are those of `train-distributed` with the same patches.

    With chunks (`--chunk-mib`) each chunk is trained like a rank's whole share: from the weights of the last average, with its own
    optimizer moments. The average is over the chunks of all ranks, in the order of ranks and chunks.

    Source: Stich 2019, ICLR, "Local SGD Converges Fast and Communicates Little", algorithm 1; chunks as in HPCC's distributed
    training, where a node with more rows than fit into its memory has several partitions.
    """

    Options = LocalSgdOptions
    is_alike = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._losses: list[float] = []
        self._num_patches = 0
        self._chunks = ChunkProgress()

    def wrap(self, network: Any) -> Any:
        """Move the network to the device, with the weights of rank 0."""
        if self.group.world_size > 1:
            network.load_state_dict(self.group.gather(network.state_dict() if self.group.rank == 0 else None)[0])
        return move_to_device(network, self.device)

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, flags: Sequence[float]) -> SyncResult | None:
        """Take this rank's part of a step; a rank whose loss is not a number raises the error, which ends the other ranks."""
        chunk = self.chunk_of(step)
        if chunk is not None and chunk.num_chunks > 1:
            return self._take_step_of(chunk, stepper, batch, step, flags)
        self._losses.append(self._train(stepper, batch, step))
        self._num_patches += batch.num_counted
        return self._synchronize(stepper, flags) if self._is_due(step + 1) else None

    def _train(self, stepper: Stepper, batch: Batch, step: int) -> float:
        """Take a step on this rank alone and return its part of the loss."""
        from medweave_steps.training.loop.stepper import not_a_number

        if batch.is_padding:
            stepper.skip()
            return 0.0
        *parts, last = batch.parts(self.training.accumulate)
        num_patches = len(batch.case_ids)
        before = stepper.begin(parts, [len(part.case_ids) / num_patches for part in parts])
        value = before + stepper.backward(stepper.loss_of(last), len(last.case_ids) / num_patches)
        if not math.isfinite(value):
            raise not_a_number(value, step=step, blames=[stepper.blame_of(batch)], learning_rate=stepper.learning_rate)
        stepper.apply()
        return value * self.share(batch)

    def _is_due(self, step: int) -> bool:
        training = self.training
        intervals = (self.options.sync_interval or training.epoch_steps, training.epoch_steps, training.steps)
        return self.group.world_size == 1 or any(step % interval == 0 for interval in intervals)

    def _synchronize(self, stepper: Stepper, flags: Sequence[float]) -> SyncResult:
        own, losses, num_bytes = (weights_of(stepper), self._num_patches), self._losses, 0
        self._losses, self._num_patches = [], 0
        if self.group.world_size > 1:
            shares, reports = zip(*self.group.gather((own, (losses, flags))), strict=True)
            stepper.network.load_state_dict(_average(shares))
            losses, flags = (_means([report[place] for report in reports]) for place in (0, 1))
            num_bytes = self.group.world_size * num_bytes_of(own[0])
        return SyncResult(losses=losses, flags=flags, num_bytes=num_bytes)

    # -- chunks ---------------------------------------------------------------------------------------------------

    def chunk_of(self, step: int) -> Chunk | None:
        """Return the chunk of a step, None where epochs are not cut into chunks."""
        training, mib = self.training, self.options.chunk_mib
        if mib is None:
            return None
        fitting = cases_that_fit(mib, training.patch_shape, training.num_channels)
        return chunk_of(
            step % training.epoch_steps,
            num_steps=training.epoch_steps,
            most_steps=fitting // -(-training.batch_size // self.group.world_size),
        )

    def card_facts(self) -> dict[str, Any]:
        """Return the number of chunks of an epoch, where it is cut into chunks."""
        chunk = self.chunk_of(0)
        return {} if chunk is None else {"chunks_per_epoch": chunk.num_chunks}

    def _take_step_of(
        self, chunk: Chunk, stepper: Stepper, batch: Batch, step: int, flags: Sequence[float]
    ) -> SyncResult:  # fmt: skip
        """Take a step in a chunk; losses and flags are exchanged at every step, so that a checkpoint may follow any of them."""
        if not self._chunks.is_begun:
            self._chunks.begin(stepper, chunk)
        loss = self._train(stepper, batch, step)
        self._chunks.num_cases += batch.num_counted
        if chunk.is_over:
            self._chunks.end(stepper, chunk)
        reports = self.group.gather(([loss], flags))
        num_bytes = self._average_chunks(stepper) if chunk.is_over and chunk.number + 1 == chunk.num_chunks else 0
        losses, flags = (_means([report[place] for report in reports]) for place in (0, 1))
        return SyncResult(losses=losses, flags=flags, num_bytes=num_bytes)

    def _average_chunks(self, stepper: Stepper) -> int:
        own = self._chunks.finished
        stepper.network.load_state_dict(_average([share for shares in self.group.gather(own) for share in shares]))
        self._chunks.start, self._chunks.finished = {}, []
        world_size = self.group.world_size
        return world_size * sum(num_bytes_of(weights) for weights, _ in own) if world_size > 1 else 0

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Return the states of all ranks in order; every rank calls it. Within an epoch of chunks the weights are their average."""
        state: dict[str, Any] = {
            "of_ranks": [unpacked(part) for part in self.group.gather(packed(stepper.state()))]
        }  # fmt: skip
        chunks = self._chunks
        if not chunks.moments and not chunks.start:
            return state
        own = {
            "weights": chunks.all(stepper), "is_begun": chunks.is_begun, "start": chunks.start, "moments": chunks.moments,
        }  # fmt: skip
        of_ranks = [unpacked(part) for part in self.group.gather(packed(own))]
        state["chunks"] = {"chunk_mib": self.options.chunk_mib, "of_ranks": of_ranks}
        if chunks.start:
            state["network"] = _average([share for of_rank in of_ranks for share in of_rank["weights"]])
        return state

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """Restore the state in a checkpoint; the progress in chunks only if the chunks are the same."""
        super().restore(stepper, content)
        chunks = content.get("chunks")
        if not chunks or chunks["chunk_mib"] != self.options.chunk_mib:
            return
        if len(chunks["of_ranks"]) == self.group.world_size:
            self._chunks.restore(stepper, chunks["of_ranks"][self.group.rank])


STRATEGY = LocalSgdStrategy


def _average(shares: Sequence[tuple[Weights, int]]) -> Weights:
    """Return the average weighted by cases; shares that had nothing but padding are left out."""
    states, numbers = zip(*(share for share in shares if share[1]), strict=True)
    return averaged(states, numbers)


def _means(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(of_ranks) for values in zip(*of_ranks, strict=True)]
