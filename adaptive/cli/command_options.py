"""Options of commands that are no settings, each written once: types of parameters, which typer reads."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.flags import DATA, OUTPUT, POLICY, TIERS

SETTINGS, STUDY, MACHINE, RANKS = "Settings", "Study", "Machine", "Ranks"


def _option(name: str, metavar: str | None, panel: str | None = None, *, help: str, **more: Any) -> Any:
    return typer.Option(name, metavar=metavar, help=help, rich_help_panel=panel, **more)


def _rate(name: str, help: str, default: str) -> Any:
    return _option(name, "RATE", MACHINE, help=help, show_default=default)


# fmt: off
# A table: two or three lines an option.

AsJson = Annotated[bool, _option("--json", None, OUTPUT, help="Print one JSON object on stdout.")]
Config = Annotated[Path | None, _option("--config", "FILE", SETTINGS,
    help="Settings from a TOML or JSON file, or the run.json of an earlier run.")]
Sets = Annotated[list[str] | None, _option("--set", "KEY=VALUE", SETTINGS,
    help="Give any setting a value, such as tier.device_rows=10% or policy.NAME=VALUE; may be repeated.")]
ReadingSets = Annotated[list[str] | None, _option("--set", "KEY=VALUE", SETTINGS,
    help="Read the run with another tier.*, data.* or eval_batch_size, such as tier.host=mmap:DIR; may be repeated.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", show_default=False, help="Run directory.")]
Ranks = Annotated[int | None, _option("--ranks", "NUMBER", OUTPUT, min=1,
    help="Number of processes to start on this machine, each with a part of the rows (docs/explanation/ranks.md). "
         "Under torchrun, which starts them itself, leave it out.")]
Overwrite = Annotated[bool, _option("--overwrite", None, OUTPUT, help="Replace what is in --out already.")]
Policies = Annotated[str, _option("--policies", "LIST", POLICY,
    help="Policies, such as hybrid,lru,slipstream+threshold=0.02. --set policy.NAME=VALUE goes to all that have such "
         "a parameter.")]
Markdown = Annotated[Path | None, _option("--markdown", "FILE", OUTPUT, help="Write the tables as Markdown.")]
Csv = Annotated[Path | None, _option("--csv", "FILE", OUTPUT, help="Write a line per policy.")]
Plot = Annotated[Path | None, _option("--plot", "FILE", OUTPUT,
    help="Draw the curves as PNG (needs the extra 'report': matplotlib).")]
TimeSteps = Annotated[int, _option("--time-steps", "STEPS", STUDY, min=5,
    help="Steps of each policy that is timed, as often as it takes.")]
StudyFolder = Annotated[Path | None, _option("--out", "DIR", OUTPUT,
    help="Write all of it there: the record as JSON, tables as CSV, pictures.")]

# run
DryRun = Annotated[bool, _option("--dry-run", None, OUTPUT, help="Print memory per tier and steps; write nothing.")]
Resume = Annotated[Path | None, _option("--resume", "RUNDIR", OUTPUT,
    help="Resume a run that was stopped or killed, from its newest checkpoint; --set save_every=N makes them on the "
         "way. Its settings stay, but --steps and --epochs may be given. Name a policy, rule or model that is a file "
         "or module again: --policy, --skip, --model.")]
AutoResumeRun = Annotated[bool, _option("--auto-resume", None, OUTPUT,
    help="Begin the run in --out, or resume it if it is there, on as many ranks as there are: for launchers that "
         "start the same command again (torchrun --max-restarts).")]
ForceUnlock = Annotated[bool, _option("--force-unlock", None, OUTPUT,
    help="Use the run directory though a process of another machine or container seems to hold it: only if you know "
         "that it is gone.")]

# eval, predict, export
EvalData = Annotated[str | None, _option("--data", "SPEC", show_default=False,
    help="All samples of these data, such as csv:PATH; a path alone is of the run's kind. `predict` needs no labels. "
         "Default: the run's own evaluation part.")]
GroupBy = Annotated[str | None, _option("--group-by", "FEATURE", show_default=False,
    help="Also GAUC, the mean AUC within the samples of each value of a feature, such as the user.")]
ScoresFile = Annotated[Path, _option("--out", "FILE", show_default=False,
    help="Written when it is whole: .csv, .parquet (needs pyarrow) or .npy.")]
ExportFolder = Annotated[Path, _option("--out", "DIR", show_default=False,
    help="A new folder, made when all of it is written.")]
ExportFormat = Annotated[str, _option("--to", "torch|safetensors|onnx", help="File format of the tensors.")]
ReportPaths = Annotated[list[Path], typer.Argument(metavar="PATH...", show_default=False,
    help="Run directories, a folder of runs, the directory of a comparison or a profile, or a file that simulate "
         "--json printed. Several of one kind stand side by side.")]
ReportFile = Annotated[Path, _option("--out", "FILE", help="Where the page goes; a page that is there is replaced.")]

# compare
Seeds = Annotated[int, _option("--seeds", "NUMBER", STUDY, min=1,
    help="Trainings of each policy, with --seed, --seed + 1, ...; also the built-in stream's seed.")]
Sweep = Annotated[list[str] | None, _option("--sweep", "KEY=LIST", STUDY,
    help="Train every policy with each of these values of a setting that --set takes, such as "
         "batch_size=256,1024,4096; may be repeated: every combination. KEY+KEY=VALUE+VALUE,... varies keys "
         "together.")]
AucBudget = Annotated[float, _option("--auc-budget", "AUC", STUDY, min=0.0,
    help="Loss of AUC that a policy may cause.")]
AutoResumeComparison = Annotated[bool, _option("--auto-resume", None, OUTPUT,
    help="Resume the comparison in --out: keep its finished runs of the same settings, train what is missing (more "
         "--seeds, another policy, what was stopped).")]
NoRanks = Annotated[int | None, _option("--ranks", None, STUDY, hidden=True,
    help="Refused: compare trains in one process.")]

# prepare, vocabulary, report, config, doctor
PreparedFolder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False,
    help="New folder for the prepared data.")]
PreparedData = Annotated[str, _option("--data", "SPEC", DATA, help="Data set, as of `run`.")]
Schema = Annotated[Path | None, _option("--schema", "FILE", DATA, help="Schema of csv:PATH or parquet:PATH.")]
VocabularyPlace = Annotated[Path, typer.Argument(metavar="RUN",
    help="Run directory, prepared data, or the folder of a vocabulary.")]
VocabularyTable = Annotated[str | None, _option("--table", "NAME", help="Without it: what tables are there.")]
VocabularyFile = Annotated[Path | None, _option("--out", "FILE",
    help="Write row, kind and id as tab-separated lines, not to stdout.")]
SettingKeys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", show_default=False,
    help="Sections or keys, such as tier or data.holdout.")]
SettingsPage = Annotated[bool, _option("--markdown", None, help="Print the page docs/reference/settings.md.")]
MeasuredRanks = Annotated[int | None, _option("--ranks", "NUMBER", min=2,
    help="Start this many processes on this machine and measure what they exchange: interface, latency, bandwidth. "
         "Under torchrun, which starts them itself, leave it out.")]

# profile
Sections = Annotated[str, _option("--sections", "LIST", STUDY, help="Parts: data, step, movement.")]
Samples = Annotated[int, _option("--samples", "NUMBER", STUDY, min=0, help="data: samples to count, at most; 0: all.")]
Memory = Annotated[str, _option("--memory", "SIZES", STUDY,
    help="data: memory for hot rows: bytes (512MiB), per cent of all rows (10%) or rows.")]
SampleShare = Annotated[str, _option("--sample", "SHARE", STUDY,
    help="data: share of the inputs for the sampled curve and FAE's estimate.")]
MovementSteps = Annotated[int, _option("--steps", "STEPS", STUDY, min=1, help="movement: steps to train.")]
MovementEvery = Annotated[int, _option("--every", "STEPS", STUDY, min=1,
    help="movement: steps from reading to reading.")]
PictureLink = Annotated[str, _option("--link", "RATE", OUTPUT,
    help="step.png: link with which what crosses is modelled without a GPU.")]
SaveMachine = Annotated[Path | None, _option("--save", "FILE", OUTPUT,
    help="Write the measured rates of this machine, which simulate and placements read as --machine FILE.")]

# placements
Machines = Annotated[str, _option("--machine", "LIST", MACHINE,
    help="Machines: dual-cpu, big-basin, zion, v100-pcie3, a100, h200; here (measured now); or machine files.")]
Shapes = Annotated[str | None, _option("--preset", "LIST", STUDY,
    help="Shapes of models: rmc1 to rmc4, syn-m1, syn-m2, m1prod to m3prod, mlperf, sweep; or TOML files. Without "
         "it: the model and data of the other options.")]
Placements = Annotated[str, _option("--placements", "LIST", STUDY, help="Placements to compare.")]
BatchSizes = Annotated[str | None, _option("--batch-size", "LIST", STUDY, help="Samples of a step, else the shape's.")]
ShapeSweep = Annotated[list[str] | None, _option("--sweep", "KEY=LIST", STUDY,
    help="Vary num_dense, num_sparse, hash_size, lookups, mlp (64^2,1024^4) or batch_size; once or twice.")]
Watts = Annotated[list[str] | None, _option("--watts", "NAME=WATTS", MACHINE,
    help="Power of a machine; may be repeated.")]
Measure = Annotated[bool, _option("--measure", None, STUDY,
    help="Train the placements that exist here, too; with --sweep at each of its points.")]

# simulate
SimulatedPolicies = Annotated[str | None, _option("--policies", "LIST", POLICY, show_default="lru,lfu",
    help="Policies, such as lru,lfu+half_life=500,scratchpipe. --set policy.NAME=VALUE goes to all that have such a "
         "parameter.")]
DeviceSizes = Annotated[str | None, _option("--device-rows", "SIZES", TIERS, show_default="1%,5%,10%,20%,50%",
    help="Sizes of the device tier: rows (100000), per cent of all rows (10%), bytes (512MiB) or auto.")]
Width = Annotated[int | None, _option("--embedding-dim", "WIDTH", TIERS, min=1, max=4096,
    help="Values in a row; else model.embedding_dim, as a preset gives it, or 16.")]
MachineFile = Annotated[str | None, _option("--machine", "FILE", MACHINE,
    help="Machine file, as `profile --save FILE` writes it, or a preset (see `placements`). With measured rates, the "
         "report includes the expected step time. The options below win over it.")]
Link = Annotated[str | None, _rate("--link", "Between the tiers, each way.", "50GB/s")]
DeviceBandwidth = Annotated[str | None, _rate("--device-bandwidth", "Memory of the device.", "4000GB/s")]
HostBandwidth = Annotated[str | None, _rate("--host-bandwidth", "Memory of the host, random rows.", "100GB/s")]
DenseTime = Annotated[float | None, _option("--dense-ms", "MS", MACHINE, min=0.0, show_default="1.0",
    help="Milliseconds of the dense part of a step.")]
DenseBytes = Annotated[int | None, _option("--dense-bytes", "BYTES", MACHINE, min=0, max=2 ** 50, show_default="0",
    help="Of all dense weights, as they cross at each step of XDL: adds its modelled step.")]
RankNumbers = Annotated[str | None, _option("--ranks", "LIST", RANKS,
    help="Numbers of ranks, such as 2,8,64: report the bytes that a rank would send in a step, by kind, instead of "
         "hit rates (docs/explanation/ranks.md).")]
SaturatedShare = Annotated[float | None, _option("--saturated", "SHARE", RANKS, min=0.0, max=1.0, show_default="0.5",
    help="With --ranks: share of the requests that are for saturated rows, whose gradients are not sent; the report "
         "of a run on ranks has the real one.")]

# reproduce
Paper = Annotated[str | None, typer.Argument(metavar="PAPER", show_default=False,
    help="tutorial, fae, hotline, scratchpipe, slipstream, zion; or a Python file such as theirs in "
         "examples/reproduce, which is run.")]
ListPapers = Annotated[bool, _option("--list", None, help="List the papers with what is reproduced.")]
Quick = Annotated[bool, _option("--quick", None, help="Under a minute: less data, fewer steps.")]
PaperSeeds = Annotated[int | None, _option("--seeds", "NUMBER", min=1,
    help="Trainings of each policy that is compared.")]
Data = Annotated[str | None, _option("--data", "SPEC", DATA, help="Data, as of `run`.")]
PaperFolder = Annotated[Path | None, _option("--out", "DIR", OUTPUT,
    help="Records, pictures, report.md and report.html; new or empty. Default runs/reproduce-PAPER.")]
# fmt: on
