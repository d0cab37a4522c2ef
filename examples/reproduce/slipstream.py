"""Slipstream: rows that have stopped moving."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import ratios
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
    row,
)

SHARES = (0.05, 0.1, 0.2, 0.4)
RULES = ",".join(
    f"slipstream+skip={mode}+{target}={share}"
    for mode, target in (("updates", "target_skip"), ("inputs", "target_drop"))
    for share in SHARES
)


def findings(records: Records) -> Findings:
    points = records["adagrad"]["movement"]["points"]
    yield Claim("under row-wise Adagrad, hot rows move less at the end than at the start",
                points[-1]["bands"]["hottest"][2], "<", points[0]["bands"]["hottest"][2])
    dropped = records["sgd"]["movement"]["points"][-1]["dropped"]
    yield Claim("a higher threshold leaves out more updates", dropped[-1]["updates"], ">", dropped[0]["updates"])
    slipstream = row(records["compare"]["policies"], policy="slipstream")
    yield Claim("the default mode, which defers updates, loses less than 0.005 of AUC", slipstream["auc_difference"],
                ">", -0.005)
    yield Claim("the default mode writes fewer updates", slipstream["deferred_update_share"], ">", 0.0)
    yield skipping(records)
    yield (speeds := ratios(records))
    yield Claim("Slipstream is faster than FAE, modeled with the inputs dropped here",
                speeds.values["Slipstream"], ">", speeds.values["FAE"])


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
                "profile --sections data --memory 5%,10%", quick="--samples 60000"),
        Command("adagrad", "movement of hot rows under row-wise Adagrad, and what a threshold leaves out",
                "profile --sections movement",
                full="--steps 1000 --every 100", quick="--steps 60 --every 20 --batch-size 512"),
        Command("sgd", "the same under SGD", "profile --sections movement --optimizer sgd --lr 0.5",
                full="--steps 1000 --every 100", quick="--steps 60 --every 20 --batch-size 512"),
        Command("compare", "quality against the share left out, next to as many inputs dropped at random", "compare",
                full=f"--policies lru,slipstream,{RULES} --seeds 3 --set data.synthetic.num_train=1000000",
                quick="--policies lru,slipstream,slipstream+skip=updates+target_skip=0.2,"
                      "slipstream+skip=inputs+target_drop=0.4 --seeds 1 --steps 160 --batch-size 1024 "
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
        Missing("measured speed",
                "skipping does not speed up training if all rows are in memory (docs/explanation/skipping.md); "
                "ratios are modeled"),
    ),
)
