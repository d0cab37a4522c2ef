"""`DataOptions`: settings of all data sources, in a separate module that loads no numba."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from adaptive.config import MOST_KEYS, Config, KeyRules
from adaptive.errors import ConfigError
from adaptive.system import usable_cores


class SequencesConfig(Config):
    """A seeded stream of users with a history of items and a candidate, similar to Taobao's."""

    users: int = Field(default=20_000, ge=1, le=10**7, description="Rows of the table user.")
    items: int = Field(default=100_000, ge=1, le=10**9, description="Rows of the table item.")
    categories: int = Field(default=50, ge=2, le=10**9, description="Rows of the table category.")
    seed: int = Field(default=0, ge=0, lt=2**62, description="Seed of all random choices.")
    num_train: int = Field(default=100_000, ge=1, le=10**12, description="Training samples of an epoch.")
    num_eval: int = Field(
        default=20_000, ge=0, le=10**12, description="Evaluation samples; they follow the training ones."
    )

    @model_validator(mode="after")
    def _categories_have_items(self) -> Self:
        if self.items < self.categories:
            raise ValueError(
                f"expected at least as many items as categories = {self.categories}, got items = {self.items}"
            )
        return self


class SyntheticConfig(Config):
    """A seeded stream of click data, by default in the shape of Criteo Kaggle.

    By default a sample has 13 dense inputs and 26 one-hot features. Any other number of tables repeats Criteo Kaggle's
    cardinalities, from C1 to C26 and again from C1 on, and scales the large ones so that all tables together have
    `rows` rows.

    A sample depends on every setting except `num_eval`. It depends on `num_train` through `drift_at`, a fraction of the
    training stream, and through the number of lookups in which a singleton occurs once.
    """

    setting: Literal["easy", "hard", "skewed"] = Field(
        default="easy",
        description="Place of the signal: 'easy': mostly in single ids, which are learned early; 'hard': mostly in "
        "pairs of ids, which are learned slowly and show differences between skip rules. 'skewed': as easy, with ids "
        "as popular as in the papers: in the default shape, 7% of the rows make three of four samples hot by FAE's "
        "rule, four of five if the hottest of all tables count.",
    )
    positive_rate: float = Field(
        default=0.03,
        ge=0.005,
        le=0.25,
        description="Share of samples with label 1 before a drift. The best possible AUC is 0.80 at every rate.",
    )
    rows: int = Field(
        default=1_100_000,
        ge=100_000,
        le=100_000_000,
        description="Rows of all tables together; the large tables of Criteo Kaggle are scaled to fit.",
    )
    num_dense: int = Field(default=13, ge=0, le=4096, description="Dense inputs of a sample.")
    tables: int = Field(
        default=26, ge=4, le=1024, description="Number of tables, and of features: each feature has its own table."
    )
    lookups: int = Field(
        default=1, ge=1, le=1024, description="Lookups of every bag; more than 1: multi-hot, ids may repeat."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of all random choices.")
    num_train: int = Field(default=1_500_000, ge=1, le=10**12, description="Training samples of an epoch.")
    num_eval: int = Field(
        default=100_000, ge=0, le=10**12, description="Evaluation samples; they follow the training ones."
    )
    singleton_share: float = Field(
        default=0.2,
        ge=0.0,
        le=0.9,
        description="Share of the rows of each large table that is reserved for ids that occur at most once in the "
        "training stream (together at most 10% of a feature's lookups).",
    )
    drift_at: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Fraction of the training stream after which 30% of the ids have other effects. 1: between "
        "training and evaluation; none: never.",
    )
    new_ids: float = Field(
        default=0.0,
        ge=0.0,
        lt=1.0,
        description="Share of the ids of each large table that new ids replace every day. Ids of these tables are then "
        "64-bit keys, for data.keys or data.hash_rows, and samples have timestamps.",
    )
    days: int = Field(default=1, ge=1, le=10**6, description="Days of the training stream, of equally many samples.")
    day: int | None = Field(
        default=None,
        ge=0,
        le=10**6,
        description="Train on this day only, from 0, and evaluate on the first num_eval samples after it.",
    )

    @model_validator(mode="after")
    def _day_exists(self) -> Self:
        if self.day is not None and self.day >= self.days:
            raise ValueError(f"expected day below days = {self.days}, got {self.day}")
        if self.days > self.num_train:
            raise ValueError(f"expected days of at most num_train = {self.num_train}, got {self.days}")
        return self

    @property
    def num_samples(self) -> int:
        """Training and evaluation samples together."""
        return self.num_train + self.num_eval

    @property
    def drift_begin(self) -> int | None:
        """The first sample after the drift; None without drift."""
        return None if self.drift_at is None else round(self.drift_at * self.num_train)


