"""`ShardedEmbeddingBag`: `TieredEmbeddingBag` on several ranks, each with the rows that it owns.

    look-ahead thread    distinct rows of this rank's samples -> owners; the owner's own module plans the lookups of all
    training thread      owners' rows -> this rank, pooled here in lookup order
                         gradients, summed by row in lookup order -> owners, whose module updates the rows

The owner's module sees batches of lookups that are not pooled, and knows of no ranks. A row's gradients are added rank
by rank, so a fixed number of ranks repeats bit for bit.

Letters: B samples, D width, U rows requested by this rank, n rows requested of it, V vectors.
"""

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.arrays import Int64s
from adaptive.batch import Batch, in_order
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.distributed.ownership import Share, owned_tables
from adaptive.distributed.peers import Peers
from adaptive.distributed.requests import Exchanged, Requested, Requester, Status
from adaptive.distributed.sharded_rows import ShardedRows
from adaptive.embeddings.checks import (
    check_arguments,
    check_depth,
    check_planned,
    refuse_ended,
    refuse_late_gradients,
    unapplied,
)
from adaptive.embeddings.engine.statistics import Statistics, StatisticsCollector
from adaptive.embeddings.engine.tiered_group import TieredGroup
from adaptive.embeddings.planned_batch import GroupBatch, LookAhead, Planned, PooledVectors, PoolRows
from adaptive.embeddings.planning.access_events import HashedView
from adaptive.embeddings.planning.layout import Group, make_groups
from adaptive.embeddings.planning.lookups import check_batch
from adaptive.embeddings.planning.policy_calls import PolicyCaller
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.embeddings.tiered_embedding_bag import DEFAULT_OPTIMIZER, TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError
from adaptive.optim import RowOptimizer
from adaptive.plugins import make_policy, parse_policy, with_rule
from adaptive.policy import Calibrates, InputPolicy, InputRule, Policy, RowStats, SkipRule

logger = logging.getLogger("adaptive.distributed")

SUMMED: Final = (
    "counts", "resident_rows", "live_keys", "hot_rows", "saturated_rows",
    "device_rows",
)  # fmt: skip
ROOM: Final = 5, 4  # of rows in flight and of hot rows: owners do not get even shares


class RequestedRows(GroupBatch):
    """The rows of one group that this rank has requested: pooled forward, summed by row after backward."""

    def __init__(self, tiered: TieredGroup, group: Group, requested: Requested, rows: Tensor) -> None:
        """`rows` (U, D): as the owners sent them."""
        super().__init__(tiered, None, pooling=requested.pooling(), weights=rows)
        self._group, self._requested = group, requested

    def add_gradients(self, gradients: Tensor) -> None:
        gradients = gradients.detach().contiguous()
        self.gradients = gradients if self.gradients is None else self.gradients + gradients

    def sums(self) -> Tensor:
        """Return the gradients (U, D) by row, in the order in which the rows arrived."""
        return self._tiered.device.pool(self._requested.sums(), rows=self.gradients)


class ShardedPlanned(Planned):
    """This rank's samples of a batch; it may have none.

    Attributes:
        owned: the batch of this rank's module.
        number: of the batch; -1 if it is only read.
        stepped: True once gradients have been sent.
    """

    def __init__(
        self,
        exchanged: Exchanged,
        works: Sequence[RequestedRows],
        owned: Planned,
        send: Callable[[NDArray[Any]], Tensor],
        number: int,
        *,
        is_share: bool,
    ) -> None:
        super().__init__(exchanged.batch, works, send)
        self.exchanged, self.owned, self._number = exchanged, owned, number
        self.requested = tuple(works)
        self.num_samples_of_all, self.first = exchanged.samples, exchanged.first
        self.share, self.is_share = self.num_samples / max(exchanged.samples, 1), is_share
        self.stepped = False

    def parts(self) -> Iterator[Planned]:
        if self.num_samples:
            yield self

    @property
    def trainable(self) -> bool:
        return self._number >= 0

    @property
    def number(self) -> int:
        return self._number


