"""`TieredEmbeddingBag`: embedding tables in two tiers, as an `nn.Module`.

    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="10%"), policy=LRU, optimizer=Adagrad(lr=0.01))
    for planned in embeddings.look_ahead(loader, depth=4):
        loss = loss_fn(model(planned.dense, embeddings.stack(planned)), planned.labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); embeddings.step()

Letters: B samples, F features, D width, V vectors of a group.
"""

import warnings
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar, cast

import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import OptimizerConfig, SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.checks import check_arguments, check_depth, check_planned, refuse_ended, table_like, unapplied
from adaptive.embeddings.engine.build import SizedEngine, begin_hot_sets, build_pipeline, size_engine
from adaptive.embeddings.engine.lookahead import LookAheadPass
from adaptive.embeddings.engine.pipeline import Pipeline, ReadyBatch
from adaptive.embeddings.engine.statistics import StatisticsCollector
from adaptive.embeddings.planned_batch import BatchSteps, GroupBatch, LookAhead, Planned, PooledVectors, PoolRows
from adaptive.embeddings.planning.access_events import HashedView, RowView
from adaptive.embeddings.planning.layout import Share
from adaptive.embeddings.row_store import RowStore
from adaptive.embeddings.rows_optimizer import RowsOptimizer
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer, row_optimizer
from adaptive.plugins import make_policy, parse_policy, with_rule
from adaptive.policy import Policy, SkipRule, TierView, arranges

T = TypeVar("T")


@dataclass(frozen=True)
class Runtime:
    """Parts of one `TieredEmbeddingBag`. All methods are called from the training thread.

    Attributes:
        pipeline: plans batches and moves rows.
        sized: arguments of the tables, and the sizes that follow from them.
        optimizer: keeps gradients and updates rows.
        statistics: counts of trained batches.
        view: the rows as policies see them.
    """

    pipeline: Pipeline
    sized: SizedEngine
    optimizer: RowsOptimizer
    statistics: StatisticsCollector
    view: TierView

    @property
    def may_end_early(self) -> bool:
        """True if batches that were read but not planned can be read again: the policy does not arrange them."""
        return not arranges(self.sized.policy)

    def end_early(self) -> None:
        """Plan no more batches in the running look-ahead. Requires `may_end_early`."""
        assert self.may_end_early
        self.pipeline.ending = True


DEFAULT_OPTIMIZER: Final = row_optimizer(OptimizerConfig())  # the default of the command line, too

MOST_TABLES: Final = 12  # tables that `repr` lists by name


