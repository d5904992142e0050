"""cuRAND's generators on the host's side, by NumPy (host/curand.cpp): the numbers of its documentation's algorithms.

XORWOW, MRG32k3a, Philox4x32-10 and Sobol32 give the bits of cuRAND's own host generators (10.4.5, 2026-11-28; Sobol32
in up to 32 dimensions): integers and uniform numbers exactly, normal ones but for the last digits of log, sin and cos.
MT19937, MTGP32 and Poisson have the right distribution, and other numbers.

Sources: G. Marsaglia, Xorshift RNGs, 2003; P. L'Ecuyer, Good Parameters and Implementations for Combined Multiple
Recursive Random Number Generators, 1999; J. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011; S. Joe
and F. Kuo, Constructing Sobol Sequences with Better Two-Dimensional Projections, 2008; cuRAND's guide, for orderings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
BITS, UNIFORM, UNIFORM_DOUBLE, NORMAL, NORMAL_DOUBLE, POISSON = range(6)  # of host/curand.cpp
XORWOW, MRG32K3A, PHILOX, SOBOL32 = 101, 121, 161, 201  # of curandRngType_t
LEGACY = 103  # of curandOrdering_t


def _uniform(bits: Array) -> Array:
    """Above 0, at most 1."""
    one: Array = bits.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    return one


def _uniform_double(low: Array, high: Array) -> Array:
    one: Array = (low.astype(np.uint64) ^ (high.astype(np.uint64) << np.uint64(21))) * 2.0**-53 + 2.0**-54
    return one


def _pairs(size: Array, turn: Array) -> Array:
    """Two normal numbers of each two uniform ones, one after the other: by Box and Muller. `turn`: an angle."""
    radius = np.sqrt(-2 * np.log(size))
    return np.stack([np.sin(turn) * radius, np.cos(turn) * radius], axis=-1).reshape(-1)


def _normal(x: Array, y: Array) -> Array:
    turn = np.float32(2**-32) * np.float32(2 * np.pi)
    return _pairs(_uniform(x), y.astype(np.float32) * turn + turn / np.float32(2))


def _normal_double(x: Array, y: Array) -> Array:
    return _pairs(x, 2 * np.pi * y)


class Lanes(ABC):
    """Parts of one sequence, far apart, which give their numbers in turn, one or two at a time.

    `lanes`: how many there are. A visit to a lane takes one or more of its numbers."""

    def __init__(self, lanes: int, offset: int):
        self.lanes, self._next = lanes, offset % lanes

    @abstractmethod
    def draw(self, lanes: slice) -> Array:
        """The next number of each of these."""

    def bits(self, lanes: slice) -> Array:
        return self.draw(lanes)

    def fraction(self, lanes: slice) -> Array:
        return _uniform(self.bits(lanes))

    def fraction_double(self, lanes: slice) -> Array:
        return _uniform_double(self.bits(lanes), self.bits(lanes))

    def normal(self, lanes: slice) -> Array:
        return _normal(self.bits(lanes), self.bits(lanes))

    def normal_double(self, lanes: slice) -> Array:
        return _normal_double(self.fraction_double(lanes), self.fraction_double(lanes))

    def numbers(self, distribution: int, count: int) -> Array:
        take = [self.bits, self.fraction, self.fraction_double, self.normal, self.normal_double][distribution]
        visits = count // 2 if distribution in (NORMAL, NORMAL_DOUBLE) else count
        pieces = [take(lanes) for lanes in self._visited(visits)]
        return np.concatenate(pieces) if pieces else np.empty(0, np.float32)

    def _visited(self, count: int) -> Iterator[slice]:
        while count:
            now = min(self.lanes - self._next, count)
            yield slice(self._next, self._next + now)
            self._next = (self._next + now) % self.lanes
            count -= now


# ---- XORWOW ----------------------------------------------------------------------------------------------------------


def _unpacked(words: Array) -> Array:
    """The bits of five words for each lane: (lanes, 160)."""
    bits = np.unpackbits(np.ascontiguousarray(words.T).view(np.uint8), axis=1, bitorder="little")
    return bits.astype(np.float32)


def _packed(bits: Array) -> Array:
    words: Array = np.packbits(bits.astype(np.uint8), axis=1, bitorder="little").view(np.uint32).T.copy()
    return words


def _xorwow_step(v: Array) -> Array:
    """The next state of five words."""
    t = v[0] ^ (v[0] >> 2)
    following: Array = np.stack([*v[1:], v[4] ^ (v[4] << 4) ^ t ^ (t << 1)])
    return following


@lru_cache
def _xorwow_matrices() -> list[Array]:
    """What 2^n steps make of a state's bits, for n from 0: rows go to rows times this."""
    matrices = [_unpacked(_xorwow_step(_packed(np.eye(160))))]
    for _ in range(67 + 12):
        matrices.append(matrices[-1] @ matrices[-1] % 2)
    return matrices


