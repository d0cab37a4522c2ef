"""`DataOptions`: settings of all sources of data."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from adaptive.config import Config
from adaptive.data.sequences.config import SequencesConfig
from adaptive.data.synthetic.config import SyntheticConfig


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
    readers: int = Field(
        default=1,
        ge=1,
        le=256,
        description="threads that read files (of Parquet: row groups) side by side, in order; "
        "prepare takes one for Parquet, else as many as there are cores",
    )
    max_bad_fraction: float = Field(default=1e-4, ge=0, le=1, description="share of the lines that may be bad")
    max_bad_label_fraction: float = Field(default=0.0, ge=0, le=1, description="share of lines with a bad label")
    max_line_bytes: int = Field(default=1 << 20, ge=1, le=2**28, description="longer lines are bad")
    chunk_bytes: int = Field(default=1 << 18, ge=1, le=2**28, description="bytes read from a file at once")

    @model_validator(mode="after")
    def _one_split(self) -> Self:
        given = [name for name in ("eval_data", "holdout", "time_split") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} exclude each other: give one of them")
        if self.eval_part != "all" and self.eval_data is None and self.holdout is None:
            raise ValueError(f"eval_part={self.eval_part} needs eval_data or holdout, whose rows it divides")
        return self
