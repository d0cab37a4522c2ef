"""`DataOptions`: settings of all sources of data, apart from their code so that they load without numba."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from adaptive.config import Config
from adaptive.errors import ConfigError


class SequencesConfig(Config):
    """A seeded stream of users, each with a history of items and a candidate, in the manner of Taobao's events."""

    users: int = Field(default=20_000, ge=1, le=10**7, description="Rows of the table user.")
    items: int = Field(default=100_000, ge=1, le=10**9, description="Rows of the table item.")
    categories: int = Field(default=50, ge=2, le=10**9, description="Rows of the table category; each has items.")
    seed: int = Field(default=0, ge=0, lt=2**62, description="All random choices follow from it.")
    num_train: int = Field(default=100_000, ge=1, le=10**12, description="Training samples of one epoch.")
    num_eval: int = Field(
        default=20_000, ge=0, le=10**12, description="Evaluation samples; they follow the training ones."
    )

    @model_validator(mode="after")
    def _categories_have_items(self) -> Self:
        if self.items < self.categories:
            raise ValueError(f"items = {self.items} are fewer than categories = {self.categories}; each needs one")
        return self


class SyntheticConfig(Config):
    """A seeded stream of click data, by default in the shape of Criteo Kaggle: 13 dense inputs, 26 one-hot features.

    Any other number of tables takes Criteo Kaggle's cardinalities too, those of C1 to C26 and then from C1 on again,
    and shrinks or grows the large ones so that all tables together have `rows` rows.

    A sample depends on every setting except `num_eval`, and `labels` only adds to it. `num_train` matters to it through
    `drift_at` (a fraction of the training stream) and through the number of look-ups within which a singleton comes
    once.
    """

    setting: Literal["easy", "hard"] = Field(
        default="easy",
        description="Where the signal lies: 'easy' mostly in single ids, learnt early; 'hard' mostly in pairs of ids, "
        "learnt slowly, which tells ways of skipping updates apart.",
    )
    rows: int = Field(
        default=1_100_000,
        ge=100_000,
        le=100_000_000,
        description="Rows of all tables together: Criteo Kaggle's tables, the large ones shrunk or grown to fit.",
    )
    num_dense: int = Field(default=13, ge=0, le=4096, description="Dense inputs of a sample.")
    tables: int = Field(
        default=26, ge=4, le=1024, description="Tables, and features: every feature looks up a table of its own."
    )
    lookups: int = Field(
        default=1, ge=1, le=1024, description="Look-ups of every bag; more than 1: multi-hot, an id may come twice."
    )
    labels: int = Field(
        default=1,
        ge=1,
        le=4,
        description="Labels of a sample, for models of several. What a further one depends on is in part what the "
        "first does, and in part the opposite.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="All random choices follow from it.")
    num_train: int = Field(default=400_000, ge=1, le=10**12, description="Training samples of one epoch.")
    num_eval: int = Field(
        default=100_000, ge=0, le=10**12, description="Evaluation samples; they follow the training ones."
    )
    correlation: float = Field(
        default=0.5,
        ge=0.0,
        lt=1.0,
        description="How strongly the features of one sample agree on popular or rare ids; more of it means more "
        "samples whose ids are all popular.",
    )
    default_share: float = Field(
        default=0.3,
        ge=0.0,
        lt=1.0,
        description="In six of 26 features this share of the look-ups goes to id 0, as a missing value does.",
    )
    singleton_share: float = Field(
        default=0.2,
        ge=0.0,
        le=0.9,
        description="This share of the rows of each large table is set aside for ids that come at most once in the "
        "training stream (together at most a tenth of a feature's look-ups).",
    )
    drift_at: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Fraction of the training stream after which effects of ids change; 1 = between training and "
        "evaluation; none = never.",
    )
    drift_share: float = Field(
        default=0.3, ge=0.0, le=1.0, description="Share of the ids whose effects change at the drift."
    )
    drift_angle: float = Field(
        default=math.pi / 2,
        ge=0.0,
        le=math.pi,
        description="Radians between the old and new effects: pi/2 = unrelated, pi = reversed.",
    )
    churn: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="At the drift, popularity ranks move on by this share of each table: the most popular ids change.",
    )

    @model_validator(mode="after")
    def _churn_needs_drift(self) -> Self:
        if self.churn and self.drift_at is None:
            raise ValueError(f"churn = {self.churn} takes place at the drift: set drift_at (a fraction in (0, 1]) too")
        return self

    @property
    def num_samples(self) -> int:
        """Training and evaluation samples together."""
        return self.num_train + self.num_eval

    @property
    def drift_begin(self) -> int | None:
        """The first sample after the drift, or None where there is no drift."""
        return None if self.drift_at is None else round(self.drift_at * self.num_train)


