"""What sources get of their headers: the declarations that they need, and of each name all."""

from __future__ import annotations

import re

import pytest

from cudaemu.compiler import headers, passes, toolchain
from tests.cudaemu.compiler.test_passes import by_nvcc, compiled, ptx_of  # noqa: F401  # compiled is a fixture

DECLARED = {
    "int f(int a, int b);": "f",
    "extern int g (const char *name) __attribute__ ((__nothrow__)) __attribute__ ((__nonnull__ (1)));": "g",
    "static inline __attribute__((device)) float h(float x) { return k(x); }": "h",
    "struct __attribute__((aligned(4))) half2 { half x, y; half2(float f) : x(f) {} };": "half2",
    "struct forward;": "forward",
    "typedef struct tag { int member; } alias, *pointer;": "alias pointer tag",
    "typedef unsigned long size;": "size",
    "typedef int (*callback)(const void *, const void *);": "callback",
    "enum color { red, green = 2 };": "color green red",
    "enum class byte : unsigned char;": "byte",
    "extern const uint3 threadIdx;": "threadIdx",
    "constexpr int a = f(1), b = c<1, 2>::value;": "a b",
    "inline constexpr tag_t tag{};": "tag",
    "template <class T, int N = 3> struct array;": "array",
    "template <> struct limits<half> { static half max(); };": "limits",
    "template <bool B, class T> struct enable_if { };": "enable_if",
    "template <class T> struct derived : public base<T, size_t> { typedef T type; };": "derived",
    "template <class T> typename enable_if<sizeof(T) >= 4, T>::type cas(T *p, T v) { return v; }": "cas",
    "template <> int make<char>(void) { return 1; }": "make",
    "template <class T> inline constexpr bool is_same_v<T, T> = true;": "is_same_v",
    "template <class T> using type_t = typename T::type;": "type_t",
    "using std::abs;": "abs",
    "half operator+(const half &a, const half &b) { return add(a, b); }": "half",
    "half::operator float() const { return 0; }": "half",
    "pair &pair::operator=(const other &o) { x = o.x; return *this; }": "other pair",
    "maker::maker(int x) : a{x}, b(x) { }": "maker",
    "pair<int> &pair<int>::operator=(const other &o) { return *this; }": "other pair",
    "template <class T> typename common<T>::type operator+(const span<T> &a, const span<T> &b) { return a; }": "span",
    "struct outer::inner { int x; };": "inner outer",
    "text operator\"\"_t(const char *p, size_t n) noexcept { return {p, n}; }": '""_t',
    "[[nodiscard]] extern char *text(void);": "text",
    "using namespace std;": "",
    "static_assert(sizeof(int) == 4, \"{\");": "",
    "static_assert(sizeof(alias) == 4, \"{\");": "static_assert",
    "#pragma nv_exec_check_disable\nint checked();": "checked",
    "void *operator new(std::size_t) throw();": "",
    "#pragma GCC visibility push(default)": "",
}  # fmt: skip


@pytest.mark.parametrize("text", DECLARED)
def test_what_a_declaration_declares(text):
    before, after = "int before;", "int after;"
    pieces = headers._pieces(f'# 7 "some.h" 3\n{before}\n{text}\n{after}\n')
    one, found, *_, last = pieces
    assert (one.names, last.names) in (("before", "after"), ("before", "")), "it ends where it ends"
    assert any(piece.names == "after" for piece in pieces)
    assert sorted(set(found.names.split()) - {"operator"}) == DECLARED[text].split()
    assert found.place == '# 8 "some.h" 3'


def test_a_header_that_closes_what_another_opened():
    opened, closed = headers._pieces("namespace a {\nint f();"), headers._pieces("int g();\n}\nint h();")
    assert [piece.names for piece in (*opened, *closed)] == ["", "f", "g", "", "h"]


