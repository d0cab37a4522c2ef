"""All that a run needs to go on, as the content of a checkpoint, and back.

A resumed run trains what it would have trained, bit for bit. For that a checkpoint holds rows, with waiting gradients
and what is known of watched rows, the dense part, the policy's state, torch's random numbers, and the position in the
data. Totals, AUC and file traffic are for the report. torch's optimizers are kept as named arrays: no pickle."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from adaptive.config import TrainConfig
from adaptive.embeddings.engine.saving.saved_arrays import Expected, check_arrays
from adaptive.embeddings.ranks.owners import FORMULA
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.errors import CheckpointError, ConfigError, PolicyError, printable
from adaptive.policy import Policy, SkipRule, drops_inputs
from adaptive.storage.arrays import DTYPES
from adaptive.storage.checkpoint import Checkpoint
from adaptive.training.components import Components, ComponentsOutline
from adaptive.training.guard.guard import Guard
from adaptive.training.runs.loop import DataPosition, Loop
from adaptive.training.telemetry.jsonl import MetricsFile, Written, from_json, to_json
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.recorder import Recorder, RecorderState

Arrays = dict[str, NDArray[Any]]
OF_RULE: Final = "rule."  # before the names of a skip rule's arrays, and of its methods
_LONGEST_NAME: Final = 200


def policy_state(embeddings: TieredEmbeddingBag) -> Arrays:
    """The policy's arrays, and those of its skip rule under names of their own.

    Raises:
        PolicyError: if one fails to give them, or gives something else.
    """
    policy = embeddings.policy
    state = _checked(policy, embeddings.runtime.ask_policy("state_dict", policy.state_dict))
    if (rule := policy.rule) is not None:
        of_rule = _checked(rule, embeddings.runtime.ask_policy(f"{OF_RULE}state_dict", rule.state_dict))
        state |= {OF_RULE + name: array for name, array in of_rule.items()}
    return state


def load_policy_state(embeddings: TieredEmbeddingBag, state: Mapping[str, NDArray[Any]], where: Path) -> None:
    """Give policy and rule back what `policy_state` gave; `where`: the checkpoint.

    Raises:
        CheckpointError: if one of them does not take it.
    """
    policy = embeddings.policy
    of_rule = {name.removeprefix(OF_RULE): array for name, array in state.items() if name.startswith(OF_RULE)}
    of_policy = {name: array for name, array in state.items() if not name.startswith(OF_RULE)}
    for name, new in policy_state(embeddings).items():  # as it is at the beginning: of its dtypes and columns
        saved = state.get(name, new)
        if (saved.dtype, saved.ndim, saved.shape[1:]) != (new.dtype, new.ndim, new.shape[1:]):
            raise CheckpointError(f"{where}: policy array {name}: expected {new.dtype} {new.shape}, got {_text(saved)}")
    try:
        embeddings.runtime.ask_policy("load_state_dict", lambda: policy.load_state_dict(of_policy))
        if (rule := policy.rule) is not None:
            embeddings.runtime.ask_policy(f"{OF_RULE}load_state_dict", lambda: rule.load_state_dict(of_rule))
        taken = policy_state(embeddings)
    except PolicyError as error:
        raise CheckpointError(f"{where}: saved by another version of the policy? {error}") from error
    for name in sorted(taken.keys() | state.keys()):
        if not _is_same(taken.get(name), state.get(name)):
            raise CheckpointError(
                f"{where}: policy array {name}: expected what the policy gives back as it took it, got "
                f"{_text(state.get(name))}, which became {_text(taken.get(name))}. It was changed, or saved by another "
                "version of the policy"
            )


def _is_same(taken: NDArray[Any] | None, saved: NDArray[Any] | None) -> bool:
    if taken is None or saved is None or taken.dtype != saved.dtype:
        return False
    return np.array_equal(taken, saved, equal_nan=saved.dtype.kind == "f")


def _text(array: NDArray[Any] | None) -> str:
    return "none" if array is None else f"{array.dtype} {array.shape}"


def _checked(owner: Policy | SkipRule, state: object) -> Arrays:
    """A copy of the state, if it is one that a checkpoint takes."""
    kind = "policy" if isinstance(owner, Policy) else "skip rule"
    what = f"{kind} {type(owner).__name__}.state_dict must return"
    if not isinstance(state, dict):
        raise PolicyError(f"{what} a dict of arrays, found {type(state).__name__}")
    arrays: Arrays = {}
    for name, array in state.items():
        is_name = isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable()
        if not is_name or set(name) & set("/\\") or (kind == "policy" and name.startswith(OF_RULE)):
            raise PolicyError(
                f"{what} arrays by names of up to {_LONGEST_NAME} letters, digits and signs but slashes, found "
                f"{printable(repr(name))[:80]}"
            )
        if not isinstance(array, np.ndarray) or array.dtype.str not in DTYPES:
            has = f"dtype {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise PolicyError(f"{what} numpy arrays of {', '.join(DTYPES)}, found {has} under {name!r}")
        arrays[name] = np.array(array)
    return arrays


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> Arrays:
    """`<number of the parameter>.<name>` -> copy of what the optimizer keeps of it, of the parameter's shape or ()."""
    states = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": np.array(torch.as_tensor(value).detach().cpu().numpy())
        for number, values in states.items()
        for name, value in values.items()
        if value is not None
    }


