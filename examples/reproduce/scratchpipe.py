"""ScratchPipe: a cache that knows what comes."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import MEMORY, ratios
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
    row,
)

DEPTHS = (0, 1, 2, 4, 8)
DESIGNS = {  # policy, and its step
    "hybrid, no cache": ("static", "hybrid"),
    "static cache, no overlap": ("static", "serial"),
    "LRU on demand, no overlap": ("lru", "serial"),
    "ScratchPipe, look-ahead": ("scratchpipe", "look_ahead"),
    "all rows on the device": ("scratchpipe", "device_only"),
}


def findings(records: Records) -> Findings:
    yield (speeds := ratios(records))
    yield Claim("a step at the speed of device memory is faster than DLRM, modeled", speeds.values["ScratchPipe"],
                ">", 1.0)
    lru, scratchpipe = (row(records["hits"]["runs"], policy=name) for name in ("lru", "scratchpipe"))
    hits, step_ms = scratchpipe["row_hit_rate"], scratchpipe["step_ms"]
    yield Claim("knowing the next batches gives more hits than LRU", hits, ">", lru["row_hit_rate"])
    yield Claim("and no more than Belady's bound", less(hits, scratchpipe["belady_row_hit_rate"]), "<", 0.000001)
    yield Claim("overlap hides what serial transfers cost, modeled", step_ms["look_ahead"], "<", step_ms["serial"])
    yield (modeled := designs(records))
    yield Claim("look-ahead is faster than a cache filled on demand, modeled",
                modeled.values["ScratchPipe, look-ahead"], "<", modeled.values["LRU on demand, no overlap"],
                why="such a step waits for planning, as measured on this machine: choosing victims by their next "
                    "use takes longer, and short batches leave little to hide it behind")
    yield (needed := slots(records))
    yield Claim("rows shared by batches make the slots needed fewer than (depth + 1) mean batches, at depth 8",
                needed.details["over_bound"]["depth 8"], "<", 1.0)


def slots(records: Records) -> DerivedTable:
    """Device rows that batches in flight hold, by depth, next to (depth + 1) mean batches."""
    simulated = {depth: records[f"depth-{depth}"] for depth in DEPTHS if f"depth-{depth}" in records}
    needed = [(depth, float(record["least_device_rows"])) for depth, record in simulated.items()]
    bounds = [(depth, (depth + 1) * record["distinct_rows"] / record["batches"]) for depth, record in simulated.items()]
    over_bound = {f"depth {depth}": rows / bound for (depth, rows), (_, bound) in zip(needed, bounds, strict=True)}
    curves = Curves("look-ahead (batches)", "device rows", {"needed": needed, "(depth + 1) mean batches": bounds})
    return DerivedTable("slots", "Device rows that are needed (measured)", "rows",
                        {f"depth {depth}": rows for depth, rows in needed}, curves=curves,
                        details={"over_bound": over_bound})


def designs(records: Records) -> DerivedTable:
    """Milliseconds of a step by design and size of the cache.

    Modelled, with planning as measured here.
    """
    runs = records["hits"]["runs"]
    lines = {
        name: [(100 * run["device_share"], run["step_ms"][step]) for run in runs if run["policy"] == policy]
        for name, (policy, step) in DESIGNS.items()
    }
    return DerivedTable("designs", "Milliseconds of a step by design, at the smallest size (modeled)", "ms",
                        {name: min(points)[1] for name, points in lines.items() if points},
                        curves=Curves("rows on the device (%)", "ms per step", lines))


PAPER = Paper(
    "ScratchPipe: a cache that knows what comes",
    "Choi et al., ISCA 2022 (arXiv 2205.04702); its abstract, the body could not be read",
    commands=(
        Command("data", "locality of the data", f"profile --sections data --memory {MEMORY}", quick="--samples 60000"),
        Command("hits", "hit rate by size of the cache, with Belady's bound, and modeled steps",
                "simulate --machine v100-pcie3",
                full="--policies static,lru,lfu,s3fifo,scratchpipe+window=0,scratchpipe "
                     "--device-rows 7%,10%,15%,20%,30%,50%",
                quick="--policies static,lru,lfu,scratchpipe --device-rows 2%,5%,10% --steps 60 --batch-size 256"),
        *(
            Command(f"depth-{depth}", "slots that look-ahead needs, by depth",
                    f"simulate --policies lru --device-rows 50% --depth {depth}", quick="--steps 40 --batch-size 256")
            for depth in DEPTHS
        ),
    ),
    findings=findings,
    published=(Published("embeddings trained", "at GPU memory speed", "ScratchPipe, abstract"),),
    missing=(
        Missing("numbers of its figures", "only the abstract could be read"),
        Missing("times on its GPUs", "modeled; docs/benchmarks/gpu.md says what was run on one"),
    ),
)