def test_a_preprocessor_of_another_kind_is_left_to_its_work(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    (tmp_path / "source.cu").write_text("")
    command = ["cpp", "-I/toolkit", "-include", "cuda_runtime.h", "source.cu", "-o", "source.ii"]
    monkeypatch.setattr(toolchain, "run", lambda words, cwd=None: "int f();\n")
    headers.of.cache_clear()
    assert headers.preprocess(command, tmp_path) is None


TEXT = """# 1 "some.h" 3
namespace std {
struct pair { int first; };
# 30 "some.h" 3
void swap(pair &, pair &);
}
extern "C" { int swap(int); int puts(const char *);
}
float swap(float);
int unused(std::pair);
int twice(int x) { return swap(x); }
static_assert(sizeof(std::pair) == 4);
namespace std { inline namespace v1 { int operator""_t(const char *); } int of(long); struct v1::kept { }; }
namespace other { struct lone { }; int of(lone); int give() { return of(lone()); } }
"""


@pytest.mark.parametrize("source, names", {
    "": [],
    "int f() { return puts(0); }": ["puts"],
    'const char *text = "puts";': [],
    "int f() { return twice(1); }": ["int swap", "float swap", "twice"],  # what it uses, and that of every type
    "std::pair p;": ["pair {", "static_assert"],  # swap(p, p) would name it
    "std::pair p; void f() { std::swap(p, p); }":
        ["pair {", "void swap", "int swap", "float swap", "static_assert"],
    "int f() { return pair; }": [],  # in a namespace that the source does not name
    "using namespace std; int i = \"\"_t;": ["_t"],
    "using namespace std; int _t;": [],
    "std::kept k;": ["kept {"],
    "using namespace std::v1; int i;": [],  # of what is in it, nothing
    "int i = other::give();": ["lone {", "of(lone)", "give"],  # which does not name std
    "using namespace std; int i = of(1);": ["of(long)"],
}.items())  # fmt: skip
def test_a_source_gets_what_it_names(source, names, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    got = headers.Headers([headers._header(TEXT)]).needed(source, ())
    every = ["pair {", "void swap", "int swap", "float swap", "puts", "unused", "twice", "static_assert", "_t"]
    every += ["of(long)", "lone {", "of(lone)", "give", "kept {"]
    assert [name for name in every if name in got] == [name for name in every if name in names]
    assert got.count("{") == got.count("}")
    if "void swap" in names:
        assert re.search(r'# 1 "some.h" 3\nnamespace std \{\n(.*\n){28}void swap', got), "line 30"


def test_a_declaration_stays_at_its_line_and_column(tmp_path, monkeypatch):
    """The PTX names both: -lineinfo."""
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path))
    lines = ['# 1 "some.h" 3', "namespace a {", "  int f(); int g();", "}", *[""] * 100, "  int h(); int i();", ""]
    text = headers.Headers([headers._header("\n".join(lines))]).needed("a::g() + i()", ())
    assert f'\nnamespace a {{\n{" " * 11}int g();\n}}\n# 104 "some.h" 3\n{" " * 11}int i();' in text


def test_what_a_source_begins_with(tmp_path):
    """The toolkit's headers, also those of a header of one's own, up to what that says itself."""
    (tmp_path / "source.cu").write_text("// First of all:\n#include <map>\n#include <own.h>\n#include <set>\n")
    own = tmp_path / "own"
    own.mkdir()
    (own / "own.h").write_text('#pragma once\n#include <string>\n#include "beside.h"\n#include <list>\n')
    (own / "beside.h").write_text("/* no code */ #include <vector>\n#include <own.h>\n#include <deque>\n")
    assert list(headers._leading(tmp_path / "source.cu", [own])) == ["map", "string", "vector"]
    assert list(headers._leading(tmp_path / "source.cu", [])) == ["map", "own.h", "set"]
    (own / "beside.h").write_text("#ifdef VECTOR\n#include <vector>\n#endif\n")
    assert list(headers._leading(tmp_path / "source.cu", [own])) == ["map", "string"]


def test_a_header_is_read_once_and_the_next_behind_it(tmp_path, monkeypatch):
    """What comes out is what the preprocessor makes of all of them."""
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "one.h").write_text(
        "#ifndef ONE\n#define ONE\n#define VALUE 3\n#define GONE\n#undef GONE\nint one();\n#endif\n"
    )
    (tmp_path / "two.h").write_text(
        "#include <one.h>\n#define OWN(x) x\n#ifndef GONE\nint two() { return VALUE + __COUNTER__; }\n#endif\n"
    )
    (tmp_path / "three.h").write_text("int three() { return OWN(VALUE) + __COUNTER__; }\n")
    flags = (toolchain.find_cxx(), "-E", "-x", "c++", f"-I{tmp_path}", "-isystem", str(tmp_path / "system"))
    read, run = [], toolchain.run
    monkeypatch.setattr(toolchain, "run", lambda words, cwd=None: read.append(words) or run(words, cwd))
    names = ("one.h", "two.h", "three.h")
    found = headers.of(flags, names[:2]), headers.of(flags, names)
    assert len([words for words in read if headers.ALL in words]) == 3
    one, two, three = [header.text for header in found[1].headers]
    assert [header.text for header in found[0].headers] == [one, two]
    (tmp_path / "all.h").write_text("".join(f"#include <{name}>\n" for name in names))
    whole = run([*flags, tmp_path / "all.h", "-o", "-"])
    assert "int one();" in one and "int one();" not in two
    assert _lines(one + two + three) == _lines(whole)


def _lines(text: str) -> list[tuple[str, bool, int, list[str]]]:
    """What stands in the preprocessor's output: file, whether that is the system's, line, words."""
    out = []
    for line in text.split("\n"):
        if marker := headers.MARKER.match(line):
            number, file, system = int(marker[1]), marker[2], "3" in marker[3]
        else:
            out += [(file, system, number, line.split())] if line.strip() else []
            number += 1
    return out


