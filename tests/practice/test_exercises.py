"""Every exercise: its beginning does not pass, our solution does, and what its page says is so."""

from __future__ import annotations

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

from common import course
from common.practice import exercises, folder, goals, patches
from common.practice.check import COMPILE, RULE, WRONG, changed_lines, check
from common.practice.exercises import HINTS, KINDS, TOPICS, Exercise
from common.practice.goals import Goal
from cudaemu.errors import UserError
from tests.practice import sources
from tests.tiers import core

ALL = exercises.catalogue()
PATCHED = [each for each in ALL if each.patch.source]
STEPS = {stage.number for stage in course.ladder()[1:]}


def named(exercise: Exercise) -> str:
    return exercise.name


def of_kind(kind: str) -> list[Exercise]:
    return [each for each in ALL if each.kind == kind]


def few(exercise: Exercise) -> list[tuple[int, ...]] | None:
    """Two quick shapes."""
    if exercise.stage is None:
        return None
    kernel = exercise.kernel(exercise.solution)
    return sorted(kernel.test_shapes().values(), key=lambda shape: kernel.stage.spec.flops(shape, kernel.variants))[:2]


# ---- what the pages say ----------------------------------------------------------------------------------------------


def test_what_there_is():
    names = [each.name for each in ALL]
    assert len(set(names)) == len(names)
    assert {each.stage.number for each in of_kind("step")} >= STEPS
    for kind in ("hole", "bug"):  # of Part III, too
        assert {each.stage.number for each in of_kind(kind) if each.stage} >= {f"h{number}" for number in range(1, 8)}


@pytest.mark.parametrize("exercise", ALL, ids=named)
def test_a_page_is_complete(exercise):
    assert exercise.kind in KINDS and exercise.topic in TOPICS and 1 <= exercise.level <= 5
    assert len(exercise.hints) == HINTS == len(set(exercise.hints)) and all(exercise.hints)
    assert len(exercise.task) > 80 and exercise.title
    assert re.fullmatch(r"[a-z0-9_-]+", exercise.name)
    text = folder.page(exercise)
    assert exercise.task in text and folder.command(exercise) in text
    if exercise.kind == "bug":
        assert exercise.patch.first("Broken") not in text, "the page must not tell what is broken"
    if exercise.stage:
        kernel = exercise.kernel(exercise.solution)
        kernel.check_shape(*exercise.shape(kernel))
        assert exercise.stage.symbol in text


@pytest.mark.parametrize("exercise", PATCHED, ids=named)
def test_the_patch_is_one_that_git_takes_and_takes_back(exercise, tmp_path):
    """What it takes out of our solution, the reverse patch puts in again."""
    ours = exercise.solution.read_text()
    assert exercise.start != ours
    path = tmp_path / exercise.patch.source
    path.parent.mkdir(parents=True)
    path.write_text(exercise.start)
    if shutil.which("git"):
        command = ["git", "apply", "-R", str(exercise.patch.path)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert path.read_text() == ours


# ---- begun and solved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exercise", core(ALL, lambda each: each.stage is None), ids=named)
def test_the_beginning_has_no_points(exercise):
    """It compiles, and is wrong or misses every goal."""
    start = sources.start(exercise)
    verdict = check(start, exercise, shapes=few(exercise))
    if verdict.ok:  # it shows at another shape
        verdict = check(start, exercise)
    assert not verdict.ok and verdict.points == 0, verdict
    assert COMPILE not in [finding.kind for finding in verdict.findings], verdict
    assert verdict.findings or not any(goal.met for goal in verdict.goals)
    assert verdict.findings or all(each.met for each in verdict.keeps)


def counted(exercise: Exercise) -> bool:
    """Whether our solution has more to show than that it is right."""
    return bool(exercise.goals or exercise.keeps)


@pytest.mark.parametrize(
    "exercise", core(filter(counted, ALL), lambda each: None if each.kind == "bug" else each.kind), ids=named
)
def test_our_solution_meets_the_goals(exercise):
    """And is right where that is counted; the tests of stages and examples hold that it is right at other shapes."""
    verdict = check(exercise.solution, exercise, shapes=[])
    assert verdict.ok and verdict.points == 10, verdict


@pytest.mark.parametrize("exercise", of_kind("bug"), ids=named)
def test_our_repair_is_within_the_limit(exercise):
    lines = changed_lines(exercise.start, exercise.solution.read_text())
    assert exercise.limit is not None and 0 < lines <= exercise.limit <= 4 * lines


# ---- the check -------------------------------------------------------------------------------------------------------


def find(name: str) -> Exercise:
    return exercises.find(name)


@pytest.mark.full
def test_another_solution_passes():
    """16 bytes of padding is one way, 48 are another."""
    padded = sources.edited(find("06_padding"), "#define PADDING 8 ", "#define PADDING 24 ")
    assert check(padded, find("06_padding")).ok


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "at"), [("08_multi_stage", "  // 4. "), ("13_split_q", "  // 6. "), ("15_wide_warps", "  // 6. ")]
)
def test_one_barrier_more_is_no_fault(name, at):
    """Where it is not in the loop."""
    exercise = find(name)
    before, end = exercise.solution.read_text().rsplit(at, 1)
    verdict = check(
        sources.source(f"{before}  __syncthreads();\n{at}{end}", exercise.solution.stem), exercise, shapes=[]
    )
    assert verdict.ok, verdict


