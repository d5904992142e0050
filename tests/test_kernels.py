"""What holds for every stage: how its files are written, and that its kernels are right and keep the rules."""

from __future__ import annotations

import ast
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cudaemu
import kernels
from common import accuracy, counts, course, launcher_check
from common.stage import Kernel, Stage, macros
from cudaemu import Counters, hardware
from cudaemu.compiler import cache, sass, toolchain
from cudaemu.errors import UserError

STAGES = course.everything()
SOURCES = [each for stage in STAGES for each in (stage, *stage.besides)]
OTHERS = {other.source: other for stage in STAGES for other in stage.besides}
DEEP = "16_final", "h7_flash_attention_3"  # they round products by themselves where m is large
OVERLOADED = ("store_tiles", "store_exchanged", "store_pair")  # a helper of this name per type

every_source = pytest.mark.parametrize("stage", SOURCES, ids=lambda stage: f"{stage.name} {stage.file}")
every_stage = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)

# The definition of a function at the top level, to the brace that closes it at the start of a line or on the same line.
HELPER = re.compile(
    r"^(?:template[^\n]*\n)?(?:__\w+__ |static |inline )*__device__ "
    r"[^;{(]*?(\w+(?:<[^(]*>)?)\([^;{]*\{(?:[^\n]*\}\n|.*?^\}\n)",
    re.M | re.S,
)


@every_source
def test_source_includes_only_cuda(stage: Stage):
    included = re.findall(r"^\s*#\s*include\s*(.*)$", stage.source.read_text(), re.M)
    assert included and all(re.fullmatch(r"<(cuda\w*|mma|cooperative_groups)\.h>", name) for name in included)


@pytest.mark.core(every=12)
@every_source
def test_source_compiles_alone_without_a_warning(stage: Stage):
    text, nvcc, cxx = stage.source.read_text(), toolchain.find_nvcc(), toolchain.find_cxx()
    target = f"arch=compute_{stage.arch.nvcc},code=sm_{stage.arch.nvcc}"  # -arch=sm_90a compiles for plain 9.0, too
    flags = ["-std=c++17", "-Werror", "all-warnings", "-gencode", target, "-ccbin", cxx]
    flags += ["--Ofast-compile=max"]  # warnings come before the optimiser, which takes most of the time

    def build(out: Path) -> None:
        (out / "copied.cu").write_text(text)
        depfile = ["-MD", "-MF", "read.d"]
        toolchain.run([nvcc.path, *flags, *depfile, "-c", "copied.cu", "-o", "copied.o"], out)

    cache.get("alone", [text, *flags, *toolchain.identity(cxx, nvcc)], build)


@every_source
def test_source_opens_with_what_it_is(stage: Stage):
    text = stage.source.read_text()
    head = re.match(rf"// (?:Stage ({course.NUMBER}) · (.+?)|{stage.name}): ", text)
    assert head is not None and bool(head[1]) != stage.of_library
    assert stage.of_library or f"{head[1]}_{re.sub(r'[ .-]', '_', head[2]).lower()}" == stage.name
    header = text.partition("#include")[0]
    assert all(re.search(rf"^// {part}\b", header, re.M) for part in ("Problem", "Idea", "Thread map", "Limits"))
    assert max(map(len, text.splitlines())) <= 120


@every_source
def test_macros_are_the_variants_and_say_what_they_do(stage: Stage):
    declared = macros(stage.source)
    assert set(re.findall(r"^#ifndef (\w+)", stage.source.read_text(), re.M)) == set(declared)
    assert set(declared) == {"DTYPE", *stage.variants}
    assert all(macro.help for macro in declared.values())
    assert all(int(declared[name].default) in values for name, values in stage.variants.items())


@every_source
def test_launcher_has_the_arguments_of_its_problem(stage: Stage):
    spec = stage.spec
    found = re.search(rf'^extern "C" cudaError_t {stage.symbol}\(([^)]*)\)', stage.source.read_text(), re.M)
    assert found is not None
    names = [argument.replace("*", " ").split()[-1] for argument in found[1].split(",")]
    kernel = stage.kernel()
    instance = accuracy.make(kernel, spec.emulator_shapes(kernel.variants)[0])
    assert names == [*kernel.arguments(instance.inputs, instance.outputs()), "stream"]


