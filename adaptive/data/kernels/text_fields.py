"""Parsers of the fields of a text line, one per kind: `(data, first) -> (value, stop)`.

The data end with a line feed, where every loop stops, so loops need no check for the end of the data. For a field that
cannot be read, `stop` is `first`, where the separator that must follow is not. An empty field also stops where it
starts, but at a separator.
"""

import numpy as np
from numpy.typing import NDArray

from adaptive.kernels.jit import kernel

Bytes = NDArray[np.uint8]

LF, CR = 10, 13
_MINUS, _PLUS, _POINT = 45, 43, 46
_MAX_INTEGER = 2**63 - 1
_MANTISSA_LIMIT = 10**17
_POWERS = 10.0 ** np.arange(23)  # exact in float64
_FNV_START = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_FOUR, _TEN, _TOP = np.uint64(4), np.uint64(10), np.uint64(2**63)
_MAX_WORD = 2**64 - 1
_MONTH_DAYS = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])

# Tables are globals, not arguments: numba counts references to an array argument in every call, atomically, which
# took half of the time.
_DIGITS = np.full(256, 255)  # hex digit of a byte, or 255
_DIGITS[[ord(digit) for digit in "0123456789abcdef"]] = range(16)
_DIGITS[[ord(digit) for digit in "ABCDEF"]] = range(10, 16)
_PLAIN = np.ones(256, np.bool_)  # bytes that are never a separator, a quote or an end of line
_PLAIN[[byte for byte in range(128) if not chr(byte).isalnum() and chr(byte) not in "._-+"]] = False


@kernel()
def parse_integer(data: Bytes, first: int) -> tuple[int, int]:
    """Parse a decimal integer of at most 19 digits, within +-(2^63 - 1); return (value, stop)."""
    negative = data[first] == _MINUS
    start = first + 1 if negative else first
    p, value = start, 0
    digit = int(_DIGITS[data[p]])
    while digit < 10:
        value = value * 10 + digit
        p += 1
        digit = int(_DIGITS[data[p]])
    if p - start > 19 or value < 0 or value > _MAX_INTEGER or p == start:
        return 0, first
    return -value if negative else value, p


