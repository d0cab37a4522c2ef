"""The quality that a run is after: the best evaluation (`save=best`), patience, and the target (`stop_at`)."""

from collections.abc import Sequence
from typing import Any

from adaptive.config import StopAtConfig, TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.build import Components, ComponentsOutline
from adaptive.training.evaluation import Evaluation
from adaptive.training.runs.state import is_guarded
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.recorder import Recorder


def best_of(metric: str, evaluations: Sequence[EvalRecord], *, lower_is_better: bool) -> EvalRecord | None:
    """The best evaluation, of equal ones the first; None: none has a value."""
    known = [one for one in evaluations if getattr(one, metric) is not None]
    order = min if lower_is_better else max
    return order(known, key=lambda one: float(getattr(one, metric)), default=None)


def best_evaluation(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> EvalRecord | None:
    """The best by the metric of `stop_at`, or else by AUC."""
    metric, lower_is_better = _metric(config)
    return best_of(metric, evaluations, lower_is_better=lower_is_better)


def _metric(config: TrainConfig) -> tuple[str, bool]:
    return (config.stop_at.metric, config.stop_at.lower_is_better) if config.stop_at else ("auc", False)


def is_out_of_patience(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> bool:
    """Whether as many evaluations as `patience` says have come since the best one."""
    best = best_evaluation(config, evaluations)
    if config.patience is None or best is None:
        return False
    return sum(one.step > best.step for one in evaluations) >= config.patience


def best_summary(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> dict[str, Any]:
    """For the run's summary: nothing, unless the settings ask for the best evaluation."""
    best = best_evaluation(config, evaluations)
    if (config.save != "best" and config.patience is None) or best is None:
        return {}
    metric, _ = _metric(config)
    ended = is_out_of_patience(config, evaluations)
    found = {"metric": metric, "value": getattr(best, metric), "step": best.step, "kept": config.save == "best"}
    return {"best": {**found, "ended_by_patience": ended}}


def refuse_without_evaluation(config: TrainConfig, dataset: Dataset) -> None:
    """Refuse settings that ask for the best evaluation where there will be none.

    Raises:
        ConfigError: if the data have no evaluation part.
    """
    asked = [f"save={config.save}"] if config.save == "best" else []
    asked += [f"patience={config.patience}"] if config.patience is not None else []
    if asked and next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"{' and '.join(asked)}: the data ({config.data}) have no evaluation part, so none is the best; set "
            "data.holdout, data.eval_data or data.time_split, of the built-in stream data.synthetic.num_eval"
        )


def is_reached(wanted: StopAtConfig | None, found: Evaluation | EvalRecord | None) -> bool:
    """Whether an evaluation reaches the target; without a target, or a value (labels of one class), none does."""
    value = None if wanted is None or found is None else getattr(found, wanted.metric)
    return wanted is not None and value is not None and wanted.is_reached_by(value)


def target_summary(wanted: StopAtConfig | None, recorder: Recorder) -> dict[str, Any]:
    """For the run's summary: nothing without a target.

    `step`, `samples` and `seconds` are those of training up to the evaluation that reached it, which was the last one;
    seconds are of training alone. None, if it was not reached.
    """
    if wanted is None:
        return {}
    reached = any(is_reached(wanted, one) for one in recorder.evaluations)
    best = best_of(wanted.metric, recorder.evaluations, lower_is_better=wanted.lower_is_better)
    when = {"step": recorder.steps, "samples": recorder.samples, "seconds": recorder.totals.seconds}
    return {
        "stop_at": {
            "metric": wanted.metric,
            "target": wanted.target,
            "reached": reached,
            **(when if reached else dict.fromkeys(when)),
            "best": None if best is None else getattr(best, wanted.metric),
            "best_step": None if best is None else best.step,
        }
    }


def refuse_unreachable(config: TrainConfig, components: Components | ComponentsOutline, dataset: Dataset) -> None:
    """Refuse a target that no evaluation could reach, or that a guard would move.

    Raises:
        ConfigError: if the data have no evaluation part, or the run is guarded.
    """
    if config.stop_at is None:
        return
    named = f"stop_at.{config.stop_at.metric}={config.stop_at.target:g}"
    if is_guarded(config, components):
        raise ConfigError(
            f"{named}: a guard judges by what skipping costs until the end of the run, and may take weights back after "
            "the evaluation that reached the target; set guard or stop_at to null"
        )
    if next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"{named}: the data ({config.data}) have no evaluation part, so no evaluation would ever reach it; set "
            "data.holdout, data.eval_data or data.time_split, of the built-in stream data.synthetic.num_eval"
        )
