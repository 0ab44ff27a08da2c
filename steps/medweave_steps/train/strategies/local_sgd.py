"""Local SGD: every rank takes steps of its own on its share of the patches; the weights are averaged every so many steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medweave_steps.train.strategies import Meeting, Strategy
from medweave_steps.training.distributed.average import averaged, num_bytes_of, packed, unpacked
from medweave_steps.training.loop.convolutions import on_device

if TYPE_CHECKING:
    from medweave_steps.training.data.chunks import Chunk
    from medweave_steps.training.data.patches import Batch
    from medweave_steps.training.loop.stepper import Stepper


@dataclass(slots=True, kw_only=True)
class _Chunks:
    """Where a rank is in the chunks of an epoch.

    Attributes:
        start: weights that all chunks of the epoch begin with; none between two epochs.
        is_begun: the network holds the weights of a chunk that is not over.
        num_cases: that this chunk was trained on so far.
        finished: weights and cases of each chunk that is over.
        moments: of the optimiser of each chunk, which goes on with it in the next epoch.
    """

    start: dict[str, Any] = field(default_factory=dict)
    is_begun: bool = False
    num_cases: int = 0
    finished: list[tuple[dict[str, Any], int]] = field(default_factory=list)
    moments: dict[int, Any] = field(default_factory=dict)

    def begin(self, stepper: Stepper, chunk: Chunk) -> None:
        """Puts the weights of the epoch's start, and the optimiser of this chunk, in the place of those of the chunk before."""
        if not self.start:
            self.start = _weights(stepper)
        stepper.network.load_state_dict(self.start)
        stepper.set_moments(self.moments.get(chunk.number, {}))
        self.is_begun, self.num_cases = True, 0

    def end(self, stepper: Stepper, chunk: Chunk) -> None:
        """Keeps what has come of it."""
        self.finished.append((_weights(stepper), self.num_cases))
        self.moments[chunk.number] = stepper.moments()
        self.is_begun = False

    def all(self, stepper: Stepper) -> list[tuple[dict[str, Any], int]]:
        """What has come of the epoch so far, in the order of the chunks."""
        return [*self.finished, *([(_weights(stepper), self.num_cases)] if self.is_begun else [])]


