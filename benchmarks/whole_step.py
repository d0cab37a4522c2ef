"""The whole training step of `bench_step`: embeddings and the dense part, ours and others'.

Peers that are only embeddings get the usual dense part of plain torch (cat, bmm, index; no padding), with our initial
weights; facebookresearch/dlrm, where a checkout is given, is trained as it is. Every MLP is updated by plain SGD.
"""

import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from adaptive.batch import Batch
from adaptive.models.dlrm import DLRM, DLRMConfig
from benchmarks import harness
from benchmarks.harness import Report, check_equal, median_ms, paired, timed
from benchmarks.peers_dlrm import DlrmCheckout
from benchmarks.step_cases import CHECK_STEPS, Case, Settings
from benchmarks.streams import NUM_DENSE, make_batches
from benchmarks.variants import DENSE_RATE, Embeddings, NotAvailable, Ours, Setup, hit_rate, joined

TOLERANCE = 0.02  # of the change of the logits
TOLERANCE_BF16 = 0.1  # of the logits themselves: two bfloat16 models round differently
NUM_DOTS = 26 * 27 // 2
Make = Callable[[], "Whole"]


class Whole(ABC):
    """A model in training: each `step` takes the next batch."""

    name: str

    def start(self, batches: Sequence[Batch]) -> None:
        """Train on these batches from now on."""
        self._inputs = self._stream(batches)

    @abstractmethod
    def step(self) -> None:
        """Train on one batch."""

    @abstractmethod
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        """(B,) of a batch that is not trained."""

    @abstractmethod
    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]: ...

    def finish(self) -> None:
        """All batches of `start` have been trained."""
        assert next(self._inputs, None) is None, "batches are left"

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """End threads and hand files over."""


