"""Hotline: popular inputs first, found by learning during training."""
# fmt: off

import math
import re

from adaptive.studies.reproduce.derived_tables import (
    MEMORY,
    SKEWED,
    evaluations_by_step,
    headlines,
    host_step_ms,
    ratios,
    step_model,
    transfers,
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
    less,
    over,
    row,
)

LOGGERS = ",".join(f"hotline+logger=srrip+logger_bytes={size}" for size in (4096, 16384, 65536, 262144))


def findings(records: Records) -> Findings:
    yield (sets := working_set(records))
    yield Claim("a working set of four mini-batches does no worse than one, modeled (figure 22)",
                over(sets.values["4 mini-batches"], sets.values["1 mini-batches"]), ">", 0.999)
    yield (popular := popular_inputs(records))
    learned = popular.values.get("hotline+learn=5%", 0.0) / 100
    room = row(records["data"]["data"]["hot"], memory="5%")["hot_input_share"]
    yield Claim("learning on 5% of an epoch makes over 75% of the inputs popular (section 3.2 of the first version)",
                learned, "about", 0.75,
                why=f"of the inputs, {100 * room:.0f}% look up only the hottest 5% of the rows, which is what there is "
                    "room for; an epoch here is shorter than the paper's")
    yield Claim("learning on 5% finds over 90% of what there is room for", over(learned, room), ">", 0.9,
                why="rare rows do not occur in 5% of such a short epoch; in the paper it has over two million samples")
    yield (sizes := logger_size(popular))
    shares = [share for _, share in sizes.lines["srrip"]]
    yield Claim("the larger the logger, the more popular inputs it finds (figure 23)", shares[-1], ">", shares[0])
    step = records["step"]["step"][1]
    yield Claim("classifying and planning take less than the training of a step",
                step["look_ahead_ms"]["plan"], "<", step["training_ms"]["mlp_backward"])
    hybrid, hotline = (row(records["compare"]["policies"], policy=name) for name in ("hybrid", "hotline"))
    yield Claim("AUC is the baseline's within 0.001 (table 5)", less(hotline["auc"], hybrid["auc"]), "within", 0.001,
                why="rounding differs: sums are taken popular inputs first")
    yield (moved := transfers(records))
    yield Claim("Hotline moves a 5.4th of DLRM's bytes (table 6, Criteo Kaggle, 1 GPU)",
                over(moved.values["DLRM"], moved.values["hotline here"]), "about", 5.4,
                why="rows of inputs that are not popular are moved with their optimizer state, once per batch")
    yield (speeds := ratios(records))
    yield from headlines(speeds, "Hotline", {
        "DLRM": (2.2, "abstract"), "XDL": (3.5, "first version, 1 GPU"), "FAE": (2.3, "first version, 1 GPU"),
    })
    yield evaluations_by_step(records, "auc")
    yield evaluations_by_step(records, "accuracy")


def working_set(records: Records) -> DerivedTable:
    """Speed by size of the working set: figure 22, as we read its first version.

    W mini-batches are regrouped into W, as many of them popular as the popular inputs fill. Rows of the others are
    gathered while the popular ones are trained. Larger sets leave fewer popular inputs over.
    """
    model = step_model(records)
    device, gather = sum(model.on_device().values()), sum(model.misses().values())
    points = []
    for size in (1, 2, 4, 8, 16):
        popular, others = math.floor(model.hot * size), math.ceil((1 - model.hot) * size)
        step_ms = max(popular * device, gather * size) + others * device
        points.append((size, host_step_ms(model) * size / step_ms))
    note = f"{100 * model.hot:.1f}% of the inputs are popular (measured); popular mini-batches are full."
    curves = Curves("mini-batches of a working set", "speed over DLRM's", {"Hotline": points})
    return DerivedTable("working_set", "Hotline's working set: speed over DLRM's, modeled on v100-pcie3", "x",
                        {f"{size} mini-batches": speed for size, speed in points}, note, curves)


