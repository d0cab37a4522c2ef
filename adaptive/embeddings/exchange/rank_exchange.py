"""`RankExchange`: a rank's batches on their way among all ranks.

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
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.batch import Batch, OwnPart, cut
from adaptive.counters import Stopwatch
from adaptive.embeddings.exchange.batch_exchange import ExchangedBatch, Party
from adaptive.embeddings.exchange.exchange import Exchange, LookedUp
from adaptive.embeddings.exchange.payload import Crossing
from adaptive.embeddings.exchange.row_cache import Holders
from adaptive.embeddings.exchange.rows import RowsExchange
from adaptive.embeddings.exchange.skip_masks import Answer, pack_answers, unpack_answers
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import LookupsAhead
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Channel, Exchanged
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.embeddings.ranks.wire import Kind
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.errors import AdaptiveError, RanksError

logger = logging.getLogger("adaptive.embeddings.engine")
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]


class RankExchange(Exchange):
    """Exchanges what batches need with other ranks, for all groups.

    Attributes:
        rows: of the training thread.

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
        self.rows = RowsExchange(ranks, groups, devices, device)
        self._ahead, self._reading = Party(ranks, groups), Party(ranks, groups)  # of one thread each
        self._exactly = Crossing(ranks, groups, rounds=False)
        self._holders = [Holders(ranks.rank, ranks.size) for _ in groups]  # of the look-ahead thread
        self._asked: dict[int, ExchangedBatch] = {}
        self._ended: Kind | None = None

    # --- the look-ahead thread -------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        # Rows may have been loaded, and batches may have been answered and not trained.
        self._asked.clear()
        self.forget_cached()
        self.rows.forget()
        self._next, self._ended = number, None

    def batches(
        self, source: Iterator[Batch], check: Callable[[Any], Batch], lookups_ahead: LookupsAhead, stopwatch: Stopwatch
    ) -> Iterator[LookedUp]:
        while True:
            batch = next(source, None)
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
            whole = ExchangedBatch(tuple(blocks), tuple(groups), self._ahead.serve(found), *self._samples(found))
            self._asked[self._next] = whole
            self._count(whole)
            self._next += 1
            yield batch, lambda served=whole.served: [one.lookups for one in served]  # type: ignore[misc]

    def answer(self, number: int, plans: Sequence[GroupPlan], watched: Sequence[HotSet]) -> None:
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

    def forget_cached(self) -> None:
        for holders in self._holders:
            holders.forget()
        self._tells_to_forget = [True] * self.ranks.size

    def _count(self, asked: ExchangedBatch) -> None:
        """Count what this rank asks of others, and what is asked of it."""
        rank = self.ranks.rank
        others = sum(group.num_rows - int(group.sizes[rank]) for group in asked.groups)
        self.ranks.ahead.tally.add(rows_asked=others, rows_served=sum(int(one.sizes.sum()) for one in asked.served))

    def report_failure(self, error: Exception) -> None:
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

    def blocks(self, number: int, batch: Batch) -> Sequence[Batch | None]:
        return self._asked[number].blocks

    # --- the training thread ---------------------------------------------------------------------------------

    def take(self, number: int) -> ExchangedBatch:
        """What ranks have told each other of a batch; once."""
        return self._asked.pop(number)

    def read(
        self, blocks: Sequence[Batch | None], values: Callable[[int, Int64s], Floats]
    ) -> tuple[ExchangedBatch, list[Floats]]:
        """For blocks that are only read: what was asked, and the rows that came (n, D) of each group.

        Args:
            values: group and local rows of this rank (m,) -> their values (m, D).
        """
        groups, messages = self._reading.ask(blocks)
        samples = sum(block.num_samples for block in blocks if block is not None)
        found = self.ranks.rows.exchange(Kind.READ, parts=messages, samples=samples)
        asked = ExchangedBatch(tuple(blocks), tuple(groups), self._reading.serve(found), *self._samples(found))
        served = []
        for number, one in enumerate(asked.served):
            rows = np.empty((int(one.sizes.sum()), self._groups[number].embedding_dim), np.float32)
            rows[one.lookups.bags.vectors] = values(number, one.lookups.distinct.rows)[one.lookups.distinct.inverse]
            served.append(rows)
        parts = self._exactly.pack(served, [one.sizes for one in asked.served])
        found = self.ranks.rows.exchange(Kind.READ_ROWS, parts=parts)
        return asked, self._exactly.unpack(found, [one.sizes for one in asked.groups])

    def traffic(self) -> tuple[RankTraffic, ...]:
        return (self.ranks.traffic(),)

    def leave(self, error: BaseException | None, next_number: int) -> int:
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
