"""Recall@20 of `two-tower` with in-batch softmax: with and without the logQ correction, next to a plain torch twin.

    python -m benchmarks.study_retrieval --runs FILE [--seeds 5] [--only NAME]    train what is missing in the file
    python -m benchmarks.study_retrieval --runs FILE --report                     print the table

Sets (ADAPTIVE_DATA): check-ins of the first 5,000 users of Gowalla, split as published for NGCF and LightGCN, and
bought games of Amazon, the last of each user held out. Each evaluation ranks all items for 5,000 held-out pairs. The
twin has its own order of samples, initial values of the same deviations, and Adagrad with the same rates.
"""

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from adaptive.config import TrainConfig
from adaptive.training.runs.training import train_run
from benchmarks import study_events as events
from benchmarks.harness import Table
from benchmarks.study_cells import FRESH
from benchmarks.study_seeds import run_study, spread_text
from benchmarks.study_sets import data_folder
from benchmarks.two_tower_twin import Twin, train

WAYS: Final = ("logQ", "no correction", "twin, logQ", "twin, no correction")
FILES: Final = {
    "gowalla": "gowalla/derived/train_from_s_adj_mat.txt.gz",
    "amazon-games": "amazon-sequences/Video.txt.gz",
}
EPOCHS, BATCH, HELD_OUT, USERS = 2, 512, 5_000, 5_000
MODEL: Final = {"loss": "in_batch_softmax", "unit_vectors": True, "temperature": 0.1, "user_tables": ["user"]}
ADAGRAD: Final = {"optimizer": {"name": "adagrad", "lr": 0.05}, "dense_optimizer": {"name": "adagrad", "lr": 0.01}}


class Pairs(NamedTuple):
    """Pairs of a user and an item, from 0, (n, 2) each."""

    train: NDArray[np.int64]
    held_out: NDArray[np.int64]

    @property
    def sizes(self) -> tuple[int, int]:
        """Users and items."""
        users, items = (np.concatenate([self.train, self.held_out]).max(axis=0) + 1).tolist()
        return users, items


def read(name: str) -> Pairs:
    """Return the pairs of a set; of the held-out ones `HELD_OUT`, drawn."""
    if name == "gowalla":
        parts = [_lists(data_folder() / path) for path in (FILES[name], "gowalla/test.txt.gz")]
    else:
        sequences = [sequence for sequence in events.read_pairs(data_folder() / FILES[name]) if len(sequence) > 2]
        parts = [[sequence[:-1] for sequence in sequences], [sequence[-1:] for sequence in sequences]]
    train, held_out = (
        np.array([(user, item) for user, items in enumerate(part) for item in items], np.int64) for part in parts
    )
    held_out = np.random.default_rng(0).permutation(held_out)[:HELD_OUT]
    numbered = np.unique(np.concatenate([train[:, 1], held_out[:, 1]]), return_inverse=True)[1]
    train[:, 1], held_out[:, 1] = np.split(numbered, [len(train)])
    return Pairs(train, held_out)


def _lists(path: Path) -> list[list[int]]:
    """Items of each of the first users; a line has the user's number first."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [[int(item) for item in line.split()[1:]] for line, _ in zip(lines, range(USERS), strict=False)]


def recall_of_run(pairs: Pairs, way: str, seed: int, folder: Path) -> float:
    """Train with the command's own code, in `folder`; return Recall@20."""
    users, items = pairs.sizes
    sizes = f"num_users = {users}\nnum_items = {items}\nnum_negatives = 0\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pairs.toml").write_text(f'format = "user_items"\nseparator = " "\n{sizes}', "utf-8")
    for name, part in zip(("train", "test"), pairs, strict=True):
        by_user = sorted(part.tolist())
        (folder / f"{name}.txt").write_text("".join(f"{user} {item}\n" for user, item in by_user), "utf-8")
    options = {"schema_path": folder / "pairs.toml", "eval_data": str(folder / "test.txt"), "shuffle_buffer": 1 << 20}
    config: dict[str, Any] = {
        "data": f"csv:{folder / 'train.txt'}",
        "data_options": {**options, "seed": seed},
        "model": "two-tower",
        "model_options": {**MODEL, "logq": way == "logQ"},
        "out": str(folder / "run"),
        "epochs": EPOCHS,
        "eval_every": 1 << 20,
        "batch_size": BATCH,
        "seed": seed,
        "tensorboard": False,
        "save": False,
        **ADAGRAD,
    }
    return float(train_run(TrainConfig.model_validate(config), overwrite=True)["ranking"]["recall@20"])


def recall_of_twin(pairs: Pairs, way: str, seed: int) -> float:
    """Train the twin; return Recall@20."""
    torch.manual_seed(seed)
    random = np.random.default_rng(seed)
    twin = Twin(*pairs.sizes)
    epochs = [random.permutation(pairs.train) for _ in range(EPOCHS)]
    batches = [epoch[first : first + BATCH] for epoch in epochs for first in range(0, len(epoch), BATCH)]
    train(twin, batches, logq=way == "twin, logQ", unit=True, temperature=MODEL["temperature"])
    return twin.recall(torch.from_numpy(pairs.held_out), 20, unit=True)


class Runs:
    """Recall@20 by set, way and seed, one JSON line each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text("utf-8").splitlines() if path.is_file() else []
        self.recalls = {(name, way, seed): recall for name, way, seed, recall in map(json.loads, lines)}

    def add(self, name: str, way: str, seed: int, recall: float) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([name, way, seed, recall]) + "\n")
        self.recalls[name, way, seed] = recall


def train_missing(runs: Runs, seeds: range, only: str) -> None:
    names = [name for name, file in FILES.items() if only in name and (data_folder() / file).is_file()]
    pairs = {name: read(name) for name in names}
    for seed, name, way in product(seeds, names, WAYS):
        if (name, way, seed) in runs.recalls:
            continue
        if way.startswith("twin"):
            recall = recall_of_twin(pairs[name], way, seed)
        else:
            recall = recall_of_run(pairs[name], way, seed, runs.path.parent / "retrieval" / name)
        runs.add(name, way, seed, recall)
        print(name, way, seed, recall, flush=True)


def report(runs: Runs, seeds: range) -> Table:
    """Mean Recall@20 ± standard deviation over seeds."""
    table = Table("Recall@20", ["data", *WAYS])
    for name in FILES:
        cells = []
        for way in WAYS:
            recalls = [recall for seed in seeds if (recall := runs.recalls.get((name, way, seed))) is not None]
            cells.append(f"{spread_text(recalls)} ({len(recalls)})" if recalls else None)
        if any(cells):
            table.add(name, *cells)
    return table


def main() -> None:
    run_study(__doc__, Runs, train_missing, report, first=FRESH)


if __name__ == "__main__":
    main()
