"""The best evaluation of a run so far: whose weights are kept (`save=best`), and after how many worse ones it ends
(`patience`)."""

from collections.abc import Sequence
from typing import Any

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.telemetry.record import EvalRecord


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
