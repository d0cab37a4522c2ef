"""What somebody whose run has ended may want to type next, and what to change where it could hardly learn."""

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from adaptive.config import TrainConfig
from adaptive.data.open import BUILT_IN
from adaptive.plugins import code_flags
from adaptive.storage.run_directory import newest_first

FEW_STEPS: Final = 50  # in an epoch
ENOUGH_STEPS: Final = 100
LEAST_BATCH: Final = 16
RIVALS = ("lru", "lfu", "slipstream")
CUSTOM_PAGE = "http://localhost:6006/#custom_scalars"  # TensorBoard begins with a tab of its own, whatever plug-ins say
ROWS_PAGE = "http://localhost:6006/#adaptive_rows"


def code_of(config: TrainConfig) -> dict[str, str | None]:
    """The settings that may name code."""
    return {"policy": config.policy, "skip.rule": config.skip.rule if config.skip else None, "model": config.model}


def resume_command(directory: Path, config: TrainConfig) -> str:
    """What goes on with the run. Code of the user's own is named again, since what a file alone names is not run."""
    return f"adaptive-train run --resume {shlex.quote(str(directory))}{code_flags(code_of(config))}"


def how_to_resume(directory: Path, config: TrainConfig) -> str:
    """What to do about a run on ranks that has broken off."""
    there = [path for path in newest_first(directory) if path.exists()] if directory.is_dir() else []
    if there:
        return f"{there[0]} is whole: go on, on any number of ranks, with {resume_command(directory, config)} --ranks N"
    return f"{directory} has no checkpoint yet (save_every={config.save_every}): start the run again"


def next_commands(
    directory: Path,
    config: TrainConfig,
    *,
    has_evaluation: bool,
    which: Callable[[str], str | None] = shutil.which,
    is_installed: Callable[[str], object] = find_spec,
) -> str:
    """A line for each command that works on the run in `directory`, and where to look in TensorBoard. The first makes
    the others work, where their programs are not on the path.

    Args:
        has_evaluation: the data have an evaluation part.
        which: finds programs on the path.
        is_installed: finds modules.
    """
    run = shlex.quote(str(directory))
    policies = ",".join(dict.fromkeys((*RIVALS, config.policy)))
    lines = [] if which("adaptive-train") else [f"source {shlex.quote(f'{sys.prefix}/bin/activate')}"]
    if config.tensorboard:
        lines.append(f"tensorboard --logdir {shlex.quote(str(directory.parent))}")
    if config.save and has_evaluation:
        model = f" --set model={shlex.quote(config.model)}" if code_flags({"model": config.model}) else ""
        lines.append(f"adaptive-train eval {run}{model}")
    if is_installed("matplotlib"):
        lines.append(f"adaptive-train report {run}")
    rule = code_flags({name: spec for name, spec in code_of(config).items() if name != "policy"})
    lines.append(f"adaptive-train compare --config {run}/run.json --policies {shlex.quote(policies)}{rule}")
    where = f"\nin TensorBoard, curves: {CUSTOM_PAGE}\nin TensorBoard, rows by table: {ROWS_PAGE}"
    page = where if config.tensorboard else ""
    return "".join(f"\n  {line}" for line in lines) + page


def steps_hint(config: TrainConfig, samples: int) -> str:
    """A warning, with the batch size to try, if an epoch of files has few steps; or nothing.

    Args:
        samples: that were trained, in all epochs.
    """
    cut_short = config.steps is not None or config.stop_at is not None or config.patience is not None
    in_epoch = samples // config.epochs
    steps = -(-in_epoch // config.batch_size)
    wanted = 2 ** max(in_epoch // ENOUGH_STEPS, 1).bit_length() // 2
    if config.data in BUILT_IN or cut_short or steps >= FEW_STEPS or not LEAST_BATCH <= wanted < config.batch_size:
        return ""
    return (
        f"warning: an epoch has {steps} steps ({in_epoch:,} samples, batch size {config.batch_size:,}), so that "
        f"another --seed may move the AUC by several hundredths. Try --batch-size {wanted}, or more --epochs"
    )


def model_hint(config: TrainConfig, features: Sequence[str], num_dense: int) -> str:
    """A warning if all that DLRM's top MLP sees is one dot product; or nothing."""
    options = config.model_options
    is_dot = options.get("interaction", "dot") == "dot" and not options.get("interaction_self", False)
    if config.model != "dlrm" or not is_dot or num_dense or len(features) != 2:
        return ""
    return (
        f"warning: the model dlrm sees {' and '.join(features)} as one number, the dot product of their vectors, as "
        "there are no dense inputs. Try --model deepfm or --model dcn"
    )
