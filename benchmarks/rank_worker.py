"""One rank of `bench_ranks`, started with what torchrun puts into the environment; prints one line of JSON.

python -m benchmarks.rank_worker JOB         # a JSON object: `kind`, and what it needs
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from adaptive.batch import Batch
from adaptive.config import SkipConfig, TableConfig, TierConfig
from adaptive.data.synthetic.config import SyntheticConfig
from adaptive.data.synthetic.stream import Synthetic
from adaptive.embeddings.dense import own_part
from adaptive.embeddings.exchange.row_cache import Holders
from adaptive.embeddings.exchange.skip_masks import Answer
from adaptive.embeddings.ranks import Ranks
from adaptive.embeddings.ranks.torch_transport import TorchRanks
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dlrm import DLRM, DLRMConfig
from adaptive.optim import SGD, Adagrad
from adaptive.policies.slipstream import Slipstream
from adaptive.training.trainer import Trainer
from benchmarks.peers_torchrec import VALUE, ShardedCollection
from benchmarks.streams import NUM_DENSE, kaggle_tables, make_batches
from benchmarks.variants import NotAvailable

RATE = 0.05
Job = dict[str, Any]


def loopback_bytes() -> int:
    """That this machine has received from itself."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def measured(steps: Iterator[None], job: Job, meet: Callable[[], None]) -> dict[str, float]:
    """Seconds and bytes of the timed steps, behind some to warm up."""
    for _ in islice(steps, job["warm_up"]):
        pass
    meet()
    before, cpu, started = loopback_bytes(), time.process_time(), time.perf_counter()
    for _ in islice(steps, job["steps"]):
        pass
    seconds = time.perf_counter() - started
    own = time.process_time() - cpu
    meet()
    return {"seconds": seconds, "cpu_seconds": own, "loopback": loopback_bytes() - before}


def meeting(ranks: Ranks | None) -> Callable[[], None]:
    """What returns when all ranks have called it."""

    def meet() -> None:
        if ranks is not None:
            ranks.gather_facts(0)

    return meet


def own_batches(job: Job, rank: int) -> list[Batch]:
    tables = kaggle_tables(job["rows"], job["dim"])
    different = make_batches(tables, job["different"], job["batch"], seed=100 + rank)
    return [different[number % len(different)] for number in range(job["warm_up"] + job["steps"] + job["left"])]


def embedding_part(job: Job) -> dict[str, Any]:
    """Ours: rows of all ranks, a fixed gradient."""
    ranks = TorchRanks() if job["ranks"] else None
    tables = kaggle_tables(job["rows"], job["dim"])
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device_rows="100%"), policy="lfu", optimizer=SGD(lr=RATE), ranks=ranks
    )
    for table in tables:
        embeddings.load_table(table.name, np.full((table.num_embeddings, job["dim"]), VALUE, np.float32))
    batches = own_batches(job, 0 if ranks is None else ranks.rank)
    gradient = fixed_gradient(job, len(tables))
    last = torch.zeros(0)

    def steps() -> Iterator[None]:
        nonlocal last
        for planned in embeddings.look_ahead(batches, depth=4):
            last = embeddings.stack(planned)
            last.backward(gradient)  # type: ignore[no-untyped-call]
            embeddings.step()
            yield

    running = steps()
    found: dict[str, Any] = measured(running, job, meeting(ranks))
    for _ in running:
        pass
    if ranks is not None:
        found["traffic"] = asdict(ranks.traffic())
    found["pooled"] = sample(last.detach().numpy())
    return found


def torchrec_part(job: Job) -> dict[str, Any]:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tables = kaggle_tables(job["rows"], job["dim"])
    collection = ShardedCollection(tables, job["by"], RATE)
    inputs = [collection.prepare(batch) for batch in own_batches(job, rank)]
    collection.pool(inputs[0])  # then the order of features is known
    gradient = fixed_gradient(job, len(tables))[:, collection.order].reshape(job["batch"], -1)
    last = torch.zeros(0)

    def steps() -> Iterator[None]:
        nonlocal last
        for one in inputs:
            last = collection.pool(one)
            last.backward(gradient)  # type: ignore[no-untyped-call]
            yield

    running = steps()
    found: dict[str, Any] = measured(running, job, lambda: dist.barrier())
    for _ in running:
        pass
    pooled = last.detach().numpy().reshape(job["batch"], len(tables), -1)
    found["pooled"] = sample(pooled[:, np.argsort(collection.order)])
    dist.barrier()
    dist.destroy_process_group()
    return found