class ShardedStatistics(StatisticsCollector):
    """Statistics of all ranks. Lookups are those that reach the owners, one per rank, batch and row.

    Attributes:
        reported: numbers of a rule that drops inputs, as of the latest batch.
    """

    def __init__(self, local: StatisticsCollector, peers: Peers, tables: Sequence[TableConfig]) -> None:
        self.__dict__ = vars(local)  # one state: the owner's module counts its batches into `local`
        self._peers, self._rows = peers, {table.name: table.num_embeddings for table in tables}
        self.reported: Mapping[str, float] = {}

    def take(self) -> Statistics:
        """Return the statistics since the last call, of all ranks, which call it together; times are this rank's."""
        local = super().take()
        columns = [np.asarray(getattr(local, name)) for name in SUMMED]
        flat = np.concatenate([column.reshape(-1) for column in columns], dtype=np.float64)  # exact: below 2^53
        total = np.sum(self._peers.rows.gather(flat, "statistics"), axis=0)
        pieces = np.split(total, np.cumsum([column.size for column in columns])[:-1])
        sums: dict[str, Any] = {
            name: piece.astype(column.dtype).reshape(column.shape)
            for name, piece, column in zip(SUMMED, pieces, columns, strict=True)
        }
        sums["device_rows"] = sums["device_rows"].item()
        return replace(local, **sums, policy={**local.policy, **self.reported})

    def table_rows(self) -> dict[str, int]:
        """Return table -> number of rows of all ranks, in the order of `table_names`."""
        return {name: self._rows[name] for name in super().table_rows()}