def test_a_helper_is_the_same_word_for_word_in_every_stage():
    versions = defaultdict(dict)
    for stage in SOURCES:
        for helper in HELPER.finditer(stage.source.read_text()):
            text = re.sub(r"SWIZZLE \? (.+) : col;", r"\1;", helper[0])  # the macro that turns it off: Part I alone
            name = re.match(r"[^{]*", text)[0] if helper[1] in OVERLOADED else helper[1]
            versions[name].setdefault(text, stage.name)
    assert "ceil_div" in versions and "swizzle" in versions
    changed = {name: list(texts.values()) for name, texts in versions.items() if len(texts) > 1}
    assert not changed, f"helpers that differ between stages: {changed}"


@every_stage
def test_package_has_no_logic(stage: Stage):
    body = ast.parse((stage.directory / "__init__.py").read_text()).body
    assert [type(node).__name__ for node in body] == ["Expr", "ImportFrom", "Assign"]
    assert ast.get_docstring(ast.Module(body, [])).startswith(
        f"Of kernels.{stage.function}: " if stage.of_library else f"Stage {stage.number}: "
    )
    lines = (stage.directory / "__main__.py").read_text().split("\n")
    assert [line for line in lines if line] == ["from common.cli import main", "main(__package__)"]


@every_stage
def test_counters_of_the_stage_exist(stage: Stage):
    assert stage.counters and all(isinstance(Counters()[name], int) for name in stage.counters)


@every_stage
def test_the_kernel_is_right_and_keeps_the_rules(stage: Stage):
    """In its first dtype and variant, at the first and the last test shape; the next test has them all."""
    kernel = stage.kernel()
    first, *_, last = kernel.test_shapes().values()
    for shape in (first, last):
        result = accuracy.check(kernel, shape, "emulator", counters=True)
        assert result.ok, result.report


# What no launch of an instance can execute: of which stage and instances, fragments of the lines that lead there, which
# begin after "^".
UNREACHABLE = [
    # Of few queries a mask leaves no second tile of keys.
    ("16_final", "CAUSAL=1: attention_kernel<16,", ()),
    ("h7_flash_attention_3", "CAUSAL=1: attention_kernel<1>", ()),
    # Under a mask keys are not split.
    ("16_final", "CAUSAL=1: ", ("partial_LSE",)),
    ("16_final", "CAUSAL=1: ", ("const size_t share =",)),
    ("16_final", "CAUSAL=1: ", ("const size_t place =",)),
    ("16_final", "CAUSAL=1: ", ("const float log2_sum =",)),
    ("16_final", "CAUSAL=1: ", ("partial_O[share",)),
    ("h7_flash_attention_3", "CAUSAL=1: ", ("const size_t part =",)),
    ("h7_flash_attention_3", "CAUSAL=1: ", ("partial_LSE",)),
    ("h7_flash_attention_3", "CAUSAL=1: ", ("make_float2(",)),
    # Tiles of 128 queries and of 128 keys: a mask hides keys of the last tile alone, which comes first.
    ("h7_flash_attention_3", "CAUSAL=1: attention_kernel<2>", ("const int query = (warp_row", "step(tile")),
    ("h7_flash_attention_3", "CAUSAL=1: attention_kernel<2>", ("const int last =", "step(tile")),
    ("h7_flash_attention_3", "CAUSAL=1: attention_kernel<2>", ("> last) s[n]", "step(tile")),
    # Of the grid's barrier, which is CUDA's, what grids with several axes take.
    ("hopper_matmul", "0, 1> >", ("this_grid().sync()",)),
    # Not unreachable: GELU without addends, ReLU with a bias, where operands are exchanged; such launches are drawn.
    ("hopper_matmul", "1, 1> >", ("return of_row ? of_row[cols[i]]",)),
    # N is a multiple of 128: there is an even number of tiles of 64 keys.
    ("h8_fp8", "KEYS=64: ", ("start_values(p_even, position + tiles - 1)",)),
]