def whole_step(job: Job) -> dict[str, Any]:
    """The DLRM in training; `ranks` false: one process without. `layers`: of both MLPs; empty: the default ones."""
    ranks = TorchRanks(gradients="sum") if job["ranks"] else None
    tables = kaggle_tables(job["rows"], job["dim"])
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device_rows="100%"), policy="lfu", optimizer=Adagrad(lr=RATE), ranks=ranks
    )
    torch.manual_seed(0)
    config = DLRMConfig(embedding_dim=job["dim"])
    if job["layers"]:
        bottom, top = job["layers"]
        config = DLRMConfig(embedding_dim=job["dim"], bottom_mlp=(*bottom, job["dim"]), top_mlp=tuple(top))
    model = DLRM(config, num_dense=NUM_DENSE, num_features=len(tables))
    trainer = Trainer(embeddings, model, torch.optim.SGD(model.parameters(), lr=0.01))
    size = 1 if ranks is None else ranks.size
    batches = make_batches(tables, job["different"], size * job["batch"], seed=7)
    number = job["warm_up"] + job["steps"] + job["left"]
    stream = [batches[place % len(batches)] for place in range(number)]
    if ranks is not None:
        stream = [own_part(ranks, batch) for batch in stream]

    def steps() -> Iterator[None]:
        model.train()
        trainer.recorder.start()
        for planned in embeddings.look_ahead(stream, depth=4):
            trainer.step(planned)
            yield

    running = steps()
    found: dict[str, Any] = measured(running, job, meeting(ranks))
    for _ in running:
        pass
    if ranks is not None:
        found["traffic"] = asdict(ranks.traffic())
    return found


def kept_rows(job: Job) -> dict[str, Any]:
    """The built-in stream under deferral, its rows moved by a gradient that follows from them: bytes, and checksums."""
    ranks = TorchRanks(blocks=2, gradients="sum")
    if job["everything"]:
        Holders.answer = lambda self, plan, served, hot: Answer.nothing(int(served.sizes.sum()))  # type: ignore[method-assign]
    data = Synthetic(SyntheticConfig(num_train=job["batch"] * job["steps"], num_eval=0))
    tables = [
        TableConfig(name=one.name, num_embeddings=one.num_embeddings, embedding_dim=job["dim"]) for one in data.features
    ]
    policies: dict[str, dict[str, Any]] = {"defer": {"by": "visits"}, "least": {}, "updates": {"skip": "updates"}}
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device_rows="100%"), policy=Slipstream(**policies[job["skip"]]), optimizer=Adagrad(lr=RATE),
        skip=SkipConfig(), ranks=ranks,
    )  # fmt: skip
    checks = hashlib.sha256()
    for planned in embeddings.look_ahead((own_part(ranks, batch) for batch in data.train(job["batch"])), depth=4):
        for part in planned.parts():
            pooled = embeddings.stack(part)
            pooled.backward(0.01 * torch.sign(pooled.detach()) + 0.001)  # type: ignore[no-untyped-call]
        embeddings.step()
    for table in tables:
        checks.update(embeddings.table_weights(table.name).tobytes())
    return {"traffic": asdict(ranks.traffic()), "tables": checks.hexdigest()[:16], "seconds": 0.0}


def fixed_gradient(job: Job, features: int) -> torch.Tensor:
    made = np.random.default_rng(3).standard_normal((job["batch"], features, job["dim"]), np.float32)
    return torch.from_numpy(1e-2 * made)


def sample(pooled: np.ndarray) -> list[float]:
    found: list[float] = pooled[:: max(1, len(pooled) // 16), :, 0].ravel().astype(float).tolist()
    return found


KINDS: dict[str, Callable[[Job], dict[str, Any]]] = {
    "embedding": embedding_part,
    "torchrec": torchrec_part,
    "step": whole_step,
    "kept": kept_rows,
}


def main() -> None:
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    job = json.loads(sys.argv[1])
    if job.get("pinned"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})  # before any thread starts
    try:
        found = KINDS[job["kind"]](job)
    except NotAvailable as error:
        found = {"absent": str(error)}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
