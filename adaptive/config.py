"""Settings as validated data: described fields with defaults; unknown keys are errors.

These models hold values only. `adaptive.training.settings` reads them from files, flags and the environment.
"""

import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from adaptive.errors import ConfigError

_UNITS = {"B": 1} | {f"{letter}{end}": base ** (place + 1)
                     for end, base in (("iB", 2**10), ("B", 10**3)) for place, letter in enumerate("KMGT")}  # fmt: skip
_SIZE = re.compile(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?P<unit>%|(?:[KMGT]i?)?B)?")


def parse_size(text: str, *, row_bytes: int, num_rows: int) -> int:
    """Convert a size to a number of rows, at most `num_rows`.

    Args:
        text: `5000` (rows), `10%` (of `num_rows`, rounded up) or `512MiB` (whole rows of `row_bytes`).
        row_bytes: bytes of one row.
        num_rows: all rows.

    Raises:
        ValueError: if the text is none of the three.
    """
    match = _SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ValueError("expected a size in rows (5000), percent (10%) or bytes (512MiB, 2GB)")
    number, unit = float(match["number"]), match["unit"] or ""
    if unit == "%":
        if number > 100:
            raise ValueError("expected a size of at most 100%")
        return min(num_rows, -int(-num_rows * number // 100))
    if unit:
        return min(num_rows, int(number * _UNITS[unit]) // row_bytes)
    if number != int(number):
        raise ValueError("expected a size in whole rows")
    return min(num_rows, int(number))


def _text(check: Callable[[str], object]) -> BeforeValidator:
    """Validator that turns numbers into text and runs a check on text."""

    def checked(value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str):
            check(value)
        return value

    return BeforeValidator(checked)


Size = Annotated[str, _text(lambda text: text == "auto" or parse_size(text, row_bytes=1, num_rows=1))]


def parse_sample(text: str) -> int | float:
    """Convert a sample size to a number of batches (int) or a share of the inputs (float).

    Args:
        text: `16` (batches) or `5%` (0.05 of the inputs; above 0%, at most 100%).

    Raises:
        ValueError: if the text is neither.
    """
    match = re.fullmatch(r"(?P<number>[0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?P<unit>%?)", str(text).strip())
    if match is None or (not match["unit"] and "." in match["number"]):
        raise ValueError("expected a sample of batches (16) or a share of the inputs (5%)")
    if not match["unit"]:
        return int(match["number"])
    share = float(match["number"]) / 100
    if not 0 < share <= 1:
        raise ValueError("expected a sample above 0% and at most 100%")
    return share


SampleSize = Annotated[str, _text(parse_sample)]


_TIMES: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}  # seconds
_EXPIRY: Final = "expected a number of batches above 0 (50000) or a time (90s, 30m, 12h, 14d, 2w)"
MOST_KEYS: Final = 2**31 - 2  # rows for keys of a table: their numbers are int32


def parse_expiry(value: Any) -> int | str | None:
    """Return a number of batches as `int`, a time such as `14d` as text, and None as it is.

    Raises:
        ValueError: for anything else.
    """
    if value is None:
        return None
    text = str(value).strip() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if re.fullmatch(r"[0-9]{1,15}", text) and int(text) > 0:
        return int(text)
    if re.fullmatch(r"[0-9]{1,9}[smhdw]", text) and int(text[:-1]) > 0:
        return text
    raise ValueError(_EXPIRY)


def seconds_of(time: str) -> int:
    """Return the seconds of a time that `parse_expiry` returns as text."""
    return int(time[:-1]) * _TIMES[time[-1]]


def idle_seconds(until: str) -> int:
    """Return the seconds of `idle=10m`; raise ValueError for anything else."""
    name, _, time = until.partition("=")
    if name != "idle" or not re.fullmatch(r"[0-9]{1,9}[smhdw]", time):
        raise ValueError(f"expected idle=TIME such as idle=90s, idle=10m or idle=2h, got {until!r} (until)")
    return seconds_of(time)


Expiry = Annotated[int | str | None, BeforeValidator(parse_expiry)]


MOST: Final = 2**48  # upper limit for counts of batches, samples or lookups: more is a mistake and overflows counters


def explain(model: type[BaseModel], error: ValidationError, *, table: str = "", separator: str = "; ") -> str:
    """Return all mistakes in the settings of a model, by key in `table`, with a suggestion for each unknown key."""
    words = {"missing": "is needed", "extra_forbidden": "unknown key"}
    wrong = sorted(error.errors(), key=lambda mistake: mistake["type"])  # a typo before what is missing because of it
    places = [".".join(map(str, (table, *mistake["loc"]))).removeprefix(".") for mistake in wrong]
    texts = []
    for place, mistake in zip(places, wrong, strict=True):
        if mistake["type"] == "too_short" and any(other.startswith(f"{place}.") for other in places):
            continue  # a consequence of the other mistake
        text = (words.get(mistake["type"]) or reason(mistake)) + _meant(model, mistake)
        if mistake["loc"] and mistake["type"] not in words and isinstance(mistake["input"], str | int | float | None):
            text += f", got {mistake['input']!r:.200}"
        texts.append(": ".join(filter(None, (place, text))))
    return separator.join(texts)


def reason(mistake: ErrorDetails) -> str:
    """Return pydantic's message in our words, without the value."""
    message = mistake["msg"].removeprefix("Value error, ")
    if not message.startswith("Input should be "):
        return message
    expected = re.split(", (?:unable|got) ", message.removeprefix("Input should be "))[0]
    return f"expected {'a value ' * expected.startswith(('greater', 'less'))}{expected}"


def _meant(model: type[BaseModel], error: ErrorDetails) -> str:
    """Return a suggestion for an unknown key: the most similar key, else all keys of its table."""
    if error["type"] != "extra_forbidden":
        return ""
    for part in error["loc"][:-1]:
        if part in model.model_fields:  # not an index, or a key of a dict
            annotation = model.model_fields[part].annotation
            inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
            model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    near = get_close_matches(str(error["loc"][-1]), model.model_fields, 1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(model.model_fields)})"


class Config(BaseModel):
    """Base of all settings: fixed keys, immutable, finite numbers.

    Raises:
        ConfigError: for every unknown key and bad value. `model_validate`, which reads files, raises pydantic's
            `ValidationError` instead, because it has the paths of keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers know the fields of each class

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(f"{type(self).__name__}: {explain(type(self), error)}") from None

        __init__.__pydantic_base_init__ = True  # tells pydantic that `model_validate` need not call it

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        # pydantic takes true for 1, unless it checks all types strictly: then a list is no tuple, and a text no path.
        if isinstance(value, bool) and info.field_name in cls.model_fields:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = set(get_args(annotation) or (annotation,))
            if kinds & {int, float} and bool not in kinds:
                raise ValueError(f"expected a number, got {value}")
        return value


class TableConfig(Config):
    """One embedding table: name, size, the features that look it up, and their pooling."""

    name: str = Field(description="name in reports and TensorBoard")
    num_embeddings: int = Field(ge=1, le=2**40, description="number of rows; ids are in [0, num_embeddings)")
    embedding_dim: int = Field(ge=1, le=4096, description="width of a row in values")
    features: tuple[str, ...] = Field(
        default=(), description="features that look up this table; default: the feature with the table's name"
    )
    pooling: Literal["sum", "mean", "none"] = Field(
        default="sum", description="how the rows of a bag become one vector; none: one vector per position"
    )
    init_bound: float | None = Field(
        default=None,
        ge=0,
        description="initial values are uniform in [-init_bound, init_bound]; default: 1/sqrt(num_embeddings)",
    )
    lr_scale: float = Field(
        default=1.0,
        ge=0,
        description="factor on the optimizer's learning rate for this table; 0 freezes its rows",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="stored values of a row; bfloat16 takes half the bytes, computed in float32",
    )
    rounding: Literal["stochastic", "nearest"] = Field(
        default="stochastic",
        description="how an update rounds rows to bfloat16: stochastic keeps small updates in the mean, by a "
        "hash of seed, table, row and batch; nearest loses those below half a unit",
    )
    keys: Literal["int64"] | None = Field(
        default=None,
        description="int64: ids are any 64-bit integers, which get rows as they appear; num_embeddings is the maximum "
        "number of such rows; null: ids are rows",
    )
    admit: int = Field(
        default=1,
        ge=1,
        le=255,
        description="with keys: lookups after which a key gets its own row, from that batch on; counted by a sketch of "
        "fixed size, which halves its counts now and then",
    )
    expire: Expiry = Field(
        default=None,
        description="with keys: a key that was not looked up for this long loses its row: batches (50000), or time by "
        'the samples\' Batch.extras["timestamp"] in seconds (90s, 30m, 12h, 14d, 2w); null: keys never expire',
    )
    when_full: Literal["evict", "error"] = Field(
        default="evict",
        description="with keys, if all rows are taken: evict the least recently used keys, at least 1 in 64 at once; "
        "or stop with an error",
    )

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        rules = KeyRules.model_fields.items()
        unused = [name for name, field in rules if getattr(self, name) != field.default]
        if self.keys is None and unused:
            raise ValueError(f'expected keys="int64" with {" and ".join(unused)}, got none')
        if self.keys is not None and self.num_embeddings > MOST_KEYS:
            raise ValueError(f"expected num_embeddings of at most {MOST_KEYS} with keys, got {self.num_embeddings}")
        return self

    @property
    def num_rows(self) -> int:
        """Rows that the table takes: with keys, one more than `num_embeddings` for keys without a row."""
        return self.num_embeddings + (self.keys is not None)

    @property
    def expire_seconds(self) -> int | None:
        """Time after which a key expires; None if it expires by batches or never."""
        return seconds_of(self.expire) if isinstance(self.expire, str) else None

    @property
    def expire_batches(self) -> int | None:
        """Batches after which a key expires; None if it expires by time or never."""
        return self.expire if isinstance(self.expire, int) else None

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.features or (self.name,)


_TABLE_FIELDS: Final[Any] = TableConfig.model_fields


class KeyRules(Config):
    """Settings of `TableConfig` by which keys get and lose rows."""

    admit: int = _TABLE_FIELDS["admit"]
    expire: int | str | None = _TABLE_FIELDS["expire"]
    when_full: Literal["evict", "error"] = _TABLE_FIELDS["when_full"]


class TierConfig(Config):
    """Settings of the two tiers: the size of the device tier, the device, and the storage of host rows."""

    device_rows: Size = Field(
        default="auto",
        description="size of the device tier: a number of rows, percent of all rows (10%), bytes (512MiB) or auto",
    )
    device: Literal["auto", "cpu", "cuda", "cpu-torch"] = Field(
        default="auto",
        description="auto: cuda if there is a GPU, else cpu; cpu-torch runs the GPU's code on the CPU, for debugging",
    )
    host: str = Field(
        default="memory",
        pattern=r"^(memory|mmap:.+)$",
        description="storage of host rows: memory, or mmap:DIR for files in DIR",
    )
    held_rows: int = Field(
        default=0,
        ge=0,
        le=2**41,
        description="rows that the look-ahead needs at once, 0 if unknown; device_rows=auto is at least that many",
    )
    when_full: Literal["error", "reduce_lookahead"] = Field(
        default="error",
        description="if the rows of batches in flight do not fit: stop, or reduce the look-ahead for that batch",
    )
    eviction_share: float = Field(
        default=0.02, ge=0, le=1, description="share of the device rows that is evicted at once when free slots run out"
    )
    max_candidates: int = Field(
        default=1 << 14,
        ge=1,
        le=2**40,
        description="maximum number of idle rows passed to the policy in a call, or 8 times the missing slots if that "
        "is more",
    )
    transfer: Literal["auto", "direct", "staged"] = Field(
        default="auto",
        description="how rows reach a GPU: direct (it reads pinned host memory) or staged (through pinned buffers); "
        "auto: direct if pinning all rows takes at most half of the free memory",
    )
    plan_threads: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = Field(
        default="auto",
        description="threads that plan batches ahead; results do not depend on their number; 0: the threads that train "
        "plan each batch right before it is trained; auto: for a GPU a quarter of the cores, at most 3; for a CPU 0 if "
        "training takes all of at most 4 cores and the policy does not regroup batches, else 1",
    )
    lookups: Literal["auto", "host", "device"] = Field(
        default="auto",
        description="where the distinct rows of a batch are found; results are equal; auto: on a GPU for batches of "
        "65,536 lookups or more with at least 4 per bag on average, if no row stays on the host and no update is "
        "skipped",
    )
    poison: bool = Field(default=False, description="for debugging: fill invalid copies of rows with NaN")


class SkipConfig(Config):
    """Skipping of row updates, and which rows it sees. Without a skip rule nothing is skipped."""

    rule: str | None = Field(
        default=None,
        description="skip rule for any policy: off, defer, predicted, module:Class or file.py:Class, "
        "with parameters as in defer+at_most=8; null: the rule of the policy",
    )

    interval: int = Field(default=64, ge=1, le=MOST, description="batches between calls of the skip rule")
    hot_rows: Size = Field(
        default="auto",
        description="maximum number of hot rows: rows, percent, bytes, or auto (5%, at least 100,000)",
    )
    min_accesses: int = Field(
        default=64,
        ge=1,
        le=2**31,
        description="lookups of a row before rules see it",
    )
    feedback_delay: int = Field(
        default=8,
        ge=0,
        le=2**20,
        description="batches until a measurement is used; decisions are equal for every depth up to this value",
    )


class RanksConfig(Config):
    """Distributed training. `--ranks` or torchrun sets the number of processes."""

    backend: Literal["auto", "gloo", "nccl"] = Field(
        default="auto",
        description="transport of rows and gradients on GPUs: nccl sends from GPU to GPU (one GPU per rank), gloo "
        "through host memory; auto: nccl if possible",
    )
    timeout_s: float = Field(default=600.0, gt=0, description="seconds a rank waits for the others before it fails")


class ScheduleConfig(Config):
    """Schedule of the learning rates over the steps of a run. The default are constant rates."""

    warmup: int = Field(default=0, ge=0, le=MOST, description="steps of a linear increase to the full rate")
    decay: Literal["none", "linear", "cosine", "power"] = Field(
        default="none", description="shape of the decrease; power: the square of the remaining share, as in DLRM"
    )
    decay_from: int = Field(default=0, ge=0, le=MOST, description="step at which the decrease starts")
    decay_steps: int | None = Field(
        default=None, ge=1, le=MOST, description="length of the decrease in steps; required with decay"
    )
    final: float = Field(default=0.0, ge=0, le=1, description="share of the rate after the decrease")

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if self.decay != "none" and self.decay_steps is None:
            raise ValueError(f"expected decay_steps with decay={self.decay}, got none")
        return self

    @property
    def is_constant(self) -> bool:
        return self.warmup == 0 and self.decay == "none"

    def factor(self, step: int) -> float:
        """Factor on the rate in step `step`, counted from 0."""
        warm = min(1.0, (step + 1) / self.warmup) if self.warmup else 1.0
        if self.decay == "none" or self.decay_steps is None:
            return warm
        left = 1.0 - min(max((step - self.decay_from) / self.decay_steps, 0.0), 1.0)
        shapes = {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "power": left * left}
        return warm * (self.final + (1 - self.final) * shapes[self.decay])


class OptimizerConfig(Config):
    """Optimizer of the embedding rows."""

    name: Literal["sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"] = Field(
        default="rowwise_adagrad", description="update formula; see adaptive.optim"
    )
    lr: float = Field(default=0.05, gt=0, description="learning rate of rows")
    eps: float = Field(default=1e-8, ge=0, description="added to the square root (Adagrad family, Adam)")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="Adam: decay of the first moment")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="Adam: decay of the second moment")
    initial_accumulator: float = Field(default=0.0, ge=0, description="Adagrad family: initial value of the sum")
    beta: float = Field(default=1.0, ge=0, description="FTRL: added to the square root; smaller starts faster")
    l1: float = Field(default=0.0, ge=0, description="FTRL: L1 regularization, which sets values to 0")
    l2: float = Field(default=0.0, ge=0, description="FTRL: L2 regularization")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="decoupled decay of updated rows as in AdamW: w *= 1 - lr * weight_decay before each update",
    )


class DenseOptimizerConfig(Config):
    """Optimizer of the dense weights (torch.optim)."""

    name: Literal["sgd", "adagrad", "adam"] = Field(default="adagrad", description="torch.optim class")
    lr: float = Field(default=0.02, gt=0, description="learning rate of dense weights")


class TrainConfig(Config):
    """All settings of one training run."""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # a run directory may be called 2024

    preset: str | None = Field(
        default=None,
        description="name of a published model shape, whose settings are the defaults of the run; only for the "
        "command line and load_settings: see adaptive.models.paper_presets",
    )
    policy: str = Field(default="lru", description="placement policy: a name, module:Class or file.py:Class")
    policy_options: dict[str, Any] = Field(default_factory=dict, description="parameters of the policy")
    data: str = Field(
        default="synthetic",
        description="synthetic, sequences, criteo:PATH[,PATH...], csv:PATH, parquet:PATH, prepared:DIR or taobao:PATH",
    )
    data_options: dict[str, Any] = Field(default_factory=dict, description="see adaptive.data.open.DataOptions")
    follow: bool = Field(
        default=False,
        description="train on the files of a folder (data csv:FOLDER or parquet:FOLDER) in the order of their names, "
        "and on new ones as they appear; each is evaluated before it is trained",
    )
    until: str | None = Field(
        default=None,
        description="with follow: idle=TIME, such as idle=10m, ends the run when no file has come for so long; null: "
        "it runs until it is stopped",
    )
    model: str = Field(
        default="dlrm",
        description="dlrm, dcn, deepfm, tbsm, module:Class or file.py:Class; tbsm requires "
        "sequence data; by default it trains on built-in sequences",
    )
    model_options: dict[str, Any] = Field(default_factory=dict, description="see adaptive.models.model_settings")
    tier: TierConfig = TierConfig()
    skip: SkipConfig | None = Field(default=SkipConfig(), description="null: nothing is skipped")
    ranks: RanksConfig = RanksConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    dense_optimizer: DenseOptimizerConfig = DenseOptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch_size: int = Field(default=2048, ge=1, le=2**24, description="samples per batch")
    eval_batch_size: int = Field(default=8192, ge=1, le=2**24, description="samples per evaluation batch")
    depth: int = Field(default=4, ge=0, le=64, description="batches of look-ahead; 0: no look-ahead and no thread")
    steps: int | None = Field(default=None, ge=1, le=MOST, description="stop after this many batches")
    epochs: int = Field(default=1, ge=1, le=MOST, description="passes over the training data")
    calibrate: SampleSize | None = Field(
        default=None,
        description="sample for policies that calibrate before training: a random share of an epoch's inputs (5%), "
        "which reads the whole epoch, or a number of first batches (16); default: 5%, at least 32,768 inputs, and "
        "reading stops after 262,144 sampled inputs",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of initial values; data have their own seed")
    out: str | None = Field(default=None, description="run directory; default: runs/<date>-<policy>")
    init_from: str | None = Field(
        default=None,
        description="run directory whose weights, with the optimizer state of rows, the run starts from; tables may be "
        "larger, and its vocabularies grow with new values",
    )
    log_every: int = Field(default=20, ge=1, le=MOST, description="batches per logging interval")
    tensorboard: bool = Field(default=True, description="write TensorBoard files into the run directory")
    save: bool | Literal["best"] = Field(
        default=True,
        description="save weights at the end; best: also those of the evaluation with the best AUC; "
        "eval, predict and export then use them",
    )
    save_every: Expiry = Field(
        default=None,
        description="batches between checkpoints, from which a run can resume; with follow, also a time such as 10m: "
        "then checkpoints are written between two files; null: only at the end, with follow 10m",
    )
    keep_checkpoints: int = Field(
        default=1,
        ge=1,
        le=1000,
        description="checkpoints kept during training; if one is damaged, resuming falls back to the previous one",
    )
    eval_every: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="batches between evaluations; null: only at the end of an epoch",
    )
    eval_by: str | None = Field(
        default=None,
        description="feature with one id per sample, such as the user: evaluations also compute GAUC, the mean AUC "
        "within its ids; null: no GAUC",
    )
    patience: int | None = Field(
        default=None,
        ge=1,
        le=MOST,
        description="number of evaluations without a new best one after which training ends; null: no limit",
    )
    deterministic: bool = Field(
        default=False, description="use torch's deterministic algorithms; required for equal bits on a GPU"
    )
    tf32: bool = Field(
        default=False,
        description="TF32 for matrix products of the dense part on a GPU: several times as fast, inputs rounded to 10 "
        "bits; rows are updated in float32",
    )

    @model_validator(mode="after")
    def _can_save(self) -> Self:
        if self.save_every is not None and not self.save:
            raise ValueError(f"expected save=true with save_every={self.save_every}, got save=false")
        return self

    @model_validator(mode="after")
    def _can_follow(self) -> Self:
        if self.until is not None:
            idle_seconds(self.until)
        if not self.follow:
            given = {"until": self.until, "save_every": self.save_every if isinstance(self.save_every, str) else None}
            for name, value in given.items():
                if value is not None:
                    raise ValueError(f"expected follow=true with {name}={value}, got follow=false")
            return self
        for name, only in {"epochs": 1, "eval_every": None, "patience": None}.items():
            if (value := getattr(self, name)) != only:
                raise ValueError(
                    f"expected no {name} with follow=true, got {value}: each file is evaluated and then trained, once"
                )
        if self.save == "best":
            raise ValueError("expected save=true with follow=true, got best: evaluations are of different files")
        return self
