"""The stand-in for cuBLAS: each function against NumPy, what it refuses, and what is found of its operands."""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path

import numpy as np
import pytest

import cudaemu
from cudaemu import build
from cudaemu.compiler import toolchain
from cudaemu.compute import TYPES, to_tf32
from cudaemu.errors import UserError
from tests.cudaemu.sources import source

full = pytest.mark.full
SOURCE = Path(__file__).with_name("blas.cu")
WHAT = ["gemm_ex", "gemm", "strided", "batched", "batched_ex", "matmul", "axpy", "copy", "swap", "scal", "dot", "dotc",
        "nrm2", "asum", "iamax", "iamin", "rot", "gemv", "ger", "geam", "dgmm", "syrk", "symm", "trsm", "trmm",
        "transform", "dot_ex"]  # fmt: skip
F32, F64, F16, I8, C32, C64, I32, BF16, E4M3, E5M2 = 0, 1, 2, 3, 4, 5, 10, 14, 28, 29  # of cudaDataType
COMPUTE_16F, COMPUTE_32F, COMPUTE_64F, COMPUTE_32I, FAST_TF32 = 64, 68, 70, 72, 77
INVALID_VALUE, EXECUTION_FAILED, NOT_SUPPORTED = 7, 13, 15
N, T, C = range(3)


class Call(ctypes.Structure):
    """As in blas.cu."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("what", "on_device", "transa", "transb", "m", "n", "k", "lda", "ldb", "ldc",
                                            "batches", "atype", "btype", "ctype", "compute", "scale", "side", "uplo",
                                            "diag", "epilogue", "orders", "math")),
        *((name, ctypes.c_longlong) for name in ("stridea", "strideb", "stridec")),
        ("alpha", ctypes.c_double * 2),
        ("beta", ctypes.c_double * 2),
    ]  # fmt: skip


def call(what: str, A=None, B=None, C=None, out=None, bias=None, aux=None, scales=None, again=(), alpha=1, beta=0,
         arch="8.0", outputs=(), **fields) -> cudaemu.Report:  # fmt: skip
    fields = {"batches": 1, "epilogue": 1, **fields}
    fields.setdefault("btype", fields.get("atype", F32))
    fields.setdefault("ctype", fields.get("atype", F32))
    fields.setdefault("scale", fields.get("ctype", F32))
    made = Call(WHAT.index(what), **fields)
    made.alpha[:] = [complex(alpha).real, complex(alpha).imag]
    made.beta[:] = [complex(beta).real, complex(beta).imag]
    arrays = [A, B, C, out, bias, aux, scales]
    return cudaemu.run(SOURCE, "blas", [made, *arrays], counters=False, arch=arch, again=again, outputs=outputs,
                       names=["c", "A", "B", "C", "out", "bias", "aux", "scales"])  # fmt: skip


rng = np.random.default_rng(1)


def numbers(type_: int, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of random elements of a type, and their values."""
    of = TYPES[type_]
    if type_ in (I8, I32):
        values = rng.integers(-8, 9, shape)
    else:
        values = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if type_ in (C32, C64) else 0)
    bits = np.ascontiguousarray(of.narrow(values.astype(of.computed if type_ not in (I8, I32) else np.float64)))
    return bits, of.widen(bits).astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def op(x: np.ndarray, operation: int) -> np.ndarray:
    """op of matrices that lie column by column: (batches, columns, rows), as rows and columns."""
    rows = x.swapaxes(1, 2)
    return rows if operation == N else x if operation == T else x.conj()


TOLERANCE = {F32: 1e-5, F64: 1e-13, F16: 2e-3, BF16: 1e-2, C32: 1e-5, C64: 1e-13, I32: 0, I8: 0, E4M3: 0.1}


def close(bits: np.ndarray, wanted: np.ndarray, type_: int, factor: float = 1) -> bool:
    got = TYPES[type_].widen(bits).astype(wanted.dtype)
    return bool(np.all(np.abs(got - wanted) <= factor * TOLERANCE[type_] * (np.abs(wanted) + 1)))


