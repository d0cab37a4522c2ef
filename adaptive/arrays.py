"""Names of array types, as signatures use them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
UInt64s = NDArray[np.uint64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Rows = NDArray[Any]  # float32, or uint16 that holds bfloat16 (`kernels.vector.bfloat16`)
