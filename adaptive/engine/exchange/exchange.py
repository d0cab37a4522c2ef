"""`Exchange`: a rank's batches on their way among all ranks.

    look-ahead thread, channel "ahead"             training thread, channel "rows"
    asked      rows that each rank's blocks        vectors    each owner sends the rows it was asked for
               ask of each owner                   gradients  each asker sends a gradient for each of them
    answers    what need not cross, where rows
               are watched: once a batch is planned

All happen once for each batch on every rank, in the order of batches, whatever a loop does with a batch. So no thread
waits for a message that nobody sends.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, OwnPart, cut
from adaptive.engine.exchange.answers import Answer, Bools, pack_answers, unpack_answers
from adaptive.engine.exchange.arrays import Arrays
from adaptive.engine.exchange.asking import AskedGroup, Asker
from adaptive.engine.exchange.crossing import Crossing, count_chosen
from adaptive.engine.exchange.keeping import Copies, Holders
from adaptive.engine.exchange.requests import unpack_requests
from adaptive.engine.exchange.serving import ServedGroup, Server
from adaptive.engine.exchange.values import DeviceValues, HostValues, Values
from adaptive.errors import AdaptiveError, RanksError
from adaptive.planning.hot_set import HotSet
from adaptive.planning.layout import Group
from adaptive.planning.lookups import Lookups
from adaptive.planning.plan import GroupPlan
from adaptive.ranks import Ranks
from adaptive.ranks.channel import NOTHING, Channel, Exchanged
from adaptive.ranks.transport import Bytes
from adaptive.ranks.wire import Kind
from adaptive.tiers.device import DeviceTier

logger = logging.getLogger("adaptive.engine")
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Asked:
    """A batch, as far as ranks have told each other of it."""

    blocks: tuple[Batch | None, ...]  # of this rank
    groups: tuple[AskedGroup, ...]  # what this rank asks
    served: tuple[ServedGroup, ...]  # what it is asked
    samples: int  # of all ranks
    first: int  # samples of the ranks before this one
    forget: tuple[int, ...] = ()  # owners whose rows this rank forgets first


class Exchange:
    """Exchanges what batches need, for all groups.

    Args:
        ranks: this process among the others.
        groups: of tables, as this rank owns them.
        devices: their device tiers.
        device: in whose memory these lie.
    """

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier], device: torch.device
    ) -> None:
        self.ranks = ranks
        self._groups = tuple(groups)
        self._ahead, self._reading = _Party(ranks, groups), _Party(ranks, groups)  # of one thread each
        self._values: Values[Any] = HostValues(ranks, groups, devices)
        if ranks.crosses_on(device.type):
            self._values = DeviceValues(ranks, groups, devices[0], device)
        self._value_bytes = 2 if ranks.wire == "bf16" else 4
        self._exactly = Crossing(ranks, groups, rounds=False)
        self._holders = [Holders(ranks.rank, ranks.size) for _ in groups]  # of the look-ahead thread
        arrays = self._values.arrays
        self._copies = [[Copies(group.embedding_dim, arrays) for _ in range(ranks.size)] for group in groups]
        self._asked: dict[int, Asked] = {}
        self._ended: Kind | None = None

    # --- the look-ahead thread -------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        """A look-ahead starts with this batch. What ranks kept is forgotten: rows may have been loaded, and
        batches may have been answered and not trained."""
        self._asked.clear()
        self.forget_kept()
        for copies in (one for group in self._copies for one in group):
            copies.forget()
        self._next, self._ended = number, None

    def coming(
        self, batches: Iterator[Batch], check: Callable[[Any], Batch]
    ) -> Iterator[tuple[Batch, Callable[[], list[Lookups]]]]:
        """Each batch of this rank with what its owner's planner is to plan. Ends with the first rank that has no more.

        Raises:
            AdaptiveError: also if another rank's batches end with an error.
        """
        while True:
            batch = next(batches, None)
            if batch is None:
                self._see_end(self.ranks.ahead.exchange(Kind.END, self._next), has_more=False)
                return
            blocks = self._blocks(batch, check)
            groups, messages = self._ahead.ask(blocks)
            samples = sum(block.num_samples for block in blocks if block is not None)
            found = self.ranks.ahead.exchange(Kind.REQUESTS, self._next, messages, samples=samples)
            if found.ended:
                self._see_end(found, has_more=True)
                self._check_not_left(found)
                return
            whole = Asked(tuple(blocks), tuple(groups), self._ahead.serve(found), *self._samples(found))
            self._asked[self._next] = whole
            self._count(whole)
            self._next += 1
            yield batch, lambda served=whole.served: [one.lookups for one in served]  # type: ignore[misc]

    def answer(self, number: int, plans: Sequence[GroupPlan], watched: Sequence[HotSet]) -> None:
        """A batch is planned: tell the askers of its rows what need not cross, and hear the same from the owners.

        Args:
            plans: of each group.
            watched: the rows watched in each group, as the plans know them.

        Raises:
            AdaptiveError: as `coming`.
        """
        asked, ranks = self._asked[number], range(self.ranks.size)
        given = [
            holders.answer(plan, served, hot)
            for holders, plan, served, hot in zip(self._holders, plans, asked.served, watched, strict=True)
        ]
        ends = [np.cumsum(served.sizes) for served in asked.served]
        messages = []
        for rank in ranks:
            spans = [slice(int(e[rank] - s.sizes[rank]), int(e[rank])) for e, s in zip(ends, asked.served, strict=True)]
            own = [one.of(span) for one, span in zip(given, spans, strict=True)]
            messages.append(pack_answers(own, bool(self._tells_to_forget[rank])))
            self._tells_to_forget[rank] &= not len(messages[-1])
        found = self.ranks.ahead.exchange(Kind.ANSWERS, number, messages)
        if found.ended:
            self._see_end(found, has_more=True)
            self._check_not_left(found)
        told = [
            unpack_answers(part, [int(group.sizes[rank]) for group in asked.groups], f"rank {rank}")
            for rank, part in enumerate(found.parts)
        ]
        got = [Answer.joined([answers[place] for answers, _ in told]) for place in range(len(asked.groups))]
        self._asked[number] = replace(
            asked,
            groups=tuple(replace(one, answer=answer) for one, answer in zip(asked.groups, got, strict=True)),
            served=tuple(replace(one, answer=answer) for one, answer in zip(asked.served, given, strict=True)),
            forget=tuple(rank for rank in ranks if told[rank][1]),
        )

    def forget_kept(self) -> None:
        """As far as this owner knows, no rank has any of its rows. No batch is in flight."""
        for holders in self._holders:
            holders.forget()
        self._tells_to_forget = [True] * self.ranks.size

    def _count(self, asked: Asked) -> None:
        """Count what this rank asks of others, and what is asked of it."""
        rank = self.ranks.rank
        others = sum(group.num_rows - int(group.sizes[rank]) for group in asked.groups)
        self.ranks.ahead.tally.add(rows_asked=others, rows_served=sum(int(one.sizes.sum()) for one in asked.served))

    def tell_ahead(self, error: Exception) -> None:
        """Tell the others that reading or planning has failed, in the place of what they wait for next."""
        if self._ended is None:
            self.ranks.tell(self.ranks.ahead, error)

    def _check_not_left(self, found: Exchanged) -> None:
        """Check that no rank has left its loop. Where this rank is leaving, too, nobody hears of the error."""
        for rank, header in enumerate(found.headers):
            if header.kind is Kind.LEFT:
                raise RanksError(
                    f"{self.ranks.name_of(rank)} left its loop, and {self.ranks.name} went on to batch {self._next}: "
                    "all ranks must train equally many batches"
                )

    def _see_end(self, found: Exchanged, *, has_more: bool) -> None:
        left = any(header.kind is Kind.LEFT for header in found.headers)
        self._ended = Kind.LEFT if left else Kind.END
        if has_more and not left:
            first = next(rank for rank, header in enumerate(found.headers) if header.kind is Kind.END)
            logger.warning(
                "%s has more batches, but rank %d has none left: training ends with batch %d",
                self.ranks.name,
                first,
                self._next - 1,
            )

    def _blocks(self, batch: Any, check: Callable[[Any], Batch]) -> list[Batch | None]:
        """The blocks of this rank. A loop's own batch is cut into equal ones."""
        if isinstance(batch, OwnPart):
            return [None if block is None else check(block) for block in batch.blocks()]
        batch, count = check(batch), len(self.ranks.own_blocks)
        return cut(batch, np.diff([number * batch.num_samples // count for number in range(count + 1)]).tolist())

    # --- the training thread ---------------------------------------------------------------------------------

    def asked(self, number: int) -> Asked:
        """What ranks have told each other of a batch; once."""
        return self._asked.pop(number)

    def vectors(self, number: int, asked: Asked, served: Sequence[Tensor]) -> list[Tensor]:
        """Give all ranks the rows they asked for, `served` (requests, D) of each group; returns the rows that this one
        asked for (n, D), on the device."""
        arrays = self._values.arrays
        here, counts = _crossing(asked.served, "kept")
        there, come = _crossing(asked.groups, "kept")
        rows = [arrays.chosen(*one) for one in zip(self._values.unload(served), here, strict=True)]
        found = self.ranks.rows.exchange(Kind.VECTORS, number, self._values.pack(rows, counts))
        self._spare("vectors_spared", [one.sizes for one in asked.served], counts)
        came = self._values.unpack(found, Kind.VECTORS, come)
        for rank in asked.forget:
            for copies in self._copies:
                copies[rank].forget()
        whole = [arrays.spread(*one) for one in zip(came, there, strict=True)]
        for group, copies, vectors in zip(asked.groups, self._copies, whole, strict=True):
            _use_copies(arrays, group, copies, vectors)
        return self._values.load(whole)

    def gradients(self, number: int, asked: Asked, sums: Sequence[Tensor] | None) -> list[Tensor] | None:
        """Give the owners the gradients of the rows this rank asked for, `sums` (m, D) of each group without those that
        are left out, or none; returns those for the requests of all ranks, as `taken_in` does."""
        parts = self.for_owners(asked, sums)
        return self.taken_in(
            asked, self.ranks.rows.exchange(Kind.GRADIENTS, number, parts, samples=int(sums is not None))
        )

    def for_owners(self, asked: Asked, sums: Sequence[Tensor] | None) -> list[Bytes]:
        """The part of each owner of the gradients that `gradients` is given."""
        _, counts = _crossing(asked.groups, "left_out")
        self._spare("gradients_spared", [one.sizes for one in asked.groups], counts)
        return [NOTHING] * self.ranks.size if sums is None else self._values.pack(self._values.unload(sums), counts)

    def taken_in(self, asked: Asked, found: Exchanged) -> list[Tensor] | None:
        """The gradients for the requests of all ranks (requests, D) on the device, 0 where they are left out, from what
        `for_owners` gave on each rank. Ranks whose header tells of no samples count as 0; None: no rank has
        gradients."""
        if not any(header.samples for header in found.headers):
            return None
        wanted, come = _crossing(asked.served, "left_out")
        arrays, came = self._values.arrays, self._values.unpack(found, Kind.GRADIENTS, come)
        return self._values.load([arrays.spread(*one) for one in zip(came, wanted, strict=True)])

    def _spare(self, name: str, sizes: Sequence[Int64s], counts: Sequence[Int64s]) -> None:
        """Count rows that would have gone to other ranks."""
        rank, spared = self.ranks.rank, 0
        for group, size, count in zip(self._groups, sizes, counts, strict=True):
            left = size - count
            spared += int(left.sum() - left[rank]) * self._value_bytes * group.embedding_dim
        self.ranks.rows.tally.add(**{name: spared})

    def read(
        self, blocks: Sequence[Batch | None], values: Callable[[int, Int64s], Floats]
    ) -> tuple[Asked, list[Floats]]:
        """For blocks that are only read: what was asked, and the rows that came (n, D) of each group.

        Args:
            values: group and local rows of this rank (m,) -> their values (m, D).
        """
        groups, messages = self._reading.ask(blocks)
        samples = sum(block.num_samples for block in blocks if block is not None)
        found = self.ranks.rows.exchange(Kind.READ, parts=messages, samples=samples)
        asked = Asked(tuple(blocks), tuple(groups), self._reading.serve(found), *self._samples(found))
        served = []
        for number, one in enumerate(asked.served):
            rows = np.empty((int(one.sizes.sum()), self._groups[number].embedding_dim), np.float32)
            rows[one.lookups.bags.vectors] = values(number, one.lookups.distinct.rows)[one.lookups.distinct.inverse]
            served.append(rows)
        parts = self._exactly.pack(served, [one.sizes for one in asked.served])
        found = self.ranks.rows.exchange(Kind.READ_ROWS, parts=parts)
        return asked, self._exactly.unpack(found, [one.sizes for one in asked.groups])

    def leave(self, error: BaseException | None, next_number: int) -> int:
        """The look-ahead is over for this rank, its thread joined: tell the others, unless all know that the batches
        have ended. Returns the number of the next batch, which all ranks have agreed on.

        Args:
            error: with which the loop ended, as far as known.
            next_number: of this rank, which may have planned more or fewer batches ahead than others.
        """
        with ThreadPoolExecutor(1, "adaptive-leaving") as beside:
            # On both channels at once: on either, others may wait for this rank, and reach the other one only then.
            ahead = beside.submit(self._leave_channel, self.ranks.ahead, error, next_number)
            agreed = self._leave_channel(self.ranks.rows, error, next_number)
            ahead.result()
        return agreed

    def _leave_channel(self, channel: Channel, error: BaseException | None, next_number: int) -> int:
        if channel is self.ranks.ahead and self._ended is not None:
            return next_number  # all know that nothing more comes there
        if error is not None:
            self.ranks.tell(channel, error)
        elif self._ended is not Kind.END and not channel.over:
            try:
                headers = channel.exchange(Kind.LEFT, next_number).headers
                return max(header.batch for header in headers if header.kind is Kind.LEFT)
            except AdaptiveError as wrong:  # the loop is over here; ranks that go on are told by their own exchange
                logger.warning("%s", wrong)
        return next_number

    def _samples(self, found: Exchanged) -> tuple[int, int]:
        """Samples of all ranks, and of those before this one."""
        numbers = [header.samples for header in found.headers]
        return sum(numbers), sum(numbers[: self.ranks.rank])


class _Party:
    """Asks and serves; memory of one thread."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group]) -> None:
        self._ranks, self._groups = ranks, groups
        self._asker = Asker(groups, ranks.size)
        self._servers = [Server(group, ranks.name) for group in groups]

    def ask(self, blocks: Sequence[Batch | None]) -> tuple[list[AskedGroup], list[Bytes]]:
        return self._asker.ask(blocks)

    def serve(self, found: Exchanged) -> tuple[ServedGroup, ...]:
        asked: list[list[Any]] = [[] for _ in self._groups]
        for rank, message in enumerate(found.parts):
            sender, rest = f"rank {rank}", message
            for requests, group in zip(asked, self._groups, strict=True):
                one, rest = unpack_requests(group.whole, rest, len(self._ranks.blocks_of(rank)), sender)
                requests.append(one)
            if len(rest):
                raise RanksError(f"{sender} sent {len(rest)} bytes more than its requests take")
        return tuple(server.serve(one) for server, one in zip(self._servers, asked, strict=True))


def _opposite(answer: Answer | None, plane: str) -> Bools | None:
    """The requests (n,) that are not in a plane of an answer; None: all."""
    there: Bools | None = None if answer is None else getattr(answer, plane)
    return None if there is None or not there.any() else ~there


def _crossing(requests: Sequence[AskedGroup | ServedGroup], plane: str) -> tuple[list[Any], list[Int64s]]:
    """Of each group the requests (n,) whose rows cross, as they are not in a plane of the answers (None: all), and how
    many of each rank these are (W,)."""
    chosen = [_opposite(one.answer, plane) for one in requests]
    return chosen, [count_chosen(one.sizes, which) for one, which in zip(requests, chosen, strict=True)]


def _use_copies(arrays: Arrays[Any], group: AskedGroup, copies: Sequence[Copies], vectors: Any) -> None:
    """Fill in the vectors (n, D) that did not cross, and keep those that are not to cross again."""
    if group.answer is None or not (group.answer.kept.any() or group.answer.keep.any()):
        return
    last = 0
    for size, own in zip(group.sizes.tolist(), copies, strict=True):
        answer = group.answer.of(slice(last, last + size))
        kept, keep = (last + np.flatnonzero(which) for which in (answer.kept, answer.keep))
        if len(kept):
            arrays.put(vectors, kept, own.get(group.rows[kept]))
        if len(keep):
            own.put(group.rows[keep], arrays.at(vectors, keep))
        last += size
