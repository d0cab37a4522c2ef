"""The tutorial's three sessions: skew, the baseline's step, training with hot inputs."""
# fmt: off

from adaptive.studies.reproduce.derived_tables import SKEWED
from adaptive.studies.reproduce.paper import Claim, Command, Findings, Missing, Paper, Published, Records, row


def findings(records: Records) -> Findings:
    data = records["data"]["data"]
    yield Claim("one row of a table gets over 1000 times the lookups of its median row",
                row(data["tables"], table="C3")["hottest_over_median"], ">", 1000)
    sampled = row(data["hot"], memory="25%")["sampled"]
    yield Claim("44.4% of the inputs are hot, for rows counted in a sample of 10% of 100,000 inputs and a quarter of "
                "the tables' memory, as 512 MB are of Criteo Kaggle's", sampled["hot_input_share"], "about", 0.444,
                why="as much memory fits all rows that were seen, so the share is that of inputs without a row that "
                    "the sample does not have: it follows from how many rows are rare")
    yield Claim("a sample of 10% finds over 60% of the rows that are hot with 5% of the memory",
                row(data["hot"], memory="5%")["sampled"]["same_rows_share"], ">", 0.6)
    phases = records["step"]["step"][0]["training_ms"]
    yield Claim("the baseline's largest phase is the MLPs' backward pass, not the embeddings",
                phases["mlp_backward"], ">", phases["embedding"])
    hybrid, fae = (row(records["compare"]["policies"], policy=name) for name in ("hybrid", "fae"))
    yield Claim("fae moves less between host and device than the baseline", fae["bytes_h2d"], "<", hybrid["bytes_h2d"])


PAPER = Paper(
    "The tutorial's three sessions: skew, the baseline's step, training with hot inputs",
    "Tutorial on training recommendation models efficiently; FAE (Adnan et al., PVLDB 15(1), 2022) is the work it uses",
    commands=(
        Command("data", "session 1, skewness of the accesses of each table, full and sampled",
                f"profile --sections data --memory 1MiB,5%,25% --sample 10% --samples 100000 {SKEWED}"),
        Command("step", "session 2, the baseline's step by phase, embeddings on the host",
                "profile --sections step --policies hybrid",
                full="--batch-size 1024", quick="--time-steps 10 --batch-size 256"),
        Command("compare", "session 3, training with hot inputs next to the baseline",
                "compare --policies hybrid,fae --device-rows 10% --seeds 1",
                quick="--steps 40 --batch-size 512 --set data.synthetic.num_train=60000 "
                      "--set data.synthetic.num_eval=10000"),
    ),
    findings=findings,
    published=(
        Published("hot inputs of its 100,001 samples at 512 MB, 10% sampled", "44.4%",
                  "tutorial, hands-on session on FAE"),
    ),
    missing=(
        Missing("its train.npz of 100,001 Criteo samples", "not included; give --data criteo:PATH for the same data"),
        Missing("times on a GPU", "measured on this machine"),
    ),
)