class DataOptions(Config):
    """Settings of all sources of data; a source ignores what has no meaning for it."""

    synthetic: SyntheticConfig = SyntheticConfig()
    sequences: SequencesConfig = SequencesConfig()
    schema_path: Path | None = Field(
        default=None, description="schema.toml that describes the columns of csv:PATH and parquet:PATH"
    )
    eval_data: str | None = Field(default=None, description="evaluate on these files: PATH[,PATH...] or a pattern")
    holdout: float | None = Field(default=None, gt=0, lt=1, description="evaluate on this last fraction of the rows")
    eval_part: Literal["all", "first_half", "second_half"] = Field(
        default="all",
        description="of the rows kept by eval_data or holdout those to evaluate on; DLRM tests on the first half of "
        "Criteo's last day, the second is for validation",
    )
    time_split: float | str | None = Field(
        default=None, description="evaluate on rows from this time on (a number, or an ISO time for an iso column)"
    )
    hash_rows: int = Field(
        default=100_000, ge=1, lt=2**32, description="rows per feature whose categories are hashed, without missing"
    )
    label_optional: bool = Field(
        default=False,
        description="files described by a schema may lack its label column: for reading only, as by predict",
    )
    vocabulary: bool = Field(default=False, description="give frequent categories rows of their own; do not hash")
    min_count: int = Field(default=1, ge=1, le=2**48, description="times a category must come to get a row of its own")
    vocabulary_path: Path | None = Field(
        default=None, description="folder of the fitted vocabulary; default: vocabulary/ in the run directory"
    )
    vocabulary_from: Path | None = Field(
        default=None,
        description="folder of a fitted vocabulary that grows: its ids keep their rows, new ones come behind them",
    )
    out_of_range: Literal["error", "oov"] = Field(
        default="error", description="ids that are no rows: stop, or count them and use a row of their own"
    )
    counts_path: Path | None = Field(
        default=None, description=".npz whose array counts has the rows of each table: ids are rows (mlperf:PATH)"
    )
    id_range: int | None = Field(
        default=None, ge=1, description="of ids that are rows, what is left of the division by it; dlrm's max_ind_range"
    )
    drop_negatives: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training samples with label 0 that is left out; dlrm's sub_sample_rate",
    )
    history: int = Field(
        default=20, ge=1, le=1000, description="steps before the candidate of a sequence (sequences, taobao:PATH)"
    )
    candidates: int = Field(
        default=10, ge=1, le=2**20, description="candidates of a user, at most (taobao:PATH); each gives two samples"
    )
    shuffle_buffer: int = Field(
        default=0, ge=0, le=2**26, description="training rows shuffled together; 0: the order of the files"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="of the shuffle and of negative samples")
    num_workers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="threads that read files (of Parquet: row groups) in parallel, in order; "
        "prepare takes one for Parquet, else as many as there are cores",
    )
    max_bad_fraction: float = Field(default=1e-4, ge=0, le=1, description="share of the lines that may be bad")
    max_bad_label_fraction: float = Field(default=0.0, ge=0, le=1, description="share of lines with a bad label")
    max_line_bytes: int = Field(default=1 << 20, ge=1, le=2**28, description="longer lines are bad")
    chunk_bytes: int = Field(default=1 << 18, ge=1, le=2**28, description="bytes read from a file at once")

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        chosen = [name for name in ("eval_data", "holdout", "time_split") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ValueError(f"{' and '.join(chosen)} exclude each other: give one of them")
        if self.eval_part != "all" and self.eval_data is None and self.holdout is None:
            raise ValueError(f"eval_part={self.eval_part} needs eval_data or holdout, whose rows it divides")
        return self

    def refuse(self, what: str, names: Sequence[str], reason: str) -> None:
        """Check that settings which mean nothing to some data have their defaults.

        Raises:
            ConfigError: naming `what`, the settings and the reason.
        """
        fields = type(self).model_fields
        if changed := [f"data.{name}" for name in names if getattr(self, name) != fields[name].default]:
            raise ConfigError(f"{what} expected no {', '.join(changed)}: {reason}. Leave it out.")

    def identity(self) -> dict[str, object]:
        """The settings that choose and order rows, as JSON values, for fingerprints."""
        names = ("holdout", "eval_part", "time_split", "drop_negatives", "shuffle_buffer", "seed")
        return {name: getattr(self, name) for name in names}