def test_a_product_beside_one_of_numpy():
    """With leading dimensions beyond the rows: nothing between the columns is touched."""
    m, n, k = 5, 7, 3
    (a, A), (b, B), (c, D) = numbers(F32, 1, k, m + 2), numbers(F32, 1, n, k + 1), numbers(F32, 1, n, m + 3)
    report = call("gemm", a, b, c, m=m, n=n, k=k, lda=m + 2, ldb=k + 1, ldc=m + 3, alpha=2, beta=0.5)
    assert report.ok and not report.findings and not report.launches
    wanted = D.copy()
    wanted[:, :, :m] = (2 * op(A[..., :m], N) @ op(B[..., :k], N)).swapaxes(1, 2) + 0.5 * D[:, :, :m]
    assert close(c, wanted, F32) and (c[:, :, m:] == D[:, :, m:]).all()


PRODUCTS = [
    ("gemm", F32, F32, COMPUTE_32F, F32),
    ("gemm", F64, F64, COMPUTE_64F, F64),
    ("gemm", C32, C32, COMPUTE_32F, C32),
    ("gemm", C64, C64, COMPUTE_64F, C64),
    ("gemm", F16, F16, COMPUTE_16F, F16),
    ("gemm_ex", F16, F16, COMPUTE_32F, F32),
    ("gemm_ex", F16, F32, COMPUTE_32F, F32),
    ("gemm_ex", BF16, BF16, COMPUTE_32F, F32),
    ("gemm_ex", BF16, F32, COMPUTE_32F, F32),
    ("gemm_ex", I8, I32, COMPUTE_32I, I32),
    ("gemm_ex", I8, F32, COMPUTE_32F, F32),
    ("strided", F32, F32, COMPUTE_32F, F32),
    ("strided", C64, C64, COMPUTE_64F, C64),
    ("gemm_ex", BF16, BF16, COMPUTE_32F, F32),
    ("matmul", F32, F32, COMPUTE_32F, F32),
    ("matmul", F16, F16, COMPUTE_32F, F32),
    ("matmul", I8, I32, COMPUTE_32I, I32),
]


@full
@pytest.mark.parametrize("on_device", [0, 1], ids=["host", "device"])
@pytest.mark.parametrize("number", range(len(PRODUCTS)))
def test_products_of_each_type(number, on_device):
    """Transposed or not, one or several, factors on the host or on the device."""
    what, atype, ctype, compute, scale = PRODUCTS[number]
    m, n, k = 9, 6, 11
    batches = 3 if number > 10 else 1
    alpha, beta = (2, 3) if scale == I32 else (1.5, 0.5)
    if scale in (C32, C64):
        alpha, beta = 1.5 - 0.5j, 0.5j
    for transa, transb in itertools.product(*[(N, T, C) if atype in (C32, C64) else (N, T)] * 2):
        shapes = [(k, m) if transa == N else (m, k), (n, k) if transb == N else (k, n), (n, m)]
        (a, A), (b, B), (c, D) = (
            numbers(type_, batches, columns, rows + 1) for type_, (columns, rows) in zip((atype, atype, ctype), shapes)
        )
        rows = [shape[1] for shape in shapes]
        strides = {f"stride{name}": x[0].size for name, x in zip("abc", (a, b, c))}
        report = call(what, a, b, c, transa=transa, transb=transb, m=m, n=n, k=k, lda=rows[0] + 1, ldb=rows[1] + 1,
                      ldc=m + 1, batches=batches, atype=atype, ctype=ctype, compute=compute, scale=scale, alpha=alpha,
                      beta=beta, on_device=on_device, **strides)  # fmt: skip
        assert report.ok and not report.findings, report
        wanted = D.copy()
        product = op(A[..., : rows[0]], transa) @ op(B[..., : rows[1]], transb)
        wanted[..., :m] = alpha * product.swapaxes(1, 2) + beta * D[..., :m]
        assert close(c, wanted, ctype, 4)


@full
def test_products_of_arrays_of_matrices():
    """Pointers to them lie in device memory, the last matrix first."""
    m, n, k, batches = 4, 3, 5, 6
    (a, A), (b, B), (c, D) = numbers(F64, batches, k, m), numbers(F64, batches, n, k), numbers(F64, batches, n, m)
    report = call("batched", a, b, c, m=m, n=n, k=k, lda=m, ldb=k, ldc=m, batches=batches, stridea=m * k,
                  strideb=n * k, stridec=m * n, alpha=2, beta=-1, atype=F64)  # fmt: skip
    assert report.ok and not report.findings
    assert close(c, 2 * (op(A, N) @ op(B, N)).swapaxes(1, 2) - D, F64)


