"""Goals of a run: the best evaluation (`save=best`), patience, and the target (`stop_at`)."""

from collections.abc import Sequence

from adaptive.config import StopAtConfig, TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.components import Components, ComponentsOutline
from adaptive.training.evaluation import Evaluation
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.recorder import Recorder
from adaptive.training.telemetry.report import BestSummary, TargetSummary

_HOW_TO_EVALUATE = (
    "Set data.holdout, data.eval_data or data.time_split, or data.synthetic.num_eval for the built-in stream"
)


def best_evaluation(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> EvalRecord | None:
    """The first best evaluation by the metric of `stop_at`, or AUC, or squared error; None without one."""
    metric = _metric(config, evaluations)
    is_lower_better = config.stop_at.lower_is_better if config.stop_at else metric == "mse"
    order = min if is_lower_better else max
    scored = [record for record in evaluations if getattr(record, metric) is not None]
    return order(scored, key=lambda record: float(getattr(record, metric)), default=None)


def _metric(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> str:
    if config.stop_at:
        return config.stop_at.metric
    return "auc" if not evaluations or evaluations[0].mse is None else "mse"


def is_out_of_patience(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> bool:
    """True if at least `patience` evaluations came after the best one."""
    best = best_evaluation(config, evaluations)
    if config.patience is None or best is None:
        return False
    return sum(record.step > best.step for record in evaluations) >= config.patience


def best_summary(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> BestSummary | None:
    """The best evaluation for the run's summary; None without `save=best` or `patience`."""
    best = best_evaluation(config, evaluations)
    if (config.save != "best" and config.patience is None) or best is None:
        return None
    return {
        "metric": _metric(config, evaluations),
        "value": getattr(best, _metric(config, evaluations)),
        "step": best.step,
        "saved": config.save == "best",
        "ended_by_patience": is_out_of_patience(config, evaluations),
    }


def is_reached(wanted: StopAtConfig | None, quality: Evaluation | EvalRecord) -> bool:
    """True if there is a target and the evaluation reaches it."""
    value = None if wanted is None else getattr(quality, wanted.metric)
    return wanted is not None and value is not None and wanted.is_reached_by(value)


def target_summary(config: TrainConfig, recorder: Recorder) -> TargetSummary | None:
    """The target for the run's summary; None without `stop_at`."""
    wanted = config.stop_at
    if wanted is None:
        return None
    reached = any(is_reached(wanted, record) for record in recorder.evaluations)
    best = best_evaluation(config, recorder.evaluations)
    return {
        "metric": wanted.metric,
        "target": wanted.target,
        "reached": reached,
        "step": recorder.steps if reached else None,
        "samples": recorder.samples if reached else None,
        "seconds": recorder.totals.seconds if reached else None,
        "best": None if best is None else getattr(best, wanted.metric),
        "best_step": None if best is None else best.step,
    }


def refuse_unreachable(config: TrainConfig, components: Components | ComponentsOutline, dataset: Dataset) -> None:
    """Raise ConfigError for goals without evaluation data, or another loss's metrics."""
    target = config.stop_at
    _refuse_other_metrics(config, components)
    goals = [f"save={config.save}"] if config.save == "best" else []
    goals += [f"patience={config.patience}"] if config.patience is not None else []
    goals = [f"stop_at.{target.metric}={target.target:g}"] if target is not None else goals
    if goals and next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"expected data with an evaluation part, got {config.data} ({' and '.join(goals)}). {_HOW_TO_EVALUATE}"
        )


def _refuse_other_metrics(config: TrainConfig, components: Components | ComponentsOutline) -> None:
    """Raise ConfigError for settings that need probabilities of a label, with predicted numbers, and the reverse."""
    target, rule = config.stop_at, components.embeddings.policy.rule
    if components.loss != "mse":
        if target is not None and target.metric in ("mse", "mae"):
            raise ConfigError(
                f"stop_at.{target.metric}: expected model.loss = mse with it, got {components.loss}. Set stop_at.auc, "
                "stop_at.log_loss or stop_at.accuracy."
            )
        return
    needs = {
        f"stop_at.{target.metric if target else ''}": target is not None and target.metric not in ("mse", "mae"),
        "eval_by": config.eval_by is not None,
        f"the rule {type(rule).__name__}": rule is not None and rule.reads_inputs_only,
    }
    if wrong := [name for name, is_set in needs.items() if is_set]:
        raise ConfigError(
            f"model.loss = mse: expected no {', '.join(wrong)}, which need probabilities of a label 0 or 1, got them. "
            "Remove them; stop_at.mse and stop_at.mae fit."
        )
