"""`SyntheticConfig`: the settings of the built-in stream, apart from the code so that they load without numba."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from adaptive.config import Config


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
