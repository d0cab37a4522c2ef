"""Executes a random program (`programs`): the training loop, and the tables that are tested.

`Loop` makes every call of a program on two kinds of tables: `Tiered`, which are ours, and `oracle.Dense`. All results
go into a log of labels and arrays; logs are then compared.
"""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from adaptive import Batch, Planned, TableConfig, TierConfig, TieredEmbeddingBag
from adaptive.embeddings.planned_batch import LookAhead
from adaptive.errors import ConfigError
from adaptive.plugins import load_policy_class
from adaptive.training.runs.state import load_policy_state, policy_state
from support.example_policies import RECSHARD
from support.helpers import table_states
from support.programs import UNAPPLIED, Act, Pass, Place, Program, grown

SCALE = 1024.0  # a power of two: scaling changes no bit of a gradient


class SourceError(Exception):
    """Raised by the source of batches."""


@dataclass
class Log:
    """Labels and arrays, in the order in which they were seen."""

    entries: list[tuple[str, NDArray[Any]]] = field(default_factory=list)

    def add(self, label: str, value: Any) -> None:
        array = value.detach().numpy() if isinstance(value, Tensor) else value
        self.entries.append((label, np.array(array)))

    def add_all(self, label: str, arrays: Mapping[str, Any]) -> None:
        for name in sorted(arrays):
            self.add(f"{label} {name}", arrays[name])

    def assert_equals(self, other: "Log") -> None:
        """Bit for bit."""
        for (label, own), (other_label, theirs) in zip(self.entries, other.entries, strict=True):
            assert label == other_label
            np.testing.assert_array_equal(own, theirs, strict=True, err_msg=label)

    def assert_close(self, other: "Log", tolerance: float) -> float:
        """Within `tolerance`, absolute and relative; returns the share of it that the largest difference takes."""
        most = 0.0
        for (label, own), (other_label, theirs) in zip(self.entries, other.entries, strict=True):
            assert label == other_label
            assert own.shape == theirs.shape, label
            off = np.abs(own.astype(np.float64) - theirs) / (1 + np.abs(theirs.astype(np.float64)))
            assert not np.isnan(off).any(), label
            assert off.max(initial=0.0) <= tolerance, f"{label}: {off.max():.2e} apart\n{own}\n{theirs}"
            most = max(most, float(off.max(initial=0.0)))
        return most / tolerance


class Tables(ABC):
    """The calls of a program."""

    dtype: torch.dtype

    def scaled(self, act: Act, loss: Tensor) -> Tensor:
        """The loss, times a factor where the act asks for it; `apply` divides by it."""
        return loss

    @abstractmethod
    def passed(self, source: Iterator[Batch]) -> Iterator[Any]:
        """The batches of one look-ahead."""

    @abstractmethod
    def close(self) -> None:
        """Close the look-ahead early."""

    @abstractmethod
    def vectors(self, batch: Any, view: str) -> dict[str, Tensor]:
        """Feature -> vectors; another view has one entry of the view's name."""

    @abstractmethod
    def parts(self, batch: Any) -> Iterator[tuple[float, Any]]:
        """Share of the batch's samples, and each part."""

    @abstractmethod
    def samples(self, batch: Any) -> Batch:
        """All tables and weights, features in the tables' order."""

    @abstractmethod
    def apply(self, act: Act, dense: torch.optim.Optimizer) -> float:
        """After backward: clip, update dense weights and rows. Returns the norm before clipping, or 0."""

    @abstractmethod
    def discard(self) -> None: ...

    @abstractmethod
    def set_rate(self, rate: float) -> None: ...

    @abstractmethod
    def read(self, batch: Batch) -> dict[str, Tensor]: ...

    @abstractmethod
    def values(self) -> dict[str, NDArray[Any]]:
        """Values and optimizer state of all tables."""

    @abstractmethod
    def deed(self, name: str, seed: int) -> None:
        """A call between two passes."""

    def misuse(self, name: str, batch: Any, earlier: "Earlier") -> None:  # noqa: B027 (the oracle allows none)
        """A call that fails and changes nothing."""

    def end_unstepped(self, kind: str) -> None:  # noqa: B027
        """Ask for the next batch, or close the look-ahead, though gradients were neither applied nor discarded."""


@dataclass
class Earlier:
    """A batch that has ended, and the sum of its vectors, or of those of a batch before it."""

    batch: Any = None
    loss: Tensor | None = None


