"""Table placements: CPU server, Big Basin, Zion."""
# fmt: off

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

PEAKS = "steps are modeled from peak rates and assumed shares of them, which only order placements"
SWEPT = "placements --machine big-basin,dual-cpu --preset sweep"


def findings(records: Records) -> Findings:
    def placed(command: str, **point: object) -> Records:
        return row(records[command]["lines"], **point)

    m2 = placed("placements", shape="m2prod", machine="big-basin", placement="device")
    yield Claim("M2 on Big Basin: tables on the accelerators beat main memory (figure 14: 4.0x)", m2["of_host"],
                ">", 1.5)
    m3 = placed("placements", shape="m3prod", machine="zion", placement="host")
    yield Claim("Zion holds M3 in main memory, faster than Big Basin can (figure 14)", float(m3["fits"]), ">", 0.5)
    m2 = placed("placements", shape="m2prod", machine="zion", placement="device")
    yield Claim("on Zion, whose accelerators talk through the host, main memory beats them for M2 (figure 14: 4.2 to "
                "1.35)", m2["of_host"], "<", 1.0,
                why="the model is the cause, not the data: with 2 to 100% of a batch's rows distinct, the accelerators "
                    "stay 1.02 to 1.25 times as fast. The exchange through the host takes 3.3 ms at peak rates; the "
                    "paper's ratio needs over ten times that, and the model has no term for it (copies in software, "
                    "several sockets)")
    m3 = placed("placements", shape="m3prod", machine="big-basin", placement="device")
    yield Claim("M3 does not fit Big Basin's accelerators", float(m3["fits"]), "<", 0.5)
    for machine, place, other, ratio in (
        ("big-basin", "device", "host", 4.0), ("big-basin", "remote", "host", 2.3),
        ("zion", "device", "host", 0.32), ("zion", "remote", "host", 0.87),
    ):
        at = {"shape": "m2prod", "machine": machine}
        fast, slow = placed("placements", placement=place, **at), placed("placements", placement=other, **at)
        yield Claim(f"M2 on {machine}: {place} is {ratio:g} times as fast as {other} (figure 14, read off the plot)",
                    over(fast["samples_per_s"], slow["samples_per_s"]), "about", ratio, why=PEAKS)
    for dense, sparse, ratio in ((64, 4, 1.92), (64, 128, 3.06), (4096, 4, 4.5), (4096, 128, 4.44)):
        point = {"point": {"num_dense": str(dense), "num_sparse": str(sparse)}}
        device = placed("features", **point, machine="big-basin", placement="device")
        server = placed("features", **point, machine="dual-cpu", placement="host")
        yield Claim(f"Big Basin has {ratio:g} times the throughput of the CPU server with {dense} dense and {sparse} "
                    "sparse features (figure 10)", over(device["samples_per_s"], server["samples_per_s"]),
                    "about", ratio, why=PEAKS)
    wide = {"point": {"num_dense": "4096", "num_sparse": "4"}}
    device = placed("features", **wide, machine="big-basin", placement="device")
    server = placed("features", **wide, machine="dual-cpu", placement="host")
    yield Claim("4096 dense and 4 sparse features: Big Basin is over twice as fast as the CPU server (figure 10)",
                over(device["samples_per_s"], server["samples_per_s"]), ">", 2.0)
    small, large = (placed("batch", batch_size=n, machine="big-basin", placement="device") for n in (200, 12800))
    yield Claim("larger batches: throughput of accelerators does not fall (figure 11)",
                over(large["samples_per_s"], small["samples_per_s"]), ">", 0.9)
    narrow, mlp = (placed("mlp", point={"mlp": name}, machine="big-basin", placement="device")
                   for name in ("64^2", "1024^4"))
    yield Claim("wider MLPs: throughput falls (figure 13)", mlp["samples_per_s"], "<", narrow["samples_per_s"])
    here = row(records["here"]["measured"], placement="device", batch_size=1024)
    yield Claim("the model of this machine is within 25% of the measured step (device)", here["error_share"],
                "within", 0.25,
                why="rates are measured at the stream's batch size; a short step has fixed costs that the model does "
                    "not include")
    yield batch_quality(records)
    trained = records["trained"]["policies"]
    yield Claim("larger batches learn less from the same samples at the same rate (figure 15)",
                trained[0]["auc"], ">", trained[-1]["auc"])


