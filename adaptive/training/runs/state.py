"""The state of a run as the content of a checkpoint, and its restoration.

A resumed run trains exactly what it would have trained without the interruption, bit for bit. So a checkpoint holds
the rows with accumulated updates and the facts of hot rows, the dense part, the policy's state, torch's random
state, and the position in the data. Totals, AUC and file traffic are for the report. The state of torch's optimizers
is stored as named arrays: no pickle.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from adaptive.config import explain
from adaptive.distributed.sharded_embedding_bag import Embeddings, ShardedEmbeddingBag
from adaptive.distributed.sharded_rows import regroup
from adaptive.embeddings.engine.saved_arrays import Expected, check_arrays
from adaptive.errors import CheckpointError, PolicyError
from adaptive.policy import InputRule, Policy, SkipRule
from adaptive.storage.arrays import DTYPES
from adaptive.storage.checkpoint import Checkpoint
from adaptive.training.components import Components
from adaptive.training.runs.loop import DataPosition, Loop
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.recorder import Recorder, RecorderState

Arrays = dict[str, NDArray[Any]]
OF_RULE: Final = "rule."  # prefix of the names of a skip rule's arrays and methods
INPUTS: Final = "rule_inputs"  # samples that an input rule has read and dropped, sums of weights and of their squares


def policy_state(embeddings: Embeddings) -> Arrays:
    """The policy's arrays by name, those of its skip rule with the prefix `rule.`, and what an input rule has kept.

    Raises:
        PolicyError: if a `state_dict` fails or returns something else.
    """
    policy = embeddings.policy
    state = _checked(policy, embeddings.runtime.pipeline.policy_caller.ask("state_dict", policy.state_dict))
    if (rule := embeddings.rule) is not None:
        of_rule = _checked(rule, embeddings.runtime.pipeline.policy_caller.ask(f"{OF_RULE}state_dict", rule.state_dict))
        state |= {OF_RULE + name: array for name, array in of_rule.items()}
        if isinstance(rule, InputRule):
            state[INPUTS] = np.array([rule.rest, rule.seen_inputs, rule.dropped_inputs, *rule.weight_sums])
    return state


def load_policy_state(embeddings: Embeddings, state: Mapping[str, NDArray[Any]], where: Path) -> None:
    """Restore policy and skip rule from the result of `policy_state`; CheckpointError if one of them rejects it."""
    policy = embeddings.policy
    of_rule = {name.removeprefix(OF_RULE): array for name, array in state.items() if name.startswith(OF_RULE)}
    of_policy = {name: array for name, array in state.items() if not name.startswith((OF_RULE, INPUTS))}
    try:
        embeddings.runtime.pipeline.policy_caller.ask("load_state_dict", lambda: policy.load_state_dict(of_policy))
        if (rule := embeddings.rule) is not None:
            embeddings.runtime.pipeline.policy_caller.ask(
                f"{OF_RULE}load_state_dict", lambda: rule.load_state_dict(of_rule)
            )
        if isinstance(rule, InputRule) and INPUTS in state:
            *counts, total, squares = state[INPUTS].tolist()
            rule.rest, rule.seen_inputs, rule.dropped_inputs = map(int, counts)
            rule.weight_sums = total, squares
    except (PolicyError, ValueError) as error:
        raise CheckpointError(f"{error} ({where}). Use the version of the policy that saved this checkpoint") from error


def _checked(owner: Policy | SkipRule, state: object) -> Arrays:
    """Return a copy of the state; raise PolicyError if a checkpoint cannot hold it."""
    kind = "policy" if isinstance(owner, Policy) else "skip rule"
    where = f"{kind} {type(owner).__name__}.state_dict"
    if not isinstance(state, dict):
        raise PolicyError(f"expected a dict of arrays, got {type(state).__name__} ({where})")
    arrays: Arrays = {}
    for name, array in state.items():
        if not isinstance(name, str) or (kind == "policy" and name.startswith((OF_RULE, INPUTS))):
            raise PolicyError(f"expected array names that do not begin with rule, got {name!r} ({where})")
        if not isinstance(array, np.ndarray) or array.dtype.str not in DTYPES:
            got = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise PolicyError(f"expected numpy arrays of {', '.join(DTYPES)}, got {got} ({where}, {name!r})")
        arrays[name] = np.array(array)
    return arrays


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> Arrays:
    """State of an optimizer: `<number of the parameter>.<name>` -> copy."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": np.array(torch.as_tensor(value).detach().cpu().numpy())
        for number, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Restore `optimizer_arrays`; for others raise CheckpointError and change nothing."""
    check_optimizer_arrays(optimizer, arrays)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in arrays.items():
        number, _, key = name.partition(".")
        states.setdefault(int(number), {})[key] = torch.from_numpy(value.copy())
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def check_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Raise CheckpointError unless arrays have the shapes of an optimizer's state."""
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    expected = {}
    for name in arrays:
        number, _, key = name.partition(".")
        if not (number.isdecimal() and key and int(number) < len(shapes)):
            raise CheckpointError(f"expected an array of parameters 0 to {len(shapes) - 1}, got {name!r} (optimizer)")
        expected[name] = Expected(np.dtype(np.float32), () if key == "step" else shapes[int(number)])
    check_arrays(arrays, expected, "optimizer ")