@pytest.mark.full
def test_who_loses_what_was_gained_has_half_the_points():
    rows = "index / 32 * 8 + index / 4 % 2 * 4 + index / 8 % 4;"
    slower = sources.edited(find("06_padding"), rows, "index / (BLOCK_K / VECTOR);")
    verdict = check(slower, find("06_padding"))
    assert verdict.right and not verdict.ok and verdict.points == 5
    assert [goal.met for goal in verdict.goals] == [True] and [keep.met for keep in verdict.keeps] == [False]


def test_who_does_nothing_where_it_is_counted_has_no_points():
    exercise = find("06_padding")
    launch = "const dim3 grid(ceil_div(M, BLOCK_M)"
    lazy = sources.edited(exercise, launch, f"if (M == 256 && N == 256 && K == 256) return cudaSuccess;\n  {launch}")
    verdict = check(lazy, exercise, shapes=few(exercise))
    assert [each.kind for each in verdict.findings] == [WRONG] and "256" in verdict.findings[0].where


LAYOUT_03 = (
    ("warp / WARPS_N * WARP_M + lane / LANES_N * QUAD;", "thread / 16 * 8;"),
    ("warp % WARPS_N * WARP_N + lane % LANES_N * QUAD;", "thread % 16 * 8;"),
    ("A_tile[k][thread_row + WARP_M / 2]", "A_tile[k][thread_row + 4]"),
    ("B_tile[k][thread_col + WARP_N / 2]", "B_tile[k][thread_col + 4]"),
    ("m / QUAD * (WARP_M / 2) + m % QUAD", "m"),
    ("n / QUAD * (WARP_N / 2)", "n"),
)
SCALAR_03 = tuple(
    (
        f"*reinterpret_cast<float4 *>(&{to}[{at}]) = *reinterpret_cast<const float4 *>(&{source});",
        f"for (int e = 0; e < 4; ++e) {to}[{at} + e] = *const_cast<const volatile float *>(&{source} + e);",
    )
    for to, tile, place, half in (("a", "A", "row", "M"), ("b", "B", "col", "N"))
    for at, source in (
        (0, f"{tile}_tile[k][thread_{place}]"),
        ("QUAD", f"{tile}_tile[k][thread_{place} + WARP_{half} / 2]"),
    )
)
BLOCK_H2 = (
    ("if (slice > 0) mbarrier_wait(shared_address(&shared.empty[ahead % STAGES]), (slice - 1) / STAGES % 2);", ""),
    ("if (thread % 128 == 0) mbarrier_arrive(shared_address(&shared.empty[slice % STAGES]));", "__syncthreads();"),
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "changes", "missed"),
    [
        ("03_thread_tile", SCALAR_03, "shared load requests"),
        ("03_thread_tile", LAYOUT_03, "wavefronts of shared loads"),
        ("09_swizzle", [("#define GROUP_M 12 ", "#define GROUP_M 1 ")], "different sectors that the first 32"),
        ("10_register_double_buffer", [("#define PREFETCH 1 ", "#define PREFETCH 0 ")], "ldmatrix between the loop's"),
        ("11_any_shape", [("N % VECTOR ? gemm_kernel<", "N > 0 ? gemm_kernel<")], "global load sectors"),
        ("h2_tma", BLOCK_H2, "mbarrier instructions"),
        (
            "h3_warp_specialized",
            [("setmaxnreg_dec<40>();", ""), ("setmaxnreg_inc<232>();", "")],
            "different setmaxnreg",
        ),
        ("h4_ping_pong", [("grid(tiles < multiprocessors ? tiles : multiprocessors)", "grid(tiles)")], "blocks of the"),
        ("h5_final", [("#define BY_ROWS 1 ", "#define BY_ROWS 0 ")], "bytes that wgmma reads"),
        ("h5_final", [("#define BLOCK_N 256 ", "#define BLOCK_N 128 ")], "bulk load bytes"),
        ("h7_flash_attention_3", [("#define SCORES_AHEAD 1 ", "#define SCORES_AHEAD 0 ")], "% of the steps"),
    ],
    ids=[
        *("scalar loads", "lanes that meet", "rows of blocks", "one set of fragments", "no instance for whole tiles"),
        *(
            "the block's barrier",
            "registers stay",
            "a block for each tile",
            "a tile shared by columns",
            "the tile of h4",
        ),
        "softmax after the products",
    ],
)
def test_the_task_is_not_done_by_the_easy_half_of_it(name, changes, missed, tmp_path):
    """Right results that leave out what the exercise is about."""
    exercise = find(name)
    text = exercise.solution.read_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    source = tmp_path / exercise.file
    source.write_text(text)
    verdict = check(source, exercise, shapes=[])
    assert verdict.right and not verdict.ok and verdict.points < 10
    assert any(goal.text.startswith(missed) for goal in (*verdict.goals, *verdict.keeps) if not goal.met)


