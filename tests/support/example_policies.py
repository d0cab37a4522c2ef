"""The policies of `examples/policies/`, as users name and load them."""

from pathlib import Path

from adaptive.plugins import load_policy_class

FOLDER = Path(__file__).parents[2] / "examples/policies"
RECSHARD, S3FIFO, SIEVE = (
    f"{FOLDER}/{name}" for name in ("recshard.py:RecShard", "s3fifo.py:S3FIFO", "sieve.py:Sieve")
)
RecShard, S3Fifo, Sieve = map(load_policy_class, (RECSHARD, S3FIFO, SIEVE))
