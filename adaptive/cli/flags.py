"""The flags of `run` that are settings: one line each, from which typer's options and `load_settings` are fed.

Flags stay text here; `adaptive.training.settings` checks them together with everything else, so that all mistakes show
at once. A new flag needs a reason: every setting can be given with `--set key=value`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

DATA, TIERS, POLICY, TRAINING, OUTPUT = "Data", "Tiers", "Policy", "Training", "Output"
DLRM = "Names known from DLRM"


@dataclass(frozen=True)
class Flag:
    """A flag, the settings it gives a value, and its help."""

    name: str
    keys: tuple[str, ...]
    metavar: str
    panel: str
    help: str
    default: str = ""  # as shown; the settings hold the real one
    value: str | None = None  # what the flag stands for, if it takes no value itself

    @property
    def parameter(self) -> str:
        """The name under which the command gets it; no other parameter of the command has such a name."""
        return "flag_" + self.name.removeprefix("--").replace("-", "_")


FLAGS = (
    Flag(
        "--data",
        ("data",),
        "SPEC",
        DATA,
        "synthetic, criteo:PATH[,PATH...], csv:PATH, parquet:PATH or prepared:DIR; for tbsm: sequences, "
        "taobao:PATH[,PATH...] or tbsm:PATH[,PATH...].",
        "synthetic",
    ),
    Flag(
        "--schema",
        ("data.schema_path",),
        "FILE",
        DATA,
        "Schema of csv:PATH or parquet:PATH, a TOML file, or the name of an installed one.",
    ),
    Flag("--batch-size", ("batch_size",), "SAMPLES", DATA, "Samples per batch.", "2048"),
    Flag("--device", ("tier.device",), "auto|cpu|cuda", TIERS, "Where the device tier lies.", "auto"),
    Flag(
        "--device-rows",
        ("tier.device_rows",),
        "SIZE",
        TIERS,
        "Size of the device tier: rows (100000), per cent of all rows (10%), bytes (512MiB) or auto.",
        "auto",
    ),
    Flag("--depth", ("depth",), "BATCHES", TIERS, "Batches of look-ahead; 0: none.", "4"),
    Flag(
        "--policy",
        ("policy",),
        "SPEC",
        POLICY,
        "Name (see `policies list`), module:Class or file.py:Class. Its parameters: --set policy.NAME=VALUE.",
        "lru",
    ),
    Flag(
        "--preset",
        ("preset",),
        "NAME",
        TRAINING,
        "Model and built-in stream in a published shape: rmc1 to rmc4, syn-m1, syn-m2, m1prod to m3prod, mlperf.",
    ),
    Flag(
        "--model",
        ("model",),
        "NAME",
        TRAINING,
        "dlrm, dcn, deepfm, two-tower, multi-task, tbsm over sequences, module:Class or file.py:Class. Its shape: "
        "--set model.NAME=VALUE.",
        "dlrm",
    ),
    Flag(
        "--optimizer",
        ("optimizer.name",),
        "NAME",
        TRAINING,
        "Optimizer of the rows: sgd, adagrad, rowwise_adagrad or adam.",
        "rowwise_adagrad",
    ),
    Flag(
        "--lr",
        ("optimizer.lr",),
        "RATE",
        TRAINING,
        "Learning rate of the rows; of the dense part: --set dense_optimizer.lr=RATE.",
        "0.05",
    ),
    Flag(
        "--skip",
        ("skip.rule",),
        "RULE",
        TRAINING,
        "Which updates are written less often, beside any policy: off, defer, updates, inputs, module:Class, "
        "file.py:Class, with parameters as in defer+bound=0.1. Without it: what the policy says.",
    ),
    Flag("--steps", ("steps",), "BATCHES", TRAINING, "Stop after this many batches.", "all data"),
    Flag("--epochs", ("epochs",), "NUMBER", TRAINING, "Passes over the training data.", "1"),
    Flag(
        "--eval-every",
        ("eval_every",),
        "BATCHES",
        TRAINING,
        "Evaluate every so many batches, too. --set stop_at.auc=0.80 ends training at the first evaluation that "
        "reaches it.",
    ),
    Flag(
        "--init-from",
        ("init_from",),
        "RUNDIR",
        TRAINING,
        "Begin with the weights of a run: a day later.",
    ),
    Flag("--seed", ("seed",), "NUMBER", TRAINING, "Seed of the initial values.", "0"),
    Flag("--out", ("out",), "DIR", OUTPUT, "Run directory, new or empty.", "runs/<date>-<policy>"),
    Flag("--arch-sparse-feature-size", ("model.embedding_dim",), "WIDTH", DLRM, "model.embedding_dim"),
    Flag("--arch-mlp-bot", ("model.bottom_mlp",), "SIZES", DLRM, "model.bottom_mlp, such as 13-512-256-64-16"),
    Flag("--arch-mlp-top", ("model.top_mlp",), "SIZES", DLRM, "model.top_mlp, such as 512-256-1"),
    Flag("--arch-interaction-op", ("model.interaction",), "dot|cat", DLRM, "model.interaction"),
    Flag("--mini-batch-size", ("batch_size",), "SAMPLES", DLRM, "--batch-size"),
    Flag("--test-mini-batch-size", ("eval_batch_size",), "SAMPLES", DLRM, "eval_batch_size"),
    Flag(
        "--learning-rate",
        ("optimizer.lr", "dense_optimizer.lr"),
        "RATE",
        DLRM,
        "optimizer.lr and dense_optimizer.lr, as DLRM has one rate for all",
    ),
    Flag("--nepochs", ("epochs",), "NUMBER", DLRM, "--epochs"),
    Flag("--num-batches", ("steps",), "BATCHES", DLRM, "--steps"),
    Flag("--numpy-rand-seed", ("seed",), "NUMBER", DLRM, "--seed"),
    Flag("--print-freq", ("log_every",), "BATCHES", DLRM, "log_every"),
    Flag("--test-freq", ("eval_every",), "BATCHES", DLRM, "--eval-every"),
    Flag("--use-gpu", ("tier.device",), "", DLRM, "--device cuda", value="cuda"),
)


def given_flags(values: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Key -> text and key -> flag of the flags that were given, from the command's parameters.

    A setting given by two flags (`--batch-size` and `--mini-batch-size`) is a mistake of the caller.
    """
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for flag in FLAGS:
        value = values[flag.parameter]
        for key in flag.keys if value not in (None, False) else ():
            text = flag.value or str(value)
            if texts.get(key, text) != text:
                raise typer.BadParameter(f"{names[key]} {texts[key]} and {flag.name} {text} disagree; give one of them")
            texts[key], names[key] = text, flag.name
    return texts, names


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose `**flags` typer sees as one option per line of the table."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        command(*args, **kwargs)

    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
    setattr(wrapper, "__signature__", inspect.Signature([*map(_parameter, FLAGS), *own]))  # noqa: B010 (no such field)
    return wrapper


def _parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(
        flag.name,
        metavar=flag.metavar or None,
        help=flag.help,
        rich_help_panel=flag.panel,
        show_default=flag.default or False,
        autocompletion=_policy_names if flag.name == "--policy" else None,
    )
    annotation: Any = Annotated[bool, option] if flag.value else Annotated[str | None, option]
    return inspect.Parameter(
        flag.parameter, inspect.Parameter.KEYWORD_ONLY, default=False if flag.value else None, annotation=annotation
    )


def _policy_names(incomplete: str) -> list[str]:
    from adaptive.plugins import installed_policies

    return [name for name in installed_policies() if name.startswith(incomplete)]