class Xorwow(Lanes):
    """4096 lanes, 2^67 numbers apart."""

    def __init__(self, seed: int, offset: int):
        super().__init__(4096, offset)
        low, high = seed & 0xFFFFFFFF ^ 0xAAD26B49, seed >> 32 ^ 0xF7DCEFDD
        a, b = 1099087573 * low, 2591861531 * high
        words = [123456789 + a, 362436069 ^ a, 521288629 + b, 88675123 ^ b, 5783321 + a]
        state, matrices = _unpacked(np.array([[word & 0xFFFFFFFF] for word in words], np.uint32)), _xorwow_matrices()
        for n in range(12):
            state = np.concatenate([state, state @ matrices[67 + n] % 2])
        steps = offset // self.lanes
        for n in range(64):
            if steps >> n & 1:
                state = state @ matrices[n] % 2
        self._v = _packed(state)
        self._d = np.full(self.lanes, (6615241 + a + b + 362437 * steps) & 0xFFFFFFFF, np.uint32)
        self.draw(slice(0, self._next))

    def draw(self, lanes: slice) -> Array:
        self._v[:, lanes] = _xorwow_step(self._v[:, lanes])
        self._d[lanes] += np.uint32(362437)
        found: Array = self._v[4, lanes] + self._d[lanes]
        return found


# ---- MRG32k3a --------------------------------------------------------------------------------------------------------

_M1, _M2 = 4294967087, 4294944443
_MRG = (
    (_M1, [[0, 1, 0], [0, 0, 1], [_M1 - 810728, 1403580, 0]]),
    (_M2, [[0, 1, 0], [0, 0, 1], [_M2 - 1370589, 0, 527612]]),
)


def _product(a: Array, b: Array, modulus: int) -> Array:
    """Of two matrices of 32-bit numbers."""
    m = np.uint64(modulus)
    found: Array = a[:, :1] * b[:1] % m
    for n in range(1, len(b)):
        found = (found + a[:, n : n + 1] * b[n : n + 1] % m) % m
    return found


class Mrg32k3a(Lanes):
    """81920 lanes, or 4096 in the legacy order, 2^76 numbers apart."""

    def __init__(self, seed: int, offset: int, order: int):
        super().__init__(4096 if order == LEGACY else 81920, offset)
        low, high = seed & 0xFFFFFFFF ^ 0x55555555, seed >> 32 ^ 0xAAAAAAAA
        factors = [[low, high, low], [high, low, high]] if seed else [[1] * 3] * 2
        self._states = []
        for (modulus, step), of in zip(_MRG, factors):
            state = np.array([[12345 * each % modulus] for each in of], np.uint64)
            power = np.array(step, np.uint64)
            steps = offset // self.lanes
            for n in range(76):
                if steps >> n & 1:
                    state = _product(power, state, modulus)
                power = _product(power, power, modulus)
            while state.shape[1] < self.lanes:
                state = np.concatenate([state, _product(power, state, modulus)], axis=1)
                power = _product(power, power, modulus)
            self._states.append(state[:, : self.lanes].astype(np.int64))
        self.draw(slice(0, self._next))

    def draw(self, lanes: slice) -> Array:
        """From 1 to the first modulus."""
        one, two = (state[:, lanes] for state in self._states)
        first = (1403580 * one[1] - 810728 * one[0]) % _M1
        second = (527612 * two[2] - 1370589 * two[0]) % _M2
        for state, new in ((one, first), (two, second)):
            state[:2] = state[1:].copy()
            state[2] = new
        found: Array = np.where(first > second, first - second, first - second + _M1)
        return found

    def bits(self, lanes: slice) -> Array:
        return (self.draw(lanes) * 1.000000048662).astype(np.uint32)

    def fraction(self, lanes: slice) -> Array:
        return self.fraction_double(lanes).astype(np.float32)

    def fraction_double(self, lanes: slice) -> Array:
        one: Array = self.draw(lanes) * 2.3283065498378288e-10
        return one


