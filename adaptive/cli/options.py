"""Options of commands: types of parameters that typer reads, and flags that set settings.

Values of flags stay text here. `adaptive.training.settings` checks them together with all other settings, so that all
mistakes are reported at once. A new flag needs a reason: `--set key=value` works for every setting.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

DATA, TIERS, POLICY, TRAINING, OUTPUT, SETTINGS, STUDY = (
    "Data", "Tiers", "Policy", "Training", "Output", "Settings", "Study",
)  # fmt: skip


def _option(names: str, metavar: str | None, panel: str | None = None, *, help: str, **more: Any) -> Any:
    return typer.Option(*names.split(), metavar=metavar, help=help, rich_help_panel=panel, **more)


def _policy_names(incomplete: str) -> list[str]:
    from adaptive.plugins import installed_policies

    return [name for name in installed_policies() if name.startswith(incomplete)]


# fmt: off
# Tables: two or three lines an option.

FLAGS: Final[dict[str, Any]] = {
    "data": _option("--data", "SPEC", DATA, show_default="synthetic",
        help="synthetic, criteo:PATH[,PATH...], csv:PATH, parquet:PATH or prepared:DIR; for tbsm: sequences "
             "or taobao:PATH[,PATH...]."),
    "data.schema_path": _option("--schema", "FILE", DATA, show_default=False,
        help="Schema of csv:PATH or parquet:PATH: a TOML file, or the name of a schema that comes with the package."),
    "batch_size": _option("--batch-size", "SAMPLES", DATA, show_default="2048",
        help="Samples per batch."),
    "tier.device": _option("--device", "auto|cpu|cuda", TIERS, show_default="auto",
        help="Device of the device tier."),
    "tier.device_rows": _option("--device-rows", "SIZE", TIERS, show_default="auto",
        help="Size of the device tier: rows (100000), percentage of all rows (10%), bytes (512MiB) or auto."),
    "depth": _option("--depth", "BATCHES", TIERS, show_default="4",
        help="Batches of look-ahead; 0 for none."),
    "policy": _option("--policy --policies", "SPEC", POLICY, show_default="lru", autocompletion=_policy_names,
        help="Name (see `policies list`), module:Class or file.py:Class, with parameters as in "
             "lfu+half_life=500+skip=defer."),
    "preset": _option("--preset", "NAME", TRAINING, show_default=False,
        help="Published shape of the model and the built-in stream: rmc1 to rmc4, mlperf."),
    "model": _option("--model", "NAME", TRAINING, show_default="dlrm",
        help="dlrm, dcn, deepfm, tbsm, din (for sequences), module:Class or "
             "file.py:Class. Set its shape with --set model.NAME=VALUE."),
    "optimizer.name": _option("--optimizer", "NAME", TRAINING, show_default="rowwise_adagrad",
        help="Optimizer of the rows: sgd, adagrad, rowwise_adagrad, adam or ftrl."),
    "optimizer.lr": _option("--lr", "RATE", TRAINING, show_default="0.05",
        help="Learning rate of the rows. For the dense part: --set dense_optimizer.lr=RATE."),
    "skip.rule": _option("--skip", "RULE", TRAINING, show_default=False,
        help="Skip rule, for any policy: off, defer, predicted, module:Class or file.py:Class, with parameters as in "
             "defer+at_most=8. Default: the rule of the policy."),
    "steps": _option("--steps", "BATCHES", TRAINING, show_default="all data",
        help="Stop after this many batches."),
    "epochs": _option("--epochs", "NUMBER", TRAINING, show_default="1",
        help="Passes over the training data."),
    "eval_every": _option("--eval-every", "BATCHES", TRAINING, show_default=False,
        help="Also evaluate after every BATCHES batches."),
    "init_from": _option("--init-from", "RUNDIR", TRAINING, show_default=False,
        help="Start from the weights of a run, such as that of the day before."),
    "seed": _option("--seed", "NUMBER", TRAINING, show_default="0",
        help="Seed of the initial weights."),
    "out": _option("--out", "DIR", OUTPUT, show_default="runs/<date>-<policy>",
        help="Run directory; must be new or empty."),
}
"""Setting -> the flag that sets it. Defaults are for the help only; the settings have the real ones."""

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

# prepare, config, doctor
PreparedFolder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False,
    help="New folder for the prepared data.")]
PreparedData = Annotated[str, _option("--data", "SPEC", DATA, help="Data set, as for `run`.")]
ExaminedData = Annotated[str | None, _option("--data", "SPEC", DATA, show_default=False,
    help="Examine this data set, as for `run`, instead of the machine.")]
Schema = Annotated[Path | None, _option("--schema", "FILE", DATA, help="Schema of csv:PATH or parquet:PATH.")]
SettingKeys = Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", show_default=False,
    help="Sections or keys, such as tier or data.holdout.")]


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


def flag_of(key: str) -> str:
    """Return the flag of a setting, such as `--lr`, or an empty text."""
    # typer calls the first argument of Option its default
    return str(FLAGS[key].default) if key in FLAGS else ""


def _parameter_of(key: str) -> str:
    """Return the parameter of a setting in commands; it differs from those of all other options."""
    return "flag_" + flag_of(key).removeprefix("--").replace("-", "_")


def with_flags(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `**flags` by one typer option per line of `FLAGS`.

    Args:
        without: settings whose flags the command defines itself, or does not use.
    """
    parameters = [
        inspect.Parameter(_parameter_of(key), inspect.Parameter.KEYWORD_ONLY, default=None,
                          annotation=Annotated[str | None, option])
        for key, option in FLAGS.items() if key not in without
    ]  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        others = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = inspect.Signature([*parameters, *others])
        setattr(command, "__signature__", signature)  # noqa: B010 (no such field)
        return command

    return decorate


def given_flags(values: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return key -> text and key -> flag of the given flags, from the command's parameters."""
    given = {key: str(value) for key in FLAGS if (value := values.get(_parameter_of(key))) is not None}
    return given, {key: flag_of(key) for key in given}


def given_sets(sets: Sequence[str] | None) -> dict[str, Any]:
    """Return key -> value of `--set KEY=VALUE`.

    Raises:
        BadParameter: for a text without a key or a value.
    """
    from adaptive.training.settings import parse_text

    values = {}
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not (equals and key.strip()):
            raise typer.BadParameter(f"--set: expected KEY=VALUE such as tier.host=mmap:DIR, got {text!r}")
        values[key.strip()] = parse_text(value)
    return values
