"""Helpers of the scripts in this folder: run a command, read the ids of the built-in stream, print the table.

Every script takes `--quick`, which trains a few small batches and says little about quality.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass

import numpy as np

from adaptive import Synthetic, SyntheticConfig

TOLERANCE = 0.15  # of a gain that a paper reports: papers differ by more among themselves
RMC2 = "--set model.bottom_mlp=512-256-64-16 --set model.top_mlp=512-256-1"  # the papers' model of Criteo Kaggle


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and the number found here.

    Attributes:
        says: the statement.
        paper, here: both numbers.
        sign: "gain": a ratio over another system, judged on what it is above 1: 1.2 is a gain of 0.2, of which 1.073
            is too little. Faster than the paper is a success. "modeled": the same for a model of other machines, of
            which far too much is no success. "share": at least the paper's, less the tolerance. "<" and ">": as they
            say. "within": at most `paper` away from 0.
        why: the reason, printed if the claim does not come out.
    """

    says: str
    paper: float
    here: float
    sign: str
    why: str = ""

    @property
    def comes_out(self) -> bool:
        return {
            "gain": self.here - 1 >= (1 - TOLERANCE) * (self.paper - 1),
            "modeled": abs(self.here - self.paper) <= TOLERANCE * (self.paper - 1),
            "share": self.here >= (1 - TOLERANCE) * self.paper,
            ">": self.here > self.paper,
            "<": self.here < self.paper,
            "within": abs(self.here) <= self.paper,
        }[self.sign]


def is_quick(doc):
    """Parse the command line of a script."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few small batches, for a test")
    return parser.parse_args().quick


def show(title, claims, not_here=()):
    """Print what the paper says, what was measured here, and why they differ."""
    print(f"\n{title}\n\n{'paper says':72}{'paper':>10}{'here':>12}  comes out")
    for claim in claims:
        first, *more = textwrap.wrap(claim.says, 70)
        sign = claim.sign if claim.sign in "<>" else "+-" if claim.sign == "within" else ""
        print(
            f"{first:72}{sign + format(claim.paper, '.4g'):>10}{claim.here:12.4g}  {'yes' if claim.comes_out else 'no'}"
        )
        print(textwrap.indent("\n".join(more), "  "), end="\n" if more else "")
        if not claim.comes_out:
            print(textwrap.fill(f"why: {claim.why}", 100, initial_indent="    ", subsequent_indent="    "))
    for text in not_here:
        print(textwrap.fill(f"not here: {text}", 100, subsequent_indent="    "))


def adaptive_train(command):
    """Run a command of adaptive-train in a temporary folder, and return the object that it prints with --json."""
    print(f"$ adaptive-train {command}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "adaptive", *shlex.split(command), "--json"]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"adaptive-train {command}\n{done.stderr}")
    return json.loads(done.stdout)


def stream(quick, positive_rate=0.25):
    """Return flags for the built-in stream: ids as popular as in the papers, and as many clicks as in Criteo Kaggle."""
    flags = f"--set data.synthetic.setting=skewed --set data.synthetic.positive_rate={positive_rate}"
    sizes = {"rows": 100_000, "num_train": 60_000, "num_eval": 10_000} if quick else {"num_train": 400_000}
    return " ".join([flags, *(f"--set data.synthetic.{name}={size}" for name, size in sizes.items())])


def compare(command):
    """Return what `compare` reports of each policy, by the policy's name; warn if others used the cores."""
    policies = adaptive_train(f"compare {command}")["policies"]
    if (busy := max(run["others_cpu_share"] or 0.0 for policy in policies for run in policy["runs"])) > 0.1:
        print(f"warning: other processes used up to {busy:.0%} of the cores, so no claim about speed can be judged")
    return {policy["policy"]: policy for policy in policies}


def bytes_per_step(policy):
    """Return the bytes per step that a compared policy moves between host and device, both directions together."""
    return (policy["bytes_h2d"] + policy["bytes_d2h"]) / policy["steps"]


def read_rows(quick, **options):
    """Return the rows (samples, tables) that this stream looks up, and the number of rows of all tables.

    With `quick` there are fewer rows, too: few samples look up few of them, so that all inputs would be hot.
    """
    sizes = {"num_train": 60_000, "rows": 100_000} if quick else {"num_train": 400_000}
    data = Synthetic(SyntheticConfig(**{"setting": "skewed", **sizes, **options}))
    sizes = np.array([feature.num_embeddings for feature in data.features])
    starts = np.cumsum(sizes) - sizes
    batches = [batch.ids.reshape(len(sizes), -1).T + starts for batch in data.train(4096)]
    return np.concatenate(batches), int(sizes.sum())


def hottest(counts, share):
    """Return a mask of the rows with the most lookups: `share` of all rows, those never looked up left out."""
    order = np.argsort(-counts, kind="stable")[: int(share * len(counts))]
    is_hot = np.zeros(len(counts), bool)
    is_hot[order] = counts[order] > 0
    return is_hot


def distinct_share(rows, batch_size=1024):
    """Return the distinct rows of a batch over its lookups, in the mean of ten batches."""
    batches = [rows[k : k + batch_size] for k in range(0, min(10 * batch_size, len(rows)), batch_size)]
    return float(np.mean([len(np.unique(batch)) / batch.size for batch in batches]))
