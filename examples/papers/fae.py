"""FAE (Adnan et al., PVLDB 15(1), 2022, arXiv 2103.00686): hot rows and hot inputs, on the built-in stream.

FAE keeps hot rows on the GPU and regroups inputs: a mini-batch of hot inputs trains on the GPU alone, one of cold
inputs as under DLRM. Here: `--policy fae` next to `hybrid`, which is DLRM with its tables on the host.

Run: python examples/papers/fae.py [--quick]        (minutes on two cores)
"""

import numpy as np
from common import (
    RMC2,
    Claim,
    bytes_per_step,
    compare,
    distinct_share,
    hottest,
    is_quick,
    read_rows,
    show,
    stream,
)

SHARE = 0.07  # of the rows: 6.8% are hot in the paper's Criteo Kaggle


def by_ids(rows, num_rows):
    """Return the claims of figures 1B, 3 and 10, which need the ids alone."""
    counts = np.bincount(rows.ravel(), minlength=num_rows)
    is_hot = hottest(counts, SHARE)
    assert is_hot.sum() < (counts > 0).sum(), "all rows of this sample fit, so all inputs would be hot"
    inputs = is_hot[rows].all(axis=1)  # an input is hot if all its rows are
    batches = inputs[: len(inputs) // 1024 * 1024].reshape(-1, 1024).all(axis=1)
    # the number of rows at FAE's threshold (a share of the lookups), from 5% of the inputs
    threshold = counts[is_hot].min() / counts.sum()
    sample = rows[np.random.default_rng(0).random(len(rows)) < 0.05]
    sampled = np.bincount(sample.ravel(), minlength=num_rows)
    estimate = (sampled / sampled.sum() >= threshold).sum()
    true = (counts / counts.sum() >= threshold).sum()
    return [
        Claim(
            "the hottest 6.8% of the rows get 76% of the lookups", 0.76, counts[is_hot].sum() / counts.sum(), "share"
        ),
        Claim(
            "they make 75.8% of the inputs hot",
            0.758,
            inputs.mean(),
            "share",
            "the stream is less skewed than Criteo Kaggle at this size",
        ),
        Claim("mini-batches of 1,024 consecutive inputs are never all hot (figure 3)", 0.01, batches.mean(), "<"),
        Claim(
            "a sample of 5% estimates the number of hot rows within 10% (figure 10)",
            0.1,
            estimate / true - 1,
            "within",
            "an epoch here is a hundredth of the paper's: a hot row occurs a few times, and in a sample of "
            "5% often not at all",
        ),
    ]


def by_training(quick, sent_share):
    """Return the claims of tables 4, 6 and 7, figure 15 and the abstract; XDL sends `sent_share` of DLRM's vectors."""
    setting = f"--device-rows 7% --seeds 1 {RMC2} {stream(quick)}"
    policies = compare(
        f"--policies hybrid,fae {setting} " + ("--steps 24 --batch-size 512" if quick else "--steps 150")
    )
    hybrid, fae = policies["hybrid"], policies["fae"]
    large = "--steps 6 --batch-size 4096" if quick else "--steps 30 --batch-size 8192"
    larger = compare(f"--policies fae {setting} {large}")["fae"]
    vectors, one_home = bytes_per_step(hybrid), bytes_per_step(fae)
    homes = one_home + fae["policy_numbers"]["two_home_bytes"] / fae["steps"]
    short = (
        "hot rows are copied between their two homes a few times an epoch, which has 45 million samples in the paper"
    )
    return [
        Claim(
            "AUC under FAE's order of inputs is DLRM's within 0.001 (table 4)",
            0.001,
            fae["auc"] - hybrid["auc"],
            "within",
            "hot inputs train after cold ones, and the few swaps of a short epoch leave the model "
            "one-sided; the paper trains ten epochs of 45 million samples",
        ),
        Claim("FAE moves a 4.06th of DLRM's bytes (table 7)", 4.06, vectors / homes, "gain", short),
        Claim("FAE moves a 1.54th of XDL's bytes", 1.54, vectors * sent_share / homes, "gain", short),
        Claim("with one home of each row, as here, it moves less than with two", homes, one_home, "<"),
        Claim(
            "FAE is 1.8 times as fast as DLRM (abstract)",
            1.8,
            fae["samples_per_s"] / hybrid["samples_per_s"],
            "gain",
            "without a GPU both tiers are main memory, so no link is saved and a cold row is as fast as a hot one",
        ),
        Claim(
            "larger batches train more samples per second (figure 15)",
            1.0,
            larger["samples_per_s"] / fae["samples_per_s"],
            ">",
            "too few steps, or other programs on this machine",
        ),
    ]


def main():
    quick = is_quick(__doc__)
    rows, num_rows = read_rows(quick)
    claims = by_ids(rows, num_rows) + by_training(quick, distinct_share(rows))
    show(
        "FAE: hot rows and hot inputs",
        claims,
        ["power, and time over XDL (V100s, table 5)", "Criteo Kaggle, Criteo Terabyte, Taobao and Avazu"],
    )


if __name__ == "__main__":
    main()
