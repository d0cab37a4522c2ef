"""`Channel`: exchanges of one thread, with headers by which ranks that disagree stop.

    first message   header, then as much of the part as the message has room for     always
    rest            of parts that are larger                                         if all headers agree

The room follows from earlier exchanges, which all ranks have seen (`SizePredictor`). So every rank knows the size of
every first message in advance, and most exchanges are a single message. Only the headers of all ranks decide whether
parts are taken: all ranks take each other's parts, or none does.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    unpack,
)
from adaptive.errors import AdaptiveError, RanksError

if TYPE_CHECKING:
    from torch import Tensor

ENDS: Final = (Kind.END, Kind.LEFT)  # kinds that end a look-ahead
NOTHING: Final = np.zeros(0, np.uint8)
NO_OTHERS: Final[Mapping[Kind, int]] = {}
Sizes = Sequence[Sequence[int]]  # (W, W) bytes from each rank to each other rank, W ranks
SPARE: Final = 16  # room for a sixteenth more than last time
WHOLE: Final = 64  # bytes: room is a multiple of this
MOST_OF_RANK: Final = 4 << 20  # bytes of a rank's first messages: larger parts gain little from a single message


@dataclass(frozen=True)
class Exchanged:
    """Result of an exchange."""

    headers: tuple[Header, ...]  # of each rank
    parts: list[Bytes]  # from each rank; empty if the exchange ended a look-ahead

    @property
    def ended(self) -> bool:
        """True if some rank has no more batches."""
        return any(header.kind in ENDS for header in self.headers)


class SizePredictor:
    """Predicts the size of the first message of the next exchange on one channel.

    The prediction is the size of the exchange that last followed one of the present kind: gradients follow vectors,
    vectors follow gradients, and batches request about as many rows each time. All ranks have seen the same headers,
    so they make the same predictions without further messages.

    Attributes:
        padding: zeros that fill the rest of a message.
    """

    def __init__(self, size: int) -> None:
        self._most = MOST_OF_RANK // size // WHOLE * WHOLE
        self._none: Sizes = [[0] * size] * size
        self._last_kind: Kind | None = None
        self._sizes_after: dict[Kind | None, Sizes] = {}
        self.padding = np.zeros(self._most, np.uint8)

    def next_sizes(self) -> Sizes:
        """Return the room of each message in the next exchange."""
        return self._sizes_after.get(self._last_kind, self._none)

    def learn(self, kind: Kind | None, lengths: Sizes) -> None:
        """Record an exchange of parts of these lengths; None if none were exchanged."""
        if kind is None:
            self._last_kind, self._sizes_after = None, {}
            return
        self._sizes_after[self._last_kind] = [
            [0 if to == sender else self._room_for(length) for to, length in enumerate(row)]
            for sender, row in enumerate(lengths)
        ]
        self._last_kind = kind

    def _room_for(self, length: int) -> int:
        return min(self._most, -(-(length + length // SPARE) // WHOLE) * WHOLE)


class Channel:
    """One channel of a transport. Only one thread may use it.

    Attributes:
        heard: number of a signal that this rank has received; 0 for none.
        agreed: number of a signal that some rank had received; all ranks learn of it in the same exchange.
        over: True if nothing more can be exchanged, since the channel is broken or a rank has failed.
        tally: bytes that this rank has sent, and time that it has waited.
    """

    def __init__(self, transport: Transport, number: int) -> None:
        self._transport, self._number = transport, number
        self._sequence = 0
        self._predictor = SizePredictor(transport.size)
        self.heard = self.agreed = 0
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
        """Send each rank its part, and return the parts that they sent to this rank.

        Ranks may differ in kind if one of them has no more batches (`Exchanged.ended`; then no parts are sent).

        `parts` are for each rank, None means empty. `samples` and `code`, an exit code, go into the header. `counted`:
        bytes of the parts for other ranks that are counted as another kind of traffic.

        Raises:
            AdaptiveError: of the class with which another rank has failed.
            RanksError: if ranks are out of step, gone or late.
        """
        size, rank = self._transport.size, self._transport.rank
        sent = [NOTHING] * size if parts is None else [np.ascontiguousarray(part).view(np.uint8) for part in parts]
        header = Header(kind, self._sequence, batch, tuple(len(part) for part in sent), samples, self.heard, code)
        if self.over:
            raise RanksError(
                f"{self._name(rank)}: expected a working channel for {header.text}, got one that failed earlier. Fix "
                "the first error, and resume from the latest checkpoint."
            )
        try:
            room = self._predictor.next_sizes()
            headers, early = self._exchange_first(header, sent, room)
            self._sequence += 1
            self.agreed = self.agreed or max(of_rank.signal for of_rank in headers)
            failed = [r for r, of_rank in enumerate(headers) if of_rank.kind is Kind.FAILED]
            if not failed:
                self._check(headers, header)
            ended = any(of_rank.kind in ENDS for of_rank in headers)
            self._predictor.learn(None if failed or ended else kind, [of_rank.lengths for of_rank in headers])
            senders = failed or ([] if ended else range(size))  # the ranks whose parts are taken
            received = self._exchange_rest(kind, sent, headers, early, room, senders)
            if not ended:
                for other_kind, num_bytes in counted.items():
                    self.tally.send(other_kind, num_bytes)
                    self.tally.send(kind, -num_bytes)
        except TransportError as error:
            self.over = True
            raise self._broken_channel(header, error) from error
        except RanksError:
            self.over = True
            raise
        if failed and rank not in failed:
            self.over = True
            text = received[failed[0]].tobytes().decode(errors="replace")
            raise error_class(headers[failed[0]].code)(f"{self._name(failed[0])}: {text}")
        return Exchanged(headers, received)

    def _exchange_first(
        self, header: Header, sent: Sequence[Bytes], room: Sizes
    ) -> tuple[tuple[Header, ...], list[Bytes]]:
        """Exchange first messages; return all headers, and the first `room` bytes of parts."""
        size, rank = self._transport.size, self._transport.rank
        if size == 1:
            return (header,), [NOTHING]
        num_bytes, packed = header_size(size), np.frombuffer(header.pack(), np.uint8)
        pieces = [
            [packed, part[:space], self._predictor.padding[: max(0, space - len(part))]]
            for part, space in zip(sent, room[rank], strict=True)
        ]  # fmt: skip
        sizes = [num_bytes + room[sender][rank] for sender in range(size)]
        with self.tally.timed(header.kind, "wait_ms"):
            messages = self._transport.swap(self._number, pieces, sizes, num_bytes + max(map(max, room)))
        taken = sum(min(len(part), space) for part, space in zip(sent, room[rank], strict=True))
        self.tally.send(header.kind, taken)
        self.tally.add(headers=(size - 1) * num_bytes, padding=sum(room[rank]) - taken)
        headers = tuple(
            unpack(message[:num_bytes].tobytes(), size, self._name(sender)) for sender, message in enumerate(messages)
        )
        return headers, [message[num_bytes:] for message in messages]

    def _exchange_rest(
        self,
        kind: Kind,
        sent: Sequence[Bytes],
        headers: Sequence[Header],
        early: Sequence[Bytes],
        room: Sizes,
        senders: Sequence[int],
    ) -> list[Bytes]:
        """Return the parts for this rank, after exchanging what had no room at first."""
        size, rank = self._transport.size, self._transport.rank
        left = [[0] * size for _ in range(size)]
        for sender in senders:
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
        for sender in senders:
            begin = early[sender][: headers[sender].lengths[rank]]
            received[sender] = np.concatenate([begin, rests[sender]]) if left[sender][rank] else begin
        if rank in senders:
            received[rank] = sent[rank]
        return received

    def swap_values(
        self, kind: Kind, batch: int, values: "Tensor", sizes: Sequence[int], lengths: Sequence[int]
    ) -> "Tensor":
        """Exchange numbers on a device, whose sizes an exchange has announced.

        Raises:
            RanksError: if a rank is gone, as far as that is known at once.
        """
        try:
            received = self._transport.swap_values(values, sizes, lengths)
        except TransportError as error:
            self.over = True
            num_bytes = tuple(size * values.element_size() for size in sizes)
            raise self._broken_channel(Header(kind, self._sequence, batch, num_bytes), error) from error
        self.tally.send(kind, (sum(sizes) - sizes[self._transport.rank]) * values.element_size())
        return received

    def report_failure(self, code: int, text: str) -> None:
        """Report to all other ranks that this rank ends with an error."""
        if self.over:
            return
        message = np.frombuffer(text.encode()[:MOST_TEXT], np.uint8)
        with contextlib.suppress(AdaptiveError):  # raised if another rank has failed, too, or is gone
            self.exchange(Kind.FAILED, parts=[message] * self._transport.size, code=code)
        self.over = True

    def _check(self, headers: Sequence[Header], sent: Header) -> None:
        """Raise RanksError if ranks do not make the same exchange."""
        for rank, header in enumerate(headers):
            kinds = {header.kind, sent.kind}
            same = len(kinds) == 1 or kinds <= MAY_END or kinds == LEAVING
            if not same and Kind.LEFT in kinds:
                left, other = (rank, sent) if header.kind is Kind.LEFT else (self._transport.rank, header)
                raise RanksError(
                    f"{other.text}: expected all ranks, got {self._name(left)} outside of its loop, while others "
                    "continued. Train the same number of batches on all ranks."
                )
            alike = header.batch == sent.batch or Kind.LEFT in kinds
            if not (same and alike and header.sequence == sent.sequence):
                raise RanksError(
                    f"ranks are out of step: expected {sent.text} as on {self._name(self._transport.rank)}, got "
                    f"{header.text} on {self._name(rank)}. Make the same calls in the same order on all ranks."
                )

    def _broken_channel(self, header: Header, error: TransportError) -> RanksError:
        if silent := self._transport.silent():
            advice = f"No response from {', '.join(map(self._name, silent))}. Look for its own error first"
        else:
            advice = (
                "All ranks respond now: the network is slow, or a rank was late. Raise the timeout if that is normal"
            )
        return RanksError(
            f"{self._name(self._transport.rank)}: channel {CHANNELS[self._number]}: expected {header.text} from all "
            f"ranks, got an error: {error}. {advice}, then resume from the latest checkpoint."
        )

    def _name(self, rank: int) -> str:
        return f"rank {rank} of {self._transport.size} ({self._transport.name_of(rank)})"


MAY_END: Final = {Kind.REQUESTS, Kind.END, Kind.LEFT}
LEAVING: Final = {Kind.ANSWERS, Kind.LEFT}


def error_class(code: int) -> type[AdaptiveError]:
    """Return the class of errors with this exit code; `RanksError` for any other code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AdaptiveError)]
    return {kind.exit_code: kind for kind in kinds if kind is not AdaptiveError}.get(code, RanksError)
