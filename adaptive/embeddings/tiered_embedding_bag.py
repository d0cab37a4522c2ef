"""`TieredEmbeddingBag`: embedding tables in two tiers, as an `nn.Module` with two lines more than plain torch.

    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="10%"), policy=LRU, optimizer=Adagrad(lr=0.01))
    for planned in embeddings.look_ahead(loader, depth=4):
        loss = loss_fn(model(planned.dense, embeddings.stack(planned)), planned.labels)
        optimizer.zero_grad(); loss.backward(); optimizer.step(); embeddings.step()

Letters: B samples, F features, D width, V vectors of a group.
"""

import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from adaptive.batch import Batch
from adaptive.config import OptimizerConfig, SkipConfig, TableConfig, TierConfig
from adaptive.embeddings.checks import check_arguments, check_depth, check_planned
from adaptive.embeddings.engine.build import build_engine, watch_rows
from adaptive.embeddings.engine.lookahead import look_ahead
from adaptive.embeddings.engine.pipeline import ReadyBatch
from adaptive.embeddings.engine.rates import RowsOptimizer
from adaptive.embeddings.engine.statistics import StatisticsInterval
from adaptive.embeddings.engine.table_loading import tables_like
from adaptive.embeddings.planned_batch import GroupWork, Planned
from adaptive.embeddings.planning.layout import feature_order
from adaptive.embeddings.planning.lookups import lay_out_bags
from adaptive.embeddings.planning.tier_view import RowView
from adaptive.embeddings.prefetch_iterator import LookAhead
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.row_store import Rows
from adaptive.embeddings.steps import Steps
from adaptive.errors import ConfigError
from adaptive.optim import RowOptimizer, row_optimizer
from adaptive.plugins import make_policy, with_rule
from adaptive.policy import Policy, SkipRule, TierView
from adaptive.system import running_out

DEFAULT_OPTIMIZER: Final = row_optimizer(OptimizerConfig())  # that of the command line

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


def _not_compiled(method: Method) -> Method:
    """`torch.compile` of a model leaves this method as it is: threads move rows below it. As torch.optim does; the
    public `torch.compiler.disable` would import the compiler, a second."""
    return cast(Method, torch._disable_dynamo(method))  # type: ignore[attr-defined]


