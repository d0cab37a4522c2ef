"""Hotline (Adnan et al., ISCA 2024; tables as of arXiv 2204.05436v1): popular inputs first, learned during training.

Hotline learns popular rows in the first part of an epoch. Then it trains the popular inputs of a mini-batch while the
rows of the others are gathered. Here: `--policy hotline` next to `hybrid` (DLRM) and `fae`.

Run: python examples/papers/hotline.py [--quick]        (minutes on two cores)
"""

import numpy as np
from common import (
    RMC2,
    Claim,
    adaptive_train,
    bytes_per_step,
    compare,
    hottest,
    is_quick,
    read_rows,
    show,
    stream,
)

LOGGERS = ",".join(f"hotline+logger=srrip+logger_bytes={size}" for size in (4096, 16384, 65536, 262144))


def by_learning(quick):
    """Return the claims of figures 10 and 23: popular inputs by the share learned, and by the logger's size."""
    rows, num_rows = read_rows(quick)
    most = hottest(np.bincount(rows.ravel(), minlength=num_rows), 0.1)[rows].all(axis=1).mean()
    size = "--batch-size 512" if quick else ""
    simulated = adaptive_train(
        f"simulate --policies hotline+learn=1%,hotline+learn=5%,{LOGGERS} --device-rows 10% {stream(quick)} {size}"
    )
    numbers = {run["policy"]: run["policy_numbers"] for run in simulated["runs"]}
    popular = {name: number["popular_inputs"] / number["seen_inputs"] for name, number in numbers.items()}
    learned, sizes = popular["hotline+learn=5%"], [popular[name] for name in LOGGERS.split(",")]
    print("\ninputs found popular: " + ", ".join(f"{name} {share:.1%}" for name, share in popular.items()))
    print(f"with exact counts of all inputs: {most:.1%}")
    return [
        Claim(
            "learning on 5% of an epoch makes over 75% of the inputs popular (section 3.2 of the first version)",
            0.75,
            learned,
            "share",
            f"an epoch here has too few samples: even exact counts make {most:.0%} popular",
        ),
        Claim(
            "learning on 5% finds over 90% of the inputs that there is room for",
            0.9,
            learned / most,
            ">",
            "rare rows do not occur in 5% of such a short epoch; in the paper it has over two million samples",
        ),
        Claim("the larger the logger, the more popular inputs it finds (figure 23)", sizes[0], sizes[-1], ">"),
        Claim(
            "a logger of 64 KiB finds as many as exact counts",
            popular["hotline+learn=5%"],
            popular["hotline+logger=srrip+logger_bytes=65536"],
            "share",
            "it forgets rows that return after long",
        ),
    ]


def by_training(quick):
    """Return the claims of tables 5 and 6 and of the abstract."""
    size = "--steps 24 --batch-size 512 --set log_every=8" if quick else "--steps 150"
    policies = compare(f"--policies hybrid,fae,hotline --device-rows 10% --seeds 1 {RMC2} {stream(quick)} {size}")
    hybrid, fae, hotline = policies["hybrid"], policies["fae"], policies["hotline"]
    ms = hotline["time_ms"]
    one_memory = "without a GPU both tiers are main memory: gathering rows competes with training instead of hiding"
    return [
        Claim(
            "classifying and planning a batch take less than its training",
            ms["forward"] + ms["backward"],
            ms["learn"] + ms["policy"] + ms["plan"],
            "<",
            "other programs on this machine",
        ),
        Claim(
            "AUC is DLRM's within 0.001 (table 5)",
            0.001,
            hotline["auc"] - hybrid["auc"],
            "within",
            "sums are taken popular inputs first, so rounding differs",
        ),
        Claim(
            "Hotline moves a 5.4th of DLRM's bytes (table 6, Criteo Kaggle, one GPU)",
            5.4,
            bytes_per_step(hybrid) / bytes_per_step(hotline),
            "gain",
            "rows move with their optimizer state, and an epoch here is short, so that many rows move once",
        ),
        Claim(
            "Hotline is 2.2 times as fast as DLRM (abstract)",
            2.2,
            hotline["samples_per_s"] / hybrid["samples_per_s"],
            "gain",
            one_memory,
        ),
        Claim(
            "Hotline is 2.3 times as fast as FAE (first version, one GPU)",
            2.3,
            hotline["samples_per_s"] / fae["samples_per_s"],
            "gain",
            one_memory,
        ),
    ]


def main():
    quick = is_quick(__doc__)
    claims = by_learning(quick) + by_training(quick)
    show(
        "Hotline: popular inputs first",
        claims,
        [
            "its accelerator: area, power, lookup engine (figures 5 to 9 and 11 to 13)",
            "regrouping four mini-batches (figure 22, first version only): here each mini-batch is a step of its own",
        ],
    )


if __name__ == "__main__":
    main()
