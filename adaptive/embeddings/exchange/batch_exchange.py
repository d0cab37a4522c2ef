"""What ranks have told each other of a batch (`ExchangedBatch`), and who asks and serves (`Party`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptive.batch import Batch
from adaptive.embeddings.exchange.id_requests import AskedGroup, Asker
from adaptive.embeddings.exchange.owner import ServedGroup, Server
from adaptive.embeddings.exchange.requests import unpack_requests
from adaptive.embeddings.planning.layout import Group
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.channel import Exchanged
from adaptive.embeddings.ranks.transport import Bytes
from adaptive.errors import RanksError


@dataclass(frozen=True)
class ExchangedBatch:
    """A batch, as far as ranks have told each other of it."""

    blocks: tuple[Batch | None, ...]  # of this rank
    groups: tuple[AskedGroup, ...]  # what this rank asks
    served: tuple[ServedGroup, ...]  # what it is asked
    samples: int  # of all ranks
    first: int  # samples of the ranks before this one
    forget: tuple[int, ...] = ()  # owners whose rows this rank forgets first


class Party:
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
