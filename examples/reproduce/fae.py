"""FAE: hot rows and hot inputs, transfers, quality under its shuffling."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import (
    SKEWED,
    evaluations_by_step,
    headlines,
    ratios,
    transfers,
)
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
    hot = row(records["data"]["data"]["hot"], memory="7%")
    yield Claim("the hottest 7% of the rows get over 76% of the lookups (6.8% in Criteo Kaggle)",
                hot["lookup_share"], ">", 0.76)
    yield Claim("they make 75.8% of the inputs hot (Criteo Kaggle at 6.8%)", hot["hot_input_share"], "about", 0.758,
                why="the data are less skewed than Criteo Kaggle, or more")
    yield Claim("a mini-batch of 1024 consecutive inputs is never all hot (figure 3), which is why FAE sorts "
                "them", hot["hot_batch_share"]["1024"], "<", 0.01)
    sampled = hot["sampled"]
    yield Claim("the number of hot rows is estimated from a sample within 10% (figure 10)",
                less(over(sampled["estimated_rows"], sampled["hot_rows"]), 1), "within", 0.1,
                why="here the estimate is the upper end of the interval, so that hot rows fit the memory")
    hybrid, fae = (row(records["compare"]["policies"], policy=name) for name in ("hybrid", "fae"))
    yield Claim("AUC with FAE's order of inputs is the baseline's within 0.001 (table 4)",
                less(fae["auc"], hybrid["auc"]), "within", 0.001,
                why="hot inputs train after cold ones, and the few swaps of a short epoch leave the model one-sided; "
                    "the paper trains ten epochs of 45 million samples")
    yield (moved := transfers(records))
    yield Claim("FAE moves a 4.06th of DLRM's bytes (table 7, Criteo Kaggle)",
                over(moved.values["DLRM"], moved.values["fae, two homes"]), "about", 4.06,
                why="bytes follow the share of cold inputs, and copies of hot rows that of the epoch's length: the "
                    "paper's has 45 million samples")
    yield Claim("FAE moves a 1.54th of XDL's bytes (headline)",
                over(moved.values["XDL"], moved.values["fae, two homes"]), "about", 1.54,
                why="XDL sends a distinct row once here, and batches repeat their rows more or less than in the paper")
    yield (speeds := ratios(records))
    yield from headlines(speeds, "FAE", {"DLRM": (1.8, "abstract: CPU-GPU"), "XDL": (1.73, "table 5, mean of 1 GPU")})
    yield evaluations_by_step(records, "auc")
    yield evaluations_by_step(records, "accuracy")
    sizes = records["batch"]["measured"]
    yield Claim("larger batches give more samples per second under FAE (figure 15, measured)",
                sizes[-1]["samples_per_s"], ">", sizes[1]["samples_per_s"])


PAPER = Paper(
    "FAE: hot rows and hot inputs, transfers, quality under its shuffling",
    "Adnan et al., PVLDB 15(1), 2022 (arXiv 2103.00686)",
    commands=(
        # 60,000 samples look up fewer rows than 7% of all, so that all of them would be hot
        Command("data", "figures 1B, 3, 5, 7, 10 and 8, 9, 11: hot rows and inputs by threshold and memory, estimate "
                        "next to the true number, and its time; for figure 13 and table 5, modeled: hot inputs",
                f"profile --sections data --memory 1%,2%,5%,7%,10%,20% {SKEWED}", quick="--samples 200000"),
        Command("step", "figure 14: the step by phase", f"profile --sections step --policies hybrid,fae {SKEWED}",
                quick="--time-steps 10 --batch-size 256 --set data.synthetic.num_train=60000"),
        Command("compare", "table 4 and figure 12: accuracy, AUC and log loss; tables 6 and 7: moved bytes",
                f"compare --device-rows 10% --seeds 1 {SKEWED}",
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
    published=(
        Published("speed over DLRM on CPU and GPU, on four data sets", "1.80x on average", "FAE, PVLDB 15(1)"),
        Published("speed over XDL, one GPU: Kaggle, Taobao, Terabyte, Avazu", "1.61, 1.86, 2.01, 1.50", "FAE, table 5"),
        Published("speed over DLRM on three data sets", "2.34x on average", "abstract of the first version"),
    ),
    missing=(
        Missing("time and power of V100s (figures 13 to 16, tables 5 and 9)",
                "not available here; ratios are modeled, watts are those of the machine file"),
        Missing("Criteo Kaggle, Terabyte, Taobao", "not included; give --data"),
    ),
)