class Loop:
    """A training loop with a dense part, on any tables."""

    def __init__(self, program: Program, tables: Tables) -> None:
        self.program, self.tables, self.log = program, tables, Log()
        self.features = [(name, table) for table in program.tables for name in table.feature_names]
        generator = torch.Generator().manual_seed(program.seed)
        drawn = [torch.randn(table.embedding_dim, generator=generator) for _, table in self.features]
        self.weights = [nn.Parameter(one.to(tables.dtype)) for one in drawn]
        self.slope = nn.Parameter(torch.full((), 0.5, dtype=tables.dtype))
        self.dense = torch.optim.SGD([*self.weights, self.slope], lr=0.1)
        self.earlier = Earlier()

    def run(self) -> Log:
        for number, one in enumerate(self.program.passes):
            for name, seed in one.deeds:
                if name == "read":
                    self.log.add_all("read", self.tables.read(one.batches[seed % len(one.batches)]))
                self.tables.deed(name, seed)
                self.log.add_all(f"after {name}", self.tables.values())
            self._pass(number, one)
            self.log.add_all(f"after pass {number}", self.tables.values())
            dense = {str(place): one.detach() for place, one in enumerate([*self.weights, self.slope])}
            self.log.add_all("dense", dense)
        return self.log

    def _pass(self, number: int, one: Pass) -> None:
        def source() -> Iterator[Batch]:
            for batch in one.batches[: one.fault]:
                lent = replace(batch, **{name: getattr(batch, name).copy() for name in ("dense", "ids", "labels")})
                yield lent if one.reuses else batch
                for array in (lent.dense, lent.ids, lent.labels):
                    array.fill(0)
            if one.fault is not None:
                raise SourceError

        come, failed = 0, False
        try:
            for batch in self.tables.passed(source()):
                act = one.acts[come % len(one.acts)]
                self.tables.misuse(act.misuse, batch, self.earlier)
                self._act(f"pass {number} batch {come}", act, batch)
                come += 1
                self.earlier.batch = batch
                if act.kind in UNAPPLIED:
                    self.tables.end_unstepped(act.kind)
                    break
                if come == one.stop:
                    self.tables.close()
                    break
        except SourceError:
            failed = True
        self.log.add(f"pass {number}: batches", come)
        self.log.add(f"pass {number}: the source failed", failed)

    def _act(self, label: str, act: Act, batch: Any) -> None:
        if act.rate is not None:
            self.tables.set_rate(act.rate)
        self.log.add(f"{label} labels", self.tables.samples(batch).labels)
        if act.kind == "no_grad":
            with torch.no_grad():
                self.log.add(label, self._loss(act, batch))
        elif act.kind == "forward":
            self.log.add(label, self._loss(act, batch))
            self.earlier.loss = torch.stack([one.sum() for one in self.tables.vectors(batch, act.view).values()]).sum()
        elif act.kind != "nothing":
            for _ in range(2 if act.kind == "two_steps" else 1):
                self._train(label, act, batch)
        if act.looks and act.kind not in UNAPPLIED:
            self.log.add_all(label, self.tables.values())
            self.log.add_all(label, self.tables.read(self.tables.samples(batch)))

    def _train(self, label: str, act: Act, batch: Any) -> None:
        self.dense.zero_grad()
        losses = []
        for share, part in self.tables.parts(batch) if act.kind == "parts" else [(1.0, batch)]:
            loss = share * self._loss(act, part)
            if act.kind == "two_forwards":
                loss = loss + self._loss(act, part)
            if act.kind == "overflow":
                loss = loss * torch.inf
            scaled = self.tables.scaled(act, loss)
            scaled.backward(retain_graph=act.kind == "two_backwards")
            if act.kind == "two_backwards":
                scaled.backward()
            losses.append(loss.detach())
        self.log.add(f"{label} loss", 0.0 if act.kind == "overflow" else torch.stack(losses).sum())
        if act.kind in UNAPPLIED:
            return
        if act.kind == "discard" or (act.kind == "overflow" and act.scale == "none"):
            self.tables.discard()
        else:
            self.log.add(f"{label} norm", self.tables.apply(act, self.dense))

    def _loss(self, act: Act, batch: Any) -> Tensor:
        vectors, samples, dtype = self.tables.vectors(batch, act.view), self.tables.samples(batch), self.tables.dtype
        logits = self.slope * torch.tensor(samples.dense[:, 0]).to(dtype)
        if act.view == "stack":
            logits = logits + (vectors["stack"].contiguous() * torch.stack(self.weights)).sum((1, 2))
        elif act.view == "side_by_side":
            logits = logits + (vectors["side_by_side"].contiguous() * torch.cat(self.weights)).sum(1)
        else:
            for feature, ((name, table), weights) in enumerate(zip(self.features, self.weights, strict=True)):
                if feature == act.without:
                    continue
                values = (vectors[name].contiguous() * weights).sum(1)
                if table.pooling == "none":
                    sizes = [last - first for first, last in reference.bag_spans(samples, feature)]
                    owners = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
                    values = torch.zeros(len(sizes), dtype=dtype).index_add(0, owners, values)
                logits = logits + values
        return nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(samples.labels).to(dtype))


