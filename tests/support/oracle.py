"""The tables of a random program in plain torch and float64: dense, in one place, nothing planned, formulas as written.

A step updates every row that the batch looks up in tables of one width and learning rate, if the loss depends on any of
them; a row that no gradient has reached counts as updated with a gradient of 0 (it decays, Adam's moments go on).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import reference
import torch
from numpy.typing import NDArray
from torch import Tensor

from adaptive.batch import Batch
from adaptive.config import TableConfig
from adaptive.optim import SGD, Adagrad, Adam, RowwiseAdagrad
from support.program_runs import Tables, loaded_vectors
from support.programs import Act, Program, grown


class Table:
    """Rows (n, D) and their optimizer state (n, S), in float64."""

    def __init__(self, config: TableConfig, optimizer: Any) -> None:
        self.config, self.optimizer = config, optimizer
        self.rows = torch.tensor(reference.initial_table(config, 0), dtype=torch.float64)
        self.state = torch.tensor(reference.initial_states(config, optimizer), dtype=torch.float64)
        self.was_updated = torch.zeros(len(self.rows), dtype=torch.bool)

    def update(self, row: int, gradient: Tensor, rate: float) -> None:
        o, w, s, g, lr = self.optimizer, self.rows[row], self.state[row], gradient, rate * self.config.lr_scale
        w *= 1 - lr * o.weight_decay
        if isinstance(o, SGD):
            w -= lr * g
        elif isinstance(o, Adagrad):
            s += g * g
            w -= lr * g / (s.sqrt() + o.eps)
        elif isinstance(o, RowwiseAdagrad):
            s += (g * g).mean()
            w -= lr * g / (s.sqrt() + o.eps)
        else:
            assert isinstance(o, Adam)
            first, second, count = s[: len(g)], s[len(g) : -1], s[-1:]
            count += 1
            first.mul_(o.beta1).add_(g, alpha=1 - o.beta1)
            second.mul_(o.beta2).add_(g * g, alpha=1 - o.beta2)
            size = lr * (1 - o.beta2**count).sqrt() / (1 - o.beta1**count)
            w -= size * first / (second.sqrt() + o.eps)
        self.was_updated[row] = True


class Current:
    """The batch that is trained, the vectors that were made of it, by forward pass, and their first sample."""

    def __init__(self, batch: Batch, parent: "Current | None" = None, first: int = 0) -> None:
        self.batch, self.first = batch, first
        self.made: list[tuple[Batch, int, dict[str, Tensor]]] = [] if parent is None else parent.made


class Dense(Tables):
    """The oracle."""

    dtype = torch.float64

    def __init__(self, program: Program) -> None:
        self._optimizer, self._rate = program.optimizer, program.optimizer.lr
        self._tables = {table.name: Table(table, program.optimizer) for table in program.tables}
        self._features = [(name, table.name) for table in program.tables for name in table.feature_names]
        self._current: Current | None = None

    @property
    def _configs(self) -> tuple[TableConfig, ...]:
        return tuple(table.config for table in self._tables.values())

    # --- a pass --------------------------------------------------------------------------------------------------

    def passed(self, source: Iterator[Batch]) -> Iterator[Current]:
        for batch in source:
            self._current = Current(self._ordered(batch))
            yield self._current

    def _ordered(self, batch: Batch) -> Batch:
        names = [name for name, _ in self._features]
        return batch.reordered([batch.features.index(name) for name in names]) if batch.features else batch

    def close(self) -> None:
        return

    def samples(self, batch: Current) -> Batch:
        return batch.batch

    def parts(self, batch: Current) -> Iterator[tuple[float, Current]]:
        first, size = 0, batch.batch.num_samples
        for own in batch.batch.part_sizes or (size,):
            yield own / size, Current(batch.batch.take(np.arange(first, first + own)), batch, first)
            first += own

    def vectors(self, batch: Current, view: str) -> dict[str, Tensor]:
        made = self._pooled(batch.batch)
        if torch.is_grad_enabled():
            made = {name: one.requires_grad_() for name, one in made.items()}
            batch.made.append((batch.batch, batch.first, made))
        if view == "stack":
            return {view: torch.stack(list(made.values()), 1)}
        return {view: torch.cat(list(made.values()), 1)} if view == "side_by_side" else made

    def _pooled(self, batch: Batch) -> dict[str, Tensor]:
        found = {}
        for feature, (name, home) in enumerate(self._features):
            table = self._tables[home]
            owners, ids, scales = lookups(batch, feature, table.config.pooling)
            rows = scales[:, None] * table.rows[ids]
            if table.config.pooling != "none":
                rows = torch.zeros(batch.num_samples, rows.shape[1], dtype=self.dtype).index_add(0, owners, rows)
            found[name] = rows
        return found

    def discard(self) -> None:
        assert self._current is not None
        self._current.made.clear()

    def apply(self, act: Act, dense: torch.optim.Optimizer) -> float:
        current = self._current
        assert current is not None
        if act.kind == "overflow":
            current.made.clear()
            return 0.0
        gradients, reached = self._gradients(current)
        norm = self._clip(act, dense, gradients)
        dense.step()
        by_row: dict[tuple[str, int], Tensor] = {}
        for feature, (name, home) in enumerate(self._features):
            config = self._tables[home].config
            if (config.embedding_dim, config.lr_scale) not in reached:
                continue
            pooling = config.pooling
            owners, ids, scales = lookups(current.batch, feature, pooling)
            own = gradients[name] if pooling == "none" else gradients[name][owners]
            for row, gradient in zip(ids.tolist(), scales[:, None] * own, strict=True):
                by_row[home, row] = by_row.get((home, row), 0) + gradient
        for (home, row), gradient in by_row.items():
            self._tables[home].update(row, gradient, self._rate)
        current.made.clear()
        return norm

    def _gradients(self, current: Current) -> tuple[dict[str, Tensor], set[tuple[int, float]]]:
        """Feature -> gradient of its vectors, 0 where the loss does not depend on them; kinds of table that it does
        depend on."""
        found: dict[str, Tensor] = {name: torch.zeros_like(one) for name, one in self._pooled(current.batch).items()}
        reached = set()
        for _, first, made in current.made:
            for feature, (name, home) in enumerate(self._features):
                config, gradient = self._tables[home].config, made[name].grad
                if gradient is None:
                    continue
                reached.add((config.embedding_dim, config.lr_scale))
                start = first
                if config.pooling == "none":
                    start = reference.bag_spans(current.batch, feature)[first][0]
                    start -= reference.bag_spans(current.batch, feature)[0][0]
                found[name][start : start + len(gradient)] += gradient
        return found, reached

    def _clip(self, act: Act, dense: torch.optim.Optimizer, gradients: dict[str, Tensor]) -> float:
        if act.clip is None:
            return 0.0
        others = [one.grad for one in dense.param_groups[0]["params"] if one.grad is not None]
        norm = torch.sqrt(sum((one * one).sum() for one in [*others, *gradients.values()]))
        if norm > act.clip:
            for one in [*others, *gradients.values()]:
                one *= act.clip / norm
        return float(norm)

    def set_rate(self, rate: float) -> None:
        self._rate = rate

    # --- rows at rest --------------------------------------------------------------------------------------------

    def read(self, batch: Batch) -> dict[str, Tensor]:
        return self._pooled(self._ordered(batch))

    def values(self) -> dict[str, NDArray[Any]]:
        found = {f"{name} values": table.rows.numpy().copy() for name, table in self._tables.items()}
        return found | {f"{name} state": table.state.numpy().copy() for name, table in self._tables.items()}

    def deed(self, name: str, seed: int) -> None:
        if name == "rate":
            self._rate = seed / (1 << 30)
        elif name == "load_table":
            config, vectors = loaded_vectors(self._configs, seed)
            table, n = self._tables[config.name], len(vectors)
            table.rows[:n] = torch.tensor(vectors, dtype=self.dtype)
            table.state[:n] = Table(config, self._optimizer).state[:n]
            table.was_updated[:n] = True
        elif name == "grow":
            for config in grown(self._configs, seed):
                self._grow(config)

    def _grow(self, config: TableConfig) -> None:
        """Rows that have changed stay; others have the initial values of the larger table."""
        old, new = self._tables[config.name], Table(config, self._optimizer)
        first = Table(old.config, self._optimizer)
        which = torch.nonzero((old.rows != first.rows).any(1) | (old.state != first.state).any(1)).flatten()
        new.rows[which], new.state[which], new.was_updated[which] = old.rows[which], old.state[which], True
        self._tables[config.name] = new


def lookups(batch: Batch, feature: int, pooling: str) -> tuple[Tensor, Tensor, Tensor]:
    """Of each lookup of a feature: its sample, its row and what the row is multiplied by."""
    owners, ids, scales = list[int](), list[int](), list[float]()
    for sample in range(batch.num_samples):
        bag = feature * batch.num_samples + sample
        first, last = int(batch.offsets[bag]), int(batch.offsets[bag + 1])
        for place in range(first, last):
            owners.append(sample)
            ids.append(int(batch.ids[place]))
            own = 1.0 if batch.weights is None else float(batch.weights[place])
            scales.append(own / (last - first) if pooling == "mean" else own)
    return (
        torch.tensor(owners, dtype=torch.int64),
        torch.tensor(ids, dtype=torch.int64),
        torch.tensor(scales, dtype=torch.float64),
    )