@full
def test_tf32_is_used_where_it_is_allowed():
    (a, A), (b, B) = numbers(F32, 1, 8, 8), numbers(F32, 1, 8, 8)
    exact, fast, asked = (np.zeros((1, 8, 8), np.float32) for _ in range(3))
    sizes = {"m": 8, "n": 8, "k": 8, "lda": 8, "ldb": 8, "ldc": 8}
    assert call("gemm", a, b, exact, **sizes).ok and call("gemm", a, b, fast, math=3, **sizes).ok
    assert call("gemm_ex", a, b, asked, compute=FAST_TF32, **sizes).ok
    rounded = (op(to_tf32(a).astype(float), N) @ op(to_tf32(b).astype(float), N)).swapaxes(1, 2)
    assert close(fast, rounded, F32) and (fast == asked).all()
    assert close(exact, (op(A, N) @ op(B, N)).swapaxes(1, 2), F32) and not np.allclose(exact, fast, 1e-6)


@full
@pytest.mark.parametrize("beta", [0, 1])
def test_what_is_not_read_may_be_anything(beta):
    """C if beta is 0, A and B if alpha is: NaN, or never written."""
    nan, c = np.full((1, 4, 4), np.nan, np.float32), np.full((1, 4, 4), 3, np.float32)
    sizes = {"m": 4, "n": 4, "k": 4, "lda": 4, "ldb": 4, "ldc": 4}
    assert not call("gemm", nan, nan, c, alpha=0, beta=beta, outputs=["A", "B"], **sizes).findings
    assert (c == 3 * beta).all()
    ones, out = np.ones((1, 4, 4), np.float32), nan.copy()
    assert not call("gemm", ones, ones, out, outputs=["C"], **sizes).findings and (out == 4).all()
    found = call("gemm", ones, ones, nan.copy(), beta=1, outputs=["C"], **sizes).findings
    assert [each.kind for each in found] == ["uninitialised global read"]


# ---- cuBLASLt --------------------------------------------------------------------------------------------------------

SIZES = {"m": 20, "n": 6, "k": 16, "lda": 20, "ldb": 16, "ldc": 20}


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@full
@pytest.mark.parametrize(
    "epilogue", [1, 2, 4, 6, 32, 36], ids=["none", "relu", "bias", "relu-bias", "gelu", "gelu-bias"]
)
def test_epilogues(epilogue):
    (a, A), (b, B), (bias, V), out = numbers(F32, 1, 16, 20), numbers(F32, 1, 6, 16), numbers(F32, 20), None
    out = np.zeros((1, 6, 20), np.float32)
    assert call("matmul", a, b, out, bias=bias, epilogue=epilogue, compute=COMPUTE_32F, **SIZES).ok
    wanted = (op(A, N) @ op(B, N)).swapaxes(1, 2) + (V if epilogue & 4 else 0)
    wanted = np.maximum(wanted, 0) if epilogue & 2 else gelu(wanted) if epilogue & 32 else wanted
    assert close(out, wanted, F32, 2)


