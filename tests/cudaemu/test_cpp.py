"""Reading C++ without a compiler: what is code, where brackets close, what parameters, kernels and macros there are."""

from __future__ import annotations

import pytest

from cudaemu import cpp

NASTY = r"""
// __global__ void in_a_comment(int a);  \
   __global__ void in_its_second_line(int a);
/* __global__ void in_a_long_comment(int a); // */
const char *text = "__global__ void in_a_string(int a); \" // no comment";
const char *raw = R"x(
#define IN_RAW 1
__global__ void in_a_raw_string(int a); )" )x";
const int big = 1'000'000; char quote = '"', apostrophe = '\'', open = '(';
#define MAKE(name) __global__ void name##_in_a_macro(int a) { \
  int in_its_second_line(int b); }

__global__ void plain(const float *__restrict__ x, /* the (long) length, */ int n = 3 /*, or so */, float y[4]) {
  if (x[0] < y[1]) plain<<<1, n, 0, stream>>>(x, n, y);  // a launch, not a declaration
}
template <typename T, int N = (3 > 2), class U = Pair<T, int>>
__global__ void __launch_bounds__(N * (32 + 1), 2) scale(T *x, Pair<U, int> p, int n
#ifdef MORE
                                                  , int more
#endif
) {}
extern "C" __global__ __attribute__((used)) void
c_kernel() {}
static void __global__ late(void (*function)(int, int), unsigned int, std::vector<std::vector<int>> &v) {}
extern "C" cudaError_t launch(const half *A,  // [M, K], rows ( first
                              float *C, int M, long long big, cudaStream_t stream) {
  asm volatile("mma.sync {%0}, "
               "(%1);" // a ) in a comment
               : "+f"(c) : "r"(a));
  int asm_count = 0;
  return cudaSuccess;
}
"""
CODE = cpp.code(NASTY)


def test_code_keeps_its_places():
    assert len(CODE) == len(NASTY) and CODE.count("\n") == NASTY.count("\n")
    assert all(mark in (original, " ") for mark, original in zip(CODE, NASTY))
    for word in ("in_a_", "in_its", "IN_RAW", "MAKE", "second", "no comment", "first", "MORE"):
        assert word not in CODE
    for word in ("1'000'000", "const char *raw", "cudaSuccess", "int more", "<<<1, n, 0, stream>>>"):
        assert CODE.index(word) == NASTY.index(word)
    assert "no comment" in cpp.without_comments(NASTY) and "or so" not in cpp.without_comments(NASTY)


@pytest.mark.parametrize("text", ["/* open", '"open', "// open", 'R"(open', "'", "#", ""])
def test_code_that_ends_too_soon(text):
    assert len(cpp.code(text)) == len(text)


@pytest.mark.parametrize(
    "text, rest",
    [
        ("(a(b)[c]{d})e", "e"),
        ("<A<(x > y), B<3>>>(n)", "(n)"),
        ("<auto (int) -> int>r", "r"),
        ("(a < b)c", "c"),
        ("[x >> 1]y", "y"),
        ("<a", ""),
        ("(a]", ""),
        ("<n; m> b", ""),
    ],
)
def test_brackets_close(text, rest):
    assert text[cpp.closing(text, 0) + 1 :] == rest


@pytest.mark.parametrize(
    "text, parts",
    [
        ("a, b", ["a", "b"]),
        ("Pair<int, 3> p, f(x, y), {1, 2}", ["Pair<int, 3> p", "f(x, y)", "{1, 2}"]),
        ("1 << 3, x >> 2", ["1 << 3", "x >> 2"]),
        ("a <= b, c > d", ["a <= b", "c > d"]),
        ("i < n, j", ["i < n", "j"]),
        ("std::map<int, std::map<int, int>> m, k", ["std::map<int, std::map<int, int>> m", "k"]),
        ("(", ["("]),
        (" ", []),
    ],
)
def test_commas_outside_brackets_split(text, parts):
    assert cpp.split(text) == parts


@pytest.mark.parametrize(
    "text, type_, name",
    [
        ("const half *__restrict__ A", "const half *__restrict__", "A"),
        ("float\n  y[4][N]", "float [4][N]", "y"),
        ("std::enable_if_t<A == 3, int> n = 0", "std::enable_if_t<A == 3, int>", "n"),
        ("void (*function)(int, int)", "void (*)(int, int)", "function"),
        ("unsigned int", "unsigned int", ""),
        ("float *", "float *", ""),
        ("ns::Type", "ns::Type", ""),
        ("x", "x", ""),
        ("int&& value", "int&&", "value"),
    ],
)
def test_a_parameter_has_a_type_and_maybe_a_name(text, type_, name):
    assert cpp.parameter(text) == (type_, name)


def test_kernels_are_found_as_they_are_declared():
    plain, scale, c_kernel, late = cpp.kernels(CODE)
    assert plain == ("plain", [("const float *__restrict__", "x"), ("int", "n"), ("float [4]", "y")], [])
    assert scale.name == "scale" and scale.parameters == [
        ("T *", "x"), ("Pair<U, int>", "p"), ("int", "n"), ("int", "more"),
    ]  # fmt: skip
    assert scale.template == [("typename", "T"), ("int", "N"), ("class", "U")]
    assert c_kernel == ("c_kernel", [], [])
    assert late.parameters == [
        ("void (*)(int, int)", "function"), ("unsigned int", ""), ("std::vector<std::vector<int>> &", "v"),
    ]  # fmt: skip


def test_a_calls_arguments_have_no_names():
    declared, called = cpp.parameter_lists("void f(int a, int b);  void g() { f(x, 3); }", "f")
    assert [each.name for each in declared] == ["a", "b"] and not any(each.name for each in called)
    assert list(cpp.parameter_lists("void my_f(int a); f", "f")) == []
    assert list(cpp.parameter_lists("void f(void);", "f")) == [[]]


def test_an_exported_launcher():
    assert [each.name for each in cpp.exported(CODE, "launch")] == ["A", "C", "M", "big", "stream"]
    assert cpp.exported(CODE, "plain") is None
    assert cpp.exported(cpp.code('// extern "C" cudaError_t launch(int n);'), "launch") is None


def test_lines_of_statements():
    first = next(number for number, line in enumerate(NASTY.splitlines(), 1) if "asm volatile" in line)
    assert list(cpp.statements(CODE, "asm|__asm__")) == [range(first, first + 3)]


MACROS = """
#ifndef TILE
#define TILE 16  // rows of a tile
#endif
#ifndef OTHER\r
#define OTHER A\r
#endif\r
/*
#ifndef HIDDEN
#define HIDDEN 1
#endif
*/
#ifndef TILE_H
#define NOT_TILE_H
#endif
#define SUM (1 + \\
             2)
  # define SPACED 3 /* three */
#define FUNCTION(x) x
"""


def test_macros():
    assert cpp.guarded_macros(MACROS) == {"TILE": ("16", "rows of a tile"), "OTHER": ("A", "")}
    found = cpp.defines(MACROS)
    assert (found["TILE"], found["SPACED"]) == ("16", "3") and found["SUM"] == "(1 + 2)"
    assert "FUNCTION" not in found and "HIDDEN" not in found