class Tiered(Tables):
    """Ours, in one place."""

    dtype = torch.float32

    def __init__(self, program: Program, place: Place, folder: Path) -> None:
        self._program, self._place, self._folder, self._made = program, place, folder, 0
        self._configs = program.tables
        self._scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self._coming: LookAhead | None = None
        self._current: Planned | None = None
        self._tables = self._make()
        if place.policy in ("static", RECSHARD, "fae"):
            self._tables.calibrate(program.passes[0].batches[:2])

    def scaled(self, act: Act, loss: Tensor) -> Tensor:
        if act.scale == "scaler":
            return self._scaler.scale(loss)
        return loss if act.scale == "none" else SCALE * loss

    def _make(self, **options: Any) -> TieredEmbeddingBag:
        place, self._made = self._place, self._made + 1
        tier = TierConfig(
            device_rows=place.device_rows,
            device=place.device,  # type: ignore[arg-type]
            host=f"mmap:{self._folder / str(self._made)}" if place.host_files else "memory",
            when_full="reduce_lookahead",
            plan_threads=place.plan_threads,
            poison=True,
        )
        policy = load_policy_class(place.policy)(**place.options)
        skip = self._program.skip
        return TieredEmbeddingBag(
            self._configs, tier, policy=policy, optimizer=self._program.optimizer, skip=skip, **options
        )

    # --- a look-ahead ------------------------------------------------------------------------------------------

    def passed(self, source: Iterator[Batch]) -> Iterator[Planned]:
        self._coming = self._tables.look_ahead(source, depth=self._place.depth)
        for planned in self._coming:
            self._current = planned
            yield planned

    def close(self) -> None:
        assert self._coming is not None
        self._coming.close()

    def end_unstepped(self, kind: str) -> None:
        assert self._coming is not None
        if kind == "left":
            with pytest.warns(UserWarning, match="after backward"):
                self._coming.close()
        else:
            with pytest.raises(ConfigError, match=r"expected step\(\) or discard\(\)"):
                next(self._coming)

    def vectors(self, batch: Planned, view: str) -> dict[str, Tensor]:
        return {view: getattr(self._tables, view)(batch)} if view != "module" else self._tables(batch)

    def parts(self, batch: Planned) -> Iterator[tuple[float, Planned]]:
        return ((part.share, part) for part in batch.parts())

    def samples(self, batch: Planned) -> Batch:
        return batch.batch

    def discard(self) -> None:
        self._tables.discard()

    def apply(self, act: Act, dense: torch.optim.Optimizer) -> float:
        rows, parameters = self._tables.optimizer, dense.param_groups[0]["params"]
        norm = torch.zeros(())
        if act.scale == "scaler":
            self._scaler.unscale_(dense)
            if act.clip is not None and act.kind != "overflow":
                self._scaler.unscale_(rows)
                norm = self._tables.optimizer.clip_grad_norm_(act.clip, parameters)
            self._scaler.step(dense)
            self._scaler.step(rows)
            self._scaler.update()
            return float(norm)
        scale = 1.0 if act.scale == "none" else SCALE
        for one in parameters:
            one.grad = None if one.grad is None else one.grad / scale
        if act.kind == "overflow":
            self._tables.step(grad_scale=scale)
            return 0.0
        if act.clip is not None:
            norm, scale = self._tables.optimizer.clip_grad_norm_(act.clip, parameters, grad_scale=scale), 1.0
        dense.step()
        self._tables.step(grad_scale=scale)
        return float(norm)

    def set_rate(self, rate: float) -> None:
        self._tables.optimizer.lr = rate

    def misuse(self, name: str, batch: Planned, earlier: Earlier) -> None:
        if name == "ended forward" and earlier.batch is not None:
            with pytest.raises(ConfigError, match=r"got one that has ended|another TieredEmbeddingBag"):
                self._tables(earlier.batch)
        elif name == "ended backward" and earlier.loss is not None:
            with pytest.raises(ConfigError, match="expected gradients of the current batch"):
                earlier.loss.backward()
            earlier.loss = None
        elif name == "other tables":
            other = self._make()
            for tables, foreign in ((other, batch), (self._tables, other.read(batch.batch))):
                with pytest.raises(ConfigError, match="another TieredEmbeddingBag"):
                    tables(foreign)
            other.close()
        elif name == "nested":
            with pytest.raises(ConfigError, match="expected no running look-ahead"):
                next(self._tables.look_ahead([batch.batch]))
        elif name == "early step":
            with pytest.raises(ValueError, match="expected gradients of the current batch"):
                self._tables.step()
        elif name == "read batch":
            read = self._tables.read(batch.batch)
            sum(one.sum() for one in self._tables(read).values()).backward()
            with pytest.raises(ValueError, match="expected gradients of the current batch"):
                self._tables.step()
        elif name == "load":
            with pytest.raises(ConfigError, match="look-ahead"):
                self._tables.rows.load_state_arrays(self._tables.rows.state_arrays())
        elif name == "writes":
            self._write_into_what_was_given(batch)

    @torch.no_grad()
    def _write_into_what_was_given(self, batch: Planned) -> None:
        """All of it is a copy."""
        for table in self._configs:
            self._tables.rows.table_weights(table.name).fill(9)
            for block in self._tables.rows.table_blocks(table.name):
                block.fill(8)
        for array in self._tables.rows.state_arrays().values():
            array.fill(7)
        for tensor in (*self._tables.state_dict().values(), *self._tables(batch).values(), batch.dense, batch.labels):
            tensor.fill_(6)

    # --- rows at rest --------------------------------------------------------------------------------------------

    @torch.no_grad()
    def read(self, batch: Batch) -> dict[str, Tensor]:
        return self._tables(self._tables.read(batch))

    def values(self) -> dict[str, NDArray[Any]]:
        found = {f"{table.name} values": self._tables.rows.table_weights(table.name) for table in self._configs}
        states = table_states(self._tables)
        return found | {f"{name} state": state for name, state in states.items()}

    def deed(self, name: str, seed: int) -> None:
        if name in ("torch", "npz", "grow"):
            self._replace(name, seed)
        elif name == "load_table":
            table, vectors = loaded_vectors(self._configs, seed)
            self._tables.rows.load_table(table.name, vectors)
        elif name == "rate":
            self.set_rate(seed / (1 << 30))
        elif name == "flush":
            self._tables.rows.flush()

    def _replace(self, how: str, seed: int) -> None:
        """Save everything, and go on with new tables that have loaded it."""
        old, policy, file = self._tables, policy_state(self._tables), io.BytesIO()
        rate = old.optimizer.lr
        if how == "grow":
            self._configs = grown(self._configs, seed)
        new = self._make()
        if how == "torch":
            torch.save({"rows": old.state_dict(), "rate": old.optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            new.load_state_dict(saved["rows"])
            new.optimizer.load_state_dict(saved["rate"])
        else:
            np.savez(file, **old.rows.state_arrays())
            file.seek(0)
            with np.load(file, allow_pickle=False) as arrays:
                new.rows.load_state_arrays(dict(arrays), grow=how == "grow")
            new.optimizer.lr = rate
        load_policy_state(new, policy, self._folder)
        old.close()
        self._tables = new


def loaded_vectors(tables: tuple[TableConfig, ...], seed: int) -> tuple[TableConfig, NDArray[np.float32]]:
    """A table, and vectors for its first rows."""
    rng = np.random.default_rng(seed)
    table = tables[int(rng.integers(len(tables)))]
    rows = int(rng.integers(table.num_embeddings + 1))
    return table, rng.normal(size=(rows, table.embedding_dim)).astype(np.float32)
