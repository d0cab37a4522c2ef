"""Options of commands that are no settings, each written once: types of parameters, which typer reads."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.flags import DATA, OUTPUT, POLICY, TIERS

SETTINGS, STUDY, MACHINE, RANKS = "Settings", "Study", "Machine", "Ranks"


def _option(name: str, metavar: str | None, help: str, panel: str | None = None, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=panel, **more)


AsJson = Annotated[bool, _option("--json", None, "Print one JSON object on stdout.", OUTPUT)]
Config = Annotated[
    Path | None,
    _option("--config", "FILE", "Settings from a TOML or JSON file, or the run.json of an earlier run.", SETTINGS),
]
Sets = Annotated[
    list[str] | None,
    _option(
        "--set",
        "KEY=VALUE",
        "Give any setting a value, such as tier.device_rows=10% or policy.NAME=VALUE; may be repeated.",
        SETTINGS,
    ),
]
ReadingSets = Annotated[
    list[str] | None,
    _option(
        "--set",
        "KEY=VALUE",
        "Read the run with another tier.*, data.* or eval_batch_size, such as tier.host=mmap:DIR; may be repeated.",
        SETTINGS,
    ),
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.", show_default=False)]
Ranks = Annotated[
    int | None,
    _option(
        "--ranks",
        "NUMBER",
        "Number of processes to start on this machine, each with a part of the rows (docs/ranks.md). Under torchrun, "
        "which starts them itself, leave it out.",
        OUTPUT,
        min=1,
    ),
]
Overwrite = Annotated[bool, _option("--overwrite", None, "Replace what is in --out already.", OUTPUT)]
Policies = Annotated[
    str,
    _option(
        "--policies",
        "LIST",
        "Policies, such as hybrid,lru,slipstream+threshold=0.02. --set policy.NAME=VALUE goes to all that have such a "
        "parameter.",
        POLICY,
    ),
]
Markdown = Annotated[Path | None, _option("--markdown", "FILE", "Write the tables as Markdown.", OUTPUT)]
Csv = Annotated[Path | None, _option("--csv", "FILE", "Write a line per policy.", OUTPUT)]
Plot = Annotated[
    Path | None, _option("--plot", "FILE", "Draw the curves as PNG (needs the extra 'report': matplotlib).", OUTPUT)
]
TimeSteps = Annotated[
    int, _option("--time-steps", "STEPS", "Steps of each policy that is timed, as often as it takes.", STUDY, min=5)
]
StudyFolder = Annotated[
    Path | None,
    _option("--out", "DIR", "Write all of it there: the record as JSON, tables as CSV, pictures.", OUTPUT),
]

# run
DryRun = Annotated[bool, _option("--dry-run", None, "Print memory per tier and steps; write nothing.", OUTPUT)]
Resume = Annotated[
    Path | None,
    _option(
        "--resume",
        "RUNDIR",
        "Resume a run that was stopped or killed, from its newest checkpoint; --set save_every=N makes them on the "
        "way. Its settings stay, but --steps and --epochs may be given. Name a policy, rule or model that is a file or "
        "module again: --policy, --skip, --model.",
        OUTPUT,
    ),
]
AutoResumeRun = Annotated[
    bool,
    _option(
        "--auto-resume",
        None,
        "Begin the run in --out, or resume it if it is there, on as many ranks as there are: for launchers that start "
        "the same command again (torchrun --max-restarts).",
        OUTPUT,
    ),
]
ForceUnlock = Annotated[
    bool,
    _option(
        "--force-unlock",
        None,
        "Use the run directory though a process of another machine or container seems to hold it: only if you know "
        "that it is gone.",
        OUTPUT,
    ),
]

# eval, predict, export
EvalData = Annotated[
    str | None,
    _option(
        "--data",
        "SPEC",
        "All samples of these data, such as csv:PATH; a path alone is of the run's kind. `predict` needs no labels. "
        "Default: the run's own evaluation part.",
        show_default=False,
    ),
]
GroupBy = Annotated[
    str | None,
    _option(
        "--group-by",
        "FEATURE",
        "Also GAUC, the mean AUC within the samples of each value of a feature, such as the user.",
        show_default=False,
    ),
]
ScoresFile = Annotated[
    Path,
    _option("--out", "FILE", "Written when it is whole: .csv, .parquet (needs pyarrow) or .npy.", show_default=False),
]
ExportFolder = Annotated[
    Path, _option("--out", "DIR", "A new folder, made when all of it is written.", show_default=False)
]
ExportFormat = Annotated[str, _option("--to", "torch|safetensors|onnx", "File format of the tensors.")]
ReportPaths = Annotated[
    list[Path],
    typer.Argument(
        metavar="PATH...",
        help="Run directories, a folder of runs, the directory of a comparison or a profile, or a file that simulate "
        "--json printed. Several of one kind stand side by side.",
        show_default=False,
    ),
]
ReportFile = Annotated[Path, _option("--out", "FILE", "Where the page goes; a page that is there is replaced.")]

# compare
Seeds = Annotated[
    int,
    _option(
        "--seeds",
        "NUMBER",
        "Trainings of each policy, with --seed, --seed + 1, ...; also the built-in stream's seed.",
        STUDY,
        min=1,
    ),
]
Sweep = Annotated[
    list[str] | None,
    _option(
        "--sweep",
        "KEY=LIST",
        "Train every policy with each of these values of a setting that --set takes, such as "
        "batch_size=256,1024,4096; may be repeated: every combination. KEY+KEY=VALUE+VALUE,... varies keys together.",
        STUDY,
    ),
]
AucBudget = Annotated[float, _option("--auc-budget", "AUC", "Loss of AUC that a policy may cause.", STUDY, min=0.0)]
AutoResumeComparison = Annotated[
    bool,
    _option(
        "--auto-resume",
        None,
        "Resume the comparison in --out: keep its finished runs of the same settings, train what is missing (more "
        "--seeds, another policy, what was stopped).",
        OUTPUT,
    ),
]
NoRanks = Annotated[int | None, _option("--ranks", None, "Refused: compare trains in one process.", STUDY, hidden=True)]

# prepare, vocabulary, report, config, doctor
PreparedFolder = Annotated[
    Path, typer.Argument(metavar="DIR", help="New folder for the prepared data.", show_default=False)
]
PreparedData = Annotated[str, _option("--data", "SPEC", "Data set, as of `run`.", DATA)]
Schema = Annotated[Path | None, _option("--schema", "FILE", "Schema of csv:PATH or parquet:PATH.", DATA)]
VocabularyPlace = Annotated[
    Path, typer.Argument(metavar="RUN", help="Run directory, prepared data, or the folder of a vocabulary.")
]
VocabularyTable = Annotated[str | None, _option("--table", "NAME", "Without it: what tables are there.")]
VocabularyFile = Annotated[
    Path | None, _option("--out", "FILE", "Write row, kind and id as tab-separated lines, not to stdout.")
]
SettingKeys = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY]...", help="Sections or keys, such as tier or data.holdout.", show_default=False),
]
SettingsPage = Annotated[bool, _option("--markdown", None, "Print the page docs/settings.md.")]
MeasuredRanks = Annotated[
    int | None,
    _option(
        "--ranks",
        "NUMBER",
        "Start this many processes on this machine and measure what they exchange: interface, latency, bandwidth. "
        "Under torchrun, which starts them itself, leave it out.",
        min=2,
    ),
]

# profile
Sections = Annotated[str, _option("--sections", "LIST", "Parts: data, step, movement.", STUDY)]
Samples = Annotated[int, _option("--samples", "NUMBER", "data: samples to count, at most; 0: all.", STUDY, min=0)]
Memory = Annotated[
    str,
    _option(
        "--memory", "SIZES", "data: memory for hot rows: bytes (512MiB), per cent of all rows (10%) or rows.", STUDY
    ),
]
SampleShare = Annotated[
    str,
    _option("--sample", "SHARE", "data: share of the inputs for the sampled curve and FAE's estimate.", STUDY),
]
MovementSteps = Annotated[int, _option("--steps", "STEPS", "movement: steps to train.", STUDY, min=1)]
MovementEvery = Annotated[int, _option("--every", "STEPS", "movement: steps from reading to reading.", STUDY, min=1)]
PictureLink = Annotated[
    str,
    _option("--link", "RATE", "step.png: link with which what crosses is modelled without a GPU.", OUTPUT),
]
SaveMachine = Annotated[
    Path | None,
    _option(
        "--save",
        "FILE",
        "Write the measured rates of this machine, which simulate and placements read as --machine FILE.",
        OUTPUT,
    ),
]

# placements
Machines = Annotated[
    str,
    _option(
        "--machine",
        "LIST",
        "Machines: dual-cpu, big-basin, zion, v100-pcie3, a100, h200; here (measured now); or machine files.",
        MACHINE,
    ),
]
Shapes = Annotated[
    str | None,
    _option(
        "--preset",
        "LIST",
        "Shapes of models: rmc1 to rmc4, syn-m1, syn-m2, m1prod to m3prod, mlperf, sweep; or TOML files. Without it: "
        "the model and data of the other options.",
        STUDY,
    ),
]
Placements = Annotated[str, _option("--placements", "LIST", "Placements to compare.", STUDY)]
BatchSizes = Annotated[str | None, _option("--batch-size", "LIST", "Samples of a step, else the shape's.", STUDY)]
ShapeSweep = Annotated[
    list[str] | None,
    _option(
        "--sweep",
        "KEY=LIST",
        "Vary num_dense, num_sparse, hash_size, lookups, mlp (64^2,1024^4) or batch_size; once or twice.",
        STUDY,
    ),
]
Watts = Annotated[list[str] | None, _option("--watts", "NAME=WATTS", "Power of a machine; may be repeated.", MACHINE)]
Measure = Annotated[
    bool,
    _option("--measure", None, "Train the placements that exist here, too; with --sweep at each of its points.", STUDY),
]

# simulate
SimulatedPolicies = Annotated[
    str | None,
    _option(
        "--policies",
        "LIST",
        "Policies, such as lru,lfu+half_life=500,scratchpipe. --set policy.NAME=VALUE goes to all that have such a "
        "parameter.",
        POLICY,
        show_default="lru,lfu",
    ),
]
DeviceSizes = Annotated[
    str | None,
    _option(
        "--device-rows",
        "SIZES",
        "Sizes of the device tier: rows (100000), per cent of all rows (10%), bytes (512MiB) or auto.",
        TIERS,
        show_default="1%,5%,10%,20%,50%",
    ),
]
Width = Annotated[
    int | None,
    _option(
        "--embedding-dim",
        "WIDTH",
        "Values in a row; else model.embedding_dim, as a preset gives it, or 16.",
        TIERS,
        min=1,
        max=4096,
    ),
]
MachineFile = Annotated[
    str | None,
    _option(
        "--machine",
        "FILE",
        "Machine file, as `profile --save FILE` writes it, or a preset (see `placements`). With measured rates, the "
        "report includes the expected step time. The options below win over it.",
        MACHINE,
    ),
]


def _rate(name: str, help: str, default: str) -> Any:
    return _option(name, "RATE", help, MACHINE, show_default=default)


Link = Annotated[str | None, _rate("--link", "Between the tiers, each way.", "50GB/s")]
DeviceBandwidth = Annotated[str | None, _rate("--device-bandwidth", "Memory of the device.", "4000GB/s")]
HostBandwidth = Annotated[str | None, _rate("--host-bandwidth", "Memory of the host, random rows.", "100GB/s")]
DenseTime = Annotated[
    float | None,
    _option("--dense-ms", "MS", "Milliseconds of the dense part of a step.", MACHINE, min=0.0, show_default="1.0"),
]
DenseBytes = Annotated[
    int | None,
    _option(
        "--dense-bytes",
        "BYTES",
        "Of all dense weights, as they cross at each step of XDL: adds its modelled step.",
        MACHINE,
        min=0,
        max=2**50,
        show_default="0",
    ),
]
RankNumbers = Annotated[
    str | None,
    _option(
        "--ranks",
        "LIST",
        "Numbers of ranks, such as 2,8,64: report the bytes that a rank would send in a step, by kind, instead of hit "
        "rates (docs/ranks.md).",
        RANKS,
    ),
]
SaturatedShare = Annotated[
    float | None,
    _option(
        "--saturated",
        "SHARE",
        "With --ranks: share of the requests that are for saturated rows, whose gradients are not sent; the report of "
        "a run on ranks has the real one.",
        RANKS,
        min=0.0,
        max=1.0,
        show_default="0.5",
    ),
]

# reproduce
Paper = Annotated[
    str | None,
    typer.Argument(
        metavar="PAPER",
        help="tutorial, fae, hotline, scratchpipe, slipstream, zion; or a Python file such as theirs in "
        "examples/reproduce, which is run.",
        show_default=False,
    ),
]
ListPapers = Annotated[bool, _option("--list", None, "List the papers with what is reproduced.")]
Quick = Annotated[bool, _option("--quick", None, "Under a minute: less data, fewer steps.")]
PaperSeeds = Annotated[int | None, _option("--seeds", "NUMBER", "Trainings of each policy that is compared.", min=1)]
Data = Annotated[str | None, _option("--data", "SPEC", "Data, as of `run`.", DATA)]
PaperFolder = Annotated[
    Path | None,
    _option(
        "--out",
        "DIR",
        "Records, pictures, report.md and report.html; new or empty. Default runs/reproduce-PAPER.",
        OUTPUT,
    ),
]
