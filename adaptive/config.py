"""Settings as validated data: every field has a description, a unit and a default; unknown keys are errors.

The models here hold values only. Where values come from (file, flags, environment) is `adaptive.training.settings`.
"""

import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from adaptive.errors import ConfigError

_UNITS = {"B": 1} | {f"{letter}{end}": base ** (place + 1)
                     for end, base in (("iB", 2**10), ("B", 10**3)) for place, letter in enumerate("KMGT")}  # fmt: skip
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?P<unit>%|(?:[KMGT]i?)?B)?")


def parse_size(text: str, *, row_bytes: int, num_rows: int) -> int:
    """Rows meant by a size: `5000` (rows), `10%` (of `num_rows`), `512MiB` (whole rows of `row_bytes`).

    Raises:
        ValueError: if the text is none of the three.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError(f"size {text!r} is not a number of rows, a per cent (10%) or bytes (512MiB, 2GB)")
    number, unit = float(match["number"]), match["unit"] or ""
    if unit == "%":
        if number > 100:
            raise ValueError(f"size {text!r} is more than 100%")
        return min(num_rows, -int(-num_rows * number // 100))
    if unit:
        return min(num_rows, int(number * _UNITS[unit]) // row_bytes)
    if number != int(number):
        raise ValueError(f"size {text!r}: a number of rows is whole")
    return min(num_rows, int(number))


def _text(check: Callable[[str], object]) -> BeforeValidator:
    """Whole numbers become text, and text must pass the check."""

    def checked(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str):
            check(value)
        return value

    return BeforeValidator(checked)


Size = Annotated[str, _text(lambda text: text == "auto" or parse_size(text, row_bytes=1, num_rows=1))]


def _seconds(value: float) -> float:
    """A limit so short that nobody could keep it would blame a policy."""
    if 0 < value < 0.01:
        raise ValueError("needed 0 or at least 0.01")
    return value


def parse_sample(text: str) -> int | float:
    """What a sample is: a whole number of batches (`16`), or a share of the inputs, above 0, at most 1 (`5%` is 0.05).

    Raises:
        ValueError: if the text is neither.
    """
    match = re.fullmatch(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?P<unit>%?)", str(text).strip())
    if match is None or (not match["unit"] and "." in match["number"]):
        raise ValueError(f"sample {text!r} is neither a number of batches (16) nor a share of the inputs (5%)")
    if not match["unit"]:
        return int(match["number"])
    share = float(match["number"]) / 100
    if not 0 < share <= 1:
        raise ValueError(f"sample {text!r}: needed more than 0%, at most 100%")
    return share


SampleSize = Annotated[str, _text(parse_sample)]


MOST: Final = 2**48  # of what is counted in batches, samples or look-ups: more is a mistake, and ends counters
_MOST_NESTED: Final = 32


def _clean(value: object, depth: int = 0) -> None:
    if isinstance(value, str) and "\0" in value:
        raise ValueError("a text must hold no NUL character")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if depth > _MOST_NESTED:
        raise ValueError(f"values must be nested at most {_MOST_NESTED} deep")
    for item in inner:
        _clean(item, depth + 1)


def explain(model: type[BaseModel], error: ValidationError) -> str:
    """All that is wrong with the settings of a model, by key, with the key that an unknown one may stand for."""
    words = {"missing": "is needed", "extra_forbidden": "unknown key"}
    wrong = sorted(error.errors(), key=lambda mistake: mistake["type"])  # a typo before what is missing because of it
    places = [".".join(map(str, mistake["loc"])) for mistake in wrong]
    texts = []
    for place, mistake in zip(places, wrong, strict=True):
        if mistake["type"] == "too_short" and any(other.startswith(f"{place}.") for other in places):
            continue  # it follows
        text = words.get(mistake["type"], mistake["msg"].removeprefix("Value error, ")) + _meant(model, mistake)
        if mistake["loc"] and mistake["type"] not in words and isinstance(mistake["input"], str | int | float | None):
            text += f", got {mistake['input']!r}"
        texts.append(": ".join(filter(None, (place, text))))
    return "; ".join(texts)


def _meant(model: type[BaseModel], error: ErrorDetails) -> str:
    """Of an unknown key at the top: the one that may have been meant, else those that there are."""
    if error["type"] != "extra_forbidden" or len(error["loc"]) != 1:
        return ""
    near = get_close_matches(str(error["loc"][0]), model.model_fields, 1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(model.model_fields)})"


def _encodable(name: str) -> str:
    """Initial values follow from the bytes of a table's name, so that it must have some."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"expected text that UTF-8 can hold, got {name!r}") from None
    return name


