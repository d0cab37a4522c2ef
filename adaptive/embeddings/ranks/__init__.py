"""Several ranks: owners of rows, and messages between ranks.

No collective here adds numbers: messages are bytes. `adaptive.embeddings.dense_step` and the kernels of rows add, in an
order that does not depend on which rank sent what. Only `torch_transport` uses `torch.distributed`.
"""

from adaptive.embeddings.ranks.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
