"""The texts that keys of categories were made from: where they stand in a line, and each distinct one once.

Letters: V texts that came, T distinct ones.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.data.kernels.text import INNER, KEY_BAG, KIND, Layout
from adaptive.data.kernels.text_fields import Bytes, text
from adaptive.data.kernels.text_rows import mixed
from adaptive.kernels.jit import kernel

START, STOP, QUOTE, SPAN_SIZE = range(4)  # of a text: its bytes, and the quote that is doubled in it, or -1

Ids = NDArray[np.int64]

_FIRST, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@kernel()
def column_spans(data: Bytes, starts: Ids, layout: Layout, wanted: int, spans: Ids) -> int:
    """Where the texts of a column stand -> how many there are, -1 if `spans` (any, SPAN_SIZE) has no room for them.

    Args:
        starts: where lines begin that have been read without a fault.
    """
    count = 0
    for start in starts:
        p = start
        for column in range(wanted + 1):
            closing = -1
            if data[p] == layout.quote:
                closing = layout.quote
                p += 1
            if column == wanted:
                inner = layout.plan[column, INNER] if layout.plan[column, KIND] == KEY_BAG else -1
                while True:
                    _, stop, _ = text(data, p, layout.separator, inner, closing)
                    if stop > p:
                        if count == len(spans):
                            return -1
                        spans[count, START], spans[count, STOP], spans[count, QUOTE] = p, stop, closing
                        count += 1
                    if data[stop] != inner:
                        break
                    p = stop + 1
            else:
                inner = -1
                _, p, _ = text(data, p, layout.separator, inner, closing)
                p += 2 if closing >= 0 else 1
    return count


@kernel()
def keep(
    data: Bytes, spans: Ids, first: int, places: Ids, keys: Ids, ends: Ids, kept: Bytes, count: int
) -> tuple[int, int]:
    """Append the texts that are new, from span `first` on -> (spans done, T); stops where there is no more room.

    Args:
        places: hash table with open addressing: number of a text, or -1.
        keys, ends: (any,) the key of each text; ends[t + 1] is where it ends in `kept`.
    """
    last = len(places) - 1
    for v in range(first, len(spans)):
        at, key, quote = ends[count], _FIRST, spans[v, QUOTE]
        if count + 1 >= len(ends) or 2 * count >= last or at + spans[v, STOP] - spans[v, START] > len(kept):
            return v, count
        p = spans[v, START]
        while p < spans[v, STOP]:
            if data[p] == quote:
                p += 1  # a doubled quote stands for one
            kept[at] = data[p]
            key = (key ^ np.uint64(data[p])) * _PRIME
            at += 1
            p += 1
        signed = np.int64(key)
        place = np.int64(mixed(signed)) & last
        while places[place] >= 0 and keys[places[place]] != signed:
            place = (place + 1) & last
        if places[place] < 0:
            places[place], keys[count] = count, signed
            count += 1
            ends[count] = at
    return len(spans), count