def load_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Restore what `optimizer_arrays` gave, into an optimizer of parameters of the same shapes; settings stay.

    Raises:
        CheckpointError: if the arrays are of other parameters or another optimizer; nothing is changed then.
    """
    check_optimizer_arrays(optimizer, arrays)
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in arrays.items():
        number, _, what = name.partition(".")
        states.setdefault(int(number), {})[what] = torch.from_numpy(value.copy())
    optimizer.load_state_dict({**optimizer.state_dict(), "state": states})


def check_optimizer_arrays(optimizer: torch.optim.Optimizer, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Compare arrays with what the optimizer keeps of its parameters, each of which has a step count at most and
    arrays of its own shape.

    Raises:
        CheckpointError: if one is of no parameter, or something else.
    """
    shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    expected = {}
    for name in arrays:
        number, _, what = name.partition(".")
        if not (number.isdecimal() and what and int(number) < len(shapes)):
            raise CheckpointError(
                f"optimizer {name!r}: expected a name of parameters 0 to {len(shapes) - 1}, got another"
            )
        least = 0 if what in _NOT_NEGATIVE else None
        expected[name] = Expected(np.dtype(np.float32), () if what == "step" else shapes[int(number)], least)
    check_arrays(arrays, expected, "optimizer ")


_NOT_NEGATIVE: Final = ("step", "sum", "exp_avg_sq", "max_exp_avg_sq", "square_avg")  # of torch's optimizers


def check_dense(model: torch.nn.Module, dense: Mapping[str, torch.Tensor]) -> None:
    """Compare tensors with those of a model.

    Raises:
        CheckpointError: if one has another dtype or shape, or is not finite.
    """
    needed, arrays = model.state_dict(), {name: tensor.numpy() for name, tensor in dense.items()}
    expected = {}
    for name in needed.keys() & arrays.keys():  # torch tells of others
        dtype = np.dtype(str(needed[name].dtype).removeprefix("torch."))
        expected[name] = Expected(dtype, tuple(needed[name].shape), hint="The model must be the one that was saved")
    check_arrays(arrays, expected, "dense ")


RANDOM, CUDA = "torch_random", "cuda_random_"
_GUARDED: Final = "the guard's copy of the run, and what it has judged, are in no checkpoint"


