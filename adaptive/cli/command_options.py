"""Options of commands that are no settings, as types of parameters that typer reads."""

from pathlib import Path
from typing import Annotated, Any

import typer

from adaptive.cli.flags import DATA, OUTPUT, POLICY, TIERS, TRAINING

SETTINGS, STUDY = "Settings", "Study"


def _option(names: str, metavar: str | None, panel: str | None = None, *, help: str, **more: Any) -> Any:
    return typer.Option(*names.split(), metavar=metavar, help=help, rich_help_panel=panel, **more)


# fmt: off
# A table: two or three lines an option.

Verbose = Annotated[bool, _option("--verbose", None, OUTPUT,
    help="Also print stages, tables and traffic.")]
AsJson = Annotated[bool, _option("--json", None, OUTPUT, help="Print one JSON object on stdout.")]
Config = Annotated[Path | None, _option("--config", "FILE", SETTINGS,
    help="Read settings from a TOML or JSON file, or from the run.json of an earlier run.")]
Sets = Annotated[list[str] | None, _option("--set", "KEY=VALUE", SETTINGS,
    help="Set any setting, such as tier.device_rows=10% or policy.NAME=VALUE; repeatable. `config` lists all.")]
ReadingSets = Annotated[list[str] | None, _option("--set", "KEY=VALUE", SETTINGS,
    help="Change a tier.* or data.* setting or eval_batch_size for reading, such as tier.host=mmap:DIR; repeatable.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", show_default=False, help="Run directory.")]
Ranks = Annotated[int | None, _option("--ranks", "NUMBER", OUTPUT, min=1,
    help="Number of processes to start on this machine, each with a part of the rows (docs/explanation/ranks.md). "
         "Under torchrun, which starts them itself, leave it out.")]
Overwrite = Annotated[bool, _option("--overwrite", None, OUTPUT, help="Replace an earlier result in --out.")]
Policies = Annotated[str, _option("--policies --policy", "LIST", POLICY,
    help="Policies, such as hybrid,lru,lfu+half_life=500. --set policy.NAME=VALUE applies to all policies that "
         "have the parameter.")]
Markdown = Annotated[Path | None, _option("--markdown", "FILE", OUTPUT, help="Write the tables as Markdown.")]
Csv = Annotated[Path | None, _option("--csv", "FILE", OUTPUT, help="Write one line per policy as CSV.")]
Plot = Annotated[Path | None, _option("--plot", "FILE", OUTPUT,
    help="Draw the result as PNG or SVG, by the suffix of FILE (needs matplotlib, the extra 'plot').")]
ComparisonFolder = Annotated[Path | None, _option("--out", "DIR", OUTPUT,
    help="Folder for all runs; must be new or empty. Default: runs/<date>-compare.")]

# run
DryRun = Annotated[bool, _option("--dry-run", None, OUTPUT,
    help="Print memory per tier and the number of steps, without training or writing anything.")]
Resume = Annotated[Path | None, _option("--resume", "RUNDIR", OUTPUT,
    help="Resume a run from its latest checkpoint; --set save_every=N writes checkpoints during training. The run's "
         "settings stay, except --steps, --epochs and --until. Repeat --policy, --skip or --model if they name a file "
         "or module, to confirm that you trust its code.")]
Follow = Annotated[bool, _option("--follow", None, DATA,
    help="Train on the files of a folder (--data csv:FOLDER or parquet:FOLDER) in the order of their names, and on new "
         "ones as they appear. Each is evaluated before it is trained.")]
Until = Annotated[str | None, _option("--until", "idle=TIME", TRAINING,
    help="With --follow, end when no file has come for so long, such as idle=10m.")]
AutoResumeRun = Annotated[bool, _option("--auto-resume", None, OUTPUT,
    help="Start the run in --out, or resume it if it exists, on any number of ranks. For launchers that repeat the "
         "same command (torchrun --max-restarts).")]

