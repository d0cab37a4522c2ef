"""`SequencesConfig`: the settings of the built-in stream of sequences, apart from the code so that they load alone."""

from typing import Self

from pydantic import Field, model_validator

from adaptive.config import Config


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
