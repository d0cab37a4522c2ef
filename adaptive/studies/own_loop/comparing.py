"""`compare_policies`: a loop of one's own under several policies, seed by seed, and what that cost.

Verdicts are those of `adaptive-train compare` (`adaptive.studies.compare.verdicts`): policies that skip nothing must
have trained the same rows, bit for bit; what the others differ by is what skipping cost, with a confidence interval
over seeds.
"""

import hashlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import ConfigError
from adaptive.policy import arranges, inputs_of
from adaptive.studies.compare.comparison_report import comparison_document
from adaptive.studies.compare.comparison_runs import Outcome
from adaptive.studies.compare.verdicts import judge
from adaptive.training.quality import StreamingAUC, StreamingLogLoss, exact_auc
from adaptive.training.telemetry.record import RunTotals, table_counts
from adaptive.training.telemetry.report import run_summary

Trained = tuple[TieredEmbeddingBag, ArrayLike, ArrayLike]
SKIP = "+skip="


def compare_policies(
    train: Callable[..., Trained],
    policies: Sequence[str] | Mapping[str, Mapping[str, Any]],
    *,
    seeds: int = 3,
    first_seed: int = 0,
    auc_budget: float = 0.0005,
    told: Callable[[str], None] = lambda which: None,
) -> dict[str, Any]:
    """Train with each policy and seed, and compare.

    Args:
        train: called as `train(seed=0, policy="lfu")`, or with `skip="defer"`, too: what `TieredEmbeddingBag` takes.
            Trains on the same data for the same seed, and returns (embeddings, logits (n,), labels (n,)), these two of
            samples that are the same for all policies. The embeddings are closed then.
        policies: names, with a skip rule as in `lfu+skip=defer`; or label -> arguments of `train`. The first that skips
            nothing is the control.
        seeds: trainings of each policy.
        first_seed: of the first one.
        auc_budget: loss of AUC that a policy may cause.
        told: called before each training.

    Returns:
        What `adaptive-train compare --json` prints; `table` is its text.

    Raises:
        ConfigError: for no policies, or no seeds. What `train` raises ends its own training and stands in `problems`.
    """
    if not policies or seeds < 1:
        raise ConfigError("compare_policies: at least one policy and one seed are needed")
    named = policies if isinstance(policies, Mapping) else {label: arguments_of(label) for label in policies}
    outcomes = []
    for seed in range(first_seed, first_seed + seeds):
        for label, arguments in named.items():
            told(f"seed {seed}, {label}")
            outcomes.append(_outcome(train, label, seed, arguments))
    found = judge(outcomes, auc_budget=auc_budget)
    return {**found, "table": comparison_document(found).to_text()}


def arguments_of(label: str) -> dict[str, Any]:
    """Arguments of `TieredEmbeddingBag`: `lfu+skip=defer` -> policy and skip."""
    policy, plus, rule = label.partition(SKIP)
    return {"policy": policy, "skip": rule} if plus else {"policy": policy}


def _outcome(train: Callable[..., Trained], label: str, seed: int, arguments: Mapping[str, Any]) -> Outcome:
    started = time.perf_counter()
    try:
        embeddings, logits, labels = train(seed=seed, **arguments)
        with embeddings:
            scores, truth = np.asarray(logits, np.float32), np.asarray(labels, np.float32)
            summary = _summary(label, embeddings, scores, truth, time.perf_counter() - started)
            bits = _bits(embeddings, scores)
            arranged = arranges(embeddings.policy)
            kept = np.stack([scores, truth])
            return Outcome(label, seed, "", arranges=arranged, summary=summary, bits=bits, scores=kept)
    except Exception as error:  # whatever stops one training, the others are still worth having
        traceback.clear_frames(error.__traceback__)
        return Outcome(label, seed, "", error=error)


def _summary(
    label: str, embeddings: TieredEmbeddingBag, logits: NDArray[Any], labels: NDArray[Any], seconds: float
) -> dict[str, Any]:
    bins, log_loss, totals = StreamingAUC(), StreamingLogLoss(), RunTotals()
    bins.update(logits, labels)
    log_loss.update(logits, labels)
    totals.tables = table_counts(["all"], embeddings.statistics.counts()[None, :])
    totals.steps, totals.samples, totals.seconds = embeddings.statistics.batches_trained, len(labels), seconds
    auc = exact_auc(logits, labels)
    found = run_summary(label, totals, auc=auc, log_loss=log_loss.value(), accuracy=bins.accuracy())
    seen, dropped = inputs_of(embeddings.policy)
    found |= {"samples": seen or 0, "samples_per_s": None, "samples_per_s_later": None}
    found["time_ms"] = {"training and scoring": 1000 * seconds / max(embeddings.statistics.batches_trained, 1)}
    return {**found, "auc_of": "evaluation", "skipped_input_share": dropped / seen if dropped else 0.0}


def _bits(embeddings: TieredEmbeddingBag, logits: NDArray[np.float32]) -> str:
    """A digest of all rows and of the predictions: equal exactly if two trainings agree bit for bit."""
    digest = hashlib.sha256(logits.tobytes())
    for name in sorted(embeddings.table_names):
        for block in embeddings.rows.table_blocks(name):
            digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()
