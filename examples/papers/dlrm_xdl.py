"""DLRM (arXiv 1906.00091) and XDL, the baselines of all other papers, and the tutorial that profiles them (HPCA 2023).

DLRM keeps its tables on the host; each vector of a batch crosses to the GPU, and its gradient crosses back. XDL has a
parameter server, which sends each distinct row of a batch once. Here DLRM is `--policy hybrid`: this script trains the
same model in plain torch next to it, and counts what both send.

Run: python examples/papers/dlrm_xdl.py [--quick]        (a minute on two cores)
"""

import numpy as np
import torch
from common import Claim, bytes_per_step, compare, distinct_share, hottest, is_quick, read_rows, show, stream
from torch import nn

from adaptive import SGD, Batch, TierConfig, TieredEmbeddingBag


def train(rows, is_tiered, num_rows=4000, steps=20, size=256):
    """Train one table and a linear layer with SGD, in plain torch or under `hybrid`, and return all weights."""
    torch.manual_seed(0)
    plain = nn.EmbeddingBag(num_rows, 8, mode="sum", sparse=True)
    head = nn.Linear(8, 1)
    parameters = list(head.parameters())
    if is_tiered:
        tables = TieredEmbeddingBag.from_bags({"item": plain}, TierConfig(), policy="hybrid", optimizer=SGD(lr=0.5))
        head.to(tables.device)
    else:
        parameters += plain.parameters()
    dense = torch.optim.SGD(parameters, lr=0.5)
    ids = torch.as_tensor(rows[: steps * size] % num_rows).view(steps, size)
    labels = (ids % 3 == 0).float()
    batches = [Batch.of(item=ids[k].numpy(), labels=labels[k].numpy()) for k in range(steps)]
    for batch, bags in zip(tables.look_ahead(batches) if is_tiered else batches, ids, strict=True):
        vectors = tables(batch)["item"] if is_tiered else plain(bags[:, None])
        target = batch.labels if is_tiered else torch.as_tensor(batch.labels)
        loss = nn.functional.binary_cross_entropy_with_logits(head(vectors).squeeze(1), target)
        dense.zero_grad()
        loss.backward()
        dense.step()
        if is_tiered:
            tables.step()
    weights = tables.rows.table_weights("item") if is_tiered else plain.weight.detach().numpy()
    return np.concatenate([np.ravel(weights), head.weight.detach().cpu().numpy().ravel()])


def main():
    quick = is_quick(__doc__)
    rows, num_rows = read_rows(False, num_train=100_000)  # the tutorial has 100,001 samples of Criteo
    counts = np.bincount(rows.ravel(), minlength=num_rows)
    sample = rows[np.random.default_rng(0).random(len(rows)) < 0.1]
    sampled = np.bincount(sample.ravel(), minlength=num_rows)
    third = np.bincount(rows[:, 2] - rows[:, 2].min())
    hot, by_sample = hottest(counts, 0.05), hottest(sampled, 0.05)
    inputs = hottest(sampled, 0.25)[rows].all(axis=1).mean()

    steps = "--steps 24 --batch-size 512" if quick else "--steps 100"
    policies = compare(f"--policies hybrid,fae --device-rows 10% --seeds 1 {steps} {stream(quick)}")
    hybrid, fae = policies["hybrid"], policies["fae"]
    plain, tiered = train(rows[:, 2], False), train(rows[:, 2], True)
    show(
        "DLRM and XDL: the baselines, and the tutorial's three sessions",
        [
            Claim("hybrid is DLRM: the weights of plain torch, to rounding", 1e-4, np.abs(plain - tiered).max(), "<"),
            Claim(
                "XDL moves a 2.65th of DLRM's bytes (23 and 61 GB, FAE's tables 6 and 7)",
                2.65,
                1 / distinct_share(rows),
                "gain",
                "batches repeat their rows less here",
            ),
            Claim(
                "session 1: one row of a table gets over 1,000 times the lookups of its median row",
                1000.0,
                third.max() / np.median(third[third > 0]),
                ">",
            ),
            Claim(
                "a sample of 10% finds over 60% of the hottest 5% of the rows",
                0.6,
                (hot & by_sample).sum() / hot.sum(),
                ">",
                "few rows are looked up more than once in so few samples",
            ),
            Claim(
                "session 3: 44.4% of 100,001 inputs are hot, for rows of a sample of 10%, a quarter of the memory",
                0.444,
                inputs,
                "share",
                "a hot input has no row that the sample lacks: it depends on how many rows are rare",
            ),
            Claim(
                "session 2: the baseline spends more on the MLPs' backward pass than on updating rows",
                hybrid["time_ms"]["row_update"],
                hybrid["time_ms"]["backward"],
                ">",
            ),
            Claim(
                "session 3: with hot rows on the device, fewer bytes cross than under the baseline",
                bytes_per_step(hybrid),
                bytes_per_step(fae),
                "<",
            ),
        ],
        [
            "XDL's time: it needs a parameter server, on other machines",
            "the tutorial's own file and its times on a GPU",
        ],
    )


if __name__ == "__main__":
    main()
