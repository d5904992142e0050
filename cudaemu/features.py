"""Instructions of PTX that not every compute capability has, and those that the emulator lacks: who compiles, loads or
documents reads it here. Which target has which is ptxas' answer (13.5), and the PTX ISA's ("Target ISA Notes")."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from cudaemu.errors import UserError
from cudaemu.hardware import Arch


class Feature(NamedTuple):
    """Instructions, as `name` and by their opcodes. One of the `words` is in each: no text without them is searched."""

    name: str
    words: tuple[str, ...]
    opcode: str  # a regular expression
    least: tuple[str, ...]  # targets that have them: "10.0" and newer; of one family ("10.0f"); of one alone ("9.0a")
    emulated: bool = True

    def has(self, target: Arch) -> bool:
        """Whether code for a target may use them."""
        return any(_covers(Arch.of(least), target) for least in self.least)

    @property
    def needs(self) -> str:
        """What to compile for, in words and as options."""
        first, *others = (least.replace("f", "a") for least in self.least)
        archs = f"{', '.join([first, *others[:-1]])} or {others[-1]}" if others else first
        return f'{self.name} needs compute capability {archs}: --arch {first}, or arch="{first}"'


def _covers(least: Arch, target: Arch) -> bool:
    own, other = (least.major, least.minor), (target.major, target.minor)
    if least.suffix == "a":
        return own == other and target.suffix == "a"
    return own <= other and (not least.suffix or bool(target.suffix) and least.major == target.major)


BLACKWELL = ("10.0f", "12.0f")
LACKING = False
_BULK = r"cp\.[\w.:]*bulk[\w.:]*\."
_VIDEO = ("vadd.", "vsub.", "vabsdiff.", "vmin.", "vmax.", "vshl.", "vshr.", "vmad.", "vset.")
# Where two rows fit, the first one counts.
FEATURES = (
    Feature("tcgen05 (tensor memory, and products there)", ("tcgen05.",), r"tcgen05\.[\w.:]+", ("10.0f",), LACKING),
    Feature("wgmma of a sparse A (.sp)", ("_async.sp.",), r"wgmma\.mma_async\.sp\.[\w.:]+", ("9.0a",), LACKING),
    Feature(
        "mma of a sparse A with block_scale",
        ("block_scale",),
        r"mma\.sp[\w.:]*\.block_scale[\w.:]*",
        ("12.0a",),
        LACKING,
    ),
    Feature(
        "mma.m8n8k4 of fp16",
        (".m8n8k4.",),
        r"mma\.sync\.aligned\.m8n8k4\.\w+\.\w+\.f(?:16|32)\.f16[\w.:]*",
        ("8.0",),
        LACKING,
    ),
    Feature("multimem (memory of several GPUs)", ("multimem.",), r"multimem\.[\w.:]+", ("9.0",), LACKING),
    Feature("cp.async.bulk.tensor with im2col", ("im2col",), rf"{_BULK}im2col[\w.:]*", ("9.0",), LACKING),
    Feature(
        "cp.async.bulk.tensor with tile::gather4 or tile::scatter4",
        ("gather4", "scatter4"),
        rf"{_BULK}tile::(?:gather4|scatter4)[\w.:]*",
        ("10.0",),
        LACKING,
    ),
    Feature("cp.async.bulk with cta_group", ("cta_group",), rf"{_BULK}cta_group::2[\w.:]*", ("10.0f",), LACKING),
    Feature("cp.async.bulk with cp_mask", ("cp_mask",), rf"{_BULK}cp_mask[\w.:]*", ("10.0",), LACKING),
    Feature("st.bulk", ("st.bulk",), r"st\.bulk[\w.:]*", ("10.0",), LACKING),
    Feature("cvt.rs (stochastic rounding)", ("cvt.rs",), r"cvt\.rs\.[\w.:]+", ("10.0a", "10.3a"), LACKING),
    Feature("cvt with a scale (.scaled)", (".scaled::",), r"cvt\.[\w.:]*\.scaled::[\w.:]+", BLACKWELL, LACKING),
    Feature(
        "add, sub and fma of fp32 with fp16 or bf16",
        ("f32.f16", "f32.bf16"),
        r"(?:add|sub|fma)\.(?:\w+\.)*f32\.b?f16",
        ("10.0",),
        LACKING,
    ),
    Feature("textures of cubes", ("cube.",), r"(?:tex|tld4)\.[\w.:]*\ba?cube\.[\w.:]+", ("8.0",), LACKING),
    Feature("textures of several samples", (".2dms", ".a2dms"), r"tex\.[\w.:]*2dms[\w.:]*", ("8.0",), LACKING),
    Feature("txq, suq, sured", ("txq.", "suq.", "sured."), r"(?:txq|suq|sured)\.[\w.:]+", ("8.0",), LACKING),
    Feature("istypep", ("istypep.",), r"istypep\.[\w.:]+", ("8.0",), LACKING),
    Feature(
        "lop3 with a predicate", ("lop3.and", "lop3.or", "lop3.xor"), r"lop3\.(?:and|or|xor)\.b32", ("8.0",), LACKING
    ),
    Feature(
        "alloca, stacksave, stackrestore",
        ("alloca.", "stacksave.", "stackrestore."),
        r"(?:alloca|stacksave|stackrestore)\.[\w.:]+",
        ("8.0",),
        LACKING,
    ),
    Feature(
        "video instructions of one value (vadd, vmad, ...)",
        _VIDEO,
        r"(?:vadd|vsub|vabsdiff|vmin|vmax|vshl|vshr|vmad|vset)\.[\w.:]+",
        ("8.0",),
        LACKING,
    ),
    Feature("wgmma", ("wgmma.",), r"wgmma\.[\w.:]+", ("9.0a",)),
    Feature("setmaxnreg", ("setmaxnreg.",), r"setmaxnreg\.[\w.:]+", ("9.0a", *BLACKWELL)),
    Feature("mma with block_scale", ("block_scale",), r"mma\.[\w.:]*\.block_scale[\w.:]*", ("12.0f",)),
    Feature("mma with kind::f8f6f4", ("kind::f8f6f4",), r"mma\.[\w.:]*\.kind::f8f6f4[\w.:]*", ("12.0f",)),
    Feature(
        "ldmatrix and stmatrix of 8 bits",
        (".m16n16.", ".m8n16.", ".m16n8."),
        r"(?:ld|st)matrix\.[\w.:]*\.b8[\w.:]*",
        BLACKWELL,
    ),
    Feature(
        "clusterlaunchcontrol with multicast",
        ("clusterlaunchcontrol.",),
        r"clusterlaunchcontrol\.[\w.:]*multicast[\w.:]*",
        BLACKWELL,
    ),
    Feature("clusterlaunchcontrol", ("clusterlaunchcontrol.",), r"clusterlaunchcontrol\.[\w.:]+", ("10.0",)),
    Feature("redux.sync of fp32", ("redux.",), r"redux\.sync\.[\w.:]*f32", ("10.0f",)),
    Feature(
        "conversions of fp4, fp6 and ue8m0, and between bf16 and fp8",
        ("m1x2", "m2x2", "m3x2", "m0x2"),
        r"cvt\.[\w.:]*(?:e2m1x2|e2m3x2|e3m2x2|ue8m0x2|e[45]m[23]x2\.bf16x2|bf16x2\.e[45]m[23]x2)[\w.:]*",
        BLACKWELL,
    ),
    Feature("mma of fp8", (".e4m3.", ".e5m2."), r"mma\.[\w.:]*\.e[45]m[23]\.e[45]m[23]\.f(?:16|32)\b", ("8.9",)),
    Feature(
        "clusters (barrier.cluster, mapa, getctarank)",
        ("barrier.cluster.", "mapa.", "getctarank."),
        r"(?:barrier\.cluster|mapa|getctarank)\.[\w.:]+",
        ("9.0",),
    ),
    Feature("bulk copies (TMA)", ("async.bulk.",), r"cp\.(?:reduce\.)?async\.bulk\.[\w.:]+", ("9.0",)),
    Feature("st.async, red.async", ("st.async.", "red.async."), r"(?:st|red)\.async\.[\w.:]+", ("9.0",)),
    Feature("elect.sync", ("elect.sync",), r"elect\.sync", ("9.0",)),
    Feature("griddepcontrol", ("griddepcontrol.",), r"griddepcontrol\.\w+", ("9.0",)),
    Feature("f32x2 arithmetic", (".f32x2",), r"(?:add|sub|mul|fma)\.[\w.:]*f32x2", ("10.0",)),
)

# What to do instead, by the beginning of the opcode; the longest match counts.
WAYS_ROUND = {
    "": "Write it with instructions that the emulator has (docs/emulator.md lists them), or run the kernel on a GPU",
    "wgmma": "All but the sparse ones are known, in the shapes and types of the PTX ISA; or run the kernel on a GPU",
    "tcgen05": "mma.sync computes the same; or run the kernel on a GPU that has it",
    "mma": "mma.m16n8k16 with fp16 or bf16 is the usual form; or run the kernel on a GPU",
    "cp.async.bulk": "A copy of tiles (.tile) does the same in pieces; or run the kernel on a GPU",
    "mbarrier": "bar.sync, named barriers, and cp.async groups do the same; or run the kernel on a GPU",
    "tex": "Texture objects of 1 to 3 dimensions and layers of them are known; a cubemap's faces may be such layers",
    "sul": "Surface objects of 1 to 3 dimensions and layers of them are known; a cubemap's faces may be such layers",
    "sus": "Surface objects of 1 to 3 dimensions and layers of them are known; a cubemap's faces may be such layers",
    "alloca": "Give the array a size that the compiler knows; or run the kernel on a GPU",
    "stacksave": "Give the array a size that the compiler knows; or run the kernel on a GPU",
}


def way_round(statement: str) -> str:
    opcode = re.sub(r"^@\S+\s+", "", statement)
    return WAYS_ROUND[max((start for start in WAYS_ROUND if opcode.startswith(start)), key=len)]


def of(statement: str) -> Feature | None:
    """The feature that a statement of PTX uses, if it is one."""
    return next((feature for feature in FEATURES if _pattern(feature).search(statement)), None)


@lru_cache
def _pattern(feature: Feature) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.%$/]){feature.opcode}")


def check(ptx: str) -> list[str]:
    """What a module's text uses that is not emulated, a line for each feature. UserError, with the line of the source,
    for an instruction that its `.target` does not have."""
    found = re.search(r"^\s*\.target\s+sm_(\d+[af]?)", ptx, re.MULTILINE)
    target = Arch.of(found[1]) if found else None
    lacking: dict[Feature, list[re.Match[str]]] = {}
    for feature in FEATURES:
        there = target is None or feature.has(target)
        if there == feature.emulated or not any(word in ptx for word in feature.words):
            continue  # what is there and emulated is fine, and what is neither would not have been compiled
        for match in _uses(feature, ptx):
            if feature.emulated:
                where = source_line(ptx, match.start())
                sm = f"sm_{target.nvcc}" if target else ""
                raise UserError(f"{where}: .target {sm} has no {match[0]}\n{feature.needs}")
            lacking.setdefault(feature, []).append(match)
    return [_told(ptx, matches) for matches in lacking.values()]


def _uses(feature: Feature, ptx: str) -> Iterator[re.Match[str]]:
    starts = {
        _opcode_before(ptx, found.start()) for word in feature.words for found in re.finditer(re.escape(word), ptx)
    }
    for start in sorted(starts):
        match = _pattern(feature).match(ptx, start)
        if match and "//" not in ptx[ptx.rfind("\n", 0, start) + 1 : start] and of(match[0]) is feature:
            yield match


def _opcode_before(ptx: str, position: int) -> int:
    """Where the opcode begins in which that position is."""
    while position and (ptx[position - 1].isalnum() or ptx[position - 1] in "._:"):
        position -= 1
    return position


def _told(ptx: str, matches: list[re.Match[str]]) -> str:
    first = matches[0]
    more = f" (nor are {len(matches) - 1} like it)" if len(matches) > 1 else ""
    where = source_line(ptx, first.start())
    return f"{where}: {first[0]} is not emulated{more}: a kernel that executes it ends there. {way_round(first[0])}."


def source_line(ptx: str, position: int) -> str:
    """The place in the source of what is at that position of a module's text: "kernel.cu(12)", or "PTX line 7"."""
    at = ptx.rfind(".loc", 0, position)
    place = re.match(r"\.loc\s+(\d+)\s+(\d+)", ptx[at : at + 40]) if at >= 0 else None
    if not place:
        return f"PTX line {ptx.count(chr(10), 0, position) + 1}"
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, re.MULTILINE))
    return f"{files.get(place[1], '?')}({place[2]})"
