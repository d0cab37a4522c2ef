"""`Exchange`: a rank's batches on their way among all ranks.

    look-ahead thread, channel "ahead"             training thread, channel "rows"
    asked      rows that each rank's blocks        vectors    each owner sends the rows it was asked for
               ask of each owner                   gradients  each asker sends a gradient for each of them

Both happen once for each batch on every rank, in the order of batches, whatever a loop does with a batch. So no thread
waits for a message that nobody sends.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch, OwnPart, cut
from adaptive.engine.exchange.asking import AskedGroup, Asker
from adaptive.engine.exchange.requests import unpack_requests
from adaptive.engine.exchange.serving import ServedGroup, Server
from adaptive.errors import AdaptiveError, RanksError
from adaptive.planning.layout import Group
from adaptive.planning.lookups import Lookups
from adaptive.ranks import Ranks
from adaptive.ranks.channel import Channel, Exchanged
from adaptive.ranks.transport import Bytes
from adaptive.ranks.wire import Kind

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


class Exchange:
    """Exchanges what batches need, for all groups.

    Args:
        ranks: this process among the others.
        groups: of tables, as this rank owns them.
    """

    def __init__(self, ranks: Ranks, groups: Sequence[Group]) -> None:
        self.ranks = ranks
        self._groups = tuple(groups)
        self._ahead, self._reading = _Party(ranks, groups), _Party(ranks, groups)  # of one thread each
        self._asked: dict[int, Asked] = {}
        self._ended: Kind | None = None

    # --- the look-ahead thread -------------------------------------------------------------------------------

    def begin(self, number: int, depth: int) -> None:
        """A look-ahead starts with this batch."""
        self._asked.clear()
        self._next, self._ended = number, None
        self._one_thread, self._within = depth == 0, False

    def coming(
        self, batches: Iterator[Batch], check: Callable[[Any], Batch]
    ) -> Iterator[tuple[Batch, Callable[[], list[Lookups]]]]:
        """Each batch of this rank with what its owner's planner is to plan. Ends with the first rank that has no more.

        Raises:
            AdaptiveError: also if another rank's batches end with an error.
        """
        while True:
            try:
                batch = next(batches, None)
                blocks = None if batch is None else self._blocks(batch, check)
                asked = None if blocks is None else self._ahead.ask(blocks)
            except Exception as error:
                self.ranks.tell(self.ranks.ahead, error)
                raise
            if batch is None or blocks is None or asked is None:
                self._see_end(self.ranks.ahead.exchange(Kind.END, self._next), has_more=False)
                return
            groups, messages = asked
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

    def _count(self, asked: Asked) -> None:
        """Count what this rank asks of others, and what is asked of it."""
        rank = self.ranks.rank
        others = sum(group.num_rows - int(group.sizes[rank]) for group in asked.groups)
        self.ranks.ahead.tally.add(rows_asked=others, rows_served=sum(int(one.sizes.sum()) for one in asked.served))

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

    def vectors(self, number: int, asked: Asked, served: Sequence[Tensor]) -> list[Floats]:
        """Give all ranks the rows they asked for, `served` (requests, D) of each group; returns the rows that this one
        asked for (n, D)."""
        self._within = True
        parts = self._for_askers(asked.served, [one.cpu().numpy() for one in served])
        return self._from_owners(asked.groups, self.ranks.rows.exchange(Kind.VECTORS, number, parts))

    def gradients(self, number: int, asked: Asked, sums: Sequence[Floats] | None) -> list[Floats] | None:
        """Give the owners the gradients of the rows this rank asked for, `sums` (n, D) of each group, or none; returns
        those for the requests of all ranks (requests, D). Ranks without gradients count as 0; None: no rank has any."""
        parts = None
        if sums is not None:
            parts = [_joined(one) for one in zip(*map(_split, sums, (g.sizes for g in asked.groups)), strict=True)]
        found = self.ranks.rows.exchange(Kind.GRADIENTS, number, parts)
        self._within = False
        if not any(header.samples or sum(header.lengths) for header in found.headers):
            return None
        return self._joined_by_group(found, [one.sizes for one in asked.served], may_be_empty=True)

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
        parts = self._for_askers(asked.served, served)
        return asked, self._from_owners(asked.groups, self.ranks.rows.exchange(Kind.READ_ROWS, parts=parts))

    def leave(self, error: BaseException | None, next_number: int) -> int:
        """The look-ahead is over for this rank, its thread joined: tell the others, unless all know that the batches
        have ended. Returns the number of the next batch, which all ranks have agreed on.

        Args:
            error: with which the loop ended, as far as known.
            next_number: of this rank, which may have planned more or fewer batches ahead than others.
        """
        channels = [self.ranks.rows, self.ranks.ahead]
        if self._one_thread and not self._within:
            channels.reverse()  # where the others look first
        for channel in channels:
            if channel is self.ranks.ahead and self._ended is not None:
                continue  # all know that nothing more comes there
            if error is not None:
                self.ranks.tell(channel, error)
            elif self._ended is not Kind.END:
                next_number = max(next_number, self._tell_leaving(channel, next_number))
        return next_number

    def _tell_leaving(self, channel: Channel, next_number: int) -> int:
        try:
            if not channel.over:
                return max(header.batch for header in channel.exchange(Kind.LEFT, next_number).headers)
        except AdaptiveError as wrong:  # the loop is over here; ranks that go on are told by their own exchange
            logger.warning("%s", wrong)
        return next_number

    def _samples(self, found: Exchanged) -> tuple[int, int]:
        """Samples of all ranks, and of those before this one."""
        numbers = [header.samples for header in found.headers]
        return sum(numbers), sum(numbers[: self.ranks.rank])

    # --- rows as bytes ---------------------------------------------------------------------------------------

    def _for_askers(self, served: Sequence[ServedGroup], rows: Sequence[Floats]) -> list[Bytes]:
        """(requests, D) of each group -> the part for each rank."""
        return [_joined(one) for one in zip(*map(_split, rows, (s.sizes for s in served)), strict=True)]

    def _from_owners(self, groups: Sequence[AskedGroup], found: Exchanged) -> list[Floats]:
        return self._joined_by_group(found, [group.sizes for group in groups])

    def _joined_by_group(
        self, found: Exchanged, sizes: Sequence[Int64s], *, may_be_empty: bool = False
    ) -> list[Floats]:
        """Rows (n, D) of each group, rank after rank; `sizes` (W,) of each group. A part may be empty for zeros."""
        widths = [group.embedding_dim for group in self._groups]
        result = [np.zeros((int(n.sum()), width), np.float32) for n, width in zip(sizes, widths, strict=True)]
        starts = [np.cumsum(n) - n for n in sizes]
        for rank, part in enumerate(found.parts):
            needed = 4 * sum(int(n[rank]) * width for n, width in zip(sizes, widths, strict=True))
            if may_be_empty and not len(part):
                continue
            if len(part) != needed:
                raise RanksError(
                    f"{self.ranks.name} needs {needed} bytes of rows from rank {rank}, found {len(part)}: "
                    f"{found.headers[rank].text}"
                )
            values, place = np.frombuffer(part.tobytes(), np.float32), 0
            for rows, first, n, width in zip(result, starts, sizes, widths, strict=True):
                count = int(n[rank])
                rows[first[rank] : first[rank] + count] = values[place : place + count * width].reshape(count, width)
                place += count * width
        return result


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


def _split(rows: Floats, sizes: Int64s) -> list[Floats]:
    """Rows of each rank."""
    return np.split(rows, np.cumsum(sizes)[:-1])


def _joined(parts: Sequence[Floats]) -> Bytes:
    return np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in parts]).view(np.uint8)