MANY = """#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace {
__device__ int own;
}
namespace cg = cooperative_groups;
using namespace nvcuda;
template <class T>
__global__ void kernel(const half *a, T *x, const __nv_bfloat16 *b, float *c) {
  auto warp = cg::tiled_partition<32>(cg::this_thread_block());
  __shared__ half tile[256];
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  tile[threadIdx.x] = a[threadIdx.x] * __float2half(sinf(c[1])) + __hmax(a[0], a[1]);
  assert(c[0] < 2.0f);
  warp.sync();
  wmma::fill_fragment(fc, max(0.0f, c[2]));
  wmma::load_matrix_sync(fa, tile, 16);
  wmma::load_matrix_sync(fb, a, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
  own = 1;
  if (warp.any(b[0] > b[1])) atomicAdd(x, T(pow(double(c[3]), 3) + abs(c[4])));
  printf("%f\\n", __shfl_xor_sync(~0u, c[threadIdx.x], 1));
}
int main() {
  std::map<std::string, std::vector<int>> words{{"one", {3, 1, 2}}};
  for (auto &[word, numbers] : words) {
    std::sort(numbers.begin(), numbers.end());
    std::cout << word + "!" << numbers.front() << std::endl;
  }
  kernel<float><<<dim3(1), 256>>>(nullptr, nullptr, nullptr, nullptr);
  kernel<int><<<dim3(1), 256>>>(nullptr, nullptr, nullptr, nullptr);
  return cudaDeviceSynchronize() != cudaSuccess;
}
"""


def test_a_source_of_many_headers_is_compiled_as_nvcc_does(compiled, monkeypatch):  # noqa: F811
    attempts = []
    run = passes._run
    monkeypatch.setattr(passes, "_run", lambda *words: attempts.append(run(*words)) or attempts[-1])
    ours, theirs = compiled(MANY, passes.compile_source), compiled(MANY, by_nvcc)
    assert [code for code, _ in attempts] == [0], f"the headers were not enough: {attempts[0][1]}"
    assert _used(ptx_of(ours)) == _used(ptx_of(theirs))


def _used(ptx: str) -> str:
    """Without the bytes that libcu++ declares and nothing uses: its objects that are functions."""
    unused = re.compile(r"^\.global \.align 1 \.b8 (\w*4cuda3std\w*)\[1\];\n", re.MULTILINE)
    return unused.sub(lambda found: found[0] if ptx.count(found[1]) > 1 else "", ptx)


@pytest.mark.parametrize("value", ["x", "rsqrtf(x)", "(float)cospi(x)"])
def test_what_follows_the_hosts_code_is_read_for_those_who_call_it(value, compiled, monkeypatch):  # noqa: F811
    """Functions that the host's libraries do not have are defined there, and declared in a thousand lines."""
    attempts = []
    run = passes._run
    monkeypatch.setattr(passes, "_run", lambda *words: attempts.append(words) or run(*words))
    text = f"float called(float x) {{ return {value}; }}\n__global__ void kernel(float *x) {{}}\n"
    folder = compiled(text, passes.compile_source)
    symbols = toolchain.run(["nm", "kernel.o"], cwd=folder)
    functions = re.findall(r"\w+(?=\()", value)
    assert functions == re.findall(r" [TW] (rsqrtf|cospi)$", symbols, re.MULTILINE)
    assert len(attempts) == 1
    assert ("erfcinv" in (folder / "source.cudafe1.cpp").read_text()) == bool(functions)


@pytest.mark.parametrize("flags, traps", [([], True), (["-D", "NDEBUG"], False), (["-UNDEBUG"], True)])
def test_a_macro_that_changes_the_headers_is_told_to_them(flags, traps, compiled):  # noqa: F811
    text = "#include <cassert>\n__global__ void kernel(int *x) { assert(x[0]); }\n"
    assert ("assertfail" in (compiled(text, passes.compile_source, *flags) / "source.ptx").read_text()) == traps


def test_a_macro_that_changes_declarations_is_told_to_their_headers(compiled, monkeypatch):  # noqa: F811
    attempts = []
    run = passes._run
    monkeypatch.setattr(passes, "_run", lambda *words: attempts.append(words) or run(*words))
    text = "#include <string>\n__global__ void kernel(int *x) {}\nvoid named(std::string) {}\n"
    folder = compiled(text, passes.compile_source, "-D_GLIBCXX_USE_CXX11_ABI=0")
    assert "_Z5namedSs" in toolchain.run(["nm", "kernel.o"], cwd=folder)
    assert len(attempts) == 1


def test_a_macro_of_the_source_does_not_need_new_headers(compiled, monkeypatch, tmp_path_factory):  # noqa: F811
    monkeypatch.setenv("KERNELS_CACHE", str(tmp_path_factory.mktemp("cache")))
    headers.of.cache_clear()
    text = '#include <cuda_fp16.h>\n__global__ void kernel(half *x) { asm("// stages %0" :: "n"(STAGES)); }\n'
    for stages in range(1, 4):
        folder = compiled(text, passes.compile_source, f"-DSTAGES={stages}")
        assert f"stages {stages}" in (folder / "source.ptx").read_text()
    assert len(list(toolchain.cache_dir().glob("headers-*/text"))) == 4, "one of each header and pass"
    headers.of.cache_clear()  # what is in memory lies in a cache that goes