def unreached(kernel: Kernel, results: Sequence[accuracy.Result]) -> dict[str, dict[str, str]]:
    """Instance of a kernel -> what of its code no check of it executed: the lines from there to the kernel, as in
    "264 < 439", and the text of the first."""
    source = str(kernel.source.resolve())
    text, found = kernel.source.read_text().splitlines(), {}
    for name, (ran, code) in accuracy.united(result.reached for result in results).items():
        instance, left = f"{kernel.label}: {name}", {}
        for path in sorted(code - ran):
            lines = [line for file, line in path if file == source]
            words = [text[line - 1].strip() for line in lines]
            known = any(
                stage == kernel.stage.name
                and where in instance
                and all(any(f"^{word}".find(each) >= 0 for word in words) for each in led)
                for stage, where, led in UNREACHABLE
            )
            if lines and not known:
                left[" < ".join(map(str, lines))] = words[0]
        if left:
            found[instance] = left
    return found


def test_an_instance_whose_loop_no_check_runs_is_told():
    """Another instance goes over several tiles of keys: by lines alone all is executed."""
    kernel = kernels.load("16").kernel()
    one_tile, tiles = (
        accuracy.check(kernel, shape, "emulator", counters=True)
        for shape in ((1, 1, 1, 200, 50, 128), (1, 1, 1, 3, 200, 128))
    )
    assert one_tile.ok and tiles.ok
    lines = kernel.source.read_text().splitlines()
    loop = next(n for n, line in enumerate(lines, 1) if "copy_tile(shared_address(tiles.V) + other" in line)
    left = unreached(kernel, [one_tile, tiles])
    told = {name for name, lines in left.items() if any(path.endswith(str(loop)) for path in lines)}
    assert told >= {f"16_final fp16: attention_kernel<32, true, {with_lse}>" for with_lse in ("false", "true")}
    assert loop in one_tile.lines | tiles.lines


@pytest.mark.full
@pytest.mark.parametrize(
    "stage, dtype",
    [pytest.param(each, dtype, id=f"{each.name} {each.file} {dtype}") for each in SOURCES for dtype in each.dtypes],
)
def test_kernels_are_right_and_keep_the_rules_and_no_line_is_left_out(stage: Stage, dtype: str):
    """Every variant, at every test shape; each line that has code in one of them is executed in one of them. And in the
    first dtype each instance of a kernel, of each variant that it is launched in, executes all of its own code, the
    helpers wherever they were inlined: in the producer as in the consumers, in the loop as before it."""
    batch = stage.kernels([dtype])
    results, left_out = [], {}
    for kernel in batch:
        first = dtype == stage.dtypes[0]
        deep = [name for name in ("huge", "rising") if first and name in kernel.stage.spec.patterns][:1]
        deep += ["summit"] if first and stage.name in DEEP else []
        found = [
            accuracy.check(kernel, shape, "emulator", pattern=pattern, counters=True)
            for shape in kernel.test_shapes().values()
            for pattern in ("normal", *deep)
        ]
        results += found
        if first:
            left_out |= unreached(kernel, found)
    assert not left_out, f"code that no check of its instance executes: {left_out}"
    assert all(result.ok for result in results), "\n\n".join(result.report for result in results if not result.ok)
    executed = frozenset().union(*(result.lines for result in results)) | {0}  # 0: of no line, the compiler's own
    executable = frozenset().union(*(kernel.executable_lines() for kernel in batch))
    source = stage.source.read_text().splitlines()
    left = {line: source[line - 1].strip() for line in sorted(executable - executed)}
    assert not left, f"lines that no check executes: {left}"


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.multiples], ids=lambda stage: stage.name)
def test_launcher_refuses_what_the_stage_refuses(stage: Stage):
    kernel = stage.kernel()
    shape = stage.spec.emulator_shapes(kernel.variants)[0]
    kernel.check_shape(*shape)
    for position, axis in enumerate(stage.spec.axes):
        if axis in kernel.multiples:
            near = tuple(size + (position == at) for at, size in enumerate(shape))
            with pytest.raises(UserError, match="nearest"):
                kernel.check_shape(*near)
            unchecked = replace(kernel, stage=replace(stage, multiples={}))
            with pytest.raises(UserError, match=f"{stage.name}.* invalid argument"):
                unchecked.emulate(*launcher_check.tensors(unchecked, near, 0))