RANDOM, CUDA = "torch_random", "cuda_random_"


class SavedProgress(BaseModel):
    """Progress of a run; `progress` in the `meta` of a checkpoint."""

    model_config = ConfigDict(extra="forbid")

    place: DataPosition
    recorder: RecorderState
    file_bytes: dict[str, int]
    evaluations: list[EvalRecord]


def content(components: Components, recorder: Recorder, loop: Loop) -> Checkpoint:
    """The content of a checkpoint, between two stretches of the loop."""
    reached = SavedProgress(
        place=loop.place,
        recorder=recorder.state(),
        file_bytes=loop.file_bytes,
        evaluations=recorder.evaluations,
    )
    cuda = {f"{CUDA}{number}": state.numpy() for number, state in enumerate(torch.cuda.get_rng_state_all())}
    return Checkpoint(
        rows=components.embeddings.rows.state_blocks(),
        dense=components.model.state_dict(),
        policy=policy_state(components.embeddings),
        optimizer=optimizer_arrays(components.optimizer),
        run={**recorder.auc_counts(), RANDOM: torch.get_rng_state().numpy(), **cuda},
        meta={
            "steps": recorder.steps,
            "samples": recorder.samples,
            "tables": table_facts(components),
            "progress": reached.model_dump(mode="json"),
        },
    )


def saved_progress(checkpoint: Checkpoint, where: Path) -> SavedProgress:
    """The progress of the run in a checkpoint; CheckpointError if it is invalid."""
    try:
        reached = SavedProgress.model_validate(checkpoint.meta.get("progress"))
    except ValidationError as error:
        raise CheckpointError(f"{explain(SavedProgress, error)} ({where}: meta.progress)") from error
    return reached


def restore(components: Components, checkpoint: Checkpoint, where: Path) -> None:
    """Restore the whole state of a run; CheckpointError if the checkpoint does not fit."""
    with _checkpoint_errors(where):
        check_optimizer_arrays(components.optimizer, checkpoint.optimizer)
        check_arrays(checkpoint.run, {RANDOM: Expected(np.dtype(np.uint8), tuple(torch.get_rng_state().shape))})
    restore_weights(components, checkpoint, where=where)
    with _checkpoint_errors(where):
        load_optimizer_arrays(components.optimizer, checkpoint.optimizer)
        torch.set_rng_state(torch.from_numpy(checkpoint.run[RANDOM]))
        for number in range(torch.cuda.device_count()):
            if (name := f"{CUDA}{number}") in checkpoint.run:  # missing if the run comes from a machine with fewer GPUs
                torch.cuda.set_rng_state(torch.from_numpy(checkpoint.run[name]), number)
    load_policy_state(components.embeddings, checkpoint.policy, where)


def restore_recorder(
    recorder: Recorder, reached: SavedProgress, checkpoint: Checkpoint, where: Path, *, repeats_evaluation: bool
) -> None:
    """Restore the recorder's totals, AUC and evaluations.

    Args:
        repeats_evaluation: leave out an evaluation of the current step: the run repeats it.

    Raises:
        CheckpointError: if the checkpoint does not hold them.
    """
    try:
        recorder.restore(reached.recorder, checkpoint.run)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"{type(error).__name__}: {error} ({where}: arrays of the recorder)") from error
    recorder.evaluations = [
        record for record in reached.evaluations if not (repeats_evaluation and record.step == recorder.steps)
    ]


def table_facts(components: Components) -> list[dict[str, object]]:
    """For each table the facts that must match saved rows."""
    names = ("name", "num_embeddings", "embedding_dim")
    return [{name: getattr(table, name) for name in names} for table in components.tables]


def restore_weights(components: Components, checkpoint: Checkpoint, *, where: Path) -> None:
    """Restore rows and dense weights; CheckpointError if tables or model differ."""
    if not isinstance(steps := checkpoint.meta.get("steps"), int):
        raise CheckpointError(f"expected a number of steps, got {steps!r} ({where}: meta.steps)")
    expected, saved = table_facts(components), checkpoint.meta.get("tables")
    if saved != expected:
        raise CheckpointError(f"expected the tables {expected}, got {saved} ({where})")
    with _checkpoint_errors(where):
        components.model.load_state_dict(checkpoint.dense)
        load_rows(components.embeddings, checkpoint)


def load_rows(embeddings: Embeddings, checkpoint: Checkpoint) -> None:
    """Load the rows that any number of ranks have saved.

    Raises:
        CheckpointError: if they are of other tables or another optimizer.
    """
    if isinstance(embeddings, ShardedEmbeddingBag):
        embeddings.rows.load_shards(checkpoint.shards)
        return
    rows = checkpoint.rows
    if len(checkpoint.shards) > 1:
        rows = regroup(checkpoint.shards, embeddings.runtime.pipeline.groups, 0, 1)
    embeddings.rows.load_state_arrays(rows)


@contextmanager
def _checkpoint_errors(where: Path) -> Iterator[None]:
    """Turn errors inside into a CheckpointError with the path of the checkpoint."""
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"expected weights of this model and optimizer, got others: {error} ({where})") from error
