"""Many ranks: who owns a row, what crosses between ranks, and the order of every sum.

Nothing here adds while it sends: messages are bytes, and sums are taken by `adaptive.embeddings.dense_step` and by
the rows' kernels, in an order that does not depend on who sent what. Only `torch_transport` knows `torch.distributed`.
"""

from adaptive.embeddings.ranks.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