@kernel()
def parse_key(data: Bytes, first: int) -> tuple[int, int]:
    """Parse a decimal integer of [-2^63, 2^64) and at most 20 digits; return (its 64 bits, stop)."""
    negative = data[first] == _MINUS
    start = first + 1 if negative else first
    p, key, fits = start, np.uint64(0), True
    digit = _DIGITS[data[p]]
    while digit < 10:
        if p - start == 19:  # only a 20th digit may overflow
            fits = bool(key <= (np.uint64(_MAX_WORD) - np.uint64(digit)) // _TEN)
        key = key * _TEN + np.uint64(digit)
        p += 1
        digit = _DIGITS[data[p]]
    if p == start or p - start > 20 or not fits or (negative and key > _TOP):
        return 0, first
    return int(np.int64(np.uint64(0) - key if negative else key)), p


@kernel()
def parse_hex(data: Bytes, first: int) -> tuple[int, int]:
    """Parse up to 16 hex digits; return (key, stop)."""
    p, key = first, np.uint64(0)
    digit = _DIGITS[data[p]]
    while digit < 16:
        key = (key << _FOUR) | np.uint64(digit)
        p += 1
        digit = _DIGITS[data[p]]
    return int(np.int64(key)), p if p - first <= 16 else first


@kernel()
def parse_decimal(data: Bytes, first: int) -> tuple[float, int]:
    """Parse a decimal number, exact up to 15 digits, else to 1e-15; return (value, stop)."""
    p = first + 1 if data[first] == _MINUS else first
    mantissa, exponent, digits = 0, 0, 0
    for part in range(2):
        digit = int(_DIGITS[data[p]])
        while digit < 10:
            if mantissa < _MANTISSA_LIMIT:
                mantissa = mantissa * 10 + digit
                exponent -= part
            else:
                exponent += 1 - part
            digits += 1
            p += 1
            digit = int(_DIGITS[data[p]])
        if part == 1 or data[p] != _POINT:
            break
        p += 1
    if digits == 0:
        return 0.0, first
    if data[p] == 69 or data[p] == 101:  # E, e
        power, stop = parse_exponent(data, p + 1)
        if stop == p + 1:
            return 0.0, first
        exponent, p = exponent + power, stop
    value = scale(float(mantissa), exponent)
    return -value if data[first] == _MINUS else value, p


@kernel()
def parse_exponent(data: Bytes, first: int) -> tuple[int, int]:
    """Parse the exponent after the e, at most 9,999; return (power, stop)."""
    p = first + 1 if data[first] == _MINUS or data[first] == _PLUS else first
    start, power = p, 0
    digit = int(_DIGITS[data[p]])
    while digit < 10:
        power = min(power * 10 + digit, 9999)
        p += 1
        digit = int(_DIGITS[data[p]])
    if p == start:
        return 0, first
    return -power if data[first] == _MINUS else power, p


@kernel()
def scale(mantissa: float, exponent: int) -> float:
    """Return mantissa * 10^exponent."""
    if mantissa == 0.0:
        return 0.0
    if 0 <= exponent <= 22:
        return float(mantissa * _POWERS[exponent])
    if -22 <= exponent < 0:
        return float(mantissa / _POWERS[-exponent])
    if exponent > 308:
        return np.inf
    if exponent < -300:  # in two steps: the power alone would be subnormal and lose digits
        return mantissa * 1e-300 * 10.0 ** max(exponent + 300, -100)
    return float(mantissa * 10.0**exponent)


@kernel()
def hash_text(data: Bytes, first: int, separator: int, inner: int, closing: int) -> tuple[int, int, int]:
    """Hash a text up to a separator or `closing`; return (FNV-1a key, stop, bytes or-ed)."""
    p, key, seen = first, _FNV_START, 0
    while True:
        byte = np.int64(data[p])
        if not _PLAIN[byte]:
            if byte in (LF, inner, 0):
                break
            if closing >= 0:
                if byte == closing:
                    if data[p + 1] != closing:
                        break
                    p += 1  # a doubled quote means a single one
            elif byte == separator or (byte == CR and data[p + 1] == LF):
                break
        key = (key ^ np.uint64(byte)) * _FNV_PRIME
        seen |= int(byte)
        p += 1
    return int(np.int64(key)), p, seen


@kernel()
def parse_digits(data: Bytes, first: int, width: int) -> int:
    """Return a number of exactly `width` digits, or -1."""
    value = 0
    for p in range(first, first + width):
        digit = int(_DIGITS[data[p]])
        if digit > 9:
            return -1
        value = value * 10 + digit
    return value


@kernel()
def days_since_1970(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 (Gregorian calendar), or -1 for invalid or earlier dates."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if year < 1970 or month < 1 or month > 12 or day < 1:
        return -1
    if day > _MONTH_DAYS[month] + (1 if leap and month == 2 else 0):
        return -1
    past = year - 1
    total = year * 365 + past // 4 - past // 100 + past // 400 + day
    for earlier in range(1, month):
        total += _MONTH_DAYS[earlier]
    return total + (1 if leap and month > 2 else 0) - 719528


@kernel()
def parse_iso_time(data: Bytes, first: int) -> tuple[float, int]:
    """Parse `YYYY-MM-DD`, perhaps with time and zone; return (seconds since 1970 UTC, stop)."""
    year = parse_digits(data, first, 4)
    if year < 0 or data[first + 4] != _MINUS:
        return 0.0, first
    month = parse_digits(data, first + 5, 2)
    if month < 0 or data[first + 7] != _MINUS:
        return 0.0, first
    day = parse_digits(data, first + 8, 2)
    date = days_since_1970(year, month, day)
    if day < 0 or date < 0:
        return 0.0, first
    p = first + 10
    if data[p] != 32 and data[p] != 84:  # space, T
        return date * 86400.0, p
    seconds, stop = parse_clock(data, p + 1)
    return date * 86400.0 + seconds, stop if stop > p + 1 else first


@kernel()
def parse_clock(data: Bytes, first: int) -> tuple[float, int]:
    """Parse `HH:MM[:SS[.f]]`, optionally with a zone: `Z`, ` UTC`, or `+HH`, `+HHMM`, `+HH:MM`; return (seconds, stop).

    Warehouses write all of these; a space may precede the zone.
    """
    hour = parse_digits(data, first, 2)
    if hour < 0 or hour > 23 or data[first + 2] != 58:
        return 0.0, first
    minute = parse_digits(data, first + 3, 2)
    if minute < 0 or minute > 59:
        return 0.0, first
    total = hour * 3600.0 + minute * 60.0
    p = first + 5
    if data[p] == 58:
        second = parse_digits(data, p + 1, 2)
        if second < 0 or second > 59:
            return 0.0, first
        total, p = total + second, p + 3
        if data[p] == _POINT:
            end = p + 1
            while int(_DIGITS[data[end]]) < 10:
                end += 1
            fraction, stop = parse_decimal(data, p)
            if stop == p or stop != end:  # a time has no exponent
                return 0.0, first
            total, p = total + fraction, stop
    zone = p + 1 if data[p] == 32 else p
    if data[zone] == 90:  # Z
        return total, zone + 1
    if data[zone] == 85:  # UTC; each byte is read only if the one before fits, so the line's end is never passed
        return total, zone + 3 if data[zone + 1] == 84 and data[zone + 2] == 67 else p
    if data[zone] != _PLUS and data[zone] != _MINUS:
        return total, p
    hours = parse_digits(data, zone + 1, 2)
    if hours < 0 or hours > 23:
        return 0.0, first
    minutes, stop = 0, zone + 3
    if data[stop] == 58 or int(_DIGITS[data[stop]]) < 10:
        digits = stop + 1 if data[stop] == 58 else stop
        minutes, stop = parse_digits(data, digits, 2), digits + 2
        if minutes < 0 or minutes > 59:
            return 0.0, first
    offset = hours * 3600.0 + minutes * 60.0
    return total - offset if data[zone] == _PLUS else total + offset, stop


@kernel()
def ends_line(data: Bytes, p: int) -> bool:
    return bool(data[p] == LF or (data[p] == CR and data[p + 1] == LF))


@kernel()
def is_utf8(data: Bytes, start: int, end: int) -> bool:
    """Return True if the bytes are UTF-8 by RFC 3629: shortest forms, no surrogates."""
    p = start
    while p < end:
        lead = np.int64(data[p])
        more, low, high = 0, 0x80, 0xBF
        if lead >= 0x80:
            if lead < 0xC2 or lead > 0xF4:
                return False
            more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
            low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
            high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        for i in range(1, more + 1):
            if p + i >= end or data[p + i] < low or data[p + i] > high:
                return False
            low, high = 0x80, 0xBF
        p += more + 1
    return True
