"""`Channel`: exchanges of one thread, each announced by headers, so that ranks that disagree stop, and none waits.

    first message   header, then as much of the part as there is room for      always
    the rest        of parts that are larger than that                         if all headers agree, and there is any

How much room there is follows from what all ranks have seen (`SizePredictor`). So every rank knows the size of every
first message, whatever the others are about to do, and most exchanges are one message. What counts is decided from the
headers of all ranks alone: all take each other's parts, or none does.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from adaptive import errors
from adaptive.embeddings.ranks.traffic import Tally
from adaptive.embeddings.ranks.transport import (
    CHANNELS,
    MOST_TEXT,
    Bytes,
    Header,
    Kind,
    Transport,
    TransportError,
    header_size,
    part_check,
    seed_of,
    unpack,
)
from adaptive.errors import AdaptiveError, RanksError

if TYPE_CHECKING:
    from torch import Tensor

ENDS: Final = (Kind.END, Kind.LEFT)  # of a look-ahead
NOTHING: Final = np.zeros(0, np.uint8)
NO_OTHERS: Final[Mapping[Kind, int]] = {}
Sizes = Sequence[Sequence[int]]  # (W, W) bytes from each rank to each other one, W ranks
SPARE: Final = 16  # a batch may ask for a sixteenth more than the one before
WHOLE: Final = 64  # bytes, of which there is a multiple
MOST_OF_RANK: Final = 4 << 20  # bytes of a rank's first messages: larger parts gain little by crossing at once


@dataclass(frozen=True)
class Exchanged:
    """What an exchange brought."""

    headers: tuple[Header, ...]  # of each rank
    parts: list[Bytes]  # from each rank; empty where the exchange ended something

    @property
    def ended(self) -> bool:
        """Some rank has no more batches."""
        return any(header.kind in ENDS for header in self.headers)


class SizePredictor:
    """How large the first message of an exchange is, on one channel: enough for what crossed when last the same
    exchange lay behind.

    After vectors come gradients, after gradients vectors, and so on; batches request about as many rows each time. All
    ranks have seen the same headers, so all have the same numbers, without telling each other.

    Attributes:
        padding: zeros, to fill what is left of a message.
    """

    def __init__(self, size: int) -> None:
        self._most = MOST_OF_RANK // size // WHOLE * WHOLE
        self._none: Sizes = [[0] * size] * size
        self._behind: Kind | None = None
        self._after: dict[Kind | None, Sizes] = {}
        self.padding = np.zeros(self._most, np.uint8)

    def next_sizes(self) -> Sizes:
        """Of the next exchange, whatever ranks are about to do."""
        return self._after.get(self._behind, self._none)

    def learn(self, kind: Kind | None, lengths: Sizes) -> None:
        """All ranks have exchanged parts of these lengths; None: they have not."""
        if kind is None:
            self._behind, self._after = None, {}
            return
        self._after[self._behind] = [
            [0 if to == sender else self._enough(length) for to, length in enumerate(row)]
            for sender, row in enumerate(lengths)
        ]
        self._behind = kind

    def _enough(self, length: int) -> int:
        return min(self._most, -(-(length + length // SPARE) // WHOLE) * WHOLE)


class Channel:
    """One channel of a transport.

    Attributes:
        over: nothing more can be exchanged: the channel is broken, or a rank has failed.
        tally: what this rank has sent, and how long it has waited.
    """

    def __init__(self, transport: Transport, number: int) -> None:
        self._transport, self._number = transport, number
        self._sequence = 0
        self._predictor = SizePredictor(transport.size)
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
                part other ranks can hear (`report_failure`); of a damaged header not, since nobody knows what follows.
        """
        size, rank = self._transport.size, self._transport.rank
        sent = [NOTHING] * size if parts is None else [np.ascontiguousarray(part).view(np.uint8) for part in parts]
        header = Header(kind, self._sequence, batch, tuple(len(part) for part in sent), samples, self.heard, code)
        if self.over:
            raise RanksError(
                f"{self._who(rank)}: {header.text}: nothing can be exchanged any more after an earlier error"
            )
        try:
            room = self._predictor.next_sizes()
            headers, early = self._first(header, sent, room)
            self._sequence += 1
            self.agreed = self.agreed or max(of_rank.signal for of_rank in headers)
            failed = [r for r, of_rank in enumerate(headers) if of_rank.kind is Kind.FAILED]
            if not failed:
                self._check(headers, header)
            ended = any(of_rank.kind in ENDS for of_rank in headers)
            self._predictor.learn(None if failed or ended else kind, [of_rank.lengths for of_rank in headers])
            counts = failed or ([] if ended else range(size))  # the ranks whose parts are taken
            received = self._whole(kind, sent, headers, early, room, counts)
            damaged = [r for r in counts if r != rank and part_check(received[r]) != headers[r].check]
            if not ended:
                for other, num_bytes in counted.items():
                    self.tally.send(other, num_bytes)
                    self.tally.send(kind, -num_bytes)
        except TransportError as error:
            self.over = True
            raise self._broken(header, error) from error
        except RanksError:
            self.over = True
            raise
        if damaged:
            self.over = bool(failed)
            sender = damaged[0]
            raise RanksError(
                f"{self._who(rank)}: {headers[sender].text} from {self._who(sender)} is not what was sent: damaged on "
                "the way; go on from the last checkpoint, and look at network and memory of both"
            )
        if failed and rank not in failed:
            self.over = True
            text = received[failed[0]].tobytes().decode(errors="replace")
            raise error_class(headers[failed[0]].code)(f"{self._who(failed[0])}: {text}")
        return Exchanged(headers, received)

    def _first(self, header: Header, sent: Sequence[Bytes], room: Sizes) -> tuple[tuple[Header, ...], list[Bytes]]:
        """The headers of all ranks, and what came with them (`room` bytes from each). What a rank has for itself goes
        nowhere."""
        size, rank = self._transport.size, self._transport.rank
        if size == 1:
            return (header,), [NOTHING]
        num_bytes = header_size(size)
        pieces = [
            [self._header(header, to, NOTHING if to == rank else part), part[:space],
             self._predictor.padding[: max(0, space - len(part))]]
            for to, (part, space) in enumerate(zip(sent, room[rank], strict=True))
        ]  # fmt: skip
        sizes = [num_bytes + room[sender][rank] for sender in range(size)]
        with self.tally.timed(header.kind, "wait_ms"):
            messages = self._transport.swap(self._number, pieces, sizes, num_bytes + max(map(max, room)))
        taken = sum(min(len(part), space) for part, space in zip(sent, room[rank], strict=True))
        self.tally.send(header.kind, taken)
        self.tally.add(headers=(size - 1) * num_bytes, padding=sum(room[rank]) - taken)
        headers = tuple(
            unpack(message[:num_bytes].tobytes(), size, self._who(sender), self._seed(sender, rank))
            for sender, message in enumerate(messages)
        )
        return headers, [message[num_bytes:] for message in messages]

    def _header(self, header: Header, to: int, part: Bytes) -> Bytes:
        """As it goes to the rank that the part is for."""
        sealed = replace(header, check=part_check(part)).pack(self._seed(self._transport.rank, to))
        return np.frombuffer(sealed, np.uint8)

    def _seed(self, sender: int, receiver: int) -> int:
        return seed_of(self._transport.job, sender, receiver)

    def _whole(
        self,
        kind: Kind,
        sent: Sequence[Bytes],
        headers: Sequence[Header],
        early: Sequence[Bytes],
        room: Sizes,
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
                      for part, space, more in zip(sent, room[rank], left[rank], strict=True)]  # fmt: skip
            with self.tally.timed(kind, "exchange_ms"):
                rests = self._transport.swap(self._number, pieces, [left[r][rank] for r in range(size)], largest)
            self.tally.send(kind, sum(left[rank]))
        received = [NOTHING] * size
        for sender in counts:
            begin = early[sender][: headers[sender].lengths[rank]]
            received[sender] = np.concatenate([begin, rests[sender]]) if left[sender][rank] else begin
        if rank in counts:
            received[rank] = sent[rank]
        return received

    def swap_values(
        self, kind: Kind, batch: int, values: "Tensor", sizes: Sequence[int], lengths: Sequence[int]
    ) -> "Tensor":
        """Numbers on a device, of which an exchange has told: `Transport.swap_values`.

        Raises:
            RanksError: if a rank is gone, as far as it is known at once.
        """
        try:
            received = self._transport.swap_values(values, sizes, lengths)
        except TransportError as error:
            self.over = True
            num_bytes = tuple(size * values.element_size() for size in sizes)
            raise self._broken(Header(kind, self._sequence, batch, num_bytes), error) from error
        self.tally.send(kind, (sum(sizes) - sizes[self._transport.rank]) * values.element_size())
        return received

    def report_failure(self, code: int, text: str) -> None:
        """Report to all other ranks, in the place of the next exchange, that this one ends with an error."""
        if self.over:
            return
        message = np.frombuffer(text.encode()[:MOST_TEXT], np.uint8)
        with contextlib.suppress(AdaptiveError):  # another rank has failed, too, or is gone
            self.exchange(Kind.FAILED, parts=[message] * self._transport.size, code=code)
        self.over = True

    def _check(self, headers: Sequence[Header], sent: Header) -> None:
        """Check that all ranks are about to do the same."""
        for rank, header in enumerate(headers):
            kinds = {header.kind, sent.kind}
            same = len(kinds) == 1 or kinds <= MAY_END or kinds == LEAVING
            if not same and Kind.LEFT in kinds:
                left, other = (rank, sent) if header.kind is Kind.LEFT else (self._transport.rank, header)
                raise RanksError(
                    f"{self._who(left)} left its loop, and other ranks went on ({other.text}): all ranks must train "
                    "equally many batches"
                )
            alike = header.batch == sent.batch or Kind.LEFT in kinds
            if not (same and alike and header.sequence == sent.sequence):
                raise RanksError(
                    f"ranks are out of step: {self._who(self._transport.rank)} is at {sent.text}, {self._who(rank)} "
                    f"at {header.text}; every rank must make the same calls in the same order"
                )

    def _broken(self, header: Header, error: TransportError) -> RanksError:
        silent = self._transport.silent()
        gone = ", ".join(map(self._who, silent)) or "no rank is silent now: a slow network, or a rank that came late"
        text = f"not heard any more: {gone}" if silent else gone
        return RanksError(
            f"{self._who(self._transport.rank)}: channel {CHANNELS[self._number]}, {header.text}: {error}; {text}"
        )

    def _who(self, rank: int) -> str:
        return f"rank {rank} of {self._transport.size} ({self._transport.name_of(rank)})"


MAY_END: Final = {Kind.REQUESTS, Kind.END, Kind.LEFT}
LEAVING: Final = {Kind.ANSWERS, Kind.LEFT}


def error_class(code: int) -> type[AdaptiveError]:
    """The class of errors with an exit code; `RanksError` for any other code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptiveError)]
    return {kind.exit_code: kind for kind in kinds if kind is not AdaptiveError}.get(code, RanksError)
