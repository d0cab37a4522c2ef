"""One batch enters few files of planning, tiers and engine, in a fixed order."""

import sys
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

PACKAGE = Path(adaptive.__file__).parent / "embeddings"
ROOMS = ("planning", "tiers", "engine")
MOST_FILES = 18


def files_entered(embeddings: TieredEmbeddingBag, number: int) -> list[str]:
    """Files of the three rooms in which code runs for batch `number`, trained without look-ahead, in order of entry."""
    entered: dict[str, None] = {}
    batches = iter([bags([row, row + 1, 0]) for row in range(number + 1)])
    watching = False

    def see(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if (
            watching
            and event == "call"
            and path.is_relative_to(PACKAGE)
            and path.relative_to(PACKAGE).parts[0] in ROOMS
        ):
            entered.setdefault(path.relative_to(PACKAGE).as_posix())

    def source() -> Iterator[Any]:
        nonlocal watching
        for place, batch in enumerate(batches):
            watching = place == number
            yield batch

    before = sys.getprofile()
    sys.setprofile(see)
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