# ---- Philox ----------------------------------------------------------------------------------------------------------


class Philox:
    """65536 threads give four numbers each in turn, from one counter; of double precision from two."""

    def __init__(self, seed: int, offset: int):
        self._seed, self._next = seed, offset % (4 << 16)
        self._counters = np.full(1 << 16, offset >> 18, np.uint64)
        self._counters[: self._next // 4] += np.uint64(1)

    def _block(self, thread: Array, counter: Array) -> list[Array]:
        """The four words of a counter."""
        mask = np.uint64(0xFFFFFFFF)
        c = [counter & mask, counter >> np.uint64(32), thread, np.zeros_like(thread)]
        k = [self._seed & 0xFFFFFFFF, self._seed >> 32]
        for _ in range(10):
            p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
            c = [q >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), q & mask,
                 p >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), p & mask]  # fmt: skip
            k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
        return [word.astype(np.uint32) for word in c]

    def numbers(self, distribution: int, count: int) -> Array:
        first, skipped = divmod(self._next, 4)
        visit = np.arange((skipped + count + 3) // 4)
        thread = ((first + visit) & 0xFFFF).astype(np.uint64)
        each = 2 if distribution in (UNIFORM_DOUBLE, NORMAL_DOUBLE) else 1
        counter = self._counters[thread] + (each * (visit >> 16)).astype(np.uint64)
        np.add.at(self._counters, thread[: (skipped + count) // 4], np.uint64(each))  # those that are done with
        self._next = (self._next + count) % (4 << 16)
        if each == 2:
            two = [self._block(thread, counter + np.uint64(n)) for n in (0, 1)]
            parts = [_uniform_double(block[n], block[n + 1]) for block in two for n in (0, 2)]
            if distribution == NORMAL_DOUBLE:
                halves = [_normal_double(parts[n], parts[n + 1]).reshape(-1, 2) for n in (0, 2)]
                return np.concatenate(halves, axis=1).reshape(-1)[skipped : skipped + count]
        else:
            parts = self._block(thread, counter)
            if distribution == UNIFORM:
                parts = [_uniform(part) for part in parts]
            if distribution == NORMAL:
                halves = [_normal(parts[n], parts[n + 1]).reshape(-1, 2) for n in (0, 2)]
                return np.concatenate(halves, axis=1).reshape(-1)[skipped : skipped + count]
        return np.stack(parts, axis=1).reshape(-1)[skipped : skipped + count]


# ---- Sobol, and others -----------------------------------------------------------------------------------------------

# Of each dimension but the first: degree and coefficients of the polynomial, and the first numbers.
_JOE_KUO = (
    *((1, 0, 1), (2, 1, 1, 3), (3, 1, 1, 3, 1), (3, 2, 1, 1, 1), (4, 1, 1, 1, 3, 3), (4, 4, 1, 3, 5, 13)),
    *((5, 2, 1, 1, 5, 5, 17), (5, 4, 1, 1, 5, 5, 5), (5, 7, 1, 1, 7, 11, 19), (5, 11, 1, 1, 5, 1, 1)),
    *((5, 13, 1, 1, 1, 3, 11), (5, 14, 1, 3, 5, 5, 31), (6, 1, 1, 3, 3, 9, 7, 49), (6, 13, 1, 1, 1, 15, 21, 21)),
    *((6, 16, 1, 3, 1, 13, 27, 49), (6, 19, 1, 1, 1, 15, 7, 5), (6, 22, 1, 3, 1, 15, 13, 25)),
    *((6, 25, 1, 1, 5, 5, 19, 61), (7, 1, 1, 3, 7, 11, 23, 15, 103), (7, 4, 1, 3, 7, 13, 13, 15, 69)),
    *((7, 7, 1, 1, 3, 13, 7, 35, 63), (7, 8, 1, 3, 5, 9, 1, 25, 53), (7, 14, 1, 3, 1, 13, 9, 35, 107)),
    *((7, 19, 1, 3, 1, 5, 27, 61, 31), (7, 21, 1, 1, 5, 11, 19, 41, 61), (7, 28, 1, 3, 5, 3, 3, 13, 69)),
    *((7, 31, 1, 1, 7, 13, 1, 19, 1), (7, 32, 1, 3, 7, 5, 13, 19, 59), (7, 37, 1, 1, 3, 9, 25, 29, 41)),
    *((7, 41, 1, 3, 5, 13, 23, 1, 55), (7, 42, 1, 3, 7, 3, 13, 59, 17)),
)


def _directions(dimension: int) -> list[int]:
    if dimension == 0:
        return [1 << 31 - n for n in range(32)]
    degree, coefficients, *m = _JOE_KUO[dimension - 1]
    for n in range(degree, 32):
        new = m[n - degree] ^ m[n - degree] << degree
        for i in range(1, degree):
            if coefficients >> degree - 1 - i & 1:
                new ^= m[n - i] << i
        m.append(new)
    return [each << 31 - n for n, each in enumerate(m)]


class Sobol32:
    """All numbers of one dimension, then those of the next."""

    def __init__(self, offset: int, dimensions: int):
        self._next, self._dimensions = offset, dimensions

    def numbers(self, distribution: int, count: int) -> Array:
        each = count // self._dimensions
        index = np.arange(self._next, self._next + each, dtype=np.uint32)
        self._next += each
        gray, pieces = index ^ index >> 1, []
        for dimension in range(self._dimensions):
            x = np.zeros(each, np.uint32)
            for n, direction in enumerate(_directions(dimension)):
                x ^= np.uint32(direction) * (gray >> n & 1)
            pieces.append(x)
        bits = np.concatenate(pieces)
        if distribution in (BITS, UNIFORM):
            return bits if distribution == BITS else _uniform(bits)
        if distribution == UNIFORM_DOUBLE:
            return bits * 2.0**-32 + 2.0**-32
        from statistics import NormalDist  # which takes as long to import as all the rest

        inverse = NormalDist().inv_cdf
        return np.array([inverse(float(x)) for x in bits * 2.0**-32 + 2.0**-33])


class OfNumpy:
    """Numbers of the right distribution."""

    def __init__(self, seed: int, offset: int):
        self.random = np.random.Generator(np.random.MT19937([seed, offset]))

    def numbers(self, distribution: int, count: int) -> Array:
        if distribution in (BITS, UNIFORM):
            bits = self.random.integers(0, 1 << 32, count, np.uint32)
            return bits if distribution == BITS else _uniform(bits)
        if distribution == UNIFORM_DOUBLE:
            return 1 - self.random.random(count)
        return self.random.standard_normal(count)


class Generator:
    """One that a program has made, as it was set up."""

    def __init__(self, kind: int, seed: int, offset: int, order: int, dimensions: int):
        self._all: Any
        if kind == XORWOW:
            self._all = Xorwow(seed, offset)
        elif kind == MRG32K3A:
            self._all = Mrg32k3a(seed, offset, order)
        elif kind == PHILOX:
            self._all = Philox(seed, offset)
        elif kind == SOBOL32:
            self._all = Sobol32(offset, dimensions)
        else:
            self._all = OfNumpy(seed, offset)
        self._discrete = OfNumpy(seed, offset)

    def numbers(self, distribution: int, count: int, mean: float, deviation: float, exponential: bool) -> Array:
        """The next ones. `mean`: of Poisson, λ."""
        if distribution == POISSON:
            drawn: Array = self._discrete.random.poisson(mean, count).astype(np.uint32)
            return drawn
        found: Array = self._all.numbers(distribution, count)
        if distribution in (NORMAL, NORMAL_DOUBLE):
            kind = np.float32 if distribution == NORMAL else np.float64
            found = found.astype(kind) * kind(deviation) + kind(mean)
        return np.exp(found) if exponential else found