@pytest.mark.full
@pytest.mark.parametrize(
    "arch, stages, ring",
    [("8.0", 3, 3), ("8.6", 3, 2), ("8.0", 4, 2), ("9.0", 4, 4)],  # 163, 99 and 227 KB per block
)
def test_the_ring_is_as_long_as_shared_memory_allows(arch: str, stages: int, ring: int):
    kernel = kernels.load("11").kernel("fp16", {"STAGES": stages})
    instance = accuracy.make(kernel, (1024, 512, 320))  # large tiles, on so few multiprocessors
    outputs = instance.outputs()
    report = kernel.emulate(instance.inputs, outputs, arch=arch, multiprocessors=hardware.SLICE, counters=False)
    assert report.ok, report
    accuracy.verify(kernel, instance, outputs)
    assert report.launches[0].shared == ring * (48 << 10)  # A 128 × 64 and B 64 × 256, 16 bits each


@pytest.mark.full
def test_test_shapes_take_each_kernel_of_any_shape():
    """Whole tiles and ragged ones, small and large, the large ones also where a block has less shared memory."""
    kernel = kernels.load("11").kernel()
    for arch, ring in (("8.0", 3), ("8.6", 2)):
        launched = set()
        for shape in kernel.test_shapes().values():
            options = {"arch": arch, "multiprocessors": hardware.SLICE, "counters": False, "sanitize": False}
            launched |= {launch.kernel for launch in counts.emulate(kernel, shape, **options).launches}
        tiles = ("64, 32, 4", f"256, 64, {ring}")
        assert launched == {f"gemm_kernel<{tile}, {edges}>" for tile in tiles for edges in range(3)}


