"""Outcomes of trainings that never ran, for tests of comparisons."""

from typing import Any

from adaptive.studies.compare import ComparedPolicy, Comparison
from adaptive.studies.compare.comparison_runs import Outcome

BUDGET = 0.0005
SKIP = {"interval": 2, "hot_rows": "100%", "min_accesses": 1, "feedback_delay": 1}
DROP = {**SKIP, "rule": "adaptive.policies.random_drop:Drop+share=0.3"}
EAGER = {**SKIP, "rule": "support.skip_rules:Skips+bound=10"}


def outcome(policy: str, seed: int, auc: float | None, skipped: float = 0.0, **more: Any) -> Outcome:
    summary = {
        **{"auc": auc, "log_loss": 0.5, "auc_of": "evaluation", "samples_per_s": 100.0 * (seed + 1), "steps": 4},
        **{"samples": 128, "hit_rate": 0.5, "row_hit_rate": 0.4, "bytes_h2d": 4096, "bytes_d2h": 0},
        **{"fetched_rows": 9, "written_back_rows": 0, "time_ms": {"plan": 1.0 + seed}},
        **{"skipped_update_share": skipped, "skipped_lookup_share": skipped},
    }
    return Outcome(policy, seed, f"out/{seed}/{policy}", summary=summary | more, bits=f"{auc}")


def by_policy(result: Comparison) -> dict[str, ComparedPolicy]:
    return {policy.policy: policy for policy in result.policies}