class LocalSgdStrategy(Strategy):
    """Weights and running statistics are averaged every `--sync-interval` steps and at the end of every epoch, weighted by samples.

    So an epoch, a validation and a checkpoint are what they are under every strategy. Each rank keeps its own optimiser. The sum is
    taken in the order of the ranks by each of them: the bits of `train-distributed` with the same patches.

    Where an epoch is cut into chunks that fit into memory, a chunk is trained as a rank's whole share is: from the weights of the
    last average, with an optimiser of its own. The average is over the chunks of all ranks, in the order of ranks and chunks.

    Source: Stich 2019, ICLR, "Local SGD Converges Fast and Communicates Little", algorithm 1; chunks as in HPCC's distributed
    training, where a node with more rows than fit into its memory has several partitions.
    """

    is_alike = False

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._losses: list[float] = []
        self._num_patches = 0
        self._chunks = _Chunks()

    def wrap(self, network: Any) -> Any:
        """Moves the network to the device, with the weights of rank 0."""
        if self.group.world_size > 1:
            network.load_state_dict(self.group.gather(network.state_dict() if self.group.rank == 0 else None)[0])
        return on_device(network, self.device)

    def take_step(self, stepper: Stepper, batch: Batch, *, step: int, news: Sequence[float]) -> Meeting | None:
        """As every strategy; a loss that is not a number is told by the rank that has it, and ends the others."""
        if batch.chunk is not None and batch.chunk.num_chunks > 1:
            return self._take_step_of(batch.chunk, stepper, batch, step, news)
        self._losses.append(self._train(stepper, batch, step))
        self._num_patches += batch.num_counted
        return self._meet(stepper, news) if self._is_due(step + 1) else None

    def _train(self, stepper: Stepper, batch: Batch, step: int) -> float:
        """Takes a step alone; returns this rank's part of the loss."""
        from medweave_steps.training.loop.stepper import not_a_number

        if batch.is_padding:
            stepper.skip()
            return 0.0
        *parts, last = batch.parts(self.config.accumulate)
        num_patches = len(batch.case_ids)
        before = stepper.begin(parts, [len(part.case_ids) / num_patches for part in parts])
        value = before + stepper.backward(stepper.loss_of(last), len(last.case_ids) / num_patches)
        if not math.isfinite(value):
            raise not_a_number(value, step=step, blames=[stepper.blame_of(batch)], learning_rate=stepper.learning_rate)
        stepper.apply()
        return value * self.share(batch)

    def _is_due(self, step: int) -> bool:
        config = self.config
        intervals = (config.sync_interval or config.epoch_steps, config.epoch_steps, config.steps)
        return self.group.world_size == 1 or any(step % interval == 0 for interval in intervals)

    def _meet(self, stepper: Stepper, news: Sequence[float]) -> Meeting:
        own, losses, num_bytes = (_weights(stepper), self._num_patches), self._losses, 0
        self._losses, self._num_patches = [], 0
        if self.group.world_size > 1:
            shares, heard = zip(*self.group.gather((own, (losses, news))), strict=True)
            stepper.network.load_state_dict(_average(shares))
            losses, news = (_means([of_rank[place] for of_rank in heard]) for place in (0, 1))
            num_bytes = self.group.world_size * num_bytes_of(own[0])
        return Meeting(losses=losses, news=news, num_bytes=num_bytes)

    # -- chunks ---------------------------------------------------------------------------------------------------

    def _take_step_of(
        self, chunk: Chunk, stepper: Stepper, batch: Batch, step: int, news: Sequence[float]
    ) -> Meeting:  # fmt: skip
        """The ranks hear of each other's loss and signals at every step, so that a checkpoint may be written after any."""
        if not self._chunks.is_begun:
            self._chunks.begin(stepper, chunk)
        loss = self._train(stepper, batch, step)
        self._chunks.num_cases += batch.num_counted
        if chunk.is_over:
            self._chunks.end(stepper, chunk)
        heard = self.group.gather(([loss], news))
        num_bytes = self._average_chunks(stepper) if chunk.is_over and chunk.number + 1 == chunk.num_chunks else 0
        losses, news = (_means([of_rank[place] for of_rank in heard]) for place in (0, 1))
        return Meeting(losses=losses, news=news, num_bytes=num_bytes)

    def _average_chunks(self, stepper: Stepper) -> int:
        own = self._chunks.finished
        stepper.network.load_state_dict(_average([share for shares in self.group.gather(own) for share in shares]))
        self._chunks.start, self._chunks.finished = {}, []
        world_size = self.group.world_size
        return world_size * sum(num_bytes_of(weights) for weights, _ in own) if world_size > 1 else 0

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def state(self, stepper: Stepper) -> dict[str, Any]:
        """Of every rank, in their order; all must call it. In the middle of an epoch of chunks the weights are their average."""
        found: dict[str, Any] = {
            "of_ranks": [unpacked(state) for state in self.group.gather(packed(stepper.state()))]
        }  # fmt: skip
        chunks = self._chunks
        if not chunks.moments and not chunks.start:
            return found
        own = {
            "weights": chunks.all(stepper), "is_begun": chunks.is_begun, "start": chunks.start, "moments": chunks.moments,
        }  # fmt: skip
        of_ranks = [unpacked(state) for state in self.group.gather(packed(own))]
        found["chunks"] = {"chunk_mib": self.config.chunk_mib, "of_ranks": of_ranks}
        if chunks.start:
            found["network"] = _average([share for of_rank in of_ranks for share in of_rank["weights"]])
        return found

    def restore(self, stepper: Stepper, content: Mapping[str, Any]) -> None:
        """As every strategy; the chunks go on where they were only if they are the same ones."""
        super().restore(stepper, content)
        chunks = content.get("chunks")
        if not chunks or chunks["chunk_mib"] != self.config.chunk_mib:
            return
        if len(chunks["of_ranks"]) != self.group.world_size:
            return
        own, found = chunks["of_ranks"][self.group.rank], self._chunks
        found.start, found.is_begun, found.moments = own["start"], own["is_begun"], own["moments"]
        found.finished = [(weights, number) for weights, number in own["weights"]]
        if found.is_begun:
            weights, found.num_cases = found.finished.pop()
            stepper.network.load_state_dict(weights)


STRATEGY = LocalSgdStrategy


def _weights(stepper: Stepper) -> dict[str, Any]:
    """A copy: of the network's own tensors the next step would change them."""
    return {name: tensor.detach().cpu().clone() for name, tensor in stepper.network.state_dict().items()}


def _average(shares: Sequence[tuple[dict[str, Any], int]]) -> dict[str, Any]:
    """By cases; who has had nothing but padding has nothing to bring."""
    states, numbers = zip(*(share for share in shares if share[1]), strict=True)
    return averaged(states, numbers)


def _means(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(of_ranks) for values in zip(*of_ranks, strict=True)]
