"""Slipstream: rows that have stopped moving."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import (
    MEMORY,
    SKEWED,
    dropped_within_budget,
    headlines,
    ratios,
)
from adaptive.studies.reproduce.paper import (
    Claim,
    Command,
    Curves,
    DerivedTable,
    Findings,
    Missing,
    Paper,
    Published,
    Records,
    over,
    row,
)

MLPS = "--set model.bottom_mlp=512-256-64-16 --set model.top_mlp=512-256-1"
SHARES = (0.05, 0.1, 0.2, 0.4)
RULES = ",".join(
    f"slipstream+skip={mode}+{target}={share}"
    for mode, target in (("updates", "target_skip"), ("inputs", "target_drop"))
    for share in SHARES
)


def findings(records: Records) -> Findings:
    for name, optimizer in (("adagrad", "row-wise Adagrad"), ("sgd", "SGD")):
        hottest = records[name]["movement"]["points"][-1]["bands"]["hottest"]
        yield Claim(f"hot rows stop moving: under {optimizer} half of the hottest move by less than 5% of their "
                    "length in the last interval", hottest[2] if hottest else None, "<", 0.05,
                    why="an epoch is short here; the paper's snapshots and thresholds are not known")
    policies = records["compare"]["policies"]
    for policy in policies:
        if policy["auc_difference_to_random"] is not None and "skip=inputs" in policy["policy"]:
            yield Claim(f"{policy['policy']} loses less AUC than as many inputs dropped at random",
                        policy["auc_difference_to_random"], ">", 0.0,
                        why="the movement of its rows does not tell what an input would teach")
    yield skipping(records)
    yield (speeds := ratios(records))
    steps, share = speeds.details["step_ms"], speeds.details["dropped"]
    on_device = (steps["FAE"] - (1 - speeds.details["hot_inputs"]) * steps["DLRM"]) / speeds.details["hot_inputs"]
    yield Claim("as many inputs can be dropped within the budget of AUC as 1.2 times FAE's speed takes, modeled",
                share, ">", (1 - 1 / 1.2) * steps["FAE"] / on_device,
                why="no rule of the comparison that drops as many keeps the AUC")
    yield from headlines(speeds, "Slipstream",
                         {"XDL": (2.0, "abstract"), "DLRM": (2.4, "abstract"), "FAE": (1.2, "abstract")})
    yield from headlines(speeds, "Slipstream on Hotline", {"Hotline": (1.175, "abstract")})
    best, _ = dropped_within_budget(records)
    for other, ratio in (("fae", 1.2), ("hotline", 1.175)):
        ours = over(read_per_s(row(policies, policy=best)) if best else None, read_per_s(row(policies, policy=other)))
        yield Claim(f"dropping inputs within the budget of AUC ({best or 'no rule does'}) reads {ratio:g} times the "
                    f"samples per second of {other}, measured here (abstract)", ours, "about", ratio,
                    why="here no link is in the way of cold inputs: time falls by what the dense part saves, less what "
                        "the rule and refilling batches cost")


def read_per_s(policy: Records) -> float:
    """Samples per second, including those that a rule left out."""
    return float(policy["samples_per_s"]) / (1 - float(policy["skipped_input_share"] or 0.0))


def skipping(records: Records) -> DerivedTable:
    """Change of AUC by the share left out, next to as many inputs dropped at random."""
    lines: dict[str, list[tuple[float, float]]] = {}
    values = {}
    for policy in records["compare"]["policies"]:
        inputs, updates = float(policy["skipped_input_share"] or 0.0), float(policy["skipped_update_share"] or 0.0)
        change = policy["auc_difference"]
        if change is None or not (inputs or updates):
            continue
        kind = "inputs dropped" if inputs else "updates deferred" if policy["deferred_update_share"] else None
        kind = "inputs dropped at random" if policy["policy"].startswith("random_drop") else kind
        lines.setdefault(kind or "updates left out", []).append((100 * (inputs or updates), change))
        values[policy["policy"]] = change
    furthest = max((share for points in lines.values() for share, _ in points), default=0.0)
    budget = -float(records["compare"]["auc_budget"])
    drawn = {name: sorted(points) for name, points in lines.items()} | {"budget": [(0.0, budget), (furthest, budget)]}
    return DerivedTable("skipping", "Change of AUC of policies that leave something out (measured)", "AUC", values,
                        curves=Curves("left out (%)", "change of AUC", drawn))


PAPER = Paper(
    "Slipstream: rows that have stopped moving",
    "Maboud et al., arXiv 2404.04270; we had the abstract and summaries only",
    commands=(
        Command("data", "hot inputs, for the model",
                f"profile --sections data --memory {MEMORY} {SKEWED}", quick="--samples 60000"),
        Command("adagrad", "movement of hot rows under row-wise Adagrad, and what a threshold leaves out",
                f"profile --sections movement {SKEWED}",
                full="--steps 1000 --every 100", quick="--steps 60 --every 20 --batch-size 512"),
        Command("sgd", "the same under SGD", f"profile --sections movement --optimizer sgd --lr 0.5 {SKEWED}",
                full="--steps 1000 --every 100", quick="--steps 60 --every 20 --batch-size 512"),
        Command("compare", "quality against the share left out, next to as many inputs dropped at random; time next "
                           "to FAE and Hotline, with the MLPs of RMC2",
                f"compare {SKEWED} {MLPS}",
                full=f"--policies lru,fae,hotline,slipstream,lfu+skip=predicted,{RULES} --seeds 3 "
                     "--set data.synthetic.num_train=1000000",
                quick="--policies lru,fae,hotline,slipstream,lfu+skip=predicted,"
                      "slipstream+skip=updates+target_skip=0.2,slipstream+skip=inputs+target_drop=0.4 --seeds 1 "
                      "--steps 160 --batch-size 1024 "
                      "--set data.synthetic.rows=100000 --set data.synthetic.num_train=170000 "
                      "--set data.synthetic.num_eval=10000"),
    ),
    findings=findings,
    published=(
        Published("speed over XDL, Intel-optimized DLRM, FAE, Hotline", "2x, 2.4x, 1.2x, 1.175x",
                  "Slipstream, abstract"),
    ),
    missing=(
        Missing("its thresholds and feature normalization", "we had the abstract and summaries only"),
        Missing("speed measured on GPUs",
                "ratios over XDL and DLRM are modeled, those over FAE and Hotline also measured on this machine"),
    ),
)