class TieredEmbeddingBag(PooledVectors):
    """Embedding tables with their optimizer state, stored on the device and on the host.

    Batches made by `Batch.of` name their features. Other batches list them in the order of `features`.

    Rows are not parameters: `parameters()` does not return them, and `.to()`, `.half()` and `.cuda()` leave them
    unchanged, float32 on `TierConfig.device`. `state_dict()` contains every row that ever changed, with its optimizer
    state.

    Call all methods from the training thread. `adaptive.ShardedEmbeddingBag` is the same for several processes.

    Args:
        tables: sizes and features of the tables, in any order.
        tier: number of device rows, device, and host storage.
        policy: a name, `module:Class` or `file.py:Class`, with parameters and a skip rule as in
            `lfu+half_life=500+skip=defer`; a `Policy` class, or an instance.
        optimizer: updates the rows; the default is row-wise Adagrad with a learning rate of 0.05.
        skip: skip rule or its settings; with None, no update is ever skipped, unless `policy` names a rule.
        seed: of the initial values.
        share: of larger tables whose other rows are in other modules; None: these are the whole tables.

    Attributes:
        rows: reads, loads and saves rows on either tier.
        optimizer: the rows' optimizer as a `torch.optim.Optimizer`, for learning-rate schedulers, gradient scalers, and
            loops that step it.
        statistics: counts, memory, and the number of device rows.
        runtime: for trainers and studies; its interface may change.
        features: names of all features, table by table.
        table_names: names of all tables, ordered by width.
        policy, skip: made from the arguments.
        rows_anchor: a parameter without values. It makes autograd ask for gradients of rows, so `requires_grad_(False)`
            of this module, or of one that contains it, freezes the rows.
        drops_updates: True if updates of saturated rows are skipped.
        defers: True if gradients of deferred rows are accumulated and applied later.
        device: device of the device tier.

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
        optimizer: RowOptimizer = DEFAULT_OPTIMIZER,
        skip: SkipConfig | SkipRule | str | None = None,
        seed: int = 0,
        share: Share | None = None,
    ) -> None:
        super().__init__()
        check_arguments(tables, tier, optimizer, skip)
        rule = parse_policy(policy)[2] if isinstance(policy, str) else None
        self.policy = make_policy(policy)
        self.skip = with_rule(self.policy, rule if skip is None else skip)
        sized = size_engine(tables, tier, self.policy, optimizer, self.skip, seed, share)
        self._pipeline, sizes = build_pipeline(sized)
        self._batch_steps = BatchSteps(self._pipeline)
        self.rows_anchor = nn.Parameter(torch.zeros(0, device=self._pipeline.mover.device))
        self._optimizer = RowsOptimizer(optimizer.lr, self._pipeline, self._batch_steps, self.rows_anchor)
        self.statistics = StatisticsCollector(self._pipeline, sizes)
        self.rows = RowStore(self._pipeline, self.statistics)
        planners, keys = zip(*((tiered.planner, tiered.keys) for tiered in self._pipeline.tiered_groups), strict=True)
        groups = self._pipeline.groups
        view, self._hashed_view = RowView(groups, planners, keys), HashedView(groups)
        self.runtime = Runtime(self._pipeline, sized, self._optimizer, self.statistics, view)
        self.drops_updates, self.defers = sized.drops_updates, sized.defers
        self._use_groups(self._pipeline.groups)
        self.table_names = tuple(self.statistics.table_rows())
        self.device = self._pipeline.mover.device
        if sized.skip is not None:
            skip_config = sized.skip
            with self._pipeline.running_out("for hot rows"):
                begin_hot_sets(self._pipeline, skip_config, optimizer)

    @classmethod
    def from_bags(
        cls,
        bags: Mapping[str, nn.Module],
        tier: TierConfig = TierConfig(),  # noqa: B008 (immutable)
        **options: Any,
    ) -> "TieredEmbeddingBag":
        """Create tables with the names, sizes, pooling and values of `nn.EmbeddingBag` modules.

        `nn.Embedding` modules become tables that are not pooled. Modules on the device "meta" have no values, so their
        tables keep their initial values.

        Args:
            bags: feature -> module.
            tier: number of device rows, device, and host storage.
            options: keyword arguments of the constructor.

        Raises:
            ConfigError: for another module, or one with max_norm, padding_idx, scale_grad_by_freq or mode "max".
        """
        embeddings = cls([table_like(name, module) for name, module in bags.items()], tier, **options)
        for name, module in bags.items():
            weight = cast(Tensor, module.weight).detach()
            if not weight.is_meta:
                embeddings.rows.load_table(name, weight.float().cpu().numpy())
        return embeddings

    @property
    def optimizer(self) -> RowsOptimizer:
        return self._optimizer

    @optimizer.setter
    def optimizer(self, value: object) -> None:
        raise ConfigError(
            f"embeddings.optimizer: expected the one of the constructor, got {type(value).__name__}. Its state is "
            "stored with the rows. To change the learning rate, set embeddings.optimizer.lr or use a scheduler; to "
            "change the optimizer, create a new TieredEmbeddingBag."
        )

    @property
    def rule(self) -> SkipRule | None:
        """The skip rule; None if nothing is skipped."""
        return self.policy.rule

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Let the policy look at a sample of the training data before training."""
        self._pipeline.policy_caller.calibrate([self._pipeline.check(batch) for batch in sample], self.runtime.view)

    def look_ahead(self, batches: Iterable[Batch], *, depth: int = 4) -> LookAhead:
        """Return an iterator over `batches`, planned and fetched up to `depth` batches ahead.

        Requesting the next batch ends the current one. Exhaust or close the iterator before you start another.

        Raises:
            ConfigError: if `depth` is not a non-negative integer.
            DeviceMemoryError, InputError, PolicyError: in the loop, also for errors of the look-ahead thread.
        """
        return LookAhead(partial(self._begin_pass, batches, check_depth(depth)), batches)

    def end_look_ahead(self) -> None:
        """End the running look-ahead, if there is one, as closing its iterator does.

        For loops whose iterator you cannot reach: after an interrupt in a notebook, a traceback may keep it.
        """
        one_pass = self._pipeline.current
        if one_pass is not None:
            one_pass.close()

    def _begin_pass(self, batches: Iterable[Batch], depth: int) -> Generator[Planned, None, None]:
        one_pass = LookAheadPass(self._pipeline, depth)
        planned_batches = self._look_ahead(one_pass, batches)
        one_pass.owner = weakref.ref(planned_batches)
        return planned_batches

    def _look_ahead(self, one_pass: LookAheadPass, batches: Iterable[Batch]) -> Generator[Planned, None, None]:
        policy_caller = self._pipeline.policy_caller
        all_trained = False
        self._batch_steps.failure = None
        self._optimizer.discard()  # gradients that an interrupt at the end of a pass has left
        try:
            with self._pipeline.running_out("while rows moved"):
                named = map(self._pipeline.take_over, batches)  # before a policy sees them
                arrange = partial(policy_caller.arrange, view=self.runtime.view, rows_of_inputs=self._hashed_view.rows)
                with closing(one_pass.ready_batches(named, arrange)) as ready_batches:
                    for ready in ready_batches:
                        planned = self._batch_steps.planned(ready)
                        try:
                            yield planned
                            self._pipeline.lock.refuse_in_child()
                            self._check_stepped(planned)
                        except GeneratorExit as closed:
                            self._warn_if_unapplied(planned, ready, closed)
                            raise
                        finally:  # a loop that stops early has trained this batch, too
                            self._finish(planned, ready)
            all_trained = True
        finally:
            self.statistics.refresh(recount=not all_trained)

    def _check_stepped(self, planned: Planned) -> None:
        if self._optimizer.is_unapplied(planned):
            raise unapplied(planned)

    def _warn_if_unapplied(self, planned: Planned, ready: ReadyBatch, closed: GeneratorExit) -> None:
        """Warn if the loop was left between backward() and step(), unless an error ended it."""
        has_rows = ready.arrived is None or not ready.arrived.done() or ready.arrived.exception() is None
        was_left = closed.__context__ is None and self._batch_steps.failure is None
        if was_left and has_rows and self._optimizer.is_unapplied(planned):
            warnings.warn(
                f"batch {planned.number}: the loop ended after backward() and before step(), so the gradients of its "
                "rows are lost. Call embeddings.step() before `break`, or embeddings.discard() to drop them.",
                stacklevel=2,
            )

    def _finish(self, planned: Planned, ready: ReadyBatch) -> None:
        planned.ended = True
        self._optimizer.end_batch(planned)
        self.statistics.add(ready, in_parts=any(work.parts for work in planned.works), waited=planned.waited)

    def _check_planned(self, planned: Planned) -> None:
        check_planned(planned, self._pipeline.tiered_groups)

    def _pool(self, planned: Planned, work: GroupBatch) -> Tensor:
        if work.held is not None:
            return work.held
        refuse_ended(planned)
        self._pipeline.lock.refuse_in_child()
        self._pipeline.lock.refuse_broken()
        planned.wait()
        pooled: Tensor = PoolRows.apply(self.rows_anchor, self._optimizer, planned, work)  # type: ignore[no-untyped-call]
        return pooled

    def step(self, *, grad_scale: float = 1.0) -> None:
        """Update the rows of the current batch after `loss.backward()`.

        Uses the current learning rate of `optimizer`. Does nothing if `requires_grad_(False)` has frozen the rows.

        Args:
            grad_scale: factor by which the loss was multiplied (`torch.amp.GradScaler.get_scale()`, or 1 / n if dense
                gradients are accumulated over n batches). Gradients are divided by it. If it is not 1 and a gradient is
                not finite, no row is updated, as the scaler does. bfloat16 needs no scaler.

        Raises:
            ValueError: if no backward pass has run since the last step.
        """
        self._optimizer.step(grad_scale=grad_scale)

    def discard(self) -> None:
        """Drop the gradients of the current batch; its rows are not updated."""
        self._optimizer.discard()

    def report_loss(self, planned: Planned, loss: float) -> None:
        """Report the mean loss on `planned.batch.held_back`, after `step()`, to the policy."""
        check_planned(planned, self._pipeline.tiered_groups)
        if planned.ended:
            raise ConfigError(
                f"report_loss(): expected the current batch, got batch {planned.number}, which has ended. Report its "
                "loss after step() and before the next batch."
            )
        self._pipeline.feedback.report_loss(planned.number, loss)

    def reporting_errors(self) -> AbstractContextManager[None]:
        """Return a context manager that notes an error in a loop's body, so that nothing is taken for left undone."""
        return self._batch_steps.reporting_errors()

    def read(self, batch: Batch) -> Planned:
        """Return a batch for evaluation or prediction: no row moves, and nothing is counted."""
        return self._batch_steps.read(batch)

    def close(self) -> None:
        """Delete the files of a host tier on disk. Close a running look-ahead first."""
        if self._pipeline.lock.is_forked:
            return
        with self._pipeline.lock.held:
            for tiered in self._pipeline.tiered_groups:
                tiered.device.close()
                tiered.host.close()

    def extra_repr(self) -> str:
        """Return lines of text: tables, number of device rows, tiers, policy and optimizer."""
        sized, policy = self.runtime.sized, self.policy
        lines = [*map(_table_text, sized.tables[:MOST_TABLES])]
        if len(sized.tables) > MOST_TABLES:
            lines.append(f"and {len(sized.tables) - MOST_TABLES} more tables")
        lines += [self.statistics.device_rows_text(), f"device {self.device}, host {sized.tier.host}"]
        rule = "" if policy.rule is None else f", skip rule {type(policy.rule).__name__}"
        lines.append(f"policy {type(policy).__name__}{rule}, optimizer {sized.optimizer}")
        return "\n".join(lines)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        tensors = self.rows.to_tensors()
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
        if (wrong := self.rows.load_tensors(tensors)) is not None:
            error_msgs.append(f"{prefix or 'embeddings'}: {wrong}")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "TieredEmbeddingBag: expected to stay in this process, got a request to copy or pickle it. Its rows are in "
            "two tiers that threads use: load its state_dict() into a new one."
        )


def _table_text(table: TableConfig) -> str:
    by = "" if table.feature_names == (table.name,) else f" by {', '.join(table.feature_names)}"
    return f"{table.name}: {table.num_embeddings:,} x {table.embedding_dim}, {table.pooling}{by}"