class WithModel(Whole):
    """Some embeddings under a dense part in torch."""

    def __init__(
        self, name: str, embeddings: Embeddings, model: Callable[[Tensor, Tensor], Tensor], layers: Any
    ) -> None:
        self.name, self.embeddings, self._model = name, embeddings, model
        self._optimizer = torch.optim.SGD(layers.parameters(), lr=DENSE_RATE)

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        tensors = [(torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)) for batch in batches]
        inputs = self.embeddings.stream(batches)
        return ((one, *both) for one, both in zip(inputs, tensors, strict=True))

    def step(self) -> None:
        inputs, dense, labels = next(self._inputs)
        logits = self._model(dense, joined(self.embeddings.pool(inputs)))
        loss = functional.binary_cross_entropy_with_logits(logits, labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.embeddings.update()

    @torch.no_grad()
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        pooled = joined(self.embeddings.pool(self.embeddings.prepare(batch)))
        found: NDArray[np.float32] = self._model(torch.from_numpy(batch.dense), pooled).numpy().copy()
        return found

    def close(self) -> None:
        self.embeddings.close()


class DenseAlone(Whole):
    """Our dense part with vectors that need a gradient but come from nowhere: the floor of a step."""

    name = "our dense part alone"

    def __init__(self, model: DLRM, case: Case) -> None:
        self._model, self._case = model, case
        self._optimizer = torch.optim.SGD(model.parameters(), lr=DENSE_RATE)
        self._pooled = torch.randn(case.batch, model.num_features, case.dim).mul_(0.1).requires_grad_()

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        return iter([(torch.from_numpy(batch.dense), torch.from_numpy(batch.labels)) for batch in batches])

    def step(self) -> None:
        dense, labels = next(self._inputs)
        self._pooled.grad = None
        loss = functional.binary_cross_entropy_with_logits(self._model(dense, self._pooled), labels)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def logits(self, batch: Batch) -> NDArray[np.float32]:
        raise AssertionError("it has no embeddings to compare")


class FromCheckout(Whole):
    """facebookresearch/dlrm, its loop without timers and logs."""

    name = "facebookresearch/dlrm"

    def __init__(self, checkout: DlrmCheckout, *, bf16: bool) -> None:
        self._dlrm, self._bf16 = checkout, bf16
        self.name += ", bf16" if bf16 else ""

    def _stream(self, batches: Sequence[Batch]) -> Iterator[Any]:
        return iter([
            (self._dlrm.prepare(one), torch.from_numpy(one.dense), torch.from_numpy(one.labels)) for one in batches
        ])  # fmt: skip

    def step(self) -> None:
        inputs, dense, labels = next(self._inputs)
        loss = functional.binary_cross_entropy(self._probabilities(dense, inputs), labels)
        self._dlrm.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._dlrm.update()

    def _probabilities(self, dense: Tensor, inputs: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._bf16):
            return self._dlrm.probabilities(dense, inputs)

    @torch.no_grad()
    def logits(self, batch: Batch) -> NDArray[np.float32]:
        found = self._probabilities(torch.from_numpy(batch.dense), self._dlrm.prepare(batch))
        values: NDArray[np.float32] = torch.logit(found, eps=1e-7).numpy().copy()
        return values


def bench_whole(
    case: Case, settings: Settings, peers: dict[str, Callable[[Setup], Embeddings]], setup: Setup
) -> Report:
    """The step of a case with everybody's embeddings, in float32; and with bfloat16 MLPs where dlrm is given."""
    report = _compare(case, settings, peers, setup, bf16=False)
    if settings.dlrm:
        report.merge(_compare(case, settings, {}, setup, bf16=True))
    return report


def make_model(case: Case, num_features: int, *, bf16: bool = False, small: bool = False) -> DLRM:
    """Our dense part, with the MLPs of DLRM's papers or `small` ones."""
    hidden: tuple[int, ...] = (64,) if small else (512, 256)
    bottom = (*hidden, case.dim) if small else (*hidden, 64, case.dim)
    config = DLRMConfig(embedding_dim=case.dim, bottom_mlp=bottom, top_mlp=(*hidden, 1), bf16=bf16)
    return DLRM(config, num_dense=NUM_DENSE, num_features=num_features)


def _compare(
    case: Case, settings: Settings, peers: dict[str, Callable[[Setup], Embeddings]], setup: Setup, *, bf16: bool
) -> Report:
    report = Report()
    kind = "bf16_" if bf16 else ""
    ours = Ours(setup, depth=4)
    tiers = Ours(setup, depth=4, policy="lru", device_rows="10%")
    wholes: dict[str, Whole] = {
        "adaptive": our_model("adaptive, single tier, depth 4", ours, case, bf16=bf16),
        "tiers": our_model("adaptive, 10% device rows, lru, depth 4", tiers, case, bf16=bf16),
    }
    for key, make in _peers(case, settings, peers, setup, ours, bf16).items():
        try:
            wholes[key] = make()
        except NotAvailable as error:
            report.absent[f"step_vs_{key}_{kind}{case.suffix}"] = str(error)
    rounds, warm_up = settings.whole_rounds, settings.warm_up
    batches = make_batches(setup.tables, CHECK_STEPS + warm_up + rounds, case.batch, mean_hot=case.mean_hot)
    check_wholes(case, wholes, batches[:CHECK_STEPS], bf16=bf16)
    wholes["dense"] = DenseAlone(make_model(case, len(setup.tables), bf16=bf16), case)
    for whole in wholes.values():
        whole.start(batches[CHECK_STEPS:])
    for one in (ours, tiers):
        one.statistics()
    times = harness.take_turns({key: timed(one.step) for key, one in wholes.items()}, rounds=rounds, warm_up=warm_up)
    for one in (ours, tiers):
        one.stop()
    _tell(report, case, setup, wholes, times, kind=kind, hits={"adaptive": ours, "tiers": tiers})
    for whole in wholes.values():
        whole.close()
    wholes.clear()
    gc.collect()
    return report


def our_model(name: str, embeddings: Ours, case: Case, *, bf16: bool = False, small: bool = False) -> Whole:
    """Our embeddings under our dense part."""
    model = make_model(case, len(embeddings.bag.features), bf16=bf16, small=small)
    return WithModel(name + (", bf16" if bf16 else ""), embeddings, model, model)


def with_plain_model(
    kind: Callable[[Setup], Embeddings], case: Case, setup: Setup, ours: Ours, *, small: bool = False
) -> Whole:
    """A peer's embeddings with our weights, under the dense part of plain torch."""
    peer = kind(setup)
    peer.load(ours.weights())
    layers, forward = without_padding(make_model(case, len(setup.tables), small=small))
    return WithModel(peer.name + ", plain dense part", peer, forward, layers)


def _peers(
    case: Case,
    settings: Settings,
    kinds: dict[str, Callable[[Setup], Embeddings]],
    setup: Setup,
    ours: Ours,
    bf16: bool,
) -> dict[str, Make]:
    def from_checkout() -> Whole:
        if not settings.dlrm:
            raise NotAvailable("no checkout of facebookresearch/dlrm was given (--dlrm PATH)")
        checkout = DlrmCheckout(Path(settings.dlrm), setup, make_model(case, len(setup.tables), bf16=False))
        checkout.load(ours.weights())
        return FromCheckout(checkout, bf16=bf16)

    makes: dict[str, Make] = {
        key: lambda kind=kind: with_plain_model(kind, case, setup, ours)  # type: ignore[misc]
        for key, kind in kinds.items()
    }
    return makes | {"dlrm": from_checkout}


def check_wholes(case: Case, wholes: dict[str, Whole], batches: Sequence[Batch], *, bf16: bool = False) -> None:
    """Train all on these batches; their logits agree before and after."""
    before = {key: whole.logits(batches[0]) for key, whole in wholes.items()}
    for whole in wholes.values():
        whole.start(batches)
        for _ in batches:
            whole.step()
        whole.finish()
    expected = wholes["adaptive"].logits(batches[0])
    start = np.zeros_like(expected) if bf16 else before["adaptive"]
    tolerance = TOLERANCE_BF16 if bf16 else TOLERANCE
    for key, whole in wholes.items():
        what = f"whole step, {case.title}: {whole.name}"
        zeros = np.zeros_like(expected)
        check_equal(f"{what}, before", before[key], before["adaptive"], before=zeros, tolerance=0.05 if bf16 else 1e-3)
        check_equal(what, whole.logits(batches[0]), expected, before=start, tolerance=tolerance)


def _tell(
    report: Report,
    case: Case,
    setup: Setup,
    wholes: dict[str, Whole],
    times: harness.Times,
    *,
    kind: str,
    hits: dict[str, Ours],
) -> None:
    table = report.table(
        f"whole step, {case.title}{', bf16 MLPs' if kind else ''}, {setup.num_rows:,} rows, "
        f"{len(times['adaptive'])} rounds",
        "variant", "ms", "over ours", "wait ms", "hit rate",
    )  # fmt: skip
    for key, whole in wholes.items():
        over = paired(times[key], times["adaptive"])
        statistics = hits[key].statistics() if key in hits else None
        wait = statistics.times_ms.get("wait", 0.0) / max(statistics.batches, 1) if statistics else None
        rate = f"{hit_rate(statistics):.0%}" if statistics else None
        table.add(whole.name, median_ms(times[key]), over, wait, rate)
        if key not in ("adaptive", "dense", "tiers"):
            report.ratios[f"step_vs_{key}_{kind}{case.suffix}"] = over
    report.ratios[f"step_over_dense_alone_{kind}{case.suffix}"] = paired(times["adaptive"], times["dense"])


def index_interaction(bottom: Tensor, pooled: Tensor) -> Tensor:
    """The usual way: cat, bmm, index; (B, D + dots) without padding."""
    vectors = torch.cat([bottom[:, None], pooled], dim=1)
    products = torch.bmm(vectors, vectors.transpose(1, 2))
    i, j = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
    return torch.cat([bottom, products[:, i, j]], dim=1)


def without_padding(model: DLRM) -> tuple[nn.Module, Callable[[Tensor, Tensor], Tensor]]:
    """The same model with a top MLP of exactly as many inputs as there are values; its layers and its forward."""
    width = model.config.embedding_dim + NUM_DOTS
    padded = model.top[0]
    assert isinstance(padded, nn.Linear)
    narrow = nn.Linear(width, padded.out_features)
    with torch.no_grad():
        narrow.weight.copy_(padded.weight[:, :width])
        narrow.bias.copy_(padded.bias)
    bottom, top = model.bottom, nn.Sequential(narrow, *list(model.top)[1:])
    assert bottom is not None

    def forward(dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = top(index_interaction(bottom(dense), pooled)[:, :width])
        return logits.squeeze(1)

    return nn.ModuleList([bottom, top]), forward
