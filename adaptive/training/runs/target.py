"""The quality at which a run stops (`stop_at`): reached or not, when, and how near it came."""

from typing import Any

from adaptive.config import StopAtConfig, TrainConfig
from adaptive.data.dataset import Dataset
from adaptive.errors import ConfigError
from adaptive.training.build import Components, ComponentsOutline
from adaptive.training.evaluation import Evaluation
from adaptive.training.runs.best import best_of
from adaptive.training.runs.state import is_guarded
from adaptive.training.telemetry.record import EvalRecord
from adaptive.training.telemetry.recorder import Recorder


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