def test_tf32_rounds_to_nearest_and_ties_away_from_zero():
    """As cvt.rna.tf32.f32 does. A row of A holds one value and B is all ones, so that C is that value, rounded."""
    unit = 1 << 13  # of the mantissa, which is 13 bits shorter in TF32
    near = [0x3F800000 + at for at in (0, 1, unit // 2 - 1, unit // 2, unit // 2 + 1, unit - 1, 3 * unit // 2)]
    edges = [0x3FFFFFFF, 0x00800000 + unit // 2, 0x7F7FEFFF, 0x7F7FF000, 0x7F7FFFFF, 0x7F800000]  # 2, ..., infinity
    nans = [0x7F800001 + unit, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF]  # the last one is what GPUs make
    numbers = [sign | bits for bits in near + edges for sign in (0, 1 << 31)]
    bits = torch.tensor(numbers + nans, dtype=torch.int64).to(torch.int32)
    a = torch.zeros(len(bits), 8)
    a[:, 3] = bits.view(torch.float32)
    kernel = kernels.load("11").kernel("tf32")
    product = torch.full((len(bits), 8), torch.nan)
    kernel.emulate([a, torch.ones(8, 8)], [product]).raise_if_findings()
    magnitude = (torch.tensor(numbers) & 0x7FFFFFFF) + unit // 2 & ~(unit - 1)
    want = magnitude.clamp(max=0x7F800000) | torch.tensor(numbers) & 1 << 31
    assert product[: len(numbers), 0].view(torch.int32).tolist() == want.to(torch.int32).tolist()
    assert product[len(numbers) :].isnan().all()


@pytest.mark.parametrize(
    "pointer, shape",
    [
        (1 << 40, (0x7FFFFF01, 1, 8)),  # the row after the last tile is no int any more
        (1 << 40, (1, 0x7FFFFF01, 8)),
        (1 << 40, (1, 1, 0x7FFFFF08)),
        ((1 << 40) + 8, (1, 1, 8)),  # chunks of 16 bytes start at multiples of 16
    ],
)
def test_any_shape_refuses_what_it_cannot_take(pointer: int, shape: tuple[int, int, int]):
    stage = kernels.load("11")
    names = [*stage.spec.tensor_names({}), *stage.spec.axes, "stream"]
    defines = stage.kernel().defines
    for place in range(3):
        pointers = [(pointer if place == at else 1 << 40).to_bytes(8, "little") for at in range(3)]
        report = cudaemu.run(stage.source, stage.symbol, [*pointers, *shape, None], names=names, defines=defines)
        assert report.error == "invalid argument" and not report.launches


def test_a_loop_counter_that_would_overflow_is_refused():
    """02 adds BLOCK_K to its counter after the last slice."""
    stage = kernels.load("02")
    names = [*stage.spec.tensor_names({}), *stage.spec.axes, "stream"]
    block_k = int(re.search(r"constexpr int BLOCK_K = (\d+)", stage.source.read_text())[1])
    pointers = [(1 << 40).to_bytes(8, "little")] * 3
    for beyond in (0, 1):
        shape = (1, 1, 0x7FFFFFFF - block_k + beyond)
        options = {
            "names": names,
            "defines": stage.kernel().defines,
            "blocks": launcher_check.NO_BLOCK,
            "counters": False,
        }
        report = cudaemu.run(stage.source, stage.symbol, [*pointers, *shape, None], **options)
        assert (report.error == "invalid argument") == bool(beyond) == (not report.launches)


@pytest.mark.core(every=5)
@pytest.mark.parametrize(
    "pointer, scale",
    [
        (0, 0.125),
        ((1 << 40) + 8, 0.125),  # chunks of 16 bytes start at multiples of 16
        (1 << 40, 0.0),
        (1 << 40, -1.0),
        (1 << 40, math.nan),
        (1 << 40, 3e38),  # times log2(e) it is infinite
    ],
)
@pytest.mark.parametrize("number", ["12", "13", "14", "15", "h6"])
def test_attention_refuses_what_it_cannot_take(number: str, pointer: int, scale: float):
    stage = kernels.load(number)
    names = [*stage.spec.tensor_names({}), "B", "H", "N", "scale", "stream"]
    defines = stage.kernel().defines
    for place in range(4):
        pointers = [(pointer if place == at else 1 << 40).to_bytes(8, "little") for at in range(4)]
        arguments = [*pointers, 1, 1, 256, scale, None]
        options = {"names": names, "defines": defines, "arch": stage.arch}
        report = cudaemu.run(stage.source, stage.symbol, arguments, **options)
        assert report.error.startswith("invalid argument") and not report.launches


def test_helpers_are_found():
    text = (
        "template <typename T>\n__device__ void twice(T &x);\n\n"
        "template <>\n__device__ __forceinline__ void twice<float>(\n    float &x) {\n"
        "  if (x > 0) {\n    x *= 2;\n  }\n}\n\n"
        "int not_one() {\n}\n"
        "__host__ __device__ constexpr int half(int a) { return a / 2; }\n"
    )
    found = {helper[1]: helper[0] for helper in HELPER.finditer(text)}
    assert list(found) == ["twice<float>", "half"]
    assert found["twice<float>"].startswith("template <>") and found["twice<float>"].endswith("  }\n}\n")


@pytest.mark.full
@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage.min_arch == "9.0a"], ids=lambda stage: stage.name)
def test_that_a_wait_names_what_it_waits_for_costs_no_instruction(stage: Stage, tmp_path: Path):
    """The sentence of h1: the machine code is the same with and without."""
    text, names = stage.source.read_text(), "  (wgmma_wrote(sums), ...);\n"
    assert text.count(names) == 1 and re.search(r"wgmma_wait<0>\(\w", text)
    (plain := tmp_path / "kernel.cu").write_text(text.replace(names, ""))
    bound, unbound = (sass.functions(source, {}, stage.min_arch) for source in (stage.source, plain))
    assert bound == unbound and any(code for code in bound.values())
