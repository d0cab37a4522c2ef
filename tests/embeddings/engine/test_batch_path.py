"""One batch enters few files of planning, tiers and engine, in a fixed order; the design page walks through them."""

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from support.helpers import bags

import adaptive
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.training.trainer import Trainer

PACKAGE = Path(adaptive.__file__).parent / "embeddings"
ROOMS = ("planning", "tiers", "engine")
MOST_FILES = 18


def files_entered(embeddings: TieredEmbeddingBag, number: int) -> list[str]:
    """Files of the three rooms in which code runs for batch `number`, trained without look-ahead, in order of entry."""
    entered: dict[str, None] = {}

    def see(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and path.relative_to(PACKAGE).parts[0] in ROOMS:
            entered.setdefault(path.relative_to(PACKAGE).as_posix())

    def source() -> Iterator[Any]:
        for row in range(number + 1):
            if row == number:  # not before: it would slow down the compilation of kernels
                sys.setprofile(see)
            yield bags([row, row + 1, 0])

    before = sys.getprofile()
    try:
        for planned in embeddings.look_ahead(source(), depth=0):
            embeddings(planned)["t"].sum().backward()  # type: ignore[no-untyped-call]
            embeddings.step()
    finally:
        sys.setprofile(before)
    return list(entered)


@pytest.mark.parametrize("policy", ["lru", "hybrid"])
def test_a_batch_enters_few_files(policy: str) -> None:
    torch.manual_seed(0)
    tables = [TableConfig(name="t", num_embeddings=50, embedding_dim=4)]
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device_rows="auto" if policy == "hybrid" else "40%"), policy=policy
    )
    files = files_entered(embeddings, 30)  # by then rows leave, so the policy is asked
    assert len(files) <= MOST_FILES, files
    first = {room: min(files.index(file) for file in files if file.startswith(room)) for room in ROOMS}
    assert first["planning"] < first["tiers"], files  # what is decided comes before what is moved


class OneLayer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, dense: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.layer(vectors.flatten(1)).squeeze(1)
        return pooled


def test_the_design_page_walks_through_modules_that_a_step_enters() -> None:
    """At most 25, from the trainer to the kernel that updates rows, in at most 15 lines."""
    design = (PACKAGE.parent.parent / "docs/explanation/design.md").read_text(encoding="utf-8")
    walk = design[design.index("### One batch") : design.index("Other modules that a batch passes")].split("\n\n")[1]
    named = re.findall(r"`((?:\w+/)+\w+)`", walk)
    modules = {f"embeddings/{name}" if name.startswith(ROOMS) else name for name in named}
    assert len(modules) == len(named) <= 25 and walk.count("\n") < 15
    tables = [TableConfig(name="t", num_embeddings=50, embedding_dim=4)]
    embeddings = TieredEmbeddingBag(tables, TierConfig(device_rows="40%", plan_threads=1), policy="lru")
    model, entered = OneLayer(), set[str]()
    trainer = Trainer(embeddings, model, torch.optim.SGD(model.parameters()))

    def see(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE.parent):
            entered.add(path.relative_to(PACKAGE.parent).with_suffix("").as_posix())

    before = sys.getprofile()
    threading.setprofile(see)
    sys.setprofile(see)
    try:
        trainer.train([bags([row, row + 1, 0]) for row in range(30)], depth=1)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert modules <= entered
