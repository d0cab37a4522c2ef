"""Compile every Triton kernel for a GPU that need not be there: `python compile_triton.py CAPABILITY [WIDTH ...]`.

Prints for each kernel a line of JSON: its name, the float32 and float64 instructions of its PTX that do not round to
nearest once an operation, and its bytes of spilled registers. It needs a process of its own, TRITON_INTERPRET unset.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from adaptive.kernels import cpu
from adaptive.kernels.gpu.accumulate import accumulate_kernel
from adaptive.kernels.gpu.drift import drift_kernel
from adaptive.kernels.gpu.initial import initial_kernel
from adaptive.kernels.gpu.launch import EXACT_ARITHMETIC, MAX_ROWS, tile_of
from adaptive.kernels.gpu.move import copy_kernel
from adaptive.kernels.gpu.pool import pool_kernel
from adaptive.kernels.gpu.sums import chunk_kernel
from adaptive.kernels.gpu.update import update_kernel

TYPES = {
    "*i64": "locations bag_starts segments entries to_rows source_rows slots rows table_starts table_keys",
    "*i32": "bag_vectors vectors",
    "*u8": "known pending",
    "fp32": "learning_rate epsilon decay1 decay2",
}

# Fused, flushing small numbers to zero, or not correctly rounded.
INEXACT = re.compile(r"^.*\b(?:(?:fma|mad)\.\S*f(?:32|64)|\S+\.ftz\S*|\S+\.approx\S*|div\.full\S*).*$", re.M)


def signature(kernel: Any, constants: dict[str, Any], rows: str) -> dict[str, str]:
    """Triton's type of every argument. rows: the format of weights."""
    types = {name: kind for kind, names in TYPES.items() for name in names.split()}
    types |= {"weights": f"*{rows}", "host_weights": f"*{rows}"} | dict.fromkeys(constants, "constexpr")
    return {name: types.get(name, "i32" if name.startswith("num_") else "*fp32") for name in kernel.arg_names}


def examine(kernel: Any, capability: int, options: dict[str, Any], constants: dict[str, Any], rows: str) -> Any:
    types = signature(kernel, constants, rows)
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    inexact = [line.strip() for line in INEXACT.findall(compiled.asm["ptx"])]
    return {"kernel": kernel.__name__, "inexact": inexact, "spilled": spilled(compiled.asm["cubin"])}


def spilled(cubin: bytes) -> int:
    """Bytes a thread keeps on the stack."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        usage = subprocess.run([tool, "-res-usage", file.name], check=True, capture_output=True, text=True).stdout
    (stack,) = re.findall(r"STACK:(\d+)", usage)
    return int(stack)


def kernels(width: int) -> Iterator[tuple[Any, dict[str, Any], str]]:
    """(kernel, constants, format of rows) of all kernels, each in its fullest form."""
    tile = tile_of(width)
    shape = {"WIDTH": width, "BLOCK": tile.block, "ROWS": tile.rows}
    yield pool_kernel, shape | {"HOST": False, "SCALED": False}, "fp32"
    yield pool_kernel, shape | {"HOST": True, "SCALED": True}, "bf16"
    for kind, state in ((cpu.SGD_, 0), (cpu.ADAGRAD, width), (cpu.ROWWISE_ADAGRAD, 1), (cpu.ADAM, 2 * width + 1)):
        more = {"KIND": kind, "STATE": state, "HOST": kind == cpu.ADAM, "SCALED": True, "CHUNKED": True}
        for summed in (False, True) if kind in (cpu.ADAGRAD, cpu.ROWWISE_ADAGRAD) else (False,):
            yield update_kernel, shape | more | {"SUMMED": summed}, "fp16" if kind == cpu.SGD_ else "fp32"
    for size, bits in ((32, 5), (1024, 10)):
        yield chunk_kernel, shape | {"SCALED": True, "SIZE": size, "BITS": bits}, "fp32"
    for squares in sorted({0, 1, width}):
        yield accumulate_kernel, shape | {"SQUARES": squares, "SCALED": True, "CHUNKED": True}, "fp32"
    yield drift_kernel, {"WIDTH": width, "ROWS": MAX_ROWS, "HOST": True}, "fp32"
    yield copy_kernel, shape, "fp32"
    yield initial_kernel, shape, "fp32"


def main(capability: int, *widths: int) -> None:
    for width in widths:
        for kernel, constants, rows in kernels(width):
            options = tile_of(width).options if "BLOCK" in constants else {"num_warps": 1, **EXACT_ARITHMETIC}
            print(json.dumps(examine(kernel, capability, options, constants, rows) | {"width": width}))
    fused, constants = {"num_warps": 1, "enable_fp_fusion": True}, {"WIDTH": 8, "ROWS": MAX_ROWS, "HOST": False}
    print(json.dumps(examine(drift_kernel, capability, fused, constants, "fp32")))  # what must not be


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
