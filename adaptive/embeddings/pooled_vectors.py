"""`PooledVectors`: the vectors of a batch in the shapes that models take.

Letters: B samples, F features, D width.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from adaptive.embeddings.planned_batch import GroupBatch, Planned
from adaptive.embeddings.planning.layout import Group
from adaptive.errors import ConfigError

Method = TypeVar("Method", bound=Callable[..., Any])


def _not_compiled(method: Method) -> Method:
    """Exclude a method from `torch.compile`, because threads move rows below it."""
    # The public `torch.compiler.disable` imports the compiler, which takes a second; this one does when it is called.
    excluded = torch._disable_dynamo(method)  # type: ignore[attr-defined]

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        return (excluded if torch.compiler.is_compiling() else method)(*arguments, **named)

    return cast(Method, called)


class PooledVectors(nn.Module):
    """Base of modules that pool the rows of planned batches.

    Attributes:
        features: names of all features, table by table.
    """

    features: tuple[str, ...]

    def _use_groups(self, groups: Sequence[Group]) -> None:
        self._groups = tuple(groups)
        of_groups = [feature for group in groups for feature in group.features]
        self.features = tuple(f.name for f in sorted(of_groups, key=lambda feature: feature.position))
        self._unpooled = [feature.name for feature in of_groups if feature.column < 0]

    def _check_planned(self, planned: Planned) -> None:
        """Raise ConfigError unless this module has planned or read the batch."""
        raise NotImplementedError

    def _pool(self, planned: Planned, work: GroupBatch) -> Tensor:
        """Return the pooled vectors (V, D) of one group, with a gradient."""
        raise NotImplementedError

    def close(self) -> None:
        """Release files; see the subclasses."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @_not_compiled
    def forward(self, planned: Planned) -> dict[str, Tensor]:
        """Return feature -> (B, D) pooled vectors, or (lookups, D) for tables with pooling "none"."""
        self._check_planned(planned)
        vectors: dict[str, Tensor] = {}
        for work in planned.works:
            vectors.update(work.split(self._pool(planned, work), planned.batch))
        return {name: vectors[name] for name in self.features}

    @_not_compiled
    def stack(self, planned: Planned) -> Tensor:
        """Return the pooled vectors of all features (B, F, D), for tables of one width.

        Raises:
            ConfigError: if tables differ in width or one is not pooled; call the module instead.
        """
        self._check_planned(planned)
        self._check_pooled("stack")
        groups = self._groups
        if len(widths := sorted({group.embedding_dim for group in groups})) > 1:
            raise ConfigError(
                f"stack(): expected tables of one width, got widths {', '.join(map(str, widths))}. Use "
                "side_by_side(planned) for one wide tensor, or embeddings(planned) for one tensor per feature."
            )
        if len(groups) > 1:  # of one width, with different learning rates
            return torch.stack(list(self(planned).values()), dim=1)
        pooled = self._pool(planned, planned.works[0])
        return pooled.view(planned.num_samples, len(self.features), pooled.shape[1])

    @_not_compiled
    def side_by_side(self, planned: Planned) -> Tensor:
        """Return the pooled vectors of all features, concatenated to (B, sum of widths).

        Raises:
            ConfigError: if a table is not pooled; call the module instead.
        """
        self._check_pooled("side_by_side")
        return torch.cat(list(self(planned).values()), dim=1)

    def _check_pooled(self, method: str) -> None:
        if self._unpooled:
            raise ConfigError(
                f'{method}(): expected pooled features, got {", ".join(self._unpooled)} with pooling="none". Use '
                "embeddings(planned) for one tensor per feature."
            )


class PoolRows(torch.autograd.Function):
    """Pooling that keeps its gradient for `step()`, where torch would make a sparse tensor.

    `receiver.take_gradients(planned, work, gradients)` gets it.
    """

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, receiver: Any, planned: Planned, work: GroupBatch) -> Tensor:
        ctx.anchor, ctx.receiver, ctx.planned, ctx.work = anchor, receiver, planned, work
        return work.pool()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None, None, None]:
        ctx.receiver.take_gradients(ctx.planned, ctx.work, gradients[0])
        return torch.zeros_like(ctx.anchor), None, None, None  # DistributedDataParallel waits for a gradient of each
