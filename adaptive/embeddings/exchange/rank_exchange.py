"""`RankExchange`: exchanges the batches of one rank with all ranks.

    look-ahead thread, channel "ahead"             training thread, channel "rows"
    requests   rows that each rank's blocks        vectors    each owner sends the requested rows
               look up, to each owner              gradients  each requester sends a gradient for each of them
    answers    what need not be sent, after a
               batch is planned; if rows are watched

Requests of keys that have no rows yet go to all ranks, and become requests of rows when the batch is planned.

Every rank makes each of these exchanges once per batch, in the order of batches, regardless of what its loop does with
a batch. So no thread waits for a message that is never sent.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from adaptive.batch import Batch, OwnPart, cut
from adaptive.counters import Counter, Stopwatch
from adaptive.embeddings.exchange.exchange import Exchange, LookedUp
from adaptive.embeddings.exchange.payload import (
    Bools,
    DevicePayload,
    Floats,
    HostPayload,
    Int64s,
    Payload,
    count_chosen,
)
from adaptive.embeddings.exchange.requests import (
    KeyMerger,
    OwnerRequests,
    RequestBuilder,
    RequestedRows,
    RequestMerger,
    Requests,
    unpack_key_facts,
    unpack_requests,
)
from adaptive.embeddings.exchange.row_cache import CacheDirectory, RowCache, SkipMasks, pack_masks, unpack_masks
from adaptive.embeddings.planning.hot_set import HotSet
from adaptive.embeddings.planning.key_tables import NO_TIME, GroupKeys, KeyChanges, LastAccess
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.planning.lookups import Lookups, LookupsAhead
from adaptive.embeddings.planning.plan import GroupPlan
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import NOTHING, Channel, Exchanged
from adaptive.embeddings.ranks.traffic import RankTraffic
from adaptive.embeddings.ranks.transport import Bytes, Kind
from adaptive.embeddings.tiers.device import DeviceTier
from adaptive.errors import AdaptiveError, RanksError

logger = logging.getLogger("adaptive.embeddings.engine")


@dataclass(frozen=True)
class RequestedKeys:
    """Requests of one group whose keys have no rows yet."""

    requests: tuple[Requests, ...]  # of each rank
    latest: float  # timestamp of all ranks


@dataclass(frozen=True)
class ExchangedBatch:
    """A batch whose requests have been exchanged."""

    blocks: tuple[Batch | None, ...]  # of this rank
    groups: tuple[RequestedRows, ...]  # requested by this rank, of each group
    served: tuple[OwnerRequests, ...]  # requested of this rank, of each group
    samples: int  # of all ranks
    first: int  # position of this rank's first sample in the global batch
    forget: tuple[int, ...] = ()  # owners whose cached rows this rank drops first
    keys: Mapping[int, RequestedKeys] = field(default_factory=dict)  # of groups with keys, until these have rows


class RankExchange(Exchange):
    """Exchanges requests, rows and gradients of batches with other ranks, for all groups.

    `groups`, as this rank owns them, have the device tiers `devices` on `device`, and `keys`, if they have any.
    """

    def __init__(
        self,
        ranks: Ranks,
        groups: Sequence[Group],
        keys: Sequence[GroupKeys | None],
        devices: Sequence[DeviceTier],
        device: torch.device,
    ) -> None:
        self.ranks = ranks
        self._groups = tuple(groups)
        self.rows = RowExchange(ranks, groups, devices, device)  # for the training thread
        self._ahead = _RequestExchange(ranks, groups, keys)  # for the look-ahead thread
        self._reading = _RequestExchange(ranks, groups, keys)  # for the training thread
        self._exact_payload = HostPayload(ranks, groups, rounds=False)
        self._directories = [CacheDirectory(ranks.rank, ranks.size) for _ in groups]  # for the look-ahead thread
        self._batches: dict[int, ExchangedBatch] = {}  # requested and not trained yet, by number
        self._ended: Kind | None = None  # END or LEFT once the batches of some rank have ended

    # --- the look-ahead thread -------------------------------------------------------------------------------

    def begin(self, number: int) -> None:
        # Rows may have been loaded since, and some batches were answered but never trained: start from scratch.
        self._batches.clear()
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
            exchanged, batch_exchanged = self._ahead.exchange(
                self.ranks.ahead, Kind.REQUESTS, self._next, self._blocks(batch, check)
            )
            if batch_exchanged is None:
                self._see_end(exchanged, has_more=True)
                return
            self._batches[self._next] = batch_exchanged
            for group, (requested, requests) in enumerate(
                zip(batch_exchanged.groups, batch_exchanged.served, strict=True)
            ):
                if group not in batch_exchanged.keys:
                    self._count(requested, requests)
            self._next += 1
            yield batch, lambda served=batch_exchanged.served: [group.lookups for group in served]  # type: ignore[misc]

    def give_rows(
        self, number: int, group: int, keys: GroupKeys, lookups: Lookups, batch: Batch, last_access: LastAccess
    ) -> tuple[Lookups, KeyChanges]:
        exchanged = self._batches[number]
        of_keys, latest = exchanged.keys[group].requests, exchanged.keys[group].latest
        rows, changes = keys.give_rows(lookups.distinct, latest, number, last_access, lambda: f"batch {number}")
        merger = self._ahead.key_mergers[group]
        requested, served, without_row = merger.give_rows(exchanged.groups[group].blocks, of_keys, lookups, rows)
        changes.tally[:, Counter.UNADMITTED_LOOKUPS] = without_row
        self._count(requested, served)
        groups, of_ranks = list(exchanged.groups), list(exchanged.served)
        groups[group], of_ranks[group] = requested, served
        self._batches[number] = replace(exchanged, groups=tuple(groups), served=tuple(of_ranks))
        return served.lookups, changes

    def any_rank(self, number: int, fact: bool) -> bool:
        exchanged = self.ranks.ahead.exchange(Kind.ANSWERS, number, samples=int(fact))
        if exchanged.ended:
            self._see_end(exchanged, has_more=True)
        return any(header.samples for header in exchanged.headers)

    def answer(self, number: int, plans: Sequence[GroupPlan], watched: Sequence[HotSet]) -> None:
        batch, ranks = self._batches[number], range(self.ranks.size)
        sent = [
            directory.masks_of(plan, requests.lookups, requests.sizes, hot)
            for directory, plan, requests, hot in zip(self._directories, plans, batch.served, watched, strict=True)
        ]
        ends = [np.cumsum(requests.sizes) for requests in batch.served]
        messages = []
        for rank in ranks:
            of_rank = [
                masks.of(slice(int(end[rank] - requests.sizes[rank]), int(end[rank])))
                for masks, requests, end in zip(sent, batch.served, ends, strict=True)
            ]
            messages.append(pack_masks(of_rank, forget=bool(self._tells_to_forget[rank])))
            self._tells_to_forget[rank] &= not len(messages[-1])
        exchanged = self.ranks.ahead.exchange(Kind.ANSWERS, number, messages)
        if exchanged.ended:
            self._see_end(exchanged, has_more=True)
        masks_of_owners, forgets = zip(
            *(
                unpack_masks(part, [int(group.sizes[owner]) for group in batch.groups], f"rank {owner}")
                for owner, part in enumerate(exchanged.parts)
            ),
            strict=True,
        )
        received = map(SkipMasks.joined, zip(*masks_of_owners, strict=True))
        self._batches[number] = replace(
            batch,
            groups=tuple(replace(group, masks=masks) for group, masks in zip(batch.groups, received, strict=True)),
            served=tuple(replace(requests, masks=masks) for requests, masks in zip(batch.served, sent, strict=True)),
            forget=tuple(rank for rank in ranks if forgets[rank]),
        )

    def forget_cached(self) -> None:
        for directory in self._directories:
            directory.forget()
        self._tells_to_forget = [True] * self.ranks.size

    def _count(self, requested: RequestedRows, served: OwnerRequests) -> None:
        """Count the rows of a group that this rank requests of others, and those requested of it."""
        others = len(requested.rows) - int(requested.sizes[self.ranks.rank])
        self.ranks.ahead.tally.add(rows_asked=others, rows_served=int(served.sizes.sum()))

    def report_failure(self, error: Exception) -> None:
        if self._ended is None:
            self.ranks.report(self.ranks.ahead, error)

    def _see_end(self, exchanged: Exchanged, *, has_more: bool) -> None:
        """Record that some rank has no more batches; `has_more`: this rank has.

        Raises:
            RanksError: if this rank has more batches, and another rank left its loop early.
        """
        kinds = [header.kind for header in exchanged.headers]
        self._ended = Kind.LEFT if Kind.LEFT in kinds else Kind.END
        if has_more and self._ended is Kind.LEFT:
            raise RanksError(
                f"batch {self._next}: expected all ranks, got {self.ranks.name_of(kinds.index(Kind.LEFT))} outside of "
                f"its loop, while {self.ranks.name} continued. Train the same number of batches on all ranks."
            )
        if has_more:
            logger.warning(
                "training ends with batch %d: rank %d has no more batches, but %s has. Give all ranks the same number.",
                self._next - 1,
                kinds.index(Kind.END),
                self.ranks.name,
            )

    def _blocks(self, batch: Any, check: Callable[[Any], Batch]) -> list[Batch | None]:
        """Return this rank's blocks of a batch; a custom loop's batch is cut equally."""
        if isinstance(batch, OwnPart):
            return [None if block is None else check(block) for block in batch.blocks()]
        batch, count = check(batch), len(self.ranks.own_blocks)
        return cut(batch, np.diff([number * batch.num_samples // count for number in range(count + 1)]).tolist())

    def blocks(self, number: int, batch: Batch) -> Sequence[Batch | None]:
        return self._batches[number].blocks

    # --- the training thread ---------------------------------------------------------------------------------

    def take(self, number: int) -> ExchangedBatch:
        """Return the current batch; once."""
        return self._batches.pop(number)

    def read(
        self, blocks: Sequence[Batch | None], values: Callable[[int, Int64s], Floats]
    ) -> tuple[ExchangedBatch, list[Floats]]:
        """Exchange blocks that are only read; return the batch and its rows (n, D) of each group.

        `values`: function from a group's number and owned rows (m,) to their values (m, D).
        """
        _, batch = self._reading.exchange(self.ranks.rows, Kind.READ, -1, blocks)
        assert batch is not None
        served = []
        for number, requests in enumerate(batch.served):
            rows = np.empty((int(requests.sizes.sum()), self._groups[number].embedding_dim), np.float32)
            distinct = requests.lookups.distinct
            rows[requests.lookups.bags.vectors] = values(number, distinct.rows)[distinct.inverse]
            served.append(rows)
        parts = self._exact_payload.pack(served, [requests.sizes for requests in batch.served], Kind.READ_ROWS)
        exchanged = self.ranks.rows.exchange(Kind.READ_ROWS, parts=parts)
        return batch, self._exact_payload.unpack(exchanged, Kind.READ_ROWS, [group.sizes for group in batch.groups])

    def traffic(self) -> tuple[RankTraffic, ...]:
        return (self.ranks.traffic(),)

    def leave(self, error: BaseException | None, next_number: int) -> int:
        with ThreadPoolExecutor(1, "adaptive-leaving") as pool:
            # Both channels at once: another rank may wait for this one on either, before it uses the other channel.
            ahead = pool.submit(self._leave_channel, self.ranks.ahead, error, next_number)
            agreed = self._leave_channel(self.ranks.rows, error, next_number)
            ahead.result()
        return agreed

    def _leave_channel(self, channel: Channel, error: BaseException | None, next_number: int) -> int:
        if channel is self.ranks.ahead and self._ended is not None:
            return next_number  # all ranks know that this channel is finished
        if error is not None:
            self.ranks.report(channel, error)
        elif self._ended is not Kind.END and not channel.over:
            try:
                headers = channel.exchange(Kind.LEFT, next_number).headers
                return max(header.batch for header in headers if header.kind is Kind.LEFT)
            except AdaptiveError as wrong:  # this loop is over; ranks that continue get the error in their own exchange
                logger.warning("%s", wrong)
        return next_number


class _RequestExchange:
    """Exchanges requests of batches. For one thread."""

    def __init__(self, ranks: Ranks, groups: Sequence[Group], keys: Sequence[GroupKeys | None]) -> None:
        self._ranks, self._groups = ranks, groups
        self._builder = RequestBuilder(groups, keys, ranks.size)
        self._mergers = [RequestMerger(group, ranks.name) for group in groups]
        self.key_mergers = {
            number: KeyMerger(group, of_group, ranks, self._builder)
            for number, (group, of_group) in enumerate(zip(groups, keys, strict=True))
            if of_group is not None
        }

    def exchange(
        self, channel: Channel, kind: Kind, number: int, blocks: Sequence[Batch | None]
    ) -> tuple[Exchanged, ExchangedBatch | None]:
        """Exchange requests of a batch; return None for it if some rank has no more batches."""
        only_read = kind is Kind.READ
        groups, messages = self._builder.build(blocks, only_read=only_read)
        samples = sum(block.num_samples for block in blocks if block is not None)
        exchanged = channel.exchange(kind, number, messages, samples=samples)
        if exchanged.ended:
            return exchanged, None
        samples_of_ranks = [header.samples for header in exchanged.headers]
        first = sum(samples_of_ranks[: self._ranks.rank])
        served, keys = self._merge(exchanged.parts, only_read=only_read)
        samples = sum(samples_of_ranks)
        return exchanged, ExchangedBatch(tuple(blocks), tuple(groups), served, samples, first, keys=keys)

    def _merge(
        self, messages: Sequence[Bytes], *, only_read: bool
    ) -> tuple[tuple[OwnerRequests, ...], dict[int, RequestedKeys]]:
        by_group: list[list[Requests]] = [[] for _ in self._groups]
        latest = [NO_TIME] * len(self._groups)
        for rank, message in enumerate(messages):
            sender, rest, num_blocks = f"rank {rank}", message, len(self._ranks.blocks_of(rank))
            for number, group in enumerate(self._groups):
                are_keys = group.has_keys and not only_read
                requests, rest = unpack_requests(group.undivided, rest, num_blocks, sender, are_keys=are_keys)
                by_group[number].append(requests)
                if are_keys:
                    time, rest = unpack_key_facts(self.key_mergers[number].keys, rest, sender)
                    latest[number] = max(latest[number], time)
            if len(rest):
                raise RanksError(
                    f"{sender}: expected requests only, got {len(rest)} bytes more. Use the same version of adaptive "
                    "and the same tables on all ranks."
                )
        keys = {} if only_read else {n: RequestedKeys(tuple(by_group[n]), latest[n]) for n in self.key_mergers}
        served = [
            self.key_mergers[number].find_keys(of_group) if number in keys else self._mergers[number].merge(of_group)
            for number, of_group in enumerate(by_group)
        ]
        return tuple(served), keys


class RowExchange:
    """Sends rows to their requesters and gradients to the owners, in the training thread."""

    def __init__(
        self, ranks: Ranks, groups: Sequence[Group], devices: Sequence[DeviceTier], device: torch.device
    ) -> None:
        rounds = ranks.wire == "bf16"
        self._ranks, self._groups = ranks, tuple(groups)
        self._payload: Payload[Any] = HostPayload(ranks, groups, devices, rounds=rounds)
        if ranks.crosses_on(device.type):
            self._payload = DevicePayload(ranks, groups, devices[0], device, rounds=rounds)
        self._caches = [[RowCache(group.embedding_dim, self._payload) for _ in range(ranks.size)] for group in groups]

    def forget(self) -> None:
        """Drop all cached rows."""
        for caches in self._caches:
            for cache in caches:
                cache.forget()

    def vectors(self, number: int, batch: ExchangedBatch, served: Sequence[Tensor]) -> list[Tensor]:
        """Send the rows `served` (requests, D) of each group; return those requested here (n, D)."""
        payload = self._payload
        sent, sent_counts = _select_sent(batch.served, "cached")
        expected, expected_counts = _select_sent(batch.groups, "cached")
        rows = list(map(payload.select, payload.unload(served), sent))
        exchanged = self._ranks.rows.exchange(Kind.VECTORS, number, payload.pack(rows, sent_counts, Kind.VECTORS))
        self._count_spared(Kind.VECTORS, [requests.sizes for requests in batch.served], sent_counts)
        received = payload.unpack(exchanged, Kind.VECTORS, expected_counts)
        for owner in batch.forget:
            for caches in self._caches:
                caches[owner].forget()
        vectors = list(map(payload.scatter, received, expected))
        for group, caches, of_group in zip(batch.groups, self._caches, vectors, strict=True):
            self._use_caches(group, caches, of_group)
        return payload.load(vectors)

    def _use_caches(self, group: RequestedRows, caches: Sequence[RowCache], vectors: Any) -> None:
        """Fill in vectors (n, D) that were not sent; cache those that will not be sent again."""
        if group.masks is None or not (group.masks.cached.any() or group.masks.to_cache.any()):
            return
        first = 0
        for size, cache in zip(group.sizes.tolist(), caches, strict=True):
            masks = group.masks.of(slice(first, first + size))
            cached, to_cache = (first + np.flatnonzero(plane) for plane in (masks.cached, masks.to_cache))
            if len(cached):
                self._payload.put(vectors, cached, cache.get(group.rows[cached]))
            if len(to_cache):
                cache.put(group.rows[to_cache], self._payload.take(vectors, to_cache))
            first += size

    def gradients(self, number: int, batch: ExchangedBatch, sums: Sequence[Tensor] | None) -> list[Tensor] | None:
        """Send gradients to the owners of rows; return those that this owner received.

        `sums` (m, D) of each group: of the requested rows that are not skipped; None for none.
        """
        parts = self.for_owners(batch, sums)
        exchanged = self._ranks.rows.exchange(Kind.GRADIENTS, number, parts, samples=int(sums is not None))
        return self.from_requesters(batch, exchanged)

    def for_owners(self, batch: ExchangedBatch, sums: Sequence[Tensor] | None) -> list[Bytes]:
        """Return the message for each owner with the gradients `sums`; see `gradients`."""
        _, counts = _select_sent(batch.groups, "skipped")
        self._count_spared(Kind.GRADIENTS, [group.sizes for group in batch.groups], counts)
        if sums is None:
            return [NOTHING] * self._ranks.size
        return self._payload.pack(self._payload.unload(sums), counts, Kind.GRADIENTS)

    def from_requesters(self, batch: ExchangedBatch, exchanged: Exchanged) -> list[Tensor] | None:
        """Return the gradients (requests, D) of the requests of all ranks, on the device.

        `exchanged` contains the messages that `for_owners` returned on each rank. Ranks whose header has no samples
        count as 0. None if no rank has gradients.
        """
        if not any(header.samples for header in exchanged.headers):
            return None
        expected, counts = _select_sent(batch.served, "skipped")
        received = self._payload.unpack(exchanged, Kind.GRADIENTS, counts)
        return self._payload.load(list(map(self._payload.scatter, received, expected)))

    def _count_spared(self, kind: Kind, sizes: Sequence[Int64s], counts: Sequence[Int64s]) -> None:
        """Count the bytes of rows that would have been sent to other ranks."""
        rank, num_bytes = self._ranks.rank, 0
        for group, value, size, count in zip(self._groups, self._payload.value_bytes(kind), sizes, counts, strict=True):
            spared = size - count
            num_bytes += int(spared.sum() - spared[rank]) * value * group.embedding_dim
        self._ranks.rows.tally.add(**{f"{kind.name.lower()}_spared": num_bytes})


def _select_sent(
    requests: Sequence[RequestedRows | OwnerRequests], plane: str
) -> tuple[list[Bools | None], list[Int64s]]:
    """Return, for each group, the requests (n,) outside of a plane (None: all), and counts."""
    chosen = []
    for of_group in requests:
        masked: Bools | None = None if of_group.masks is None else getattr(of_group.masks, plane)
        chosen.append(None if masked is None or not masked.any() else ~masked)
    return chosen, [count_chosen(rows.sizes, crosses) for rows, crosses in zip(requests, chosen, strict=True)]