@full
def test_epilogues_with_what_the_backward_pass_needs():
    (a, A), (b, B), (g, G) = numbers(F32, 1, 16, 20), numbers(F32, 1, 6, 16), numbers(F32, 1, 16, 20)
    x, gradient = ((op(each, N) @ op(B, N)).swapaxes(1, 2) for each in (A, G))
    out, bias, pre = np.zeros((1, 6, 20), np.float32), np.zeros(20, np.float32), np.zeros((6, 128), np.float32)
    bits = np.zeros((6, 16), np.uint8)
    how = {"compute": COMPUTE_32F, **SIZES}
    assert call("matmul", a, b, out, aux=pre, epilogue=160, **how).ok  # GELU_AUX
    assert close(out, gelu(x), F32, 2) and close(pre[None, :, :20], x, F32, 2)
    assert call("matmul", a, b, out, aux=bits, epilogue=130, **how).ok  # RELU_AUX
    assert (np.unpackbits(bits, axis=1, bitorder="little")[:, :20] == (x[0] > 0)).all()
    assert call("matmul", g, b, out, bias=bias, aux=bits, epilogue=152, **how).ok  # DRELU_BGRAD
    assert close(out, gradient * (x > 0), F32, 2) and close(bias, (gradient * (x > 0)).sum(1)[0], F32, 8)
    assert call("matmul", g, b, out, aux=pre, epilogue=192, **how).ok  # DGELU
    slope = (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5
    assert close(out, gradient * slope, F32, 4)


@full
@pytest.mark.parametrize("orders", range(8))
def test_matrices_that_lie_row_by_row(orders):
    (a, A), (b, B), (c, D) = numbers(F32, 20, 16), numbers(F32, 16, 6), numbers(F32, 20, 6)
    arrays = [x if orders >> bit & 1 else np.ascontiguousarray(x.T) for bit, x in enumerate((a, b, c))]
    ld = {f"ld{name}": x.shape[1] for name, x in zip("abc", arrays)}
    fields = {"m": 20, "n": 6, "k": 16, "compute": COMPUTE_32F, "orders": orders, **ld}
    assert call("matmul", *arrays, beta=1, **fields).ok
    assert close(arrays[2] if orders >> 2 & 1 else arrays[2].T, A @ B + D, F32)


@full
def test_fp8_with_scales():
    m, n, k = 16, 8, 32
    (a, A), (b, B) = numbers(E4M3, 1, m, k), numbers(E5M2, 1, n, k)
    out, scales = np.zeros((1, n, m), np.uint8), np.array([2, 0.5, 4, 0], np.float32)
    c = np.zeros((1, n, m), np.uint16)
    how = {"transa": T, "m": m, "n": n, "k": k, "lda": k, "ldb": k, "ldc": m, "atype": E4M3, "btype": E5M2,
           "compute": COMPUTE_32F, "scale": F32}  # fmt: skip
    assert call("matmul", a, b, c, ctype=BF16, arch="9.0", **how).ok
    product = (A @ B.swapaxes(1, 2)).swapaxes(1, 2)
    assert close(c, product, BF16)
    report = call("matmul", a, b, out, scales=scales, ctype=E4M3, arch="9.0", **how)
    assert report.ok and np.isclose(scales[3], np.abs(product).max(), 1e-5)
    assert close(out, np.clip(4 * product, -448, 448), E4M3)
    assert "8.9" in call("matmul", a, b, c, ctype=BF16, **how).error
    assert "transa T" in call("matmul", a, b, c, ctype=BF16, arch="9.0", **{**how, "transa": N, "lda": m}).error


@full
def test_a_transformation():
    (a, A), (b, B), out = numbers(F32, 1, 5, 3), numbers(F32, 1, 3, 5), np.zeros((3, 5), np.float32)
    fields = {"m": 3, "n": 5, "lda": 3, "ldb": 5, "ldc": 5, "orders": 4, "transb": T}
    assert call("transform", a, b, out, alpha=2, beta=-1, **fields).ok
    assert close(out, 2 * A[0].T - B[0], F32)


# ---- levels 1 to 3 ---------------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize("type_", [F32, F64, C32, C64], ids=["S", "D", "C", "Z"])


@full
@EACH
@pytest.mark.parametrize("steps", [(1, 1), (2, 3), (-2, 3)], ids=str)
def test_vectors(type_, steps):
    """Of a step below 0 they begin at their end."""
    n, (stepx, stepy) = 13, steps
    (x, X), (y, Y) = numbers(type_, n * abs(stepx)), numbers(type_, n * abs(stepy))
    of_x = slice(None, None, stepx) if stepx > 0 else slice((n - 1) * -stepx, None, stepx)
    of_y = slice(None, None, stepy)
    alpha = 1.5 - 2j if type_ in (C32, C64) else 1.5
    how = {"n": n, "lda": stepx, "ldb": stepy, "ldc": stepy, "atype": type_}
    wanted, out = Y.copy(), y.copy()
    wanted[of_y] += alpha * X[of_x]
    assert call("axpy", x, C=out, alpha=alpha, **how).ok and close(out, wanted, type_)
    wanted, out = Y.copy(), y.copy()
    wanted[of_y] = X[of_x]
    assert call("copy", x, C=out, **how).ok and close(out, wanted, type_)
    one, two = x.copy(), y.copy()
    assert call("swap", one, C=two, **how).ok
    assert close(two, wanted, type_) and close(one[of_x], Y[of_y], type_)
    wanted, out = Y.copy(), y.copy()
    wanted[of_y] *= alpha
    assert call("scal", C=out, alpha=alpha, **how).ok and close(out, wanted, type_)
    for name, result in (("dot", X[of_x] @ Y[of_y]), ("dotc", X[of_x].conj() @ Y[of_y])):
        for on_device in (0, 1):
            out = np.zeros(16, np.uint8)
            assert call(name, x, y, out=out, on_device=on_device, **how).ok
            assert close(out.view(x.dtype)[:1], np.array([result]), type_, 10)


@full
@EACH
@pytest.mark.parametrize("on_device", [0, 1])
def test_reductions(type_, on_device):
    (x, X), out = numbers(type_, 30), np.zeros(16, np.uint8)
    how = {"n": 15, "lda": 2, "atype": type_, "on_device": on_device}
    X = X[::2]
    sizes = np.abs(X.real) + np.abs(X.imag)
    real = F64 if type_ in (F64, C64) else F32
    kind = TYPES[real].stored
    assert call("nrm2", x, out=out, **how).ok
    assert close(out.view(kind)[:1], np.array([np.linalg.norm(X)]), real)
    assert call("asum", x, out=out, **how).ok and close(out.view(kind)[:1], np.array([sizes.sum()]), real, 4)
    assert call("iamax", x, out=out, **how).ok and out.view(np.int32)[0] == sizes.argmax() + 1
    assert call("iamin", x, out=out, **how).ok and out.view(np.int32)[0] == sizes.argmin() + 1
    assert call("nrm2", x, out=out, **{**how, "n": 0}).ok and not out.view(kind)[0]


@full
@EACH
def test_a_matrix_with_vectors(type_):
    m, n = 7, 5
    is_complex = type_ in (C32, C64)
    alpha, beta = (1 - 1j, 2j) if is_complex else (1.5, 2)
    (a, A), (x, X), (y, Y) = numbers(type_, 1, n, m + 1), numbers(type_, 2 * max(m, n)), numbers(type_, max(m, n))
    for trans in (N, T, C):
        matrix, out = op(A[..., :m], trans)[0], y.copy()
        wanted = Y.copy()
        wanted[: len(matrix)] = alpha * matrix @ X[::2][: matrix.shape[1]] + beta * Y[: len(matrix)]
        report = call("gemv", a, x, out, transa=trans, m=m, n=n, lda=m + 1, ldb=2, ldc=1, alpha=alpha, beta=beta,
                      atype=type_)  # fmt: skip
        assert report.ok and close(out, wanted, type_, 4)
    wanted, out = A.copy(), a.copy()
    wanted[0, :, :m] += alpha * np.outer(X[: 2 * m : 2], Y[:n].conj()).T
    assert call("ger", x, y, out, m=m, n=n, lda=2, ldb=1, ldc=m + 1, alpha=alpha, atype=type_).ok
    assert close(out, wanted, type_)
    for side in (0, 1):
        out = np.zeros((1, n, m), a.dtype)
        assert call("dgmm", a, x, out, side=side, m=m, n=n, lda=m + 1, ldb=2, ldc=m, atype=type_).ok
        factor = X[::2][:n, None] if side else X[::2][:m]
        assert close(out, A[..., :m] * factor, type_)


@full
@EACH
def test_sums_of_two_matrices(type_):
    m, n = 4, 6
    for transa, transb in itertools.product((N, T, C), repeat=2):
        (a, A), (b, B) = (numbers(type_, 1, *((n, m) if trans == N else (m, n))) for trans in (transa, transb))
        out = np.zeros((1, n, m), a.dtype)
        fields = {"lda": a.shape[2], "ldb": b.shape[2], "ldc": m, "m": m, "n": n, "atype": type_}
        assert call("geam", a, b, out, transa=transa, transb=transb, alpha=2, beta=-3, **fields).ok
        assert close(out, (2 * op(A, transa) - 3 * op(B, transb)).swapaxes(1, 2), type_)


@full
@EACH
@pytest.mark.parametrize("uplo, side", list(itertools.product((0, 1), repeat=2)))
def test_triangles(type_, uplo, side):
    """The other triangle is neither read nor written."""
    m, n = 6, 4
    size = n if side else m
    keep = np.tril(np.ones((size, size))) if uplo else np.triu(np.ones((size, size)))  # column by column
    (a, A), (b, B), (c, D) = numbers(type_, 1, size, size), numbers(type_, 1, n, m), numbers(type_, 1, n, m)
    a[:, keep == 0] = np.nan
    A[:, keep == 0] = 0
    a += 4 * np.eye(size, dtype=a.dtype)
    A += 4 * np.eye(size)
    how = {"side": side, "uplo": uplo, "m": m, "n": n, "lda": size, "ldb": m, "ldc": m, "atype": type_}
    whole = op(A, N)[0] + op(A, N)[0].T - np.diag(np.diag(A[0]))
    out = c.copy()
    assert call("symm", a, b, out, alpha=2, beta=1, **how).ok
    product = op(B, N)[0] @ whole if side else whole @ op(B, N)[0]
    assert close(out[0], 2 * product.T + D[0], type_, 8)
    for trans, diag in itertools.product((N, T, C), (0, 1)):
        matrix = op(A - diag * np.eye(size) * (np.diag(A[0]) - 1), trans)[0]
        product = op(B, N)[0] @ matrix if side else matrix @ op(B, N)[0]
        out = np.zeros_like(b)
        assert call("trmm", a, b, out, transa=trans, diag=diag, alpha=2, **how).ok
        assert close(out[0], 2 * product.T, type_, 8)
        out = TYPES[type_].narrow(product.T[None]).copy()
        assert call("trsm", a, None, out, transa=trans, diag=diag, alpha=2, **{**how, "ldb": m}).ok
        assert close(out, 2 * B, type_, 1000)
    (x, X), (y, Y) = numbers(type_, 1, 3, size), numbers(type_, 1, size, size)
    out = y.copy()
    assert call("syrk", x, None, out, uplo=uplo, n=size, k=3, lda=size, ldc=size, alpha=2, beta=-1, atype=type_).ok
    product = (2 * op(X, N)[0] @ op(X, N)[0].T).T - Y[0]
    assert close(out[0], np.where(keep > 0, product, Y[0]), type_, 4)


@full
def test_a_dot_product_of_half_precision_is_summed_in_single():
    (x, X), (y, Y), out = numbers(F16, 4096), numbers(F16, 4096), np.zeros(16, np.uint8)
    assert call("dot_ex", x, y, out=out, n=4096, lda=1, ldb=1, atype=F16).ok
    assert np.isclose(out.view(np.float32)[0], X @ Y, 1e-4, 1e-3)


# ---- refused, and found ----------------------------------------------------------------------------------------------


@full
@pytest.mark.parametrize(
    "changed, status, words",
    [
        ({"lda": 3}, INVALID_VALUE, "lda must be at least the rows of the matrix, 4, got 3"),
        ({"ldb": 4}, INVALID_VALUE, "ldb must be at least the rows of the matrix, 5, got 4"),
        ({"transb": T, "ldb": 5}, INVALID_VALUE, "ldb must be at least the rows of the matrix, 6, got 5"),
        ({"ldc": 1}, INVALID_VALUE, "ldc must be at least"),
        ({"m": -1}, INVALID_VALUE, "m must be at least 0, got -1"),
        ({"transa": 7}, INVALID_VALUE, "transa must be an enumerator of its type, got 7"),
        ({"what": "gemm_ex", "compute": COMPUTE_32I}, NOT_SUPPORTED, "no product has these types"),
        ({"what": "gemm_ex", "compute": COMPUTE_32F, "btype": F64}, NOT_SUPPORTED, "no product has these types"),
        ({"what": "matmul", "compute": COMPUTE_32F, "epilogue": 4}, INVALID_VALUE, "needs BIAS_POINTER"),
        ({"what": "matmul", "compute": COMPUTE_32F, "scale": F64}, NOT_SUPPORTED, "compute and scale type"),
    ],
)
def test_arguments_that_are_refused(changed, status, words):
    a, b, c = (np.ones((1, 6, 6), np.float32) for _ in range(3))
    fields = {"what": "gemm", "m": 4, "n": 6, "k": 5, "lda": 4, "ldb": 5, "ldc": 4, **changed}
    report = call(fields.pop("what"), a, b, c, **fields)
    assert report.status == status and words in report.error, report.error
    assert not report.findings and (c == 1).all()


PROGRAM = r"""
#include <cublas_v2.h>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
__global__ void fill(float *p, int n) { for (int i = threadIdx.x; i < n; i += blockDim.x) p[i] = 1; }
constexpr int N = 64, BYTES = N * N * sizeof(float);
int main(int, char **argv) {
  float *a, *b, *c, *late, one = 1, zero = 0, result = 0;
  cudaStream_t s, t;
  cudaEvent_t event;
  cublasHandle_t h;
  cudaStreamCreate(&s);
  cudaStreamCreate(&t);
  cudaEventCreate(&event);
  cudaMalloc(&a, BYTES);
  cudaMalloc(&b, BYTES);
  cudaMalloc(&c, BYTES);
  cudaMalloc(&late, BYTES);
  cublasCreate(&h);
  fill<<<1, 256>>>(a, N * N);
  fill<<<1, 256>>>(b, N * N);
  cudaDeviceSynchronize();
  cublasSetStream(h, s);
  const auto product = [&](const float *x, const float *y, float *z, int ld = N) {
    return int(cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, N, N, N, &one, x, ld, y, N, &zero, z, N));
  };
  int status = 0;
  switch (atoi(argv[1])) {
    case 0: fill<<<1, 256, 0, t>>>(a, N * N); status = product(a, b, c); break;
    case 1: status = product(a, b, c); fill<<<1, 256, 0, t>>>(a, N * N); break;
    case 2: status = product(a, b + 8, c); break;
    case 3: status = product(a, late, c); break;
    case 4: status = product(nullptr, b, c); break;
    case 5: status = product(reinterpret_cast<float *>(reinterpret_cast<char *>(a) + 2), b, c, N - 0); break;
    case 6: status = product(&one, b, c); break;
    case 7: cudaFree(a); status = product(a, b, c); break;
    case 8: product(a, b, c); cublasSetStream(h, t); status = product(a, c, b); break;
    case 9: status = product(a, b, late + 1); break;

    case 20:
      fill<<<1, 256, 0, t>>>(a, N * N);
      cudaEventRecord(event, t);
      cudaStreamWaitEvent(s, event, 0);
      status = product(a, b, c);
      break;
    case 21: {  // columns beside each other
      cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, N / 2, N, N, &one, a, N, b, N, &zero, c, N);
      cublasSetStream(h, t);
      status = cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, N / 2, N, N, &one, a, N, b, N, &zero, c + N / 2, N);
      break;
    }
    case 22: status = product(a, b, c) + cublasSdot(h, N * N, c, 1, a, 1, &result); break;
    case 23: {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal);
      status = product(a, b, c) + cublasSaxpy(h, N * N, &one, c, 1, c, 1);
      one = 7;  // was read when the work was captured
      cudaStreamEndCapture(s, &graph);
      cudaGraphInstantiate(&exec, graph, 0);
      cudaGraphLaunch(exec, s);
      cudaStreamSynchronize(s);
      break;
    }
  }
  const cudaError_t error = cudaDeviceSynchronize();
  float last = 0;
  if (!error && status == 0) cudaMemcpy(&last, c + N * N - 1, sizeof last, cudaMemcpyDeviceToHost);
  printf("%d %d %g %g\n", status, error, result, last);
}
"""


def run(case: int) -> cudaemu.Report:
    return cudaemu.program(source(PROGRAM, "blas_program"), [str(case)])


@full
@pytest.mark.parametrize(
    "case, kind, words, said",
    [
        (0, "race between streams", "cublasSgemm reads a (cudaMalloc 1", "0 0 0 64"),
        (1, "race between streams", "fill writes a (cudaMalloc 1", "0 0 0 64"),
        (2, "out of bounds global", "reads row 56, column 63 of B, 4 bytes at just past the end of b", "13 700"),
        (3, "uninitialised global read", "reads B, of which 4,096 of 4,096 elements were never written", "0 0"),
        (4, "null pointer", "cublasSgemm reads row 0, column 0 of A, 4 bytes at a null pointer", "13 700"),
        (5, "out of bounds global", "row 63, column 63 of A, 4 bytes at a (cudaMalloc 1", "13 700"),
        (6, "out of bounds global", "which is host memory", "13 700"),
        (7, "out of bounds global", "which was freed", "13 700"),
        (8, "race between streams", "cublasSgemm writes b", "0 0"),
        (9, "out of bounds global", "cublasSgemm writes row 63, column 63 of C", "13 700"),
    ],
)  # fmt: skip
def test_operands_that_are_wrong(case, kind, words, said, capfd):
    report = run(case)
    assert kind in [each.kind for each in report.findings], report.findings
    finding = next(each for each in report.findings if each.kind == kind)
    assert words in finding.message and finding.line
    assert said in capfd.readouterr().out


@full
@pytest.mark.parametrize("case, said", [(20, "0 0 0 64"), (21, "0 0 0 64"), (22, "0 0 262144 64"), (23, "0 0 0 128")])
def test_work_that_is_ordered(case, said, capfd):
    report = run(case)
    assert not report.findings and said in capfd.readouterr().out


@full
def test_without_the_sanitizer_kernels_do_not_mark_what_they_write():
    report = cudaemu.program(source(PROGRAM, "blas_program"), ["22"], options=cudaemu.Options(sanitize=False))
    assert not report.findings and not report.notes


@full
def test_undefined_values_are_followed_into_a_product_and_overwritten_by_one():
    """They are found where a product reads them, not where its result goes."""
    text = PROGRAM.replace("p[i] = 1; }", "{ float x[2]; x[1] = 1; p[i] = x[n > 0 ? i & 1 : 0]; } }", 1)
    kinds = [each.kind for each in cudaemu.program(source(text, "blas_undefined"), ["20"]).findings]
    assert kinds == ["undefined value"]


LARGE_SIZES = """
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cstdio>
int main() {
  const int64_t n = 3;
  const float a[] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, one = 1, two = 2, zero = 0;
  float *x, *y, got[9], sum;
  int64_t largest = 0;
  cublasHandle_t h;
  cublasCreate(&h);
  cudaMalloc(&x, sizeof a), cudaMalloc(&y, sizeof a);
  int bad = cublasSetMatrix_64(n, n, 4, a, n, x, n) + cublasSetVector_64(9, 4, a, 1, y, 1);
  bad += cublasIsamax_64(h, 9, x, 1, &largest) + cublasSdot_64(h, 9, x, 1, x, 1, &sum);
  bad += cublasSgemm_64(h, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, x, n, x, n, &zero, y, n);
  bad += cublasGemmEx_64(h, CUBLAS_OP_N, CUBLAS_OP_T, n, n, n, &one, x, CUDA_R_32F, n, x, CUDA_R_32F, n, &one, y,
                         CUDA_R_32F, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  bad += cublasSaxpy_64(h, 9, &two, x, 1, y, 1) + cublasGetVector_64(9, 4, y, 1, got, 1);
  bad += cublasSgemmStridedBatched_64(h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, x, 1, 1, x, 1, 1, &zero, y, 1, 1, 9);
  std::printf("%d %d %g %g %g %g", bad, int(largest), sum, got[0], got[1], got[8]);
  std::printf(" %d", cublasSaxpy_64(h, 9, nullptr, x, 1, y, 1));
}
"""


def test_functions_with_sizes_of_64_bits(capfd):
    report = cudaemu.program(source(LARGE_SIZES, "blas_large_sizes"))
    assert not report.findings
    assert capfd.readouterr().out == f"0 9 285 134 160 270 {INVALID_VALUE}"


@full
def test_a_function_that_is_not_there_is_named():
    text = PROGRAM.replace(
        "int status = 0;",
        "int status = cublasStpsv(h, CUBLAS_FILL_MODE_LOWER, CUBLAS_OP_N, CUBLAS_DIAG_UNIT, 1, a, b, 1);",
    )
    real = (toolchain.find_nvcc().include / "cublas_v2.h").is_file()
    with pytest.raises(UserError, match="no such part of cuBLAS" if real else "cublasStpsv"):
        cudaemu.program(source(text, "blas_missing"), ["0"])


@full
@pytest.mark.skipif(
    not (toolchain.find_nvcc().include / "cublas_v2.h").is_file(), reason="NVIDIA's own header is not installed"
)
def test_the_functions_are_declared_as_in_the_header_of_nvidia(tmp_path):
    nvcc = toolchain.find_nvcc()
    words = ["-fsyntax-only", "-std=c++17", f"-I{nvcc.include}", build.HERE / "cublas.cpp"]
    toolchain.run([toolchain.find_cxx(), *words])
