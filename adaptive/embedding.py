"""`TieredEmbeddingBag`: embedding tables in two tiers, as an `nn.Module` with two lines more than plain torch.

    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="10%"), policy=LRU, optimizer=Adagrad(lr=0.01))
    for planned in embeddings.look_ahead(loader, depth=4):
        loss = loss_fn(model(planned.dense, embeddings.stack(planned)), planned.labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); embeddings.step()

Letters: B samples, F features, D width, V vectors of a group.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.engine.build import build_engine, watch_rows
from adaptive.engine.description import describe
from adaptive.engine.filling import fill_table, tables_like
from adaptive.engine.lookahead import look_ahead
from adaptive.engine.pipeline import Lane, ReadyBatch
from adaptive.engine.rates import RowsOptimizer
from adaptive.engine.saving import load_rows, overwrite_rows, save_blocks, save_rows
from adaptive.engine.shrinking import give_back
from adaptive.engine.state_dict import rows_from_tensors, rows_to_tensors
from adaptive.engine.statistics import Statistics, StatisticsInterval
from adaptive.errors import ConfigError
from adaptive.optim import SGD, RowOptimizer
from adaptive.planned import GroupWork, Planned
from adaptive.planning.layout import feature_order
from adaptive.planning.lookups import lay_out_bags
from adaptive.planning.plan import GroupPlan
from adaptive.planning.sizing import FEWER, SHRINK, Sizes, resized
from adaptive.planning.tier_view import RowView
from adaptive.policy import Policy, SkipRule, TierView, arranges
from adaptive.policy_loading import make_policy, with_rule
from adaptive.storage.arrays import ArrayFile, Blocks
from adaptive.system import is_out_of_memory, running_out

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


def _not_compiled(method: Method) -> Method:
    """`torch.compile` of a model leaves this method as it is: threads move rows below it. As torch.optim does; the
    public `torch.compiler.disable` would import the compiler, a second."""
    return cast(Method, torch._disable_dynamo(method))  # type: ignore[attr-defined]


class TieredEmbeddingBag(nn.Module):
    """Embedding tables whose rows lie on the device or on the host, with their optimizer state.

    Batches made by `Batch.of` name their features; others have them in the order of `features`: the tables' features,
    table by table. `policy` is a name, `module:Class`, `file.py:Class`, a `Policy` class or an instance. Without `skip`
    no update is ever skipped.

    Rows are no parameters: not in `parameters()`, and `.to()`, `.half()` and `.cuda()` leave them as they are, float32
    on `TierConfig.device`. `state_dict()` has those that ever changed, with their optimizer state. For tables too large
    to be copied there, `rows="separate"` leaves a mark only: `load_state_dict` then fails unless the rows were loaded
    before, by `load_state_arrays`.

    Raises:
        ConfigError: for tables, sizes or combinations that cannot work.
        PolicyError: if the policy cannot be loaded.
    """

    def __init__(
        self,
        tables: Sequence[TableConfig],
        tier: TierConfig = TierConfig(),  # noqa: B008 (immutable)
        *,
        policy: str | type[Policy] | Policy = "lru",
        optimizer: RowOptimizer = SGD(),  # noqa: B008 (immutable)
        skip: SkipConfig | SkipRule | str | None = None,
        seed: int = 0,
        rows: Literal["in_state_dict", "separate"] = "in_state_dict",
    ) -> None:
        super().__init__()
        if rows not in ("in_state_dict", "separate"):
            raise ConfigError(f'rows: "in_state_dict" or "separate" is needed, found {rows!r}')
        self._separate = rows == "separate"
        check_arguments(tables, tier, optimizer, skip)
        self.features = feature_order(tables)
        self.policy = make_policy(policy)
        skip = with_rule(self.policy, skip)
        engine = build_engine(tables, tier, self.policy, optimizer, skip, seed)
        self._pipeline, self._sizes = engine.pipeline, engine.sizes
        self.drops_updates, self.defers = engine.drops_updates, engine.defers
        lanes = self._pipeline.lanes
        self.table_names = tuple(table.name for lane in lanes for table in lane.group.tables)
        self.device = self._pipeline.mover.device
        self.view: TierView = RowView([lane.planner for lane in lanes])
        self._tier, self._optimizer = tier, optimizer
        self._anchor = torch.zeros(1, requires_grad=True, device=self.device)  # makes autograd call us; holds no weight
        self._pending: dict[int, Planned] = {}
        self._rates = RowsOptimizer(optimizer, self._update_rows)
        self._since = StatisticsInterval(self._pipeline)
        if engine.skip is not None:
            watched = engine.skip
            self.with_room(lambda: watch_rows(self._pipeline, watched, optimizer))

    @classmethod
    def from_bags(
        cls,
        bags: Mapping[str, nn.Module],
        tier: TierConfig = TierConfig(),  # noqa: B008 (immutable)
        **options: Any,
    ) -> "TieredEmbeddingBag":
        """Tables in the place of `nn.EmbeddingBag`s (or `nn.Embedding`s, which are not pooled) by feature, with their
        names, sizes, pooling and values; of modules on the device "meta", which have no values, without these.

        Args:
            bags: feature -> module.
            tier: settings.
            options: as of the constructor.

        Raises:
            ConfigError: for another module, or one with max_norm, padding_idx, scale_grad_by_freq or mode "max".
        """
        found = cls(tables_like(bags), tier, **options)
        for name, module in bags.items():
            weight = cast(Tensor, module.weight).detach()
            if not weight.is_meta:
                found.load_table(name, weight.float().cpu().numpy())
        return found

    # --- training --------------------------------------------------------------------------------------------

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Let the policy look at a sample of the training data before training."""
        self._pipeline.policy_caller.calibrate([self._pipeline.check(batch) for batch in sample], self.view)

    def look_ahead(self, batches: Iterable[Batch], *, depth: int = 4) -> Generator[Planned, None, None]:
        """Every batch of `batches`, in order, with its rows planned and fetched up to `depth` batches ahead.

        Asking for the next batch ends the last one. Close the iterator, or exhaust it, before starting another.

        Raises:
            DeviceMemoryError, InputError, PolicyError: in the loop, whatever thread found the fault.
        """
        if depth < 0:
            raise ConfigError(f"depth must be >= 0, found {depth}")
        policy_caller = self._pipeline.policy_caller
        try:
            with policy_caller.listening(), running_out("while rows moved"):
                named = map(self._pipeline.by_name, batches)  # before a policy sees them
                arranged = policy_caller.arrange(named, self.view)
                with closing(look_ahead(self._pipeline, arranged, depth)) as coming:
                    for ready in coming:
                        planned = Planned(
                            ready.batch, self._works(ready), self._send, partial(self._pipeline.wait_for, ready)
                        )
                        try:
                            yield planned
                            self._check_stepped(planned)
                        finally:  # a loop that stops early has trained this batch too
                            self._finish(planned, ready.plans)
        finally:
            self._since.count_resident()  # rows of batches that were planned and dropped are there, too

    def _works(self, ready: ReadyBatch) -> list[GroupWork]:
        parts = ready.parts or [()] * len(ready.plans)
        lanes = self._pipeline.lanes
        return [GroupWork(lane, plan, parts=own) for lane, plan, own in zip(lanes, ready.plans, parts, strict=True)]

    def _send(self, array: NDArray[np.float32]) -> Tensor:
        return self._pipeline.lanes[0].device.send(array)

    def _check_stepped(self, planned: Planned) -> None:
        if planned.number in self._pending and planned.has_gradients:
            raise ConfigError(
                f"batch {planned.number}: its gradients were neither applied nor discarded before the next batch; "
                f"call embeddings.step() after loss.backward(), or embeddings.discard()"
            )

    def discard(self) -> None:
        """Forget the gradients of the current batch: its rows are not updated."""
        self._pending.clear()

    def _finish(self, planned: Planned, plans: Sequence[GroupPlan]) -> None:
        self._pending.pop(planned.number, None)
        self._since.add(plans, in_parts=any(work.parts for work in planned.works), waited=planned.waited)

    @_not_compiled
    def forward(self, planned: Planned) -> dict[str, Tensor]:
        """Feature -> (B, D) pooled vectors, or (positions, D) for tables with pooling "none"."""
        check_planned(planned)
        vectors: dict[str, Tensor] = {}
        for work in planned.works:
            vectors.update(work.split(self._pool(planned, work), planned.batch))
        return {name: vectors[name] for name in self.features}

    @_not_compiled
    def stack(self, planned: Planned) -> Tensor:
        """(B, F, D) the pooled vectors of all features, for tables of one width.

        Raises:
            ConfigError: if tables differ in width or one is not pooled; call the module instead.
        """
        check_planned(planned)
        groups = self._pipeline.groups
        if len({group.embedding_dim for group in groups}) > 1 or any(f.column < 0 for g in groups for f in g.features):
            raise ConfigError("stack() needs tables of one width, all pooled; call the module for one tensor a feature")
        if len(groups) > 1:  # tables with learning rates of their own
            return torch.stack(list(self(planned).values()), dim=1)
        pooled = self._pool(planned, planned.works[0])
        return pooled.view(planned.num_samples, len(self.features), pooled.shape[1])

    def _pool(self, planned: Planned, work: GroupWork) -> Tensor:
        if planned.trainable and planned.number <= self._pipeline.trained:
            raise ConfigError(f"batch {planned.number} has ended, its rows may have left: use a batch in its own turn")
        planned.wait()
        if planned.trainable and torch.is_grad_enabled():
            self._pending[planned.number] = planned.whole
        pooled: Tensor = _Pool.apply(self._anchor, work)  # type: ignore[no-untyped-call]
        return pooled

    def bad_gradients(self) -> list[str]:
        """After backward: the features whose gradient holds NaN or infinity."""
        bad = {
            name
            for planned in self._pending.values()
            for work in planned.works
            for name in work.bad_gradients(planned.batch)
        }
        return [name for name in self.features if name in bad]

    @property
    def optimizer(self) -> RowsOptimizer:
        """The rows' optimizer as a `torch.optim.Optimizer`: for learning-rate schedulers, and loops that step it."""
        return self._rates

    @optimizer.setter
    def optimizer(self, value: object) -> None:
        raise ConfigError(
            "the rows' optimizer is fixed when tables are made, as its state lies beside the rows; set_lr() or a "
            "scheduler of embeddings.optimizer changes its rate, load_state_dict() moves rows to new tables"
        )

    def set_lr(self, lr: float) -> None:
        """The learning rate from the next `step()` on, whichever batches are planned by then; a table's own is that
        times its `lr_scale`."""
        self._rates.param_groups[0]["lr"] = lr
        _ = self._rates.lr  # checks it

    def clip_grad_norm_(self, max_norm: float, parameters: Iterable[Tensor] = (), *, grad_scale: float = 1.0) -> Tensor:
        """After backward: scale gradients so that their norm together is at most `max_norm`; returns what it was, ().

        Counted are the gradients of all vectors that were looked up, as backward hands them over, not their sums by
        row, and those of `parameters`: `embeddings.clip_grad_norm_(1.0, model.parameters())`. Both are scaled by the
        same factor. `grad_scale`: by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`) while
        `parameters` were not, or are unscaled already.
        """
        works = self._works_with_gradients()
        dense = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for work in works:
            work.scale_gradients(1 / grad_scale)
        found = [*dense, *(work.gradients for work in works if work.gradients is not None)]
        norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in found]))
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in dense:
            gradient.mul_(factor)
        for work in works:
            work.scale_gradients(factor)
        return norm

    def step(self, *, grad_scale: float = 1.0) -> None:
        """Update the rows of the batch whose backward pass has run, with the rate that `optimizer` has now.

        Args:
            grad_scale: by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`); gradients are divided by
                it, as the scaler divides those of parameters only. If it is not 1 and a gradient is not finite, no row
                is updated, as the scaler does. bfloat16 needs no scaler.

        Raises:
            ValueError: if no backward pass has run since the last step.
        """
        self._rates.step(grad_scale=grad_scale)

    @torch.no_grad()
    def _update_rows(self, grad_scale: float) -> None:
        pending = [planned for planned in self._pending.values() if planned.has_gradients]
        if not pending:
            raise ValueError("step(): no gradient has reached the embeddings; call loss.backward() first")
        if grad_scale != 1.0:
            if self.bad_gradients():
                return self.discard()
            for work in self._works_with_gradients():
                work.scale_gradients(1 / grad_scale)
        if (lr := self._rates.lr) != self._pipeline.rate:
            self._pipeline.use_rate(lr)
        with self._pipeline.stopwatch.stage("row_update"), running_out("in the update of rows"):
            for planned in pending:
                planned.wait()
                feedback = [work.update() for work in planned.works]
                self._pipeline.report(planned.number, feedback)
                del self._pending[planned.number]

    def _works_with_gradients(self) -> list[GroupWork]:
        found = [work for planned in self._pending.values() for work in planned.works if work.gradients is not None]
        if not found:
            raise ValueError("no gradient has reached the embeddings; call loss.backward() first")
        return found

    def report_loss(self, planned: Planned, loss: float) -> None:
        """Tell the policy the mean loss on `planned.batch.held_back`, measured after `step()` (`Policy.observe`)."""
        if planned.number <= self._pipeline.trained:
            raise ConfigError(
                f"batch {planned.number} has ended: report the loss after its step, before the next batch"
            )
        self._pipeline.report_loss(planned.number, loss)

    def with_room(self, work: Callable[[], T]) -> T:
        """The result of `work`, which is run again with fewer device rows whenever it runs out of device memory.

        Raises:
            DeviceMemoryError: if no more rows can be given back.
        """
        while True:
            try:
                return work()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self.make_room()  # outside `except`: the error would keep the attempt's tensors alive

    def make_room(self) -> None:
        """The device ran out of memory in a forward or backward pass: give a tenth of the device rows back and forget
        the current batch's gradients. Then its passes can be run again, with the result that they would have had.

        Raises:
            DeviceMemoryError: if the batches in flight need all rows; the tiers are as they were.
        """
        for planned in self._pending.values():
            for work in planned.works:
                work.forget()
        self._pending.clear()
        self._since.lose(give_back(self._pipeline, SHRINK, self._tier.held_rows))
        self._sizes = self._resized(FEWER)

    # --- evaluation ------------------------------------------------------------------------------------------

    def read(self, batch: Batch) -> Planned:
        """A batch for evaluation or prediction: nothing moves, nothing is counted, nothing can be trained."""
        batch = self._pipeline.check(batch)
        works = []
        with self._pipeline.lock:
            for lane in self._pipeline.lanes:
                distinct = lane.reader.find(batch)
                weights, _ = self._pipeline.values(lane, distinct.rows)
                here = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(lane.group, batch).pooling(distinct.inverse, here)
                works.append(GroupWork(lane, None, pooling, weights))
        return Planned(batch, works, self._send)

    # --- state -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write every changed device row to the host tier; rows keep their slots."""
        self._pipeline.flush()

    def table_weights(self, name: str) -> NDArray[np.float32]:
        """(num_embeddings, D) copy of a table, wherever its rows lie."""
        lane, first, last = self._place_of(name)
        with self._pipeline.lock:
            return self._pipeline.values(lane, np.arange(first, last))[0]

    def load_table(self, name: str, vectors: NDArray[np.float32]) -> None:
        """Give rows 0 ... n - 1 of a table values from elsewhere (n, D), pretrained ones for example: an array, which
        may be mapped from a file. Their optimizer state begins anew; what is known of look-ups stays.

        Raises:
            ConfigError: if there is no such table, the shape is another, or a look-ahead is running.
        """
        fill_table(self._pipeline, *self._find_table(name), vectors, self._optimizer)

    def _find_table(self, name: str) -> tuple[Lane, int]:
        """The lane of a table, and its number in there."""
        for lane in self._pipeline.lanes:
            names = [table.name for table in lane.group.tables]
            if name in names:
                return lane, names.index(name)
        raise ConfigError(f"no table {name!r}; there are: {', '.join(self.table_names)}")

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """What a checkpoint needs, as flat arrays: values, state and records of rows that ever changed, with waiting
        gradients applied. With no look-ahead running, also what is deferred and watched, so that tables that load it
        go on as these would (`adaptive.engine.saving`)."""
        return save_rows(self._pipeline)

    def state_blocks(self) -> dict[str, NDArray[Any] | Blocks]:
        """`state_arrays` for tables larger than memory: values and state are `adaptive.storage.arrays.Blocks`, read 8
        MiB at a time when they are written. Train nothing before that."""
        return save_blocks(self._pipeline)

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any] | ArrayFile], *, grow: bool = False) -> None:
        """Restore what `state_arrays` gave, into tables of the same shapes; rows start on the host. Those in an
        `ArrayFile` are read 8 MiB at a time.

        With `grow`, tables may be larger than those were: rows keep their ids. Rows that never changed have the initial
        values of the larger table, whose default bound is smaller (`TableConfig.init_bound` fixes it).

        Tables that watch and defer as those did get back what was watched and deferred, too. Others, such as tables
        without `skip`, get the values with waiting gradients applied, and begin to watch anew.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        load_rows(self._pipeline, arrays, grow=grow)
        self._since.count_resident()

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        tensors = rows_to_tensors(self._pipeline, separate=self._separate)
        destination.update({prefix + name: tensor for name, tensor in tensors.items()})

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        tensors = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        if not tensors:
            missing_keys.append(prefix + "rows0.weights")
            return
        if (wrong := rows_from_tensors(self._pipeline, tensors, self.load_state_arrays)) is not None:
            error_msgs.append(f"{prefix or 'embeddings'}: {wrong}")

    def overwrite_rows(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Overwrite rows where they lie with `state_arrays` of other tables of the same shapes. Call it between two
        steps; a look-ahead may be running. Rows that never changed there stay as they are, and so do records, slots
        and verdicts; gradients that wait are dropped.

        Raises:
            CheckpointError: if the arrays belong to other tables or another optimizer; nothing is changed then.
        """
        overwrite_rows(self._pipeline, arrays)

    def table_blocks(self, name: str, block_bytes: int = 8 << 20) -> Iterator[NDArray[np.float32]]:
        """`table_weights` by blocks of at most `block_bytes`, or one row, in order of the rows."""
        lane, first, last = self._place_of(name)
        length = max(1, block_bytes // (4 * lane.group.embedding_dim))
        for start in range(first, last, length):
            with self._pipeline.lock:
                block = self._pipeline.values(lane, np.arange(start, min(start + length, last)))[0]
            yield block

    def _place_of(self, name: str) -> tuple[Lane, int, int]:
        """The lane of a table, its first row and the one behind its last.

        Raises:
            ConfigError: if there is no such table.
        """
        lane, number = self._find_table(name)
        first, last = lane.group.table_starts[number : number + 2]
        return lane, int(first), int(last)

    # --- reports ---------------------------------------------------------------------------------------------

    def take_statistics(self) -> Statistics:
        """What happened since the last call."""
        return self._since.take()

    def counts(self) -> NDArray[np.int64]:
        """(len(Counter),) what was counted over all tables and all batches trained so far."""
        return self._since.total.copy()

    def memory(self) -> dict[str, int]:
        """Bytes: of both tiers if every row were written, of records and slots, of snapshots and deferred sums, and of
        the transfer buffers, pinned and on the device; these grow with use."""
        names = (
            "host_weights", "host_state", "device_weights", "device_state", "bookkeeping", "snapshots",
            "pinned_buffers", "device_buffers",
        )  # fmt: skip
        totals = dict.fromkeys(names, 0)
        for lane in self._pipeline.lanes:
            weights, state, snapshots = lane.device.num_bytes
            own = (weights, state, lane.planner.num_bytes, snapshots)
            parts = (*lane.host.num_bytes, *own, *lane.device.buffer_bytes)
            for name, size in zip(totals, parts, strict=True):
                totals[name] += size
        return totals

    def host_io(self) -> dict[str, int]:
        """What has crossed between the host tier and its files so far: `reads`, `bytes_read`, `writes`,
        `bytes_written`. All 0 for a host tier in memory, and rows used in place are not counted."""
        counts = [asdict(lane.host.io) for lane in self._pipeline.lanes]
        return {name: sum(count[name] for count in counts) for name in counts[0]}

    @property
    def may_plan_again(self) -> bool:
        """Whether batches that were planned and not trained can be planned again without any change in what is trained:
        the policy leaves the batches as they come, skips nothing and defers nothing."""
        return not (arranges(self.policy) or self.drops_updates or self.defers)

    def extra_repr(self) -> str:
        return describe(self._pipeline, self._tier, self._optimizer, self.device_rows_text())

    def device_rows_text(self) -> str:
        """How many device rows there are and why, in one sentence."""
        if self._sizes.slots != tuple(lane.device.num_slots for lane in self._pipeline.lanes):
            self._sizes = self._resized("shared among widths by what batches ask")
        return self._sizes.text

    def _resized(self, reason: str) -> Sizes:
        lanes = self._pipeline.lanes
        return resized(
            [lane.group for lane in lanes], [lane.device.num_slots for lane in lanes], self._optimizer, reason
        )

    def close(self) -> None:
        """Give the files of a host tier on disk back; their rows are gone. The look-ahead joins its thread itself."""
        with self._pipeline.lock:
            for lane in self._pipeline.lanes:
                lane.device.close()
                lane.host.close()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a TieredEmbeddingBag can be neither copied nor pickled: its rows lie in two tiers, and threads use them; "
            "load its state_dict() into a new one"
        )

    def __enter__(self) -> "TieredEmbeddingBag":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _Pool(torch.autograd.Function):
    """Pooling whose gradient is kept for `step()` instead of becoming a sparse tensor."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, work: GroupWork) -> Tensor:
        ctx.work = work
        return work.pool()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None]:
        ctx.work.add_gradients(gradients[0])
        return None, None


def check_planned(planned: object) -> None:
    """Check that the argument is a batch of a look-ahead.

    Raises:
        ConfigError: if it is something else.
    """
    if not isinstance(planned, Planned):
        raise ConfigError(f"a batch of look_ahead() or read() is needed, found {type(planned).__name__}")


def check_arguments(tables: Sequence[TableConfig], tier: TierConfig, optimizer: RowOptimizer, skip: Any) -> None:
    """Check that arguments are of the kinds that `TieredEmbeddingBag` takes.

    Raises:
        ConfigError: for the first one that is not.
    """
    given: list[tuple[str, object, type]] = [
        *((f"tables[{number}]", table, TableConfig) for number, table in enumerate(tables)),
        ("tier", tier, TierConfig),
        ("optimizer", optimizer, RowOptimizer),
    ]
    if skip is not None and not isinstance(skip, str | SkipRule):
        given.append(("skip", skip, SkipConfig))
    for name, found, needed in given:
        if not isinstance(found, needed):
            raise ConfigError(f"{name}: {needed.__name__} is needed, found {type(found).__name__}")