# eval, predict, export
EvalData = Annotated[str | None, _option("--data", "SPEC", show_default=False,
    help="Use all samples of this data, such as csv:PATH; a path alone has the format of the run's data. `predict` "
         "needs no labels. Default: the evaluation samples of the run.")]
GroupBy = Annotated[str | None, _option("--group-by", "FEATURE", show_default=False,
    help="Also report GAUC: the mean AUC over groups of samples with the same value of a feature, such as the user.")]
ScoresFile = Annotated[Path, _option("--out", "FILE", show_default=False,
    help="File for the scores: .csv, .parquet (needs pyarrow) or .npy. It appears when it is complete.")]
WithColumns = Annotated[str | None, _option("--with", "COLUMN[,COLUMN...]", show_default=False,
    help="Also write these columns of the data, as they are there, before the scores (csv and parquet data).")]
ExportFolder = Annotated[Path, _option("--out", "DIR", show_default=False,
    help="New folder for the export. It appears when it is complete.")]
ExportFormat = Annotated[str, _option("--to", "torch|safetensors", help="File format of the tensors.")]
ExportRows = Annotated[str, _option("--row-dtype", "float32|bfloat16",
    help="Values of rows; bfloat16 rounds to nearest.")]
ExportCheck = Annotated[str | None, _option("--check", "DATA", show_default=False,
    help="Data whose first rows the export must score as the run does, such as csv:PATH; by default, the run's "
         "evaluation data.")]

# compare
Seeds = Annotated[int, _option("--seeds", "NUMBER", STUDY, min=1,
    help="Training runs per policy, with --seed, --seed + 1, ...; they also seed the built-in stream.")]
AucBudget = Annotated[float, _option("--auc-budget", "AUC", STUDY, min=0.0,
    help="AUC that a policy may lose against the control.")]
ToAuc = Annotated[str | None, _option("--to-auc", "AUC", STUDY,
    help="Show for each policy the wall-clock seconds, processor seconds and samples read until an evaluation first "
         "reached this AUC; auto: the control's final AUC less 0.0005. Needs --eval-every.")]
AutoResumeComparison = Annotated[bool, _option("--auto-resume", None, OUTPUT,
    help="Resume the comparison in --out: reuse its finished runs with the same settings, and train the rest (more "
         "--seeds, more policies, stopped runs).")]
NoRanks = Annotated[int | None, _option("--ranks", None, STUDY, hidden=True,
    help="Not available: compare trains in one process.")]

# prepare, config, doctor
PreparedFolder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False,
    help="New folder for the prepared data.")]
PreparedData = Annotated[str, _option("--data", "SPEC", DATA, help="Data set, as for `run`.")]
ExaminedData = Annotated[str | None, _option("--data", "SPEC", DATA, show_default=False,
    help="Examine this data set, as for `run`, instead of the machine.")]
Schema = Annotated[Path | None, _option("--schema", "FILE", DATA, help="Schema of csv:PATH or parquet:PATH.")]
SettingKeys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", show_default=False,
    help="Sections or keys, such as tier or data.holdout.")]
AllSettings = Annotated[bool, _option("--all", None, help="List all settings.")]


# simulate
SimulatedPolicies = Annotated[str | None, _option("--policies --policy", "LIST", POLICY, show_default="lru,lfu",
    help="Policies, such as lru,lfu+half_life=500,scratchpipe. --set policy.NAME=VALUE applies to all policies that "
         "have the parameter.")]
DeviceSizes = Annotated[str | None, _option("--device-rows", "SIZES", TIERS, show_default="1%,5%,10%,20%,50%",
    help="Sizes of the device tier: rows (100000), percentages of all rows (10%), bytes (512MiB) or auto.")]
Skew = Annotated[bool, _option("--skew", None, STUDY,
    help="Report for each table its rows, its lookups, the share of the most frequent 1% and 10% of its rows, and the "
         "ids that share a row because they are hashed.")]
# fmt: on
