"""Goals of a run: the best evaluation (`save=best`), and patience."""

from collections.abc import Sequence

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.components import Components, ComponentsOutline
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.report import BestSummary

_HOW_TO_EVALUATE = (
    "Set data.holdout, data.eval_data or data.time_split, or data.synthetic.num_eval for the built-in stream"
)


def best_evaluation(evaluations: Sequence[EvalRecord]) -> EvalRecord | None:
    """The first best evaluation by AUC, or squared error; None without one."""
    metric = _metric(evaluations)
    order = min if metric == "mse" else max
    scored = [record for record in evaluations if getattr(record, metric) is not None]
    return order(scored, key=lambda record: float(getattr(record, metric)), default=None)


def _metric(evaluations: Sequence[EvalRecord]) -> str:
    return "auc" if not evaluations or evaluations[0].mse is None else "mse"


def is_out_of_patience(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> bool:
    """True if at least `patience` evaluations came after the best one."""
    best = best_evaluation(evaluations)
    if config.patience is None or best is None:
        return False
    return sum(record.step > best.step for record in evaluations) >= config.patience


def best_summary(config: TrainConfig, evaluations: Sequence[EvalRecord]) -> BestSummary | None:
    """The best evaluation for the run's summary; None without `save=best` or `patience`."""
    best = best_evaluation(evaluations)
    if (config.save != "best" and config.patience is None) or best is None:
        return None
    return {
        "metric": _metric(evaluations),
        "value": getattr(best, _metric(evaluations)),
        "step": best.step,
        "saved": config.save == "best",
        "ended_by_patience": is_out_of_patience(config, evaluations),
    }


def refuse_unreachable(config: TrainConfig, components: Components | ComponentsOutline, dataset: Dataset) -> None:
    """Raise ConfigError for goals without evaluation data, or settings that need probabilities of a label."""
    _refuse_without_probabilities(config, components)
    goals = [f"save={config.save}"] if config.save == "best" else []
    goals += [f"patience={config.patience}"] if config.patience is not None else []
    if goals and next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"expected data with an evaluation part, got {config.data} ({' and '.join(goals)}). {_HOW_TO_EVALUATE}"
        )


def _refuse_without_probabilities(config: TrainConfig, components: Components | ComponentsOutline) -> None:
    if components.loss != "mse":
        return
    rule = components.embeddings.policy.rule
    needs = {
        "eval_by": config.eval_by is not None,
        f"the rule {type(rule).__name__}": rule is not None and rule.reads_inputs_only,
    }
    if wrong := [name for name, is_set in needs.items() if is_set]:
        raise ConfigError(
            f"model.loss = mse: expected no {', '.join(wrong)}, which need probabilities of a label 0 or 1, got them. "
            "Remove them."
        )