def test_attention_by_half_in_wgmma_or_in_16_bits_misses_a_goal():
    """S by wgmma of n = 128, P · V by mma.sync; all of it in 16 bits, which read twice as much of K and V."""
    sizes = {"B": 1, "H": 2, "N": 256, "D": 128}
    products = 1 * 2 * 256 * 256 * 128
    for name, depth in (("h6", 16), ("h8", 32)):
        scores = {"instructions.wgmma": 4 * products // (64 * 128 * depth)}
        (goal,) = (each for each in (*find(name).goals, *find(name).keeps) if each.counter in scores)
        assert not goal.judge(scores, sizes).met and Goal.of("instructions.mma = 0") in find(name).keeps
    (goal,) = (each for each in find("h8").goals if each.counter == "wgmma_bytes")
    assert not goal.judge({"wgmma_bytes": 2 * 2 * products // 64}, sizes).met


def test_other_ways_to_the_same_end_stay_within_the_bounds():
    """Bias and scales by bulk copies, too; a maximum for each 64 keys (but P by shuffles misses the goal)."""
    tiles, blocks, warps = 2, 4, 32
    for name, sizes, counter, few, many in (
        ("h5", {"M": 256, "N": 256, "K": 256}, "bulk_load_bytes", 393216 + tiles * 256 * 2, 524288),
        ("h8", {"B": 1, "H": 2, "N": 256, "D": 128}, "bulk_load_bytes", 327680 + blocks * 3 * 4 * 4, 655360),
        ("h8", {"B": 1, "H": 2, "N": 256, "D": 128}, "instructions.shuffle", warps * (4 * 4 + 4), warps * (2 * 20 + 4)),
    ):
        (goal,) = (each for each in (*find(name).goals, *find(name).keeps) if each.counter == counter)
        assert goal.judge({counter: few}, sizes).met and not goal.judge({counter: many}, sizes).met


@pytest.mark.full
def test_a_starter_that_only_meets_at_fewer_barriers_has_no_producer(tmp_path):
    exercise = find("h3_warp_specialized")
    source = tmp_path / exercise.file
    source.write_text(exercise.start.replace("    __syncwarp();\n", ""))
    verdict = check(source, exercise, shapes=[])
    assert verdict.right and verdict.points == 0 and verdict.goals[0].counter == goals.COPYING


def test_a_wrong_result_and_a_race_are_told_apart():
    exercise = find("02_block_tile")
    wrong = sources.edited(exercise, "Element(sum)", "Element(sum * 1.25f)")
    race = sources.edited(exercise, "__syncthreads();  // everybody waits for all readers", "// ")
    for source, kind in ((wrong, WRONG), (race, RULE)):
        verdict = check(source, exercise)
        assert [each.kind for each in verdict.findings] == [kind] and verdict.points == 0
        assert not verdict.goals, "what is wrong is not counted"


@pytest.mark.parametrize(
    ("edit", "kind", "said"),
    [
        (("launch_gemm", "launch_game"), "does not run", "does not export launch_gemm"),
        (("int M, int N, int K, cudaStream_t", "int M, int N, cudaStream_t"), "does not", "K"),
        (("= K / BLOCK_K;", "= K / BLOCK;"), "does not compile", "BLOCK"),
    ],
)
def test_what_does_not_run(edit, kind, said, tmp_path):
    exercise = find("08_multi_stage")
    source = tmp_path / "kernel.cu"
    source.write_text(exercise.solution.read_text().replace(*edit))
    verdict = check(source, exercise)
    assert verdict.findings[0].kind.startswith(kind) and said in verdict.findings[0].report


def test_every_kind_of_inputs_is_explained(monkeypatch):
    for stage in course.ladder():
        assert set(stage.spec.patterns) - {"normal"} <= set(stage.spec.pattern_says), stage.name
    exercise = find("13_split_q")
    monkeypatch.setattr("common.practice.check._patterns", lambda kernel, last: ["low"])
    failed = SimpleNamespace(ok=False, broken=False, accuracies=(), report="a report")
    monkeypatch.setattr("common.accuracy.check", lambda *arguments: failed)
    (found,) = check(exercise.solution, exercise).findings
    assert found.report == "low inputs: all scores are far below 0\na report"


def test_a_macro_that_says_what_is_computed_may_not_be_missing(tmp_path):
    exercise = find("13_split_q")
    text = exercise.solution.read_text()
    source = tmp_path / "kernel.cu"
    source.write_text(text.replace("#ifndef HEAD_DIM\n", "").replace("#endif\n\nusing", "\nusing"))
    assert "must declare the macro HEAD_DIM (64 or 128): #ifndef" in check(source, exercise).findings[0].report


def test_what_is_not_the_source_s_fault_is_raised(tmp_path, monkeypatch):
    exercise = find("02_block_tile")
    with pytest.raises(UserError, match="cannot read"):
        check(tmp_path / "nothing.cu", exercise)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("cudaemu.compiler.toolchain._pip_tool", lambda name: None)
    with pytest.raises(UserError, match="no CUDA compiler"):
        check(exercise.solution, exercise)


def test_a_verdict_is_json():
    import json

    verdict = check(find("02_block_tile").solution, find("02_block_tile"), shapes=[(1, 1, 1)], seed=7)
    told = json.loads(json.dumps(verdict.as_dict()))
    assert told["ok"] and told["points"] == 10 and told["goals"][0]["counter"] == "global_load_sectors"


def test_changed_lines_are_lines_of_code():
    before = "a;\nb;  // why\n\nc;\n"
    assert changed_lines(before, before) == 0
    assert changed_lines(before, "a;\n// said differently\nb;  // why\nc;\n") == 0
    assert changed_lines(before, "a;\nd;\n\nc;\n") == 2
    assert changed_lines(before, before + "e;\n") == 1


# ---- goals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "met"),
    [
        ("instructions.fma = 0", 0, True),
        ("instructions.fma <= M*N/2", 64, True),
        ("instructions.fma <= M*N/2 - 1", 64, False),
        ("instructions.fma >= (M + N) * 2", 47, False),
    ],
)
def test_a_goal(text, value, met):
    judged = Goal.of(text).judge({"instructions.fma": value}, {"M": 8, "N": 16})
    assert judged.met == met and "FMA" in str(judged)


@pytest.mark.parametrize("text", ["fma", "fma < 3", "fma <= ", "fma <= 3 +"])
def test_what_is_no_goal(text):
    with pytest.raises(ValueError, match=" must be (COUNTER|arithmetic)"):
        Goal.of(text)


@pytest.mark.parametrize("bound", ["Q*2", "__import__('os')", "2**9", "'a'", "-M"])
def test_a_bound_is_arithmetic_of_sizes(bound):
    with pytest.raises(ValueError, match=" must be .*M"):
        Goal.of(f"fma <= {bound}").value({"M": 1})


@pytest.mark.parametrize("exercise", [each for each in ALL if each.goals or each.keeps], ids=named)
def test_goals_name_counters_that_there_are(exercise):
    """A name with a typing error would be 0, whatever runs."""
    from cudaemu import Counters

    kinds = {"fma", "mma", "wmma", "wgmma", "barrier", "shuffle", "integer", "ldmatrix", "cp.async", "mbarrier"}
    kinds |= {"atomic", *(f"{what}.{where}" for what in ("load", "store") for where in ("shared", "global"))}
    known = {
        *Counters().flat(),
        *(goals.SHARED_BYTES, goals.READ, goals.WRITTEN, goals.EARLY, goals.BEHIND, goals.BLOCKS),
        *(goals.MOVED, *goals.TIMED),
        *(f"instructions.{kind}" for kind in kinds),
    }
    assert {goal.counter for goal in (*exercise.goals, *exercise.keeps, *exercise.needs)} <= known


# ---- names and patches -----------------------------------------------------------------------------------------------


def test_names_are_found_in_short():
    assert find("6").name == find("06").name == "06_padding"
    stage = course.load("06")
    assert exercises.find("06_padding", stage) in exercises.of_stage(stage)
    with pytest.raises(UserError, match="'06_paddin'.* 06_padding"):
        find("06_paddin")


def test_a_patch_of_another_version_says_so():
    exercise = next(each for each in PATCHED)
    patch = patches.Patch(exercise.patch.path, {}, "", exercise.patch.source, (patches.Hunk("not there\n", ""),))
    moved = Exercise(exercise.name, exercise.kind, patch, exercise.solution, exercise.stage)
    with pytest.raises(UserError, match=f"{exercise.name} must be"):
        _ = moved.start
