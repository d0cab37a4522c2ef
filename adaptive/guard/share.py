"""How much a policy leaves out: of the row updates, and of the inputs."""

from dataclasses import dataclass

from adaptive.counters import Counter
from adaptive.embedding import TieredEmbeddingBag


@dataclass(frozen=True)
class LeftOut:
    """Counts since the run began."""

    updates: int = 0  # one per distinct row and batch
    skipped: int = 0
    inputs: int = 0
    dropped: int = 0

    def share_since(self, before: "LeftOut") -> float:
        """The larger of the two shares."""
        updates, inputs = self.updates - before.updates, self.inputs - before.inputs
        return max(
            (self.skipped - before.skipped) / updates if updates else 0.0,
            (self.dropped - before.dropped) / inputs if inputs else 0.0,
        )


def left_out(embeddings: TieredEmbeddingBag, inputs: int, kept: int) -> LeftOut:
    """As of now; `kept` of so many `inputs` were not dropped."""
    counts = embeddings.counts()
    updates, skipped = int(counts[Counter.UNIQUE_ROWS]), int(counts[Counter.SKIPPED_UPDATES])
    return LeftOut(updates, skipped, inputs, inputs - kept)