class Config(BaseModel):
    """Base of all settings: closed keys, immutable, numbers finite, texts without NUL (no path has one).

    Raises:
        ConfigError: names every unknown key and bad value. `model_validate`, for settings that are read, raises
            pydantic's own error, which has the paths of keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers know the fields of each class

        def __init__(self, *unnamed: object, **values: Any) -> None:
            if unnamed:
                example = f"{type(self).__name__}({next(iter(type(self).model_fields))}={unnamed[0]!r})"
                raise ConfigError(f"expected settings by name, such as {example}, got {unnamed[0]!r} without a name.")
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(f"{type(self).__name__}: {explain(type(self), error)}") from None

        __init__.__pydantic_base_init__ = True  # `model_validate` need not call it

    @model_validator(mode="before")
    @classmethod
    def _without_nul(cls, values: Any) -> Any:
        for value in values.values() if isinstance(values, dict) else ():
            if isinstance(value, str | list | tuple | dict):
                _clean(value)
        return values


class TableConfig(Config):
    """One embedding table: its name and size, the features that look it up, how they are pooled."""

    name: Annotated[str, AfterValidator(_encodable)] = Field(description="name in reports and TensorBoard")
    num_embeddings: int = Field(ge=1, le=2**40, description="rows; ids lie in [0, num_embeddings)")
    embedding_dim: int = Field(ge=1, le=4096, description="width of a row, in float32 values")
    features: tuple[str, ...] = Field(
        default=(), description="features that look up this table; default: one of the table's name"
    )
    pooling: Literal["sum", "mean", "none"] = Field(
        default="sum", description="how a bag becomes one vector; none: one vector per position"
    )
    init_bound: float | None = Field(
        default=None,
        ge=0,
        description="initial values are uniform in +-init_bound; default 1/sqrt(num_embeddings)",
    )
    lr_scale: float = Field(
        default=1.0,
        ge=0,
        description="the table's learning rate over the optimizer's; 0: its rows stay as they are",
    )

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.features or (self.name,)


class TierConfig(Config):
    """Settings of the two tiers: where rows lie, and on which device."""

    device_rows: Size = Field(
        default="auto",
        description="slots of the device tier: rows, per cent of all rows (10%), bytes (512MiB) or auto",
    )
    device: Literal["auto", "cpu", "cuda", "cpu-torch"] = Field(
        default="auto", description="auto: cuda where there is a GPU; cpu-torch: debug, the GPU's code on the CPU"
    )
    host: str = Field(
        default="memory", pattern=r"^(memory|mmap:.+)$", description="memory, or mmap:DIR for files in DIR"
    )
    held_rows: int = Field(
        default=0, ge=0, le=2**41, description="rows the look-ahead must hold, as far as known; auto is at least that"
    )
    when_full: Literal["error", "reduce_lookahead"] = Field(
        default="error", description="if held rows do not fit: stop, or look less far ahead for that batch"
    )
    eviction_share: float = Field(
        default=0.02, ge=0, le=1, description="share of the device rows evicted at once when slots run short"
    )
    max_candidates: int = Field(
        default=1 << 14,
        ge=1,
        le=2**40,
        description="rows handed to the policy at once, at most, or 8 times the slots that are short",
    )
    transfer: Literal["auto", "direct", "staged"] = Field(
        default="auto",
        description="how rows reach a GPU: it reads pinned host memory in place, or through pinned buffers; "
        "auto: direct if pinning all rows takes at most half of the free memory",
    )
    reserve: Size = Field(
        default="auto",
        description="GPU memory that device_rows=auto leaves to model and batches: bytes, or per cent of what is free; "
        "auto: 20%, at least 1GiB",
    )
    policy_timeout_s: Annotated[float, AfterValidator(_seconds)] = Field(
        default=60.0,
        ge=0,
        le=1e6,
        description="seconds (from 0.01) after which a policy's method that does not return stops training; 0: never",
    )
    plan_threads: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = Field(
        default="auto",
        description="threads that plan batches, with equal results for any number; from the second on they prepare "
        "batches that are read ahead; auto: 1, for a GPU up to 3, a quarter of the cores",
    )
    lookups: Literal["auto", "host", "device"] = Field(
        default="host",
        description="who finds a batch's distinct rows and look-ups by row, with equal results: the host, or a GPU by "
        "sorting them; auto: a GPU, for batches of 65,536 look-ups and more, 4 to a bag on average, where no row stays "
        "on the host and no update waits or is left out",
    )
    poison: bool = Field(default=False, description="debug: fill the invalid copy of every row with NaN")


class SkipConfig(Config):
    """Which updates are written less often, and how rows are watched for it. Without this nothing is skipped."""

    rule: str | None = Field(
        default=None,
        description="beside any policy: off, defer, updates, inputs, module:Class or file.py:Class, with parameters as "
        "in defer+bound=0.1; null: the rule that the policy carries",
    )

    interval: int = Field(default=64, ge=1, le=MOST, description="batches between questions to the skip rule")
    hot_rows: Size = Field(
        default="auto",
        description="rows watched for the skip rule: rows, per cent, bytes, or auto (5%, at least 100,000)",
    )
    min_accesses: int = Field(
        default=64, ge=1, le=2**31, description="look-ups after which a row is watched, and between two snapshots of it"
    )
    min_visits: int = Field(
        default=32, ge=1, lt=2**16, description="batches that look a row up between two snapshots of it, at least"
    )
    feedback_delay: int = Field(
        default=8,
        ge=0,
        le=2**20,
        description="batches after which a measurement counts, at least; equal decisions for any depth up to it",
    )


class RanksConfig(Config):
    """Several processes that train together; how many is told by `--ranks`, or by torchrun."""

    blocks: int | None = Field(
        default=None,
        ge=1,
        description="parts of a batch whose sums are taken in order: any number of ranks up to it gives the same bits; "
        "null: one for each rank",
    )
    wire: Literal["fp32", "bf16"] = Field(
        default="fp32",
        description="how rows and their gradients cross between ranks: bf16 halves the bytes and rounds, also where a "
        "rank owns what it asks for",
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto",
        description="how rows and gradients on GPUs cross between ranks: nccl from GPU to GPU, one for each rank; gloo "
        "over the host's memory; auto: nccl where it can be",
    )
    timeout_s: float = Field(default=600.0, gt=0, description="seconds that a rank waits for the others")


class GuardConfig(Config):
    """The quality guard: keeps skipping within a loss of AUC, judged against a copy of the run that skips nothing.

    The copy (*fork*) takes as much memory as the rows trained so far, twice that for a moment, and trains every batch
    as long as it lives.
    """

    budget: float = Field(default=0.0005, gt=0, description="loss of AUC by the end of the run that is accepted")
    warmup: int = Field(default=400, ge=0, le=MOST, description="batches before anything is skipped, at least")
    steps: int = Field(default=400, ge=1, le=MOST, description="batches that a fork and the run train side by side")
    holdout: int = Field(
        default=100_000,
        ge=100,
        le=MOST,
        description="coming samples, not trained yet, on which the two are then compared",
    )
    every: int = Field(default=4000, ge=1, le=MOST, description="batches from a check that was passed to the next")


class StopAtConfig(Config):
    """The quality at which a run has learnt enough: one of the three. The first evaluation that reaches it ends it."""

    auc: float | None = Field(default=None, gt=0, le=1, description="area under the ROC curve, at least")
    log_loss: float | None = Field(default=None, gt=0, description="log loss in nats, at most")
    accuracy: float | None = Field(
        default=None, gt=0, le=1, description="share of predictions on their label's side of 0.5, at least"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(self._given()) != 1:
            names = ", ".join(self._given()) or "none"
            raise ValueError(f"stop_at needs one of auc, log_loss and accuracy, found {names}")
        return self

    def _given(self) -> dict[str, float]:
        return {name: value for name, value in self.model_dump().items() if value is not None}

    @property
    def metric(self) -> str:
        (name,) = self._given()
        return name

    @property
    def target(self) -> float:
        return self._given()[self.metric]

    @property
    def lower_is_better(self) -> bool:
        return self.metric == "log_loss"

    def is_reached_by(self, value: float) -> bool:
        return value <= self.target if self.lower_is_better else value >= self.target


class ScheduleConfig(Config):
    """How a learning rate changes over the steps of a run. By default it does not."""

    warmup: int = Field(
        default=0, ge=0, le=MOST, description="steps over which the rate rises in a line to its full value"
    )
    decay: Literal["none", "linear", "cosine", "power"] = Field(
        default="none", description="how it falls; power: by the square of what is left, as DLRM's does"
    )
    decay_from: int = Field(default=0, ge=0, le=MOST, description="steps before it begins to fall")
    decay_steps: int | None = Field(
        default=None, ge=1, le=MOST, description="steps over which it falls; decay needs it"
    )
    final: float = Field(default=0.0, ge=0, le=1, description="share of the rate that is left then")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.decay != "none" and self.decay_steps is None:
            raise ValueError(f"decay={self.decay} needs decay_steps")
        return self

    @property
    def is_constant(self) -> bool:
        return self.warmup == 0 and self.decay == "none"

    def factor(self, step: int) -> float:
        """Of the rate, in step `step`, counted from 0."""
        risen = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.decay == "none" or self.decay_steps is None:
            return risen
        left = 1.0 - min(max((step - self.decay_from) / self.decay_steps, 0.0), 1.0)
        falls = {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "power": left * left}
        return risen * (self.final + (1 - self.final) * falls[self.decay])


class OptimizerConfig(Config):
    """Optimizer of the rows."""

    name: Literal["sgd", "adagrad", "rowwise_adagrad", "adam"] = Field(
        default="rowwise_adagrad", description="formula of the update; see adaptive.optim"
    )
    lr: float = Field(default=0.05, gt=0, description="learning rate of rows")
    eps: float = Field(default=1e-8, ge=0, description="added to the square root (Adagrad family, Adam)")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Adam: decay of the first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="Adam: decay of the second moment")
    initial_accumulator: float = Field(default=0.0, ge=0, description="Adagrad family: first value of the sum")
    weight_decay: float = Field(
        default=0.0, ge=0, description="of rows that are updated: first w *= 1 - lr * weight_decay, as in AdamW"
    )
    schedule: ScheduleConfig = ScheduleConfig()


class DenseOptimizerConfig(Config):
    """Optimizer of the dense part (torch.optim)."""

    name: Literal["sgd", "adagrad", "adam"] = Field(default="adagrad", description="class of torch.optim")
    lr: float = Field(default=0.02, gt=0, description="learning rate of dense weights")
    schedule: ScheduleConfig = ScheduleConfig()


class TrainConfig(Config):
    """All settings of one training run."""

    preset: str | None = Field(
        default=None,
        description="shape of a model that a paper names; its settings count where none else is given, and only where "
        "settings are read (adaptive.training.settings): see adaptive.models.paper_presets",
    )
    policy: str = Field(default="lru", description="name, module:Class or file.py:Class")
    policy_options: dict[str, Any] = Field(default_factory=dict, description="parameters of the policy")
    data: str = Field(
        default="synthetic",
        description="synthetic, sequences, criteo:PATH[,PATH...], csv:PATH, parquet:PATH, dlrm:PATH, mlperf:PATH, "
        "prepared:DIR, taobao:PATH or tbsm:PATH",
    )
    data_options: dict[str, Any] = Field(default_factory=dict, description="see adaptive.data.open.DataOptions")
    model: str = Field(
        default="dlrm",
        description="dlrm, dcn, deepfm, two-tower, multi-task, tbsm, module:Class or file.py:Class; tbsm needs data of "
        "sequences, multi-task several labels, and both train on built-in ones by default",
    )
    model_options: dict[str, Any] = Field(default_factory=dict, description="see adaptive.models.model_settings")
    tier: TierConfig = TierConfig()
    skip: SkipConfig | None = Field(default=SkipConfig(), description="null: nothing is skipped")
    guard: GuardConfig | None = Field(default=None, description="null: what skipping costs is not checked in the run")
    ranks: RanksConfig = RanksConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    batch_size: int = Field(default=2048, ge=1, le=2**24, description="samples per batch")
    eval_batch_size: int = Field(default=8192, ge=1, le=2**24, description="samples per evaluation batch")
    depth: int = Field(default=4, ge=0, le=64, description="batches of look-ahead; 0: none, no thread")
    steps: int | None = Field(default=None, ge=1, le=MOST, description="stop after this many batches")
    epochs: int = Field(default=1, ge=1, le=MOST, description="passes over the training data")
    calibrate: SampleSize | None = Field(
        default=None,
        description="what a policy that calibrates sees before training: a random share of all inputs of an epoch, "
        "which is read once for that (5%), or the first batches (16); default 5%, at least 32,768 inputs, and of huge "
        "data no more than the beginning, until 262,144 are found",
    )
    calibration_batches: int | None = Field(
        default=None,
        ge=0,
        le=MOST,
        description="first batches a policy sees before training, unless calibrate is given",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of initial values; data have their own seed")
    out: str | None = Field(default=None, description="run directory; default runs/<date>-<policy>")
    init_from: str | None = Field(
        default=None,
        description="a run directory: begin with its weights, rows with their optimizer state; tables may be larger, "
        "its vocabularies grow by what these data bring",
    )
    init_optimizer: bool = Field(
        default=True, description="with init_from: false begins with new state of both optimizers"
    )
    log_every: int = Field(default=20, ge=1, le=MOST, description="batches between records")
    tensorboard: bool = Field(default=True, description="write TensorBoard files into the run directory")
    log_to: str | None = Field(
        default=None,
        description="loggers that get the numbers, too: wandb, mlflow or others that are installed, with commas "
        "between them; both write into the run directory",
    )
    save: bool | Literal["best"] = Field(
        default=True,
        description="save weights at the end; best: also those of the best evaluation, by stop_at's metric or else by "
        "AUC, which eval, predict and export then take",
    )
    save_every: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="batches between checkpoints, from which a run can go on; null: at the end only",
    )
    keep_checkpoints: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="checkpoints kept while the run is under way; a damaged one falls back to the one before it",
    )
    eval_every: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="batches between evaluations during training; null: at the end of an epoch only",
    )
    eval_by: str | None = Field(
        default=None,
        description="feature with one id a sample, such as the user: evaluations also give GAUC, the mean AUC within "
        "its ids; null: they do not",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="evaluations that are no better than the best before them, after which training ends; null: never",
    )
    stop_at: StopAtConfig | None = Field(
        default=None, description="null: train to the end; or the quality at which an evaluation ends training"
    )
    deterministic: bool = Field(
        default=False, description="torch's deterministic algorithms; needed for equal bits on a GPU"
    )
    tf32: bool = Field(
        default=False,
        description="matrix products of the dense part on a GPU from numbers rounded to 10 bits, by tensor cores, "
        "several times as fast; rows are updated in float32 all the same",
    )

    @model_validator(mode="after")
    def _saves(self) -> Self:
        if self.save_every is not None and not self.save:
            raise ValueError(f"save_every={self.save_every} and save=false exclude each other")
        return self

    @model_validator(mode="after")
    def _guards(self) -> Self:
        if self.guard is not None and not (
            self.optimizer.schedule.is_constant and self.dense_optimizer.schedule.is_constant
        ):
            raise ValueError("guard and schedules exclude each other: its copy of the run trains at one rate")
        return self
