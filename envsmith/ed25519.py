"""Verifies Ed25519 signatures; it never signs, so nothing need be constant-time.

Source: RFC 8032, and what OpenSSH refuses besides it (ed25519.c of its main branch of 2026-08-21); read 2026-11-30.
"""

from __future__ import annotations

import hashlib

#: Curve25519 in Edwards form, RFC 8032 §5.1: the field, the order of the base point, the curve's constant.
_P = 2**255 - 19
_ORDER = 2**252 + 27742317777372353535851937790883648493
_D = -121665 * pow(121666, -1, _P) % _P
_ROOT_OF_MINUS_ONE = pow(2, (_P - 1) // 4, _P)
#: Extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z and x * y = T/Z.
_Point = tuple[int, int, int, int]
_NEUTRAL: _Point = (0, 1, 1, 0)


def verify_ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether 64 bytes are a signature of a 32-byte key over a message, by RFC 8032 §5.1.7.

    As in OpenSSH the equation has no cofactor and R is compared as bytes, so no R but the canonical one passes. Two
    answers depend on OpenSSH's version, and the later one is given: `s` at or above the order (malleable) and the
    neutral element as a key are refused since 10.4 (its commit 7763a38bc, 2026-06-04). As in every OpenSSH, keys of
    order 2, 4 and 8 are not: who lists one lets anybody sign. A key whose encoding is not canonical is refused as the
    RFC wants it; OpenSSH reduces it. No generator makes one.
    """
    if len(signature) != 64 or len(key) != 32:
        return False
    point, s = _decoded(key), int.from_bytes(signature[32:], "little")
    if point is None or point[:2] == _NEUTRAL[:2] or s >= _ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + key + message).digest(), "little") % _ORDER
    return _encoded(_sum_of_products(s, _BASE, h, _negated(point))) == signature[:32]


def _decoded(key: bytes) -> _Point | None:
    """Find the point of a canonical encoding, RFC 8032 §5.1.3."""
    number = int.from_bytes(key, "little")
    odd, y = number >> 255, number & (1 << 255) - 1
    square = (y * y - 1) * pow(_D * y * y + 1, -1, _P) % _P
    x = pow(square, (_P + 3) // 8, _P)
    if x * x % _P != square:
        x = x * _ROOT_OF_MINUS_ONE % _P
    if y >= _P or x * x % _P != square or (x == 0 and odd):
        return None
    x = x if x & 1 == odd else _P - x
    return x, y, 1, x * y % _P


def _encoded(point: _Point) -> bytes:
    inverse = pow(point[2], -1, _P)
    x, y = point[0] * inverse % _P, point[1] * inverse % _P
    return (y | (x & 1) << 255).to_bytes(32, "little")


def _negated(point: _Point) -> _Point:
    return -point[0] % _P, point[1], point[2], -point[3] % _P


def _added(p: _Point, q: _Point) -> _Point:
    """Add two points, or a point to itself: the formulas are complete, RFC 8032 §5.1.4."""
    a = (p[1] - p[0]) * (q[1] - q[0]) % _P
    b = (p[1] + p[0]) * (q[1] + q[0]) % _P
    c = 2 * _D * p[3] * q[3] % _P
    d = 2 * p[2] * q[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return e * f % _P, g * h % _P, f * g % _P, e * h % _P


def _sum_of_products(m: int, p: _Point, n: int, q: _Point) -> _Point:
    """Return m·p + n·q, both in one walk over the bits."""
    terms = (_NEUTRAL, p, q, _added(p, q))
    total = _NEUTRAL
    for bit in range(max(m.bit_length(), n.bit_length()) - 1, -1, -1):
        total = _added(total, total)
        if term := (m >> bit & 1) | (n >> bit & 1) << 1:
            total = _added(total, terms[term])
    return total


def _base() -> _Point:
    point = _decoded((4 * pow(5, -1, _P) % _P).to_bytes(32, "little"))
    assert point is not None
    return point


_BASE = _base()