class TieredEmbeddingBag(Steps, Rows):
    """Embedding tables whose rows lie on the device or on the host, with their optimizer state.

    Batches made by `Batch.of` name their features; others have them in the order of `features`: the tables' features,
    table by table. `policy` is a name, `module:Class`, `file.py:Class`, a `Policy` class or an instance; default: lru.
    `optimizer` updates rows; default, as in the command line: row-wise Adagrad with a rate of 0.05. Without `skip` no
    update is ever skipped.

    Rows are no parameters: not in `parameters()`, and `.to()`, `.half()` and `.cuda()` leave them as they are, float32
    on `TierConfig.device`. `state_dict()` has those that ever changed, with their optimizer state. For tables too large
    to be copied there, `rows="separate"` leaves a mark only: `load_state_dict` then fails unless the rows were loaded
    before, by `load_state_arrays`.

    With `ranks` (`adaptive.TorchRanks`), each rank owns a part of the rows and gives its own samples to `look_ahead`.
    All call `look_ahead`, `step`, `read` and what reads or saves rows together, in the same order.

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
        rows: Literal["in_state_dict", "separate"] = "in_state_dict",
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        if rows not in ("in_state_dict", "separate"):
            raise ConfigError(f'rows: "in_state_dict" or "separate" is needed, found {rows!r}')
        self._separate = rows == "separate"
        check_arguments(tables, tier, optimizer, skip)
        self.features = feature_order(tables)
        self.policy = make_policy(policy)
        self.skip = skip = with_rule(self.policy, skip)
        engine = build_engine(tables, tier, self.policy, optimizer, skip, seed, ranks)
        self.ranks, self._exchange = ranks, engine.pipeline.exchange
        self._failure, self._has_no_samples = None, False
        self._pipeline, self._sizes = engine.pipeline, engine.sizes
        self.drops_updates, self.defers = engine.drops_updates, engine.defers
        lanes = self._pipeline.lanes
        self.table_names = tuple(table.name for lane in lanes for table in lane.group.tables)
        self.device = self._pipeline.mover.device
        self.view: TierView = RowView([lane.planner for lane in lanes])
        self.row_optimizer, self._tables, self._seed = optimizer, tuple(tables), seed
        self._tier, self._optimizer = tier, optimizer
        self._anchor = torch.zeros(1, requires_grad=True, device=self.device)  # makes autograd call us; holds no weight
        self._pending: dict[int, Planned] = {}
        self._rates = RowsOptimizer(optimizer, self._update_rows, self._all_finite)
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

    def like(self, policy: Policy) -> "TieredEmbeddingBag":
        """New tables of the same shapes, initial values, optimizer and rate, wholly on the host; nothing skips."""
        own = self._tier
        tier = TierConfig(device=own.device, device_rows="0", policy_timeout_s=0)
        found = TieredEmbeddingBag(self._tables, tier, policy=policy, optimizer=self._optimizer, seed=self._seed)
        found.set_lr(self.optimizer.lr)
        return found

    def calibrate(self, sample: Sequence[Batch]) -> None:
        """Let the policy look at a sample of the training data before training."""
        self._pipeline.policy_caller.calibrate([self._pipeline.check(batch) for batch in sample], self.view)

    def ask_policy(self, method: str, question: Callable[[], T]) -> T:
        """Ask the policy for something that is not asked in training, such as its state, within its time limit.

        Raises:
            PolicyError: for whatever it raises, or if it does not return; names `method`.
        """
        return self._pipeline.policy_caller.ask(method, question)

    def look_ahead(self, batches: Iterable[Batch], *, depth: int = 4) -> LookAhead:
        """Every batch of `batches`, in order, with its rows planned and fetched up to `depth` batches ahead.

        Asking for the next batch ends the last one. Close the iterator, or exhaust it, before starting another.

        Raises:
            ConfigError: `depth` is no whole number from 0 on.
            DeviceMemoryError, InputError, PolicyError: in the loop, whatever thread found the fault.
        """
        return LookAhead(partial(self._look_ahead, batches, check_depth(depth)), batches)

    def _look_ahead(self, batches: Iterable[Batch], depth: int) -> Generator[Planned, None, None]:
        policy_caller = self._pipeline.policy_caller
        failed: BaseException | None = None
        self._failure = None
        try:
            with policy_caller.listening(), running_out("while rows moved"):
                named = map(self._pipeline.take_over, batches)  # before a policy sees them
                arranged = policy_caller.arrange(named, self.view)
                with closing(look_ahead(self._pipeline, arranged, depth)) as coming:
                    for ready in coming:
                        planned = self._planned(ready)
                        try:
                            yield planned
                            self._pipeline.refuse_in_child()
                            self._check_stepped(planned)
                        except GeneratorExit as closed:
                            self._warn_if_unapplied(planned, ready, closed)
                            raise
                        finally:  # a loop that stops early has trained this batch too
                            self._finish(planned, ready)
        except Exception as error:
            failed = error
            raise
        finally:
            self._leave(failed)
            self._since.count_rows()  # rows of batches that were planned and dropped are there, too

    def _planned(self, ready: ReadyBatch) -> Planned:
        if self._exchange is not None:
            return self._planned_with_ranks(ready)
        inputs = self._pipeline.inputs(ready)
        return Planned(ready.batch, self._works(ready), inputs, partial(self._pipeline.wait_for, ready))

    def _works(self, ready: ReadyBatch) -> list[GroupWork]:
        parts = ready.parts or [()] * len(ready.plans)
        lanes = self._pipeline.lanes
        return [GroupWork(lane, plan, parts=own) for lane, plan, own in zip(lanes, ready.plans, parts, strict=True)]

    def _is_unapplied(self, planned: Planned) -> bool:
        return planned.number in self._pending and planned.has_gradients and not self._rates.was_skipped

    def _check_stepped(self, planned: Planned) -> None:
        if self._is_unapplied(planned):
            raise ConfigError(
                f"batch {planned.number}: its gradients were neither applied nor discarded before the next batch; "
                f"call embeddings.step() after loss.backward(), or embeddings.discard()"
            )

    def _warn_if_unapplied(self, planned: Planned, ready: ReadyBatch, closed: GeneratorExit) -> None:
        """Warn of a loop that was left between backward() and step(), unless an error has ended it."""
        has_rows = not ready.arrived.done() or ready.arrived.exception() is None
        if closed.__context__ is None and self._failure is None and has_rows and self._is_unapplied(planned):
            warnings.warn(
                f"batch {planned.number}: the loop was left after backward() and before step(), so the gradients of "
                "its rows are lost. Call embeddings.step() before `break`, or embeddings.discard() to drop them.",
                stacklevel=2,
            )

    def _finish(self, planned: Planned, ready: ReadyBatch) -> None:
        planned.ended = True
        self._pending.pop(planned.number, None)
        self._rates.forget()
        if not self._pipeline.is_forked:
            self._finish_with_ranks(planned)
        self._since.add(ready, in_parts=any(work.parts for work in planned.works), waited=planned.waited)

    @_not_compiled
    def forward(self, planned: Planned) -> dict[str, Tensor]:
        """Feature -> (B, D) pooled vectors, or (positions, D) for tables with pooling "none"."""
        check_planned(planned, self._pipeline.lanes)
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
        check_planned(planned, self._pipeline.lanes)
        groups = self._pipeline.groups
        if len({group.embedding_dim for group in groups}) > 1 or any(f.column < 0 for g in groups for f in g.features):
            raise ConfigError("stack() needs tables of one width, all pooled; call the module for one tensor a feature")
        if len(groups) > 1:  # tables with learning rates of their own
            return torch.stack(list(self(planned).values()), dim=1)
        pooled = self._pool(planned, planned.works[0])
        return pooled.view(planned.num_samples, len(self.features), pooled.shape[1])

    @_not_compiled
    def side_by_side(self, planned: Planned) -> Tensor:
        """(B, sum of widths) the pooled vectors of all features one after another, of any widths.

        Raises:
            ConfigError: if a table is not pooled; call the module instead.
        """
        if any(f.column < 0 for group in self._pipeline.groups for f in group.features):
            raise ConfigError("side_by_side() needs pooled tables; call the module for one tensor a feature")
        return torch.cat(list(self(planned).values()), dim=1)

    def _pool(self, planned: Planned, work: GroupWork) -> Tensor:
        if planned.whole.ended:
            raise ConfigError(f"batch {planned.number} has ended, its rows may have left: use a batch in its own turn")
        self._pipeline.refuse_in_child()
        planned.wait()
        pooled: Tensor = _Pool.apply(self._anchor, self, planned, work)  # type: ignore[no-untyped-call]
        return pooled

    def _take_gradients(self, planned: Planned, work: GroupWork, gradients: Tensor) -> None:
        """Keep the gradients of vectors for `step()`. Called by autograd, on a GPU from a thread of its own."""
        if not planned.trainable:
            return
        if planned.whole.ended:
            raise ConfigError(
                f"batch {planned.number} has ended; its gradients cannot be applied. Call backward() and step() for "
                "each batch before you ask for the next one; to accumulate gradients, make batches larger."
            )
        work.add_gradients(gradients)
        self._pending[planned.number] = planned.whole

    def read(self, batch: Batch) -> Planned:
        """A batch for evaluation or prediction: nothing moves, nothing is counted, nothing can be trained."""
        if self._exchange is not None:
            return self._read_with_ranks(batch)
        batch = self._pipeline.check(self._pipeline.take_over(batch))
        works = []
        with self._pipeline.lock:
            for lane in self._pipeline.lanes:
                distinct = lane.reader.find(batch)
                weights, _ = self._pipeline.values(lane, distinct.rows)
                here = np.arange(len(distinct.rows), dtype=np.int64)
                pooling = lay_out_bags(lane.group, batch).pooling(distinct.inverse, here)
                works.append(GroupWork(lane, None, pooling, weights))
        return Planned(batch, works, self._send)

    def close(self) -> None:
        """Give the files of a host tier on disk back; their rows are gone. The look-ahead joins its thread itself."""
        if self._pipeline.is_forked:
            return
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
    def forward(ctx: Any, anchor: Tensor, embeddings: TieredEmbeddingBag, planned: Planned, work: GroupWork) -> Tensor:
        ctx.embeddings, ctx.planned, ctx.work = embeddings, planned, work
        return work.pool()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[None, None, None, None]:
        ctx.embeddings._take_gradients(ctx.planned, ctx.work, gradients[0])
        return None, None, None, None
