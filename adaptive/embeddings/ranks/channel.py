"""`Channel`: exchanges of one thread, each announced by headers, so that ranks that disagree stop, and none waits.

    first message   header, then as much of the part as there is room for      always
    the rest        of parts that are larger than that                         if all headers agree, and there is any

How much room there is follows from what all ranks have seen: what crossed when last the same exchange lay behind them.
So every rank knows the size of every first message, whatever the others are about to do, and most exchanges are one
message. What counts is decided from the headers of all ranks alone: all take each other's parts, or none does.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from adaptive import errors
from adaptive.embeddings.ranks.message_size import Room, Rooms
from adaptive.embeddings.ranks.traffic import Tally
from adaptive.embeddings.ranks.transport import CHANNELS, Bytes, Transport, TransportError
from adaptive.embeddings.ranks.wire import MOST_TEXT, Header, Kind, header_size, part_check, seed_of, unpack
from adaptive.errors import AdaptiveError, RanksError

if TYPE_CHECKING:
    from torch import Tensor

ENDS: Final = (Kind.END, Kind.LEFT)  # of a look-ahead
NOTHING: Final = np.zeros(0, np.uint8)
NO_OTHERS: Final[Mapping[Kind, int]] = {}


@dataclass(frozen=True)
class Exchanged:
    """What an exchange brought."""

    headers: tuple[Header, ...]  # of each rank
    parts: list[Bytes]  # from each rank; empty where the exchange ended something

    @property
    def ended(self) -> bool:
        """Some rank has no more batches."""
        return any(header.kind in ENDS for header in self.headers)


class Channel:
    """One channel of a transport.

    Attributes:
        over: nothing more can be exchanged: the channel is broken, or a rank has failed.
        tally: what this rank has sent, and how long it has waited.
    """

    def __init__(self, transport: Transport, number: int) -> None:
        self._transport, self._number = transport, number
        self._sequence = 0
        self._rooms = Rooms(transport.size)
        self.heard = 0  # a signal that this rank was sent
        self.agreed = 0  # a signal that some rank had been sent at an exchange: known to all at the same one
        self.over = False
        self.tally = Tally()

    def exchange(
        self,
        kind: Kind,
        batch: int = -1,
        parts: Sequence[Bytes] | None = None,
        *,
        samples: int = 0,
        code: int = 0,
        counted: Mapping[Kind, int] = NO_OTHERS,
    ) -> Exchanged:
        """Give each rank its part and get theirs.

        Ranks may differ in kind where one has no more batches (`Exchanged.ended`, and no part crosses). `counted`:
        bytes of the parts for other ranks that are counted as of another kind.

        Raises:
            AdaptiveError: of the class with which another rank has failed.
            RanksError: if ranks are out of step, gone, or do not come in time, or what came is damaged. Of a damaged
                part other ranks can be told (`tell_failure`); of a damaged header not, since nobody knows what follows.
        """
        size, rank = self._transport.size, self._transport.rank
        own = [NOTHING] * size if parts is None else [np.ascontiguousarray(part).view(np.uint8) for part in parts]
        mine = Header(kind, self._sequence, batch, tuple(len(part) for part in own), samples, self.heard, code)
        if self.over:
            raise RanksError(
                f"{self._who(rank)}: {mine.text}: nothing can be exchanged any more after an earlier error"
            )
        try:
            room = self._rooms.of_next()
            headers, early = self._first(mine, own, room)
            self._sequence += 1
            self.agreed = self.agreed or max(header.signal for header in headers)
            failed = [r for r, header in enumerate(headers) if header.kind is Kind.FAILED]
            if not failed:
                self._check(headers, mine)
            ended = any(header.kind in ENDS for header in headers)
            self._rooms.learn(None if failed or ended else kind, [header.lengths for header in headers])
            counts = failed or ([] if ended else range(size))  # the ranks whose parts are taken
            found = self._whole(kind, own, headers, early, room, counts)
            damaged = [r for r in counts if r != rank and part_check(found[r]) != headers[r].check]
            if not ended:
                for other, num_bytes in counted.items():
                    self.tally.send(other, num_bytes)
                    self.tally.send(kind, -num_bytes)
        except TransportError as error:
            self.over = True
            raise self._broken(mine, error) from error
        except RanksError:
            self.over = True
            raise
        if damaged:
            self.over = bool(failed)
            raise self._damaged(damaged[0], headers[damaged[0]])
        if failed and rank not in failed:
            self.over = True
            raise self._of_another(failed[0], headers[failed[0]].code, found[failed[0]])
        return Exchanged(headers, found)

    def _first(self, mine: Header, own: Sequence[Bytes], room: Room) -> tuple[tuple[Header, ...], list[Bytes]]:
        """The headers of all ranks, and what came with them (`room` bytes from each). What a rank has for itself goes
        nowhere."""
        size, rank = self._transport.size, self._transport.rank
        if size == 1:
            return (mine,), [NOTHING]
        num_bytes = header_size(size)
        pieces = [
            [self._header(mine, to, NOTHING if to == rank else part), part[:space],
             self._rooms.nothing[: max(0, space - len(part))]]
            for to, (part, space) in enumerate(zip(own, room[rank], strict=True))
        ]  # fmt: skip
        sizes = [num_bytes + room[sender][rank] for sender in range(size)]
        with self.tally.timed(mine.kind, "wait_ms"):
            came = self._transport.swap(self._number, pieces, sizes, num_bytes + max(map(max, room)))
        taken = sum(min(len(part), space) for part, space in zip(own, room[rank], strict=True))
        self.tally.send(mine.kind, taken)
        self.tally.add(headers=(size - 1) * num_bytes, padding=sum(room[rank]) - taken)
        headers = tuple(
            unpack(one[:num_bytes].tobytes(), size, self._who(sender), self._seed(sender, rank))
            for sender, one in enumerate(came)
        )
        return headers, [one[num_bytes:] for one in came]

    def _header(self, mine: Header, to: int, part: Bytes) -> Bytes:
        """As it goes to the rank that the part is for."""
        sealed = replace(mine, check=part_check(part)).pack(self._seed(self._transport.rank, to))
        return np.frombuffer(sealed, np.uint8)

    def _seed(self, sender: int, receiver: int) -> int:
        return seed_of(self._transport.job, sender, receiver)

    def _whole(
        self,
        kind: Kind,
        own: Sequence[Bytes],
        headers: Sequence[Header],
        early: Sequence[Bytes],
        room: Room,
        counts: Sequence[int],
    ) -> list[Bytes]:
        """The parts for this rank of the ranks that count; what did not fit into the first message crosses now."""
        size, rank = self._transport.size, self._transport.rank
        left = [[0] * size for _ in range(size)]
        for sender in counts:
            for to, length in enumerate(headers[sender].lengths):
                left[sender][to] = 0 if to == sender else max(0, length - room[sender][to])
        rests = [NOTHING] * size
        if largest := max(map(max, left)):
            pieces = [[part[space:] if more else NOTHING]
                      for part, space, more in zip(own, room[rank], left[rank], strict=True)]  # fmt: skip
            with self.tally.timed(kind, "exchange_ms"):
                rests = self._transport.swap(self._number, pieces, [left[r][rank] for r in range(size)], largest)
            self.tally.send(kind, sum(left[rank]))
        found = [NOTHING] * size
        for sender in counts:
            here = early[sender][: headers[sender].lengths[rank]]
            found[sender] = np.concatenate([here, rests[sender]]) if left[sender][rank] else here
        if rank in counts:
            found[rank] = own[rank]
        return found

    def swap_values(
        self, kind: Kind, batch: int, values: "Tensor", sizes: Sequence[int], come: Sequence[int]
    ) -> "Tensor":
        """Numbers on a device, of which an exchange has told: `Transport.swap_values`.

        Raises:
            RanksError: if a rank is gone, as far as it is known at once.
        """
        try:
            found = self._transport.swap_values(values, sizes, come)
        except TransportError as error:
            self.over = True
            lengths = tuple(size * values.element_size() for size in sizes)
            raise self._broken(Header(kind, self._sequence, batch, lengths), error) from error
        self.tally.send(kind, (sum(sizes) - sizes[self._transport.rank]) * values.element_size())
        return found

    def tell_failure(self, batch: int, code: int, text: str) -> None:
        """Tell all other ranks, in the place of the next exchange, that this one ends with an error. Errors in telling
        it are of no interest any more."""
        if self.over:
            return
        with contextlib.suppress(AdaptiveError):  # another rank has failed, too, or is gone
            self._fail(batch, code, text)
        self.over = True

    def _fail(self, batch: int, code: int, text: str) -> None:
        message = np.frombuffer(text.encode()[:MOST_TEXT], np.uint8)
        self.exchange(Kind.FAILED, batch, [message] * self._transport.size, code=code)

    def _check(self, headers: Sequence[Header], mine: Header) -> None:
        """Check that all ranks are about to do the same."""
        for rank, header in enumerate(headers):
            same = (
                header.kind == mine.kind or {header.kind, mine.kind} <= MAY_END or {header.kind, mine.kind} == LEAVING
            )
            if not same and Kind.LEFT in (header.kind, mine.kind):
                left, other = (rank, mine) if header.kind is Kind.LEFT else (self._transport.rank, header)
                raise RanksError(
                    f"{self._who(left)} left its loop, and other ranks went on ({other.text}): all ranks must train "
                    "equally many batches"
                )
            alike = header.batch == mine.batch or Kind.LEFT in (header.kind, mine.kind)
            if not (same and alike and header.sequence == mine.sequence):
                raise RanksError(
                    f"ranks are out of step: {self._who(self._transport.rank)} is at {mine.text}, {self._who(rank)} "
                    f"at {header.text}; every rank must make the same calls in the same order"
                )

    def _broken(self, mine: Header, error: TransportError) -> RanksError:
        silent = self._transport.silent()
        gone = ", ".join(map(self._who, silent)) or "no rank is silent now: a slow network, or a rank that came late"
        text = f"not heard any more: {gone}" if silent else gone
        return RanksError(
            f"{self._who(self._transport.rank)}: channel {CHANNELS[self._number]}, {mine.text}: {error}; {text}"
        )

    def _damaged(self, sender: int, header: Header) -> RanksError:
        return RanksError(
            f"{self._who(self._transport.rank)}: {header.text} from {self._who(sender)} is not what was sent: "
            "damaged on the way; go on from the last checkpoint, and look at network and memory of both"
        )

    def _of_another(self, rank: int, code: int, message: Bytes) -> AdaptiveError:
        text = message.tobytes().decode(errors="replace")
        return error_class(code)(f"{self._who(rank)}: {text}")

    def _who(self, rank: int) -> str:
        return f"rank {rank} of {self._transport.size} ({self._transport.name_of(rank)})"


MAY_END: Final = {Kind.REQUESTS, Kind.END, Kind.LEFT}
LEAVING: Final = {Kind.ANSWERS, Kind.LEFT}


def error_class(code: int) -> type[AdaptiveError]:
    """The class of errors with an exit code; `RanksError` for any other code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptiveError)]
    found = {kind.exit_code: kind for kind in kinds if kind is not AdaptiveError}
    return found.get(code, RanksError)
