"""What quality to expect: the study behind `docs/quality.md`.

    python -m benchmarks.study_quality --runs quality.jsonl              # all: 10 minutes; goes on if stopped
    python -m benchmarks.study_quality --runs quality.jsonl --report     # train nothing, write the document's tables

Five real sets of `study_sets`, cut to the latest 25,600 samples of the training part and the first 10,000 of the
evaluation part, one epoch, five seeds. The peers see the same rows: DLRM in plain torch (torch's own initial values,
`EmbeddingBag`, Adagrad), and scikit-learn's logistic regression, whose penalty is chosen on the last tenth of the
training part. Runs are trained one after the other, in this process, on one thread.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from adaptive.batch import Batch, concatenate
from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.models.tasks import start_at_base_rate
from adaptive.storage.durable import write_atomic
from adaptive.training.build import build, first_batches, open_data, torch_settings
from adaptive.training.evaluation import evaluate
from adaptive.training.quality import StreamingLogLoss, exact_auc
from adaptive.training.trainer import Trainer
from benchmarks import study_hash, study_sets
from benchmarks.study_report import markdown, put

DOCUMENT: Final = Path(__file__).resolve().parent.parent / "docs" / "quality.md"
SETS: Final = ("kdd12-click", "online-retail", "diginetica", "amazon-games", "jd")
MOST_TRAINED, MOST_EVALUATED, SEEDS, BATCH = 25_600, 10_000, 5, 128
WIDTH: Final = 16
Quality = tuple[float, float, float]  # AUC, log loss, calibration


class Held(Dataset):
    """Samples in memory, in their order, with the shape of another data set."""

    def __init__(self, like: Dataset, trained: Batch, evaluated: Batch) -> None:
        self.features, self.num_dense, self.tables = like.features, like.num_dense, like.tables
        self.trained, self.evaluated = trained, evaluated

    def train(self, batch_size: int, *, epoch: int = 0) -> Iterator[Batch]:
        return _cut(self.trained, batch_size)

    def evaluation(self, batch_size: int) -> Iterator[Batch]:
        return _cut(self.evaluated, batch_size)

    def num_train_samples(self) -> int:
        return self.trained.num_samples

    def fingerprint(self) -> dict[str, object]:
        return {}

    @property
    def table_names(self) -> Sequence[str]:
        return self.tables or [feature.name for feature in self.features]


def _cut(batch: Batch, size: int) -> Iterator[Batch]:
    for first in range(0, batch.num_samples, size):
        yield batch.take(np.arange(first, min(first + size, batch.num_samples)))


def load(name: str, folder: Path) -> Held:
    """The set of this name, read by the library and cut."""
    dataset = open_data(TrainConfig.model_validate(study_sets.data_of(name, folder)))
    trained, evaluated = (concatenate(list(part)) for part in (dataset.train(1 << 20), dataset.evaluation(1 << 20)))
    last = np.arange(max(trained.num_samples - MOST_TRAINED, 0), trained.num_samples)
    return Held(dataset, trained.take(last), evaluated.take(np.arange(min(evaluated.num_samples, MOST_EVALUATED))))


# --- ways to train -------------------------------------------------------------------------------------------------


class WithLinearPart(nn.Module):
    """A model, and for each looked-up row its first value, times `share`, as a first-order weight."""

    def __init__(self, model: nn.Module, share: float) -> None:
        super().__init__()
        self.model, self.share = model, share

    def forward(self, dense: Tensor, pooled: Tensor) -> Tensor:
        logits: Tensor = self.model(dense, pooled)
        return logits + self.share * pooled[:, :, 0].sum(dim=1)


def ours(
    data: Held, seed: int, batch_size: int, *, model: str = "dlrm", base_rate: bool = True, linear: float = 0.0
) -> Quality:
    """The library with default settings."""
    config = TrainConfig(model=model, seed=seed, batch_size=batch_size)
    with torch_settings(config):
        parts = build(config, data, first_batches(config, data))
        if base_rate:
            start_at_base_rate(parts.model, data.train(batch_size))
        trained = WithLinearPart(parts.model, linear) if linear else parts.model
        with parts.embeddings as embeddings:
            Trainer(embeddings, trained, parts.optimizer).train(data.train(batch_size), depth=0)
            found = evaluate(embeddings, trained, data.evaluation(8192))
    assert found.auc is not None and found.log_loss is not None and found.calibration is not None
    return found.auc, found.log_loss, found.calibration


class PlainDLRM(nn.Module):
    """The default DLRM as one writes it in torch: `EmbeddingBag`, torch's own initial values of the layers."""

    def __init__(self, data: Held) -> None:
        super().__init__()
        rows = {name: feature.num_embeddings for name, feature in zip(data.table_names, data.features, strict=True)}
        self.position = [list(rows).index(name) for name in data.table_names]
        self.tables = nn.ModuleList(nn.EmbeddingBag(n, WIDTH, mode="sum", sparse=True) for n in rows.values())
        for table, count in zip(self.tables, rows.values(), strict=True):
            nn.init.uniform_(table.weight, -(count**-0.5), count**-0.5)
        inputs, vectors = data.num_dense, len(data.features) + bool(data.num_dense)
        self.bottom = nn.Sequential(nn.Linear(max(inputs, 1), 64), nn.ReLU(), nn.Linear(64, WIDTH), nn.ReLU())
        self.pairs = torch.triu_indices(vectors, vectors, 1)
        width = WIDTH * bool(inputs) + self.pairs.shape[1]
        self.top = nn.Sequential(*(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)))

    def forward(self, batch: Batch) -> Tensor:
        vectors = []
        for feature, table in enumerate(self.position):
            span = batch.feature_span(feature)
            first = feature * batch.num_samples
            offsets = batch.offsets[first : first + batch.num_samples] - span.start
            vectors.append(self.tables[table](torch.from_numpy(batch.ids[span]), torch.from_numpy(offsets)))
        shown = [self.bottom(torch.from_numpy(batch.dense))] if batch.dense.shape[1] else []
        stacked = torch.stack(shown + vectors, dim=1)
        dots = torch.bmm(stacked, stacked.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        logits: Tensor = self.top(torch.cat([*shown, dots], dim=1))
        return logits.squeeze(1)


def plain_torch(data: Held, seed: int, batch_size: int) -> Quality:
    """Adagrad with our default rates."""
    torch.manual_seed(seed)
    model = PlainDLRM(data)
    dense = [weight for name, weight in model.named_parameters() if not name.startswith("tables")]
    optimizers = torch.optim.Adagrad(model.tables.parameters(), lr=0.05), torch.optim.Adagrad(dense, lr=0.02)
    for batch in data.train(batch_size):
        model.zero_grad()
        binary_cross_entropy_with_logits(model(batch), torch.from_numpy(batch.labels)).backward()  # type: ignore[no-untyped-call]
        with torch.sparse.check_sparse_tensor_invariants(False):  # torch warns unless one has chosen
            for optimizer in optimizers:
                optimizer.step()
    with torch.no_grad():
        return _quality(model(data.evaluated).numpy(), data.evaluated.labels)


def logistic(data: Held, seed: int, batch_size: int) -> Quality:
    """One weight for each row of each feature, all samples at once; neither seed nor batch size matters."""
    inputs, labels = _one_hot(data, data.trained), data.trained.labels
    split = len(labels) * 9 // 10

    def fitted(samples: slice, penalty: float) -> LogisticRegression:
        return LogisticRegression(C=penalty, max_iter=500).fit(inputs[samples], labels[samples])

    def loss(penalty: float) -> float:
        return _quality(fitted(slice(split), penalty).decision_function(inputs[split:]), labels[split:])[1]

    best = fitted(slice(None), min((0.01, 0.03, 0.1, 0.3, 1.0), key=loss))
    return _quality(best.decision_function(_one_hot(data, data.evaluated)), data.evaluated.labels)


def _one_hot(data: Held, batch: Batch) -> Any:
    ends = np.cumsum([feature.num_embeddings for feature in data.features])
    bags = np.diff(batch.offsets)
    samples = np.repeat(np.tile(np.arange(batch.num_samples), len(ends)), bags)
    columns = batch.ids + np.repeat(np.repeat([0, *ends[:-1]], batch.num_samples), bags)
    ids = csr_matrix((np.ones(len(columns)), (samples, columns)), (batch.num_samples, int(ends[-1])))
    of = data.trained.dense
    return hstack([csr_matrix((batch.dense - of.mean(axis=0)) / (of.std(axis=0) + 1e-6)), ids]).tocsr()


def _quality(logits: NDArray[Any], labels: NDArray[Any]) -> Quality:
    losses = StreamingLogLoss()
    losses.update(logits, labels)
    auc, loss, calibration = exact_auc(logits, labels), losses.value(), losses.calibration()
    assert auc is not None and loss is not None and calibration is not None
    return auc, loss, calibration


# --- what is trained -----------------------------------------------------------------------------------------------

WAYS: Final[dict[str, Callable[[Held, int, int], Quality]]] = {
    "dlrm": ours,
    "dlrm, bias drawn": partial(ours, base_rate=False),
    "dlrm in plain torch": plain_torch,
    "dcn": partial(ours, model="dcn"),
    "deepfm": partial(ours, model="deepfm"),
    "logistic regression": logistic,
    "dlrm, linear part": partial(ours, linear=0.3),  # times 1 it loses more
}
PEERS: Final = ("dlrm", "dlrm in plain torch", "dcn", "deepfm", "logistic regression")
BIASES: Final = ("dlrm, bias drawn", "dlrm")
LINEAR: Final = ("dlrm", "dlrm, linear part")
BATCHES: Final = (128, 512, 2048)


class Run(NamedTuple):
    """What is trained once. `hash_name` and `salt`: of kdd12-click's ids, where it is not the library's own."""

    data: str
    way: str
    batch_size: int
    seed: int
    hash_name: str = ""
    salt: int = 0


def wanted() -> Iterator[Run]:
    """All runs, the most important first."""
    chosen = [*((way, BATCH) for way in WAYS), *((way, 2048) for way in BIASES), *(("dlrm", size) for size in BATCHES)]
    for way, batch_size in dict.fromkeys(chosen):
        for data, seed in product(SETS, range(1 if way == "logistic regression" else SEEDS)):
            yield Run(data, way, batch_size, seed)
    for name, salt, seed in product(study_hash.HASHES, range(study_hash.SALTS), range(SEEDS)):
        yield Run("kdd12-click", "dlrm", 2048, seed, name, salt)


def train_all(path: Path, folder: Path) -> None:
    """Train what the file does not hold yet; a line of JSON each."""
    done, held = _read(path), cache(partial(load, folder=folder))
    rehashed = cache(lambda data, *hash_and_salt: study_hash.rehash(held(data), *hash_and_salt))
    with path.open("a", encoding="utf-8") as file:
        for run in wanted():
            if run in done:
                continue
            data = rehashed(run.data, run.hash_name, run.salt) if run.hash_name else held(run.data)
            quality = WAYS[run.way](data, run.seed, run.batch_size)
            file.write(json.dumps([run, quality]) + "\n")
            file.flush()
            print(*run, *(f"{value:.4f}" for value in quality), flush=True)


def _read(path: Path) -> dict[Run, Quality]:
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return {Run(*run): quality for run, quality in map(json.loads, lines)}


# --- tables --------------------------------------------------------------------------------------------------------


def tables(runs: dict[Run, Quality]) -> dict[str, str]:
    """By the names of their markers."""
    head = ["data", "trained", "AUC", "log loss", "calibration, lowest to highest"]
    sizes = [[("dlrm", size) for size in BATCHES]]
    by_way = [[(way, BATCH) for way in ways] for ways in (PEERS, LINEAR)]
    biases = [(way, size) for size in (BATCH, 2048) for way in BIASES]
    made = {
        name: markdown([head, *(line for data in SETS for line in _lines(runs, data, chosen, name != "peers"))])
        for name, chosen in zip(("peers", "linear", "batch size"), (*by_way, *sizes), strict=True)
    }
    made["bias"] = markdown([head, *(line for data in SETS for line in _lines(runs, data, biases, True))])
    return made | {"hash": _hash_table(runs)}


def _lines(runs: dict[Run, Quality], data: str, chosen: Sequence[tuple[str, int]], sized: bool) -> Iterator[list[str]]:
    for way, size in chosen:
        found = np.array([runs[run] for run in runs if run[:3] == (data, way, size) and not run.hash_name])
        if len(found):
            auc, loss = (_spread(found[:, column]) for column in (0, 1))
            name = f"{way}, batches of {size}" if sized else way
            yield [data, name, auc, loss, f"{found[:, 2].min():.2f} to {found[:, 2].max():.2f}"]


def _spread(values: NDArray[Any]) -> str:
    """Mean and standard deviation."""
    return f"{values.mean():.4f}" + (f" ± {values.std(ddof=1):.4f}" if len(values) > 1 else "")


def _hash_table(runs: dict[Run, Quality]) -> str:
    rows = [["data", "hash", "AUC", "deviation over seeds", "of the means over salts"]]
    for name in study_hash.HASHES:
        grid = [
            [runs.get(Run("kdd12-click", "dlrm", 2048, seed, name, salt)) for seed in range(SEEDS)]
            for salt in range(study_hash.SALTS)
        ]
        if all(all(line) for line in grid):
            auc = np.array([[quality[0] for quality in line if quality] for line in grid])
            between, within = auc.mean(axis=1).std(ddof=1), (auc.var(axis=1, ddof=1).mean()) ** 0.5
            rows.append(["kdd12-click", name, f"{auc.mean():.4f}", f"{within:.4f}", f"{between:.4f}"])
    return markdown(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, metavar="FILE", help="JSON lines, one per run")
    parser.add_argument("--report", action="store_true", help="write the document from what is there, train nothing")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if not given.report:
            train_all(given.runs, Path(folder))
            return
        text = DOCUMENT.read_text("utf-8")
        made = tables(_read(given.runs)) | {"rows hit": study_hash.rows_table(SETS, Path(folder))}
        for name, table in made.items():
            text = put(text, name, table)
        write_atomic(DOCUMENT, text.encode())


if __name__ == "__main__":
    main()
