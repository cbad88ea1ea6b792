# SPDX-License-Identifier: Apache-2.0
"""The codecs of the quantized profiles in numpy: a statement of the format that shares nothing with kvd's own.

Codes are found as the nearest of all values of a format, ties to the even code; scales and quotients are IEEE FP32.
`codes.py` prints rows and what they encode to as golden_codes.inc, which test_ops_codec.c reads.
"""

import random

import numpy as np

HEAD_DIMS = (64, 96, 128, 192, 256)
GOLDEN_SCALE = 0.37  # of a layer, in golden_codes.inc


def _values(bits, mantissa, bias):
    """The values of all positive codes of a float format without infinities and NaN."""
    code = np.arange(2**bits)
    exponent, fraction = code >> mantissa, code & (2**mantissa - 1)
    return np.where(
        exponent == 0,
        fraction * 2.0 ** (1 - bias - mantissa),
        (2**mantissa + fraction) * 2.0 ** (exponent - bias - mantissa),
    )


E4M3 = _values(7, 3, 7)[:127]  # 127 would be NaN
E2M1 = _values(3, 1, 1)
F16 = _values(15, 10, 15)[:0x7C00]  # then infinities


def nearest(values, x):
    """Codes of the values nearest to x >= 0; ties to the even code; saturates."""
    x = np.minimum(np.asarray(x, np.float64), values[-1])
    above = np.clip(np.searchsorted(values, x), 1, len(values) - 1)
    down, up = x - values[above - 1], values[above] - x
    return np.where((down < up) | ((down == up) & (above % 2 == 1)), above - 1, above)


def _floats(bits):
    x = (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.where(np.isnan(x), np.float32(0), x)


def _largest(x):
    return np.abs(x).max(-1).astype(np.float32)


def int8(bits):
    """Codes [..., n] and scales [..., ceil(n / 64)] of rows of BF16 bits."""
    codes, scales = [], []
    x = _floats(bits)
    for begin in range(0, x.shape[-1], 64):
        part = x[..., begin : begin + 64]
        scale = nearest(F16, _largest(part) / np.float32(127))
        stored = F16[scale].astype(np.float32)[..., None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            code = np.rint(part * (np.float32(1) / stored))
        codes.append(np.where(stored == 0, 0, np.clip(code, -127, 127)).astype(np.int8))
        scales.append(scale.astype(np.uint16))
    return np.concatenate(codes, -1), np.stack(scales, -1)


def fp8(bits):
    x = _floats(bits)
    most = _largest(x)
    scale = nearest(F16, np.maximum(most / np.float32(448), np.float32(2.0**-24)))
    inverse = np.float32(1) / F16[scale].astype(np.float32)
    with np.errstate(over="ignore"):
        scaled = x * inverse[..., None]
    codes = nearest(E4M3, np.abs(scaled)) | np.signbit(scaled) * 128
    none = most == 0
    return np.where(none[..., None], 0, codes).astype(np.uint8), np.where(none, 0, scale).astype(np.uint16)[..., None]


def nvfp4(bits):
    x = _floats(bits)
    x = x.reshape(*x.shape[:-1], -1, 16)
    most = _largest(x)
    scale = nearest(E4M3, np.maximum(most / np.float32(6), np.float32(2.0**-9)))
    with np.errstate(over="ignore"):
        scaled = x / E4M3[scale].astype(np.float32)[..., None]
    codes = nearest(E2M1, np.abs(scaled)) | np.signbit(scaled) * 8
    none = most == 0
    codes = np.where(none[..., None], 0, codes).reshape(*x.shape[:-2], -1, 2).astype(np.uint8)
    return codes[..., 0] | codes[..., 1] << 4, np.where(none, 0, scale).astype(np.uint8)


def fp8_tensor(bits, scale):
    """Codes alone: the scale is the layer's."""
    with np.errstate(over="ignore"):
        scaled = _floats(bits) / np.float32(scale)
    return (nearest(E4M3, np.abs(scaled)) | np.signbit(scaled) * 128).astype(np.uint8)


ENCODERS = {"int8": int8, "fp8": fp8, "nvfp4": nvfp4}


def rows(n, count, seed):
    """Rows of BF16 bits: plain, with outliers, with zeros and subnormals, with ties, any finite bits, NaN and Inf."""
    source = random.Random(seed)  # its random() is the same in every version

    def below(limit, begin=0):
        return np.array([begin + int(source.random() * limit) for _ in range(n)])

    made = []
    for i in range(count):
        x = np.array([2 * source.random() - 1 for _ in range(n)], np.float32)
        kind = i % 6
        if kind == 1:
            x = x * np.float32(2.0) ** below(60, -40).astype(np.float32)
        if kind == 2:
            x = x * (below(8) == 0).astype(np.float32) * np.float32(2.0**-120)
        if kind == 3:
            x = below(33, -16).astype(np.float32) * np.float32(0.125)
        bits = (x.view(np.uint32) >> 16).astype(np.uint16)
        if kind >= 4:
            bits = below(2**16).astype(np.uint16)
        if kind == 4:
            bits = np.where(bits & 0x7F80 == 0x7F80, bits & 0x807F, bits).astype(np.uint16)
        made.append(bits)
    return np.array(made)


def golden():
    """golden_codes.inc: head_dim, BF16 bits, and codes and scales of each format, in hexadecimal bytes."""
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */", "/* Made by tests/python/codes.py: do not edit. */"]

    def text(array):
        digits = np.ascontiguousarray(array).view(np.uint8).tobytes().hex()
        return "\n      ".join(f'"{digits[at : at + 100]}"' for at in range(0, len(digits), 100))

    for n in HEAD_DIMS:
        for x in rows(n, 6, n)[[1, 5]]:
            parts = [text(x)] + [text(part) for encode in ENCODERS.values() for part in encode(x)]
            parts.append(text(fp8_tensor(x, GOLDEN_SCALE)))
            lines.append(f"{{ {n},\n      " + ",\n      ".join(parts) + " },")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(golden(), end="")