class ShardedEmbeddingBag(PooledVectors):
    """Embedding tables whose rows are spread over the ranks of a process group.

    Has the methods of `TieredEmbeddingBag`, and a loop stays the same. Differences:

    - Every rank passes its own samples to `look_ahead`. Rows get the mean of the ranks' gradients, as weights do under
      DistributedDataParallel.
    - All ranks call `look_ahead`, `step`, `read`, `rows.table_weights` and `statistics.take` together, in the same
      order. The loader that ends first ends the loop on all ranks. `break` on all ranks after the same batch.
    - `state_dict` has the rows that this rank owns, and is loaded by the same number of ranks. `rows.load_shards` loads
      the `rows.state_arrays()` of any number.
    - `TierConfig.device_rows` is for each rank.
    - Gradient scalers, `grad_scale` and `clip_grad_norm_` are refused: they would see one rank's gradients.

    Args:
        tables, tier, policy, optimizer, skip, seed: as for `TieredEmbeddingBag`.
        process_group: ranks that share the rows, or `Peers`; None for all.

    Attributes:
        local: the module of this rank's rows. Do not train it.
        peers: the ranks.
        rule: the skip rule, or None. An input rule runs here, before samples are divided.
        Others as those of `TieredEmbeddingBag`.

    Raises:
        ConfigError: for a policy that arranges batches or calibrates by rows, and as `TieredEmbeddingBag`.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        tier: TierConfig = TierConfig(),  # noqa: B008 (immutable)
        *,
        policy: str | type[Policy] | Policy = "lru",
        optimizer: RowOptimizer = DEFAULT_OPTIMIZER,
        skip: SkipConfig | SkipRule | str | None = None,
        seed: int = 0,
        process_group: Any = None,
    ) -> None:
        super().__init__()
        check_arguments(tables, tier, optimizer, skip)
        rule = parse_policy(policy)[2] if isinstance(policy, str) else None
        self.policy = make_policy(policy)
        settings = with_rule(self.policy, rule if skip is None else skip)
        if isinstance(self.policy, InputPolicy | Calibrates):
            raise ConfigError(
                "policy: expected one that leaves batches unchanged for several ranks, got "
                f"{type(self.policy).__name__}, which regroups samples or calibrates by the rows of all ranks. Train "
                "it in one process, or choose lru or lfu."
            )
        self.peers = process_group if isinstance(process_group, Peers) else Peers(process_group)
        self.rule = self.policy.rule
        self._arranger: PolicyCaller | None = None
        if isinstance(self.rule, InputRule):
            self.policy.rule = _Visits(self.rule)
            self._arranger = PolicyCaller(_AsRead(self.rule))
            self._arranger.begin(type(optimizer).__name__.lower())
        share = Share(self.peers.rank, self.peers.size)
        size, own_tables = self.peers.size, owned_tables(tables, self.peers.size)
        held = tier.held_rows if size == 1 else -(-tier.held_rows * ROOM[0] // (size * ROOM[1]))
        hot_rows = "auto" if settings is None else settings.hot_rows
        if hot_rows.isdigit():  # of all ranks
            hot_rows = str(-(-int(hot_rows) * ROOM[0] // (size * ROOM[1])))
        self.local = TieredEmbeddingBag(
            own_tables,
            tier.model_copy(update={"held_rows": held}),
            policy=self.policy,
            optimizer=optimizer,
            skip=None if settings is None else settings.model_copy(update={"rule": None, "hot_rows": hot_rows}),
            seed=seed,
            share=share,
        )
        self.device, self.table_names = self.local.device, self.local.table_names
        self.peers.use_device(self.device.type)
        groups = make_groups(tables, seed)
        self._use_groups(groups)
        self.runtime, self._tiered_groups = self.local.runtime, self.local.runtime.pipeline.tiered_groups
        self._ahead = Requester(self.peers, self.peers.ahead, groups, own_tables)
        self._reader = Requester(self.peers, self.peers.rows, groups, own_tables)
        self._view = HashedView(groups)
        self.statistics = ShardedStatistics(self.local.statistics, self.peers, tables)
        self.rows = ShardedRows(self.local, self.peers, groups)
        self._current: ShardedPlanned | None = None
        self._failure: BaseException | None = None
        self._number = 0
        # A hook, so that `step()` and a scheduler's or a framework's `optimizer.step()` exchange gradients alike.
        self.local.optimizer.register_step_pre_hook(lambda optimizer, arguments, named: self._exchange_gradients())
        self.local.optimizer.clip_grad_norm_ = _refuse_scaling  # type: ignore[method-assign]
        self.local.optimizer.param_groups[0]["params"][0].find = _refuse_scaling  # read by gradient scalers

    @property
    def optimizer(self) -> RowsOptimizer:
        """The rows' optimizer; its step exchanges gradients first."""
        return self.local.optimizer

    @property
    def rows_anchor(self) -> Tensor:
        return self.local.rows_anchor

    # --- the look-ahead --------------------------------------------------------------------------------------

    def look_ahead(self, batches: Iterable[Batch], *, depth: int = 4, divide: bool = False) -> LookAhead:
        """Return an iterator over this rank's batches, as `TieredEmbeddingBag.look_ahead`.

        Args:
            batches: this rank's samples; with `divide`, those of all ranks, equal on each.
            depth: number of batches to plan and fetch ahead.
            divide: train this rank's share of each batch. Rows get the sum of the ranks' gradients: divide losses by
                `planned.num_samples_of_all`.

        Raises:
            ConfigError: if `depth` is no non-negative integer, or a rule that drops inputs lacks the samples of all.
            AdaptiveError: in the loop; also the error with which another rank has ended.
        """
        if self._arranger is not None and not divide:
            raise ConfigError(
                f"look_ahead(): expected a policy that leaves this rank's samples as they are, got skip rule "
                f"{type(self.rule).__name__}, which needs the samples of all ranks. Pass these with divide=True, or "
                "switch the rule off."
            )
        return LookAhead(partial(self._look_ahead, batches, check_depth(depth), divide), batches)

    def _look_ahead(self, batches: Iterable[Batch], depth: int, divide: bool) -> Generator[Planned, None, None]:
        # Ids of batch n + depth are exchanged while batch n is trained. So a rank that ends or fails tells the others
        # with the next header of this thread, and all end at the same batch.
        source = _Source(self._own_batches(iter(batches), divide), self._ahead, self.peers, self._number)
        self._failure = None
        try:
            with self.peers.reporting_errors(), contextlib.closing(self.local.look_ahead(source, depth=depth)) as owned:
                for owned_batch in owned:
                    exchanged, reported = source.exchanged.popleft()
                    planned = self._exchange_rows(exchanged, owned_batch, owned_batch.number, is_share=divide)
                    self._current, self.statistics.reported = planned, reported
                    try:
                        yield planned
                    except GeneratorExit as closed:
                        # A loop that breaks has trained its batch; one that an exception ends has not. The generator
                        # sees which from the exception in flight, unless a framework has swallowed it.
                        if self._failure is None and closed.__context__ is not None:
                            self._failure = closed.__context__
                        if self._failure is not None:
                            self.peers.report(self._failure)
                            raise
                        self._end_batch(planned)
                        raise
                    if planned.has_gradients and not planned.stepped:
                        raise unapplied(planned)
                    self._end_batch(planned)
        finally:
            self._current = None
            self._number = source.number
            if not self.peers.ahead.abandoned:
                source.leave()

    def _own_batches(self, batches: Iterator[Batch], divide: bool) -> Iterator[tuple[Batch, dict[str, float]]]:
        """Yield this rank's samples of each batch, and what the rule reports about it."""
        named = (self._take_over(batch) for batch in batches)
        arranged = named if self._arranger is None else self._arranger.arrange(named, self._view, self._view.rows)
        rank, size = self.peers.rank, self.peers.size
        for batch in arranged:
            reported: dict[str, float] = {}
            if self._arranger is not None:
                self._arranger.begin_batch()
                reported = self._arranger.reported_with_next()
            if divide and size > 1:
                first, last = (part * batch.num_samples // size for part in (rank, rank + 1))
                batch = batch.take(np.arange(first, last))
            yield batch, reported

    def _take_over(self, batch: Any) -> Batch:
        batch = in_order(batch, self.features)
        return check_batch(batch.unshared() if isinstance(batch, Batch) else batch, self._groups)

    def _exchange_rows(self, exchanged: Exchanged, owned: Planned, number: int, *, is_share: bool) -> ShardedPlanned:
        """Send the rows that other ranks request, and receive those that this rank requests."""
        what = f"vectors of batch {number}" if number >= 0 else "rows to read"
        owned.wait()
        works = []
        for place, group in enumerate(self._groups):
            asked, served = exchanged.asked[place], exchanged.served[place]
            of_owner = _turned(owned.works[place].pool(), served.T)
            rows = self._swap(of_owner, served, asked, exchanged.largest, what)
            if exchanged.requested:
                works.append(RequestedRows(self._tiered_groups[place], group, exchanged.requested[place], rows))
        return ShardedPlanned(exchanged, works, owned, self._tiered_groups[0].device.send, number, is_share=is_share)

    def _swap(self, rows: Tensor, sizes: Int64s, lengths: Int64s, largest: int, what: str) -> Tensor:
        """Send rows (n, D), sizes (W, T) of them to each rank; return those received, lengths (W, T) from each."""
        if self.peers.size == 1:
            return rows
        width = rows.shape[1]
        to, of = ((numbers.sum(axis=1) * width).tolist() for numbers in (sizes, lengths))
        return self.peers.swap_values(rows.reshape(-1), to, of, largest, what).view(-1, width)

    # --- gradients -------------------------------------------------------------------------------------------

    def _exchange_gradients(self) -> None:
        """Send this rank's gradients to the owners; the step of the local optimizer that follows applies them."""
        planned = self._current
        if planned is None or planned.stepped:
            return  # the step that follows says so, if it has nothing to apply
        if planned.has_gradients or (not planned.num_samples and self.rows_anchor.requires_grad):
            self._send_gradients(planned)

    @torch.no_grad()
    def _send_gradients(self, planned: ShardedPlanned) -> bool:
        """Exchange gradients, once per batch; return True if some rank had any."""
        planned.stepped = True
        exchanged, factor = planned.exchanged, 1.0 if planned.is_share else 1 / self.peers.size
        works, name = planned.requested or [None] * len(self._groups), f"gradients of batch {planned.number}"
        # Zeros from all ranks are not "no gradients": they would decay rows that the loss does not depend on.
        has = np.array([work is not None and work.gradients is not None for work in works], np.int64)
        any_has = self.peers.rows.swap_rows(np.tile(has, (self.peers.size, 1)), name).any(axis=0)
        for number in np.flatnonzero(any_has):
            work, asked, served = works[number], exchanged.asked[number], exchanged.served[number]
            if work is None or work.gradients is None:
                sums = torch.zeros((int(asked.sum()), self._groups[number].embedding_dim), device=self.device)
            else:
                sums = work.sums() if factor == 1 else work.sums() * factor
            received = _turned(self._swap(sums, asked, served, exchanged.largest, name), served)
            # Not by autograd: torch.autograd.backward with gradients imports sympy, a second of each rank's first step.
            self.local.optimizer.take_gradients(planned.owned, planned.owned.works[number], received)
        return bool(any_has.any())

    def step(self, *, grad_scale: float = 1.0) -> None:
        """Update the rows of the current batch after `loss.backward()`, on all ranks together.

        Raises:
            ConfigError: for a `grad_scale`, which would see one rank's gradients.
            ValueError: if no backward pass has run since the last step.
        """
        if grad_scale != 1.0:
            _refuse_scaling()
        self.local.step()

    def discard(self) -> None:
        """Drop this rank's gradients of the current batch."""
        if self._current is not None:
            for work in self._current.requested:
                work.forget()

    def take_gradients(self, planned: ShardedPlanned, work: RequestedRows, gradients: Tensor) -> None:
        """Keep the gradients of vectors for `step()`; called by autograd."""
        if not planned.trainable:
            return
        refuse_late_gradients(planned)
        work.add_gradients(gradients)

    def _end_batch(self, planned: ShardedPlanned) -> None:
        """End a batch. A rank that has not stepped sends no gradients, and applies those of the others."""
        if not planned.stepped:
            self.discard()
            if self._send_gradients(planned):
                self.local.step()
        planned.ended = True

    # --- vectors ---------------------------------------------------------------------------------------------

    def _check_planned(self, planned: Planned) -> None:
        check_planned(planned, self._tiered_groups)

    def _pool(self, planned: Planned, work: GroupBatch) -> Tensor:
        refuse_ended(planned)
        pooled: Tensor = PoolRows.apply(self.rows_anchor, self, planned, work)  # type: ignore[no-untyped-call]
        return pooled

    def read(self, batch: Batch) -> Planned:
        """Return a batch for evaluation or prediction. All ranks call it together, each with its samples, maybe none.

        No row moves, and nothing is counted.
        """
        if batch.num_samples:
            batch = self._take_over(batch)
        exchanged = self._reader.exchange(self._reader.prepare(batch), -1)
        assert exchanged is not None
        return self._exchange_rows(exchanged, self.local.read(exchanged.owned), -1, is_share=True)

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Report an error in a loop's body to the other ranks, which raise it, too."""
        try:
            with self.peers.reporting_errors():
                yield
        except BaseException as error:
            self._failure = error
            raise

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Do nothing: policies that calibrate are refused."""

    def report_loss(self, planned: Planned, loss: float) -> None:
        """Do nothing: policies that ask for a loss are refused."""

    def close(self) -> None:
        """Delete the files of a host tier on disk."""
        self.local.close()

    def get_extra_state(self) -> Tensor:
        """Return this rank and the number of ranks, for `state_dict`."""
        return torch.tensor([self.peers.rank, self.peers.size])

    def set_extra_state(self, state: Tensor) -> None:
        """Check that a `state_dict` is this rank's; called before its rows are loaded.

        Raises:
            CheckpointError: if it is not.
        """
        if state.tolist() != [self.peers.rank, self.peers.size]:
            raise CheckpointError(
                f"state_dict(): expected the rows of rank {self.peers.rank} of {self.peers.size}, got those of rank "
                f"{state[0]} of {state[1]}. Load the one that this rank saved; rows.load_shards() loads the rows of "
                "another number of ranks."
            )


Embeddings = TieredEmbeddingBag | ShardedEmbeddingBag


def _refuse_scaling(*_: object, **__: object) -> Any:
    """Raise ConfigError for `grad_scale`, `clip_grad_norm_`, and scalers, which read the stand-in's gradient."""
    raise ConfigError(
        "gradients of rows: expected neither a gradient scaler, nor grad_scale or clip_grad_norm_, with several ranks, "
        "got one: each rank would judge its own gradients only. Use bfloat16, which needs no scaler, and clip the "
        "gradients of the dense part alone."
    )


def _turned(values: Tensor, sizes: Int64s) -> Tensor:
    """Return values (n, D) that lie row by row of their sizes (A, B) column by column.

    Messages are ordered by rank, the owner's batch by table.
    """
    if 1 in sizes.shape:
        return values
    pieces, step = torch.split(values, sizes.reshape(-1).tolist()), sizes.shape[1]
    return torch.cat([piece for column in range(step) for piece in pieces[column::step]])


class _AsRead(Policy):
    """The policy of an input rule, which runs before samples are divided: the order of the reader."""

    def __init__(self, rule: SkipRule) -> None:
        self.rule = rule

    def score(self, rows: RowStats) -> NDArray[np.float64]:
        raise AssertionError("it has no rows")


class _Visits(SkipRule):
    """The part of an input rule that decides about updates of rows, for their owner."""

    def __init__(self, rule: SkipRule) -> None:
        self.least, self.most, self.warmup, self.visits = rule.least, rule.most, rule.warmup, rule.visits  # type: ignore[method-assign]


class _Source(Iterator[Batch]):
    """The owner's batches: a rank's samples, exchanged for the requests of all ranks. For the look-ahead thread.

    Attributes:
        exchanged: batches that are planned but not trained; the training thread takes them from the left.
        number: of the next batch.
    """

    def __init__(
        self, batches: Iterator[tuple[Batch, dict[str, float]]], requester: Requester, peers: Peers, number: int
    ) -> None:
        self._batches, self._requester, self._peers = batches, requester, peers
        self.exchanged: deque[tuple[Exchanged, dict[str, float]]] = deque()
        self.number = number
        self._ended = False

    def __next__(self) -> Batch:
        if self._ended:
            raise StopIteration
        try:
            batch, reported = next(self._batches, (None, {}))
            prepared = None if batch is None else self._requester.prepare(batch)
        except BaseException as error:
            self._ended = True
            self._peers.note(error)
            with contextlib.suppress(Exception):  # with the next header, so that all end at this batch
                self._requester.end(Status.FAILED, self.number)
            raise
        if prepared is None:
            self.leave(Status.END)
            raise StopIteration
        exchanged = self._requester.exchange(prepared, self.number)
        if exchanged is None:
            self._ended = True
            logger.warning(
                "%s: training ends with batch %d: another rank has no more batches. Give all ranks the same number.",
                self._peers.name,
                self.number - 1,
            )
            raise StopIteration
        self.number += 1
        self.exchanged.append((exchanged, reported))
        return exchanged.owned

    def leave(self, status: Status = Status.LEFT) -> None:
        """Tell the other ranks that this one has no further batch; in any thread, when no other exchanges."""
        if not self._ended:
            self._ended = True
            self._requester.end(status, self.number)
