"""Flags that set settings, as a table for typer's options and `load_settings`.

Values stay text here. `adaptive.training.settings` checks them together with all other settings, so that all mistakes
are reported at once. A new flag needs a reason: `--set key=value` works for every setting.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from adaptive.config import TrainConfig
    from adaptive.studies.compare import Contender

DATA, TIERS, POLICY, TRAINING, OUTPUT = "Data", "Tiers", "Policy", "Training", "Output"


@dataclass(frozen=True)
class Flag:
    """A flag, the setting that it sets, and its help."""

    name: str
    key: str
    metavar: str
    panel: str
    _: KW_ONLY
    default: str = ""  # for the help only; the settings have the real one
    help: str

    @property
    def parameter(self) -> str:
        """Name of the command's parameter; differs from those of all other options."""
        return "flag_" + self.name.removeprefix("--").replace("-", "_")


# fmt: off
FLAGS = (
    Flag("--data", "data", "SPEC", DATA, default="synthetic",
         help="synthetic, criteo:PATH[,PATH...], csv:PATH, parquet:PATH or prepared:DIR; for tbsm: sequences "
              "or taobao:PATH[,PATH...]."),
    Flag("--schema", "data.schema_path", "FILE", DATA,
         help="Schema of csv:PATH or parquet:PATH: a TOML file, or the name of a schema that comes with the package."),
    Flag("--batch-size", "batch_size", "SAMPLES", DATA, default="2048", help="Samples per batch."),
    Flag("--device", "tier.device", "auto|cpu|cuda", TIERS, default="auto", help="Device of the device tier."),
    Flag("--device-rows", "tier.device_rows", "SIZE", TIERS, default="auto",
         help="Size of the device tier: rows (100000), percentage of all rows (10%), bytes (512MiB) or auto."),
    Flag("--depth", "depth", "BATCHES", TIERS, default="4", help="Batches of look-ahead; 0 for none."),
    Flag("--policy", "policy", "SPEC", POLICY, default="lru",
         help="Name (see `policies list`), module:Class or file.py:Class, with parameters as in "
              "lfu+half_life=500+skip=defer."),
    Flag("--preset", "preset", "NAME", TRAINING,
         help="Published shape of the model and the built-in stream: rmc1 to rmc4, syn-m1, syn-m2, m1prod to m3prod, "
              "mlperf."),
    Flag("--model", "model", "NAME", TRAINING, default="dlrm",
         help="dlrm, dcn, deepfm, tbsm, din (for sequences), module:Class or "
              "file.py:Class. Set its shape with --set model.NAME=VALUE."),
    Flag("--optimizer", "optimizer.name", "NAME", TRAINING, default="rowwise_adagrad",
         help="Optimizer of the rows: sgd, adagrad, rowwise_adagrad, adam or ftrl."),
    Flag("--lr", "optimizer.lr", "RATE", TRAINING, default="0.05",
         help="Learning rate of the rows. For the dense part: --set dense_optimizer.lr=RATE."),
    Flag("--skip", "skip.rule", "RULE", TRAINING,
         help="Skip rule, for any policy: off, defer, predicted, module:Class or file.py:Class, with parameters as in "
              "defer+at_most=8. Default: the rule of the policy."),
    Flag("--steps", "steps", "BATCHES", TRAINING, default="all data", help="Stop after this many batches."),
    Flag("--epochs", "epochs", "NUMBER", TRAINING, default="1", help="Passes over the training data."),
    Flag("--eval-every", "eval_every", "BATCHES", TRAINING,
         help="Also evaluate after every BATCHES batches."),
    Flag("--init-from", "init_from", "RUNDIR", TRAINING,
         help="Start from the weights of a run, such as that of the day before."),
    Flag("--seed", "seed", "NUMBER", TRAINING, default="0", help="Seed of the initial weights."),
    Flag("--out", "out", "DIR", OUTPUT, default="runs/<date>-<policy>", help="Run directory; must be new or empty."),
)
# fmt: on


def given_flags(values: Mapping[str, object]) -> tuple[dict[str, str], dict[str, str]]:
    """Return key -> text and key -> flag of the given flags, from the command's parameters."""
    given = {flag: str(value) for flag in FLAGS if (value := values.get(flag.parameter)) is not None}
    return {flag.key: text for flag, text in given.items()}, {flag.key: flag.name for flag in given}


def with_flags(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's `**flags` by one typer option per line of `FLAGS`.

    Args:
        without: names of flags that the command defines itself, or does not use.
    """
    parameters = [_parameter(flag) for flag in FLAGS if flag.name not in without]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        others = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        signature = inspect.Signature([*parameters, *others])
        setattr(command, "__signature__", signature)  # noqa: B010 (no such field)
        return command

    return decorate


def _parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        *(("--policy", "--policies") if flag.name == "--policy" else (flag.name,)),
        metavar=flag.metavar or None,
        help=flag.help,
        rich_help_panel=flag.panel,
        show_default=flag.default or False,
        autocompletion=_policy_names if flag.name == "--policy" else None,
    )
    annotation: Any = Annotated[str | None, option]
    return inspect.Parameter(flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _policy_names(incomplete: str) -> list[str]:
    from adaptive.plugins import installed_policies

    return [name for name in installed_policies() if name.startswith(incomplete)]


def load_contenders(
    policies: str, sets: list[str], values: Mapping[str, object], file: Path | None
) -> "list[Contender]":
    """Return the policies of a list with the settings of the command line.

    Args:
        policies: the list.
        sets: KEY=VALUE.
        values: the command's flags, by parameter.
        file: of `--config`.
    """
    from adaptive.studies.compare import contenders
    from adaptive.training.settings import load_settings

    texts, names = given_flags(values)

    def load(label: str, sets: Sequence[str]) -> "TrainConfig":
        flags, flag_names = {**texts, "policy": label}, {**names, "policy": "--policies"}
        return load_settings(file=file, sets=sets, flags=flags, flag_names=flag_names, environ=os.environ)[0]

    return contenders(policies, sets, load)


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


def listed(text: str) -> tuple[str, ...]:
    """Return the parts of a comma-separated list without duplicates."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