class SavedProgress(BaseModel):
    """How far a run had come; `progress` in a checkpoint's `meta`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    place: DataPosition
    recorder: RecorderState
    file_bytes: dict[str, int]
    device_rows: int = Field(ge=0)
    evaluations: list[dict[str, Any]]
    metrics: Written | None  # None: this rank writes none


def content(components: Components, recorder: Recorder, loop: Loop, guard: Guard | None) -> Checkpoint:
    """What `save_checkpoint` is given. Call it between two stretches of the loop."""
    reached = SavedProgress(
        place=loop.place,
        recorder=recorder.state(),
        file_bytes=loop.file_bytes,
        device_rows=components.embeddings.runtime.view.device_rows,
        evaluations=[to_json(record) for record in recorder.evaluations],
        metrics=next((sink.written() for sink in recorder.sinks if isinstance(sink, MetricsFile)), None),
    )
    cuda = {f"{CUDA}{number}": state.numpy() for number, state in enumerate(torch.cuda.get_rng_state_all())}
    return Checkpoint(
        rows=components.embeddings.rows.state_parts(),
        dense=components.model.state_dict(),
        policy=policy_state(components.embeddings),
        optimizer=optimizer_arrays(components.optimizer),
        run={**recorder.auc_counts(), RANDOM: torch.get_rng_state().numpy(), **cuda},
        meta={
            "steps": recorder.steps,
            "samples": recorder.samples,
            "tables": table_facts(components),
            **({"dealt": FORMULA} if components.embeddings.ranks.size > 1 else {}),
            "progress": reached.model_dump(mode="json"),
            **({"guard": guard.state()} if guard else {}),
        },
    )


def reached_by(checkpoint: Checkpoint, where: Path) -> SavedProgress:
    """How far the run in a checkpoint had come.

    Raises:
        CheckpointError: if no run can go on from the checkpoint.
    """
    try:
        reached = SavedProgress.model_validate(checkpoint.meta.get("progress"))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("meta", "progress", *first["loc"])))
        raise CheckpointError(f"{where}: {place}: {first['msg']}, found {str(first['input'])[:200]!r}") from error
    _check_counts(reached, checkpoint.meta, where)
    return reached


def _check_counts(reached: SavedProgress, meta: Mapping[str, object], where: Path) -> None:
    """Check that what is counted in several places is the same everywhere: records of later steps are dropped, and
    batches passed over, by it."""
    place, so_far = reached.place, reached.recorder.so_far
    pairs = {
        "steps": (meta.get("steps"), so_far.step),
        "samples": (meta.get("samples"), so_far.samples),
        "samples of the log loss": (reached.recorder.log_loss.num_samples, so_far.samples),
    }
    if place.epoch == 0:
        pairs |= {"batches of the first epoch": (place.taken, place.total), "steps before it": (place.before, 0)}
    for name, (stated, counted) in pairs.items():
        if stated != counted or isinstance(stated, bool):
            got = f"{str(stated)[:80]} in one place, {counted} in another"
            raise CheckpointError(f"{where}: {name}: {got}; it is damaged")


def restore(components: Components, checkpoint: Checkpoint, where: Path) -> None:
    """Restore rows, dense part, policy and torch's random numbers.

    Raises:
        CheckpointError: if the checkpoint is of another run.
    """
    with _naming(where):
        check_optimizer_arrays(components.optimizer, checkpoint.optimizer)
        check_arrays(checkpoint.run, {RANDOM: Expected(np.dtype(np.uint8), tuple(torch.get_rng_state().shape))})
    restore_weights(components, checkpoint, where=where)
    with _naming(where):
        load_optimizer_arrays(components.optimizer, checkpoint.optimizer)
        torch.set_rng_state(torch.from_numpy(checkpoint.run[RANDOM]))
        for number in range(torch.cuda.device_count()):
            if (name := f"{CUDA}{number}") in checkpoint.run:  # or else the run is moved to another machine
                torch.cuda.set_rng_state(torch.from_numpy(checkpoint.run[name]), number)
    load_policy_state(components.embeddings, checkpoint.policy, where)


def restore_recorder(
    recorder: Recorder, reached: SavedProgress, checkpoint: Checkpoint, where: Path, *, again: bool
) -> None:
    """Restore the recorder's totals, AUC and evaluations; `again`: but for that of this very step, which is made again.

    Raises:
        CheckpointError: if the checkpoint does not hold them.
    """
    try:
        recorder.restore(reached.recorder, checkpoint.run)
        records = [from_json(values) for values in reached.evaluations]
        evaluations = [record for record in records if isinstance(record, EvalRecord)]
        if len(evaluations) < len(records):
            raise ValueError("an evaluation is needed")
        recorder.evaluations = [record for record in evaluations if not (again and record.step == recorder.steps)]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(f"{where}: meta.progress.recorder: {type(error).__name__}: {error}") from error


def refuse_guarded_saves(config: TrainConfig, components: Components | ComponentsOutline) -> None:
    """Refuse to save checkpoints of a guarded run, from which it could not be resumed.

    Raises:
        ConfigError: if checkpoints are to be made of a run that a guard could not go on guarding, or its look-ahead is
            to end within a pass, which the guard's copy would not do.
    """
    if config.save_every is not None and is_guarded(config, components):
        raise ConfigError(f"save_every={config.save_every}: {_GUARDED}; set guard or save_every to null")
    if config.eval_every is not None and is_guarded(config, components):
        raise ConfigError(
            f"eval_every={config.eval_every}: ends the look-ahead within an epoch, which no guarded run does; "
            "set guard or eval_every to null"
        )


def refuse_guarded_resume(config: TrainConfig, components: Components, where: Path) -> None:
    """Refuse to resume a guarded run.

    Raises:
        ConfigError: if the run is guarded.
    """
    if is_guarded(config, components):
        raise ConfigError(
            f"{where}: the run is guarded and cannot be resumed: {_GUARDED}; evaluate it, or train anew, without "
            "a guard (guard=null) if it is to be resumed one day"
        )


def is_guarded(config: TrainConfig, components: Components | ComponentsOutline) -> bool:
    """Whether a guard is set and has something to guard; one that has not would lose nothing in a checkpoint."""
    embeddings = components.embeddings
    skips = embeddings.drops_updates or embeddings.defers or drops_inputs(embeddings.policy)
    return config.guard is not None and skips


def table_facts(components: Components) -> list[dict[str, object]]:
    """Facts of each table that must be equal for saved rows to fit."""
    names = ("name", "num_embeddings", "embedding_dim")
    return [{name: getattr(table, name) for name in names} for table in components.tables]


def restore_weights(components: Components, checkpoint: Checkpoint, *, where: Path) -> None:
    """Restore rows and dense weights.

    Raises:
        CheckpointError: if they are of other tables or another model.
    """
    if not isinstance(checkpoint.meta.get("steps"), int):
        raise CheckpointError(f"{where}: expected the number of steps trained, found {checkpoint.meta.get('steps')!r}")
    needed, saved = table_facts(components), checkpoint.meta.get("tables")
    if saved != needed:
        raise CheckpointError(f"{where}: saved for other tables: expected {needed}, found {saved}")
    dealt = checkpoint.meta.get("dealt", FORMULA)
    if components.embeddings.ranks.size > 1 and dealt != FORMULA:
        raise CheckpointError(
            f"{where}: its rows are dealt out to ranks by {str(dealt)[:200]!r}, here by {FORMULA!r}; one process can "
            "read it"
        )
    with _naming(where):
        check_dense(components.model, checkpoint.dense)
        components.embeddings.rows.load_state_arrays(checkpoint.rows)
        components.model.load_state_dict(checkpoint.dense)


@contextmanager
def _naming(where: Path) -> Iterator[None]:
    """Inside, whatever does not fit is told with the checkpoint's path; torch raises RuntimeError for shapes."""
    try:
        yield
    except (ValueError, KeyError, IndexError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{where}: saved for another model or optimizer: {error}") from error