def batch_quality(records: Records) -> DerivedTable:
    """AUC of the held-out samples by batch size, after equally many samples: figure 15."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for policy in records["trained"]["policies"]:
        if policy["auc"] is not None:
            lines.setdefault(policy["policy"], []).append((int(policy["swept"]["batch_size"]), policy["auc"]))
    values = {f"{name}, batches of {size}": auc for name, points in lines.items() for size, auc in points}
    return DerivedTable("batch_quality", "Quality by batch size, after equally many samples, same rate (measured)",
                        "AUC", values, curves=Curves("samples per batch", "AUC of held-out samples", lines))


PAPER = Paper(
    "Table placements: CPU server, Big Basin, Zion",
    "Acun et al., HPCA 2021 (arXiv 2011.05497)",
    commands=(
        Command("placements", "table III, figures 1 and 14: throughput and throughput per watt by placement and "
                              "machine",
                "placements --machine big-basin,zion,dual-cpu --preset m1prod,m2prod,m3prod "
                "--placements device,host,remote,tables"),
        Command("features", "figure 10: accelerators over CPUs by dense and sparse features, throughput and that per "
                            "watt",
                f"{SWEPT} --placements device,host --sweep num_dense=64,256,1024,4096 "
                "--sweep num_sparse=4,16,64,128"),
        Command("batch", "figure 11: batch size",
                f"{SWEPT} --placements device,host --sweep batch_size=200,800,3200,12800"),
        Command("hash", "figure 12: rows of a table",
                f"{SWEPT} --placements device,host,tables --sweep hash_size=10000,100000,10000000,100000000"),
        Command("mlp", "figure 13: MLPs", f"{SWEPT} --placements device,host --sweep mlp=64^2,256^2,1024^2,1024^4"),
        Command("here", "figure 11, its CPU half: trained here by batch size, next to the model",
                "placements --machine here --placements device,host --measure --sweep batch_size=256,1024,4096",
                full="--time-steps 20", quick="--time-steps 10"),
        Command("tables", "figures 6 and 7: rows of the tables, lookups of a sample",
                "profile --sections data --memory 1%,10%", quick="--samples 60000"),
        Command("trained", "figure 15: quality by batch size, trained here with equally many samples",
                "compare --policies hybrid --seeds 1", full="--sweep batch_size=256,1024,4096",
                quick="--sweep batch_size=512,4096 --set data.synthetic.num_train=60000 "
                      "--set data.synthetic.num_eval=20000"),
    ),
    findings=findings,
    published=(
        Published("M2 on Big Basin: accelerators, main memory, remote", "4.0 / 1.0 / 2.3",
                  "Acun et al., figure 14, read off the plot"),
        Published("M2 on Zion, on the same scale", "1.35 / 4.2 / 3.65", "Acun et al., figure 14, read off the plot"),
        Published("8 V100 over the CPU servers of table III, M1 / M2 / M3: throughput; per watt",
                  "2.25 / 0.85 / 0.67; 4.3 / 2.8 / 0.43", "Acun et al., table III"),
        Published("Big Basin over the CPU server, 64 to 4096 dense and 4 to 128 sparse features: throughput; per watt",
                  "1.9 to 5.6; 0.8 to 2.3", "Acun et al., figure 10"),
    ),
    missing=(
        Missing("ratios to the CPU servers of table III", "no model of 14 to 36 servers that train together"),
        Missing("EASGD, Hogwild, readers, quality by batch size at their scale (figure 15)",
                "one process here; compare --sweep batch_size=... shows quality by batch size for your data"),
    ),
)