def popular_inputs(records: Records) -> DerivedTable:
    """Share of inputs found popular, by learning and by logger: figures 10 and 23."""
    numbers = {run["policy"]: run["policy_numbers"] for run in records["learning"]["runs"]}
    shares = {name: over(run["popular_inputs"], run["seen_inputs"]) for name, run in numbers.items()}
    return DerivedTable("popular_inputs", "Inputs found popular after learning (measured)", "%",
                        {name: 100 * share for name, share in shares.items() if share is not None})


def logger_size(popular: DerivedTable) -> DerivedTable:
    """The same by the logger's size, next to exact counts of all rows."""
    matches = ((re.search(r"logger_bytes=(\d+)", name), share) for name, share in popular.values.items())
    points = sorted((int(match[1]) / 1024, share) for match, share in matches if match)
    exact = max((share for name, share in popular.values.items() if "logger=" not in name), default=0.0)
    ends = [(kib, exact) for kib in (points[0][0], points[-1][0])] if points else []
    curves = Curves("logger (KiB)", "inputs found popular (%)", {"srrip": points, "exact": ends})
    return DerivedTable("logger_size", "Inputs found popular by the logger's size (measured)", "%",
                        {f"{kib:g} KiB": share for kib, share in points} | {"exact counts": exact}, curves=curves)


PAPER = Paper(
    "Hotline: popular inputs first, found by learning during training",
    "Adnan et al., ISCA 2024; figures and tables as of its first version, arXiv 2204.05436v1",
    commands=(
        Command("data", "figure 3: sorted counts; for figures 15 and 22, modeled: popular inputs",
                f"profile --sections data --memory {MEMORY} {SKEWED}",
                full="--samples 1500000 --set data.synthetic.num_train=1500000", quick="--samples 60000"),
        Command("learning", "figures 10 and 23: popular inputs by share learned, and by the logger's size next to "
                            "exact counts",
                f"simulate --policies hotline+learn=1%,hotline+learn=5%,hotline+learn=20%,{LOGGERS} --device-rows 10% "
                f"{SKEWED}",
                full="--set data.synthetic.num_train=1500000",
                quick="--steps 110 --batch-size 512 --set data.synthetic.num_train=60000"),
        Command("step", "figures 2, 4, 16 and 18: the step by phase, classifying next to it",
                f"profile --sections step --policies hybrid,hotline {SKEWED}",
                quick="--time-steps 10 --batch-size 256"),
        Command("compare", "table 5, table 6 and figure 14: quality and bytes",
                f"compare --device-rows 10% --seeds 1 {SKEWED}",
                full="--policies hybrid,fae,hotline,hotline+micro_batches=false --eval-every 100",
                quick="--policies hybrid,hotline --steps 40 --batch-size 512 --eval-every 10 "
                      "--set data.synthetic.num_train=60000 --set data.synthetic.num_eval=10000"),
        Command("batch", "figure 19, modeled: batch size",
                "placements --machine v100-pcie3 --preset rmc2,rmc3 --placements host,fae,hotline "
                "--sweep batch_size=1024,4096,16384"),
        Command("synthetic", "figures 20 and 21, modeled: models of many tables",
                "placements --machine big-basin,zion --preset syn-m1,syn-m2 --placements host,fae,hotline"),
    ),
    findings=findings,
    published=(
        Published("speed over Intel-optimized DLRM", "2.2x", "Hotline, abstract"),
        Published("speed over XDL, Intel-optimized DLRM, FAE on one GPU", "3.5x, 3.5x, 2.3x", "Hotline, first version"),
    ),
    missing=(
        Missing("its accelerator: area, power, lookup engine (figures 5 to 9 and 11 to 13)", "hardware"),
        Missing("training with the working set of four mini-batches (figure 22)",
                "in its first version only; here each mini-batch is a step, so the working set is modeled"),
    ),
)
