"""Which steps `bench_step` measures, and how often."""

from dataclasses import dataclass
from itertools import product

from benchmarks.variants import Optimizer

CHECK_STEPS = 3  # batches trained before results are compared


@dataclass(frozen=True)
class Case:
    """One row of the grid."""

    batch: int
    dim: int
    optimizer: Optimizer
    mean_hot: int = 1

    @property
    def suffix(self) -> str:
        """What a ratio's name ends with; nothing for batch 2048, width 16, one id a bag."""
        parts = (
            (f"_d{self.dim}", self.dim != 16),
            (f"_b{self.batch}", self.batch != 2048),
            ("_multihot", self.mean_hot > 1),
        )
        return self.optimizer + "".join(text for text, wanted in parts if wanted)

    @property
    def title(self) -> str:
        hot = f", {self.mean_hot} ids a bag on average" if self.mean_hot > 1 else ""
        return f"batch {self.batch}, width {self.dim}, {self.optimizer}{hot}"


SGD_FAMILY: tuple[Optimizer, ...] = ("sgd", "rowwise_adagrad", "adagrad")
ALL: tuple[Optimizer, ...] = (*SGD_FAMILY, "adam")
GRID = (
    *(Case(2048, dim, optimizer) for dim, optimizer in product((16, 64, 128), ALL)),
    *(Case(16384, dim, optimizer) for dim, optimizer in product((16, 64, 128), SGD_FAMILY)),
    *(Case(2048, dim, optimizer, 20) for dim, optimizer in product((16, 64, 128), SGD_FAMILY)),
    Case(16384, 16, "sgd", 20),
    Case(16384, 16, "rowwise_adagrad", 20),
)


@dataclass(frozen=True)
class Settings:
    rows: int = 10_000_000
    rounds: int = 15
    warm_up: int = 3
    cases: tuple[Case, ...] = GRID
    whole: tuple[Case, ...] = tuple(Case(2048, dim, optimizer) for dim, optimizer in product((16, 64), SGD_FAMILY))
    whole_rounds: int = 9
    only: str = ""  # cases whose title contains this
    dlrm: str = ""  # path of a checkout of facebookresearch/dlrm
    memory_share: float = 0.6  # of what is free; tables shrink to it


SETTINGS = {
    "full": Settings(),
    "quick": Settings(
        rows=1_000_000,
        rounds=7,
        warm_up=2,
        cases=(*(Case(2048, 16, one) for one in ALL), Case(2048, 64, "sgd"), Case(2048, 64, "rowwise_adagrad"),
               Case(2048, 16, "sgd", 20)),
        whole=(Case(2048, 16, "sgd"), Case(2048, 16, "rowwise_adagrad")),
        whole_rounds=5,
    ),
    "smoke": Settings(
        rows=20_000, rounds=2, warm_up=1, cases=(Case(64, 16, "sgd"), Case(64, 16, "adam"), Case(64, 4, "adagrad", 3)),
        whole=(Case(64, 16, "sgd"),), whole_rounds=2,
    ),
}  # fmt: skip
