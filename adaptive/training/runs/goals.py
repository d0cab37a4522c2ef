"""Goals of a run: the best evaluation (`save=best`), and patience."""

from collections.abc import Sequence

from adaptive.config import TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.report import BestSummary

_HOW_TO_EVALUATE = (
    "Set data.holdout, data.eval_data or data.time_split, or data.synthetic.num_eval for the built-in stream"
)


def best_evaluation(evaluations: Sequence[EvalRecord]) -> EvalRecord | None:
    """The first best evaluation by AUC; None without one."""
    scored = [(record.auc, record) for record in evaluations if record.auc is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


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
    assert best.auc is not None
    return {
        "metric": "auc",
        "value": best.auc,
        "step": best.step,
        "saved": config.save == "best",
        "ended_by_patience": is_out_of_patience(config, evaluations),
    }


def refuse_unreachable(config: TrainConfig, dataset: Dataset) -> None:
    """Raise ConfigError for goals without evaluation data."""
    goals = [f"save={config.save}"] if config.save == "best" else []
    goals += [f"patience={config.patience}"] if config.patience is not None else []
    if goals and next(dataset.evaluation(config.eval_batch_size), None) is None:
        raise ConfigError(
            f"expected data with an evaluation part, got {config.data} ({' and '.join(goals)}). {_HOW_TO_EVALUATE}"
        )
