"""One of two ranks, of which rank 1 is killed (argument 1) or stands still (argument 0) after two batches."""

import os
import signal
import sys
import time

from adaptive import Batch, TableConfig, TieredEmbeddingBag, TorchRanks
from adaptive.errors import AdaptiveError

SECONDS = 12.0  # longer than it takes to load what was compiled, on a machine that does other things, too


def main(kills: bool) -> int:
    ranks = TorchRanks(timeout_s=60.0 if kills else SECONDS)
    embeddings = TieredEmbeddingBag([TableConfig(name="t", num_embeddings=100, embedding_dim=4)], ranks=ranks)
    batches = [Batch.of(t=[1, 2, 3], labels=[0, 1, 0]) for _ in range(6)]
    try:
        for planned in embeddings.look_ahead(batches, depth=1):
            if planned.number == 2 and ranks.rank == 1:
                if kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(2 * SECONDS)
                os._exit(0)
            embeddings.stack(planned).sum().backward()
            embeddings.step()
    except AdaptiveError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] == "1"))