class KeysConfig(KeyRules):
    """Live ids: categories are 64-bit keys, which get and lose rows, as in `TableConfig`."""

    capacity: int = Field(ge=1, le=MOST_KEYS, description="rows for keys of each feature")

    @property
    def rules(self) -> KeyRules:
        return KeyRules(**self.model_dump(exclude={"capacity"}))


class DataOptions(Config):
    """Settings of all data sources; a source ignores settings that do not apply to it."""

    synthetic: SyntheticConfig = SyntheticConfig()
    sequences: SequencesConfig = SequencesConfig()
    schema_path: Path | None = Field(
        default=None, description="schema file that describes the columns of csv:PATH or parquet:PATH"
    )
    eval_data: str | None = Field(default=None, description="evaluate on these files: PATH[,PATH...] or a pattern")
    holdout: float | None = Field(default=None, gt=0, lt=1, description="evaluate on this last fraction of the rows")
    time_split: float | str | None = Field(
        default=None, description="evaluate on rows from this time on: a number, or an ISO time for an iso column"
    )
    hash_rows: int = Field(
        default=100_000, ge=1, lt=2**32, description="rows of each hashed feature, without the row for missing ids"
    )
    keys: KeysConfig | None = Field(
        default=None, description="settings of live ids; null: categories are hashed, or have a vocabulary"
    )
    label_optional: bool = Field(
        default=False,
        description="accept files without the label columns of their schema, for predictions",
    )
    vocabulary: bool = Field(default=False, description="give each frequent category its own row instead of hashing")
    min_count: int = Field(default=1, ge=1, le=2**48, description="number of occurrences a category needs to get a row")
    vocabulary_path: Path | None = Field(
        default=None, description="folder of the fitted vocabulary; default: vocabulary/ in the run directory"
    )
    vocabulary_from: Path | None = Field(
        default=None,
        description="folder of a fitted vocabulary to extend: its ids keep their rows, new ids follow them",
    )
    out_of_range: Literal["error", "oov"] = Field(
        default="error", description="ids out of range: error: stop; oov: count them and use an extra row"
    )
    drop_negatives: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the training samples with label 0 to drop; dlrm's sub_sample_rate",
    )
    history: int = Field(
        default=20, ge=1, le=1000, description="steps before the candidate of a sequence (sequences, taobao:PATH)"
    )
    candidates: int = Field(
        default=10, ge=1, le=2**20, description="maximum candidates of a user (taobao:PATH); each gives two samples"
    )
    shuffle_buffer: int = Field(
        default=0, ge=0, le=2**26, description="training rows to shuffle together; 0: the order of the files"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="seed of the shuffle and of dropped or drawn negatives")
    num_workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        default="auto",
        description="threads that read text files or make the built-in stream, in parallel; results do not depend on "
        "it; auto: a quarter of the cores, 1 to 4. prepare: one for each core",
    )
    max_bad_fraction: float = Field(default=1e-4, ge=0, le=1, description="share of the lines that may be bad")
    max_line_bytes: int = Field(default=1 << 20, ge=1, le=2**28, description="maximum length of a line; longer is bad")

    def threads(self) -> int:
        """Number of threads that read."""
        return max(1, min(4, usable_cores() // 4)) if self.num_workers == "auto" else self.num_workers

    @model_validator(mode="after")
    def _one_mapping(self) -> Self:
        if self.keys is not None and self.vocabulary:
            raise ValueError("expected keys or vocabulary, got both")
        return self

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        names = ("eval_data", "holdout", "time_split")
        chosen = [name for name in names if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ValueError(f"expected one of {', '.join(names)}, got {' and '.join(chosen)}")
        return self

    def refuse(self, what: str, names: Sequence[str], reason: str) -> None:
        """Raise ConfigError unless the settings that do not apply to `what` have their defaults."""
        fields = type(self).model_fields
        if changed := [f"data.{name}" for name in names if getattr(self, name) != fields[name].default]:
            raise ConfigError(f"{what} expected no {', '.join(changed)}, got a value: {reason}. Remove the setting.")

    def identity(self) -> dict[str, object]:
        """Return the settings that choose and order rows, as JSON values, for fingerprints."""
        names = ("holdout", "time_split", "drop_negatives", "shuffle_buffer", "seed")
        return {name: getattr(self, name) for name in names}
