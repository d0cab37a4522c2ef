#!/usr/bin/env bash
# A virtual environment of its own in which the benchmarks find every peer.
#
#     benchmarks/install_peers.sh [FOLDER]        # default: .venv-bench
#     FOLDER/bin/python -m benchmarks.run_all
#
# FBGEMM and TorchRec ask for other versions of torch than they work with, so they come without their dependencies;
# pip then says "torchrec requires fbgemm-gpu", which is harmless. Only 1.8.0 of both loads with torch 2.13.
set -euo pipefail
repository="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
folder="${1:-$repository/.venv-bench}"

python3 -m venv "$folder"
pip() { "$folder/bin/python" -m pip install -q --disable-pip-version-check "$@"; }

pip -c "$repository/constraints.txt" torch numpy numba scipy tensorboard typer pydantic scikit-learn pytest
pip --no-deps -e "$repository"
pip -c "$repository/constraints.txt" polars pyarrow
pip --no-deps fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0
pip -c "$repository/constraints.txt" tensordict torchmetrics==1.0.3 tqdm pyre-extensions
pip --no-deps mlperf_logging || echo "mlperf_logging is not installed: no comparison with facebookresearch/dlrm" >&2

"$folder/bin/python" -c "import fbgemm_gpu, polars, pyarrow; print('peers ready:', '$folder/bin/python')"
