"""One rank of a training in processes of their own, as torchrun starts it:

    python rank_process.py OUT BLOCKS STEPS OPTIMIZER [DEVICE [gloo | nccl | stand-in]]

Rank 0 writes checksums of all that was trained to OUT. DEVICE is that of the tier. `stand-in`: rows and gradients cross
as they do by NCCL, in tensors of their own, but by gloo and between CPUs.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from adaptive.batch import Batch
from adaptive.config import TableConfig, TierConfig
from adaptive.embeddings.ranks.torch_transport import TorchRanks, TorchTransport
from adaptive.embeddings.tiered_embedding_bag import TieredEmbeddingBag
from adaptive.models.dense.dlrm import DLRM
from adaptive.models.model_settings import DLRMConfig
from adaptive.optim import SGD, Adagrad, Adam, RowwiseAdagrad
from adaptive.training.evaluation import evaluate
from adaptive.training.trainer import Trainer
from support.toy import SIZES, SMALL_DLRM, ToyData

OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "adagrad": Adagrad(lr=0.05),
    "rowwise": RowwiseAdagrad(lr=0.05),
    "adam": Adam(lr=0.01),
}


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def main(out: str, blocks: int, steps: int, optimizer: str, device: Any = "cpu", way: Any = "gloo") -> None:
    torch.set_num_threads(1)
    if way == "stand-in":
        TorchTransport.values_on = property(lambda self: "cpu", lambda self, value: None)  # type: ignore[assignment]
    ranks = TorchRanks(blocks=blocks, gradients="sum", timeout_s=60, backend="gloo" if way == "stand-in" else way)
    data = ToyData(num_train=64 * steps - 37)
    tables = [TableConfig(name=name, num_embeddings=size, embedding_dim=4) for name, size in SIZES.items()]
    embeddings = TieredEmbeddingBag(
        tables, TierConfig(device=device, device_rows="90%"), policy="lfu", optimizer=OPTIMIZERS[optimizer], ranks=ranks
    )
    model = DLRM(DLRMConfig(**SMALL_DLRM), num_dense=2, num_features=3).to(embeddings.device)
    trainer = Trainer(embeddings, model, torch.optim.Adam(model.parameters(), lr=0.01))
    batches: list[Batch] = list(data.train(64))
    trainer.train(batches)
    results = evaluate(embeddings, model, data.evaluation(100))
    facts = {
        "steps": trainer.recorder.steps,
        "tables": {table.name: digest(embeddings.rows.table_weights(table.name)) for table in tables},
        "dense": digest(*(weight.detach().cpu().numpy() for weight in model.parameters())),
        "log_loss": trainer.recorder.log_loss.value(),
        "auc": results.auc,
        "eval_log_loss": results.log_loss,
        "lookups": int(trainer.recorder.totals.tables["user"].lookups),
    }
    ranks.require_equal(lambda: facts)
    if ranks.is_first:
        Path(out).write_text(json.dumps(facts))
    ranks.close()


if __name__ == "__main__":
    try:
        main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
    finally:
        if "values_on" in vars(TorchTransport):  # the process may run other jobs after this one
            del TorchTransport.values_on
