"""FAE: hot rows and hot inputs, transfers, quality under its shuffling."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import evaluations_by_step, ratios, transfers
from adaptive.studies.reproduce.paper import (
    Claim,
    Command,
    Findings,
    Missing,
    Paper,
    Published,
    Records,
    less,
    over,
    row,
)


def findings(records: Records) -> Findings:
    small, large = (row(records["data"]["data"]["hot"], memory=size) for size in ("1%", "10%"))
    yield Claim("a tenth of the rows gets over 80% of the lookups", large["lookup_share"], ">", 0.8)
    yield Claim("hot inputs grow with the memory", large["hot_input_share"], ">", small["hot_input_share"])
    yield Claim("a mini-batch of 1024 consecutive inputs is never all hot (figure 3), which is why FAE sorts "
                "them", large["hot_batch_share"]["1024"], "<", 0.01)
    sampled = large["sampled"]
    yield Claim("the estimate of hot rows from a sample is at least 95% of their number (figure 10)",
                over(sampled["estimated_rows"], sampled["hot_rows"]), ">", 0.95)
    hybrid, fae = (row(records["compare"]["policies"], policy=name) for name in ("hybrid", "fae"))
    yield Claim("AUC with FAE's order of inputs is within 0.02 of the baseline",
                less(fae["auc"], hybrid["auc"]), ">", -0.02)
    yield (moved := transfers(records))
    yield Claim("FAE moves less than DLRM (table 7)", moved.values["fae, two homes"], "<", moved.values["DLRM"])
    yield (speeds := ratios(records))
    yield Claim("FAE is faster than DLRM, modeled (figure 13)", speeds.values["FAE"], ">", 1.0)
    yield (quality := evaluations_by_step(records, "auc"))
    yield evaluations_by_step(records, "accuracy")
    aucs = [auc for _, auc in quality.lines["fae"]]
    yield Claim("quality rises from evaluation to evaluation like that of the baseline (figure 12)",
                aucs[-1], ">", aucs[0])
    sizes = records["batch"]["measured"]
    yield Claim("larger batches give more samples per second under FAE (figure 15, measured)",
                sizes[-1]["samples_per_s"], ">", sizes[1]["samples_per_s"])


PAPER = Paper(
    "FAE: hot rows and hot inputs, transfers, quality under its shuffling",
    "Adnan et al., PVLDB 15(1), 2022 (arXiv 2103.00686)",
    commands=(
        Command("data", "figures 1B, 3, 5, 7, 10 and 8, 9, 11: hot rows and inputs by threshold and memory, estimate "
                        "next to the true number, and its time; for figure 13 and table 5, modeled: hot inputs",
                "profile --sections data --memory 1%,2%,5%,10%,20%", quick="--samples 60000"),
        Command("step", "figure 14: the step by phase", "profile --sections step --policies hybrid,fae",
                quick="--time-steps 10 --batch-size 256 --set data.synthetic.num_train=60000"),
        Command("compare", "table 4 and figure 12: accuracy, AUC and log loss; tables 6 and 7: moved bytes",
                "compare --device-rows 10% --seeds 1",
                full="--policies hybrid,fae,fae+select=top,fae+rate=100 --eval-every 100",
                quick="--policies hybrid,fae --steps 40 --batch-size 512 --eval-every 10 "
                      "--set data.synthetic.num_train=60000 --set data.synthetic.num_eval=10000"),
        Command("batch", "figure 15, measured: throughput by batch size",
                "placements --machine here --placements host,fae --measure",
                full="--sweep batch_size=512,2048,8192 --time-steps 20",
                quick="--sweep batch_size=256,1024 --time-steps 10 --set data.synthetic.num_train=60000"),
        Command("sizes", "figures 15 and 16, tables 5, 8 and 9, modeled: throughput and throughput per watt by batch "
                         "size",
                "placements --machine v100-pcie3 --preset rmc2,rmc3,rmc4 --placements host,fae,device "
                "--sweep batch_size=1024,2048,4096,8192,16384"),
    ),
    findings=findings,
    published=(Published("speed over DLRM on Kaggle, Terabyte, Alibaba", "2.34x on average", "FAE, abstract"),),
    missing=(
        Missing("time and power of V100s (figures 13 to 16, tables 5 and 9)",
                "not available here; ratios are modeled, watts are those of the machine file"),
        Missing("Criteo Kaggle, Terabyte, Taobao", "not included; give --data"),
    ),
)
