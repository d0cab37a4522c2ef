"""`Channel`: exchanges of one thread, each announced by headers, so that ranks that disagree stop, and none waits.

Every rank sees the headers of all ranks before any part crosses. What follows is decided from them alone: all ranks
exchange their parts, or none does.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from adaptive import errors
from adaptive.errors import AdaptiveError, RanksError
from adaptive.ranks.traffic import Tally
from adaptive.ranks.transport import CHANNELS, Bytes, Transport, TransportError
from adaptive.ranks.wire import MOST_TEXT, Header, Kind, unpack

ENDS: Final = (Kind.END, Kind.LEFT)  # of a look-ahead
NOTHING: Final = np.zeros(0, np.uint8)


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
    ) -> Exchanged:
        """Give each rank its part and get theirs.

        Ranks may differ in kind where one has no more batches (`Exchanged.ended`, and no part crosses).

        Raises:
            AdaptiveError: of the class with which another rank has failed.
            RanksError: if ranks are out of step, gone, or do not come in time.
        """
        size, rank = self._transport.size, self._transport.rank
        own = [NOTHING] * size if parts is None else [np.ascontiguousarray(part).view(np.uint8) for part in parts]
        mine = Header(kind, self._sequence, batch, tuple(len(part) for part in own), samples, self.heard, code)
        if self.over:
            raise RanksError(
                f"{self._who(rank)}: {mine.text}: nothing can be exchanged any more after an earlier error"
            )
        try:
            messages = self._headers(mine)
            headers = tuple(unpack(message, size, self._who(r)) for r, message in enumerate(messages))
            self._sequence += 1
            self.agreed = self.agreed or max(header.signal for header in headers)
            failed = [r for r, header in enumerate(headers) if header.kind is Kind.FAILED]
            if not failed:
                self._check(headers, mine)
            crosses = failed or not any(header.kind in ENDS for header in headers)
            sizes = [header.lengths[rank] if r in failed or not failed else 0 for r, header in enumerate(headers)]
            if failed and rank not in failed:
                own = [NOTHING] * size
            largest = max(max(header.lengths) for header in headers)
            found = self._parts(kind, own, sizes, largest) if crosses and largest else [NOTHING] * size
        except TransportError as error:
            self.over = True
            raise self._broken(mine, error) from error
        except RanksError:
            self.over = True
            raise
        if failed and rank not in failed:
            self.over = True
            raise self._of_another(failed[0], headers[failed[0]].code, found[failed[0]])
        return Exchanged(headers, found)

    def _headers(self, mine: Header) -> list[bytes]:
        """Of all ranks."""
        message = mine.pack()
        with self.tally.timed(mine.kind, "wait_ms"):
            found = self._transport.gather(self._number, message)
        self.tally.add(headers=(self._transport.size - 1) * len(message))
        return found

    def _parts(self, kind: Kind, own: Sequence[Bytes], sizes: Sequence[int], largest: int) -> list[Bytes]:
        with self.tally.timed(kind, "exchange_ms"):
            found = self._transport.swap(self._number, own, sizes, largest)
        self.tally.send(kind, sum(map(len, own)) - len(own[self._transport.rank]))
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
