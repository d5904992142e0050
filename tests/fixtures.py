"""What tests share: command lines, a GPU that is made of torch, more stages."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import kernels
from common import course, problem, torch_private
from common import stage as stages
from common.cli import main
from common.dtypes import torch_dtype
from common.measure import ceiling, contest, nvml, timing
from common.problem import Problem
from common.stage import KERNELS, Kernel, Stage
from cudaemu.calls import compiled_once
from tests.cudaemu.sources import source

# There is a process of the tests for each core: more threads of torch, which wait for each other in a loop, use it up.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def place_on_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests share a GPU, but for those that are marked `alone`: no other one runs meanwhile, in whatever process."""
    if not torch.cuda.is_available():
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    folder = Path(tempfile.gettempdir())
    with open(folder / f"gpu-door-{os.getuid()}", "w") as door, open(folder / f"gpu-room-{os.getuid()}", "w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)  # who waits for the room to be empty lets nobody else in
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield


@pytest.fixture
def compiled_once_per_test() -> Iterator[None]:
    """For tests with many launches of a source that does not change meanwhile."""
    with compiled_once():
        yield


class Outcome(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command line in this process: command("kernels.01_naive", "test", "--dtype", "fp16")."""

    def call(package: str, *argv: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main(package, [str(word) for word in argv])
        return Outcome(exit.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launchers may be bound to the CPU: it is the current device, and its stream is 0."""
    monkeypatch.setattr(torch_private, "current_device", lambda: None)
    monkeypatch.setattr(torch_private, "current_stream", lambda index: 0)


@pytest.fixture
def edited() -> Callable[..., Path]:
    """A reader's own version of a stage's kernel.cu, mine.cu: edited(stage, ("old", "new"), ...)."""

    def write(stage: Stage, *edits: tuple[str, str]) -> Path:
        text = stage.source.read_text()
        for old, new in edits:
            assert old in text, f"{stage.name} has no '{old}'"
            text = text.replace(old, new)
        return source(text, "mine")

    return write


@pytest.fixture
def parse() -> Callable[..., Namespace]:
    """The options of a verb as the command line would read them: parse(bench, "--sizes", "64")."""

    def call(verb: ModuleType, *words: object) -> Namespace:
        parser = ArgumentParser()
        verb.add_arguments(parser)
        return parser.parse_args([str(word) for word in words])

    return call


# ---- a GPU that is made of torch on the CPU --------------------------------------------------------------------------


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Kernels are torch's own result and take the milliseconds in `speeds`; those in `wrong` are a quarter off.

    `log` tells what happened, in order: ("build", labels), ("run", label), ("time", first word of a label),
    ("sustain", (ms per run, seconds))."""
    log: list[tuple[str, object]] = []
    wrong: set[str] = set()
    speeds = {"01_naive": 8.0, "02_block_tile": 4.0, "03_thread_tile": 1.0, "cuBLAS": 0.5}

    def bind(kernel, inputs, outputs):
        def call():
            for output, right in zip(outputs, kernel.stage.spec.baseline(inputs, kernel.dtype, kernel.variants)):
                output.copy_(right * (1.25 if kernel.stage.name in wrong else 1.0))
            log.append(("run", kernel.label))

        return call

    def sample(call, estimate, round_ms):
        turn = [entry for entry in log if entry[0] == "time"][-1][1]
        return timing.Round([speeds[turn] * scale for scale in (0.9, 1.0, 1.1)], clocks=1500, ns=1000)

    def interleave(contenders, rounds, round_ms, before, real=timing.interleave):
        def turn(contender):
            log.append(("time", contender.label.split()[0]))
            before(contender)

        real(contenders, rounds, round_ms, sampler=sample, before=turn)

    def sustain(call, ms_per_run, seconds):
        log.append(("sustain", (ms_per_run, seconds)))
        ms = timing.summary([ms_per_run * 1.25] * 3)
        clock = timing.clock([timing.Round(ms, clocks=1200, ns=1000)])
        return {"seconds": seconds, "ms": ms, "clock": clock, "power_w": {"median": 690.0}}

    def limits(keys):
        peak = {"tflops": 600.0, "per_clock": 300e3, "date": "2026-11-21"}
        return {key: {"name": f"peak {key}", **peak} for key in keys}

    device = SimpleNamespace(
        sm_clock=lambda: 1980.0, power=lambda: 300.0, power_limit=lambda: 700.0, reasons=lambda: ("power cap",)
    )
    empty = {"empty": {"median": 0.002, "p20": 0.002, "p80": 0.002, "n": 9}, "timer_ns": 32}

    monkeypatch.setattr(contest, "DEVICE", "cpu")
    monkeypatch.setattr(contest, "build", lambda kernels: log.append(("build", [k.label for k in kernels])))
    monkeypatch.setattr(contest, "host_time", lambda kernel, inputs: {"call": 9.5, "empty": 2.5})
    monkeypatch.setattr(Kernel, "bind", bind)
    monkeypatch.setattr(Stage, "unfit", None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(timing, "interleave", interleave)
    monkeypatch.setattr(timing, "sustain", sustain)
    monkeypatch.setattr(timing, "estimate", lambda call: 0.1)
    monkeypatch.setattr(nvml, "current", lambda: device)
    monkeypatch.setattr(contest, "launches", lambda: empty)
    monkeypatch.setattr(ceiling, "limits", limits)
    return SimpleNamespace(log=log, wrong=wrong, speeds=speeds)


class Scale(Problem):
    """out[N, D] = 2 · x[N, D]: a problem that has nothing of a matrix product, with a setting of its own."""

    name = "scale"
    part = "scaling"
    formula = "out[N, D] = 2 · x[N, D]"
    axes: tuple[str, ...] = ("N", "D")
    inner_axes = ()
    settings = ("HALVES",)
    input_names = ("x",)

    def output_names(self, variants):
        return ("out",)

    def output_axes(self, variants):
        return (("row", "column"),)

    def parse(self, text, variants):
        return tuple(int(part) for part in text.split("x"))

    def bench_shapes(self, variants):
        return ((64, 8), (128, 8))

    def emulator_shapes(self, variants):
        return ((64, 8),)

    def test_shapes(self, multiples, variants):
        return {"small": (64, 8)}

    def sizes(self, multiples, variants):
        return {"N": (64,), "D": (8,)}

    def figure_shape(self, multiples, variants):
        return (64, 8)

    def shape(self, inputs, variants):
        return tuple(inputs[0].shape)

    def draw(self, request):
        generator = torch.Generator(request.device).manual_seed(request.seed)
        made = torch.randn(request.shape, generator=generator, device=request.device)
        return (made.to(torch_dtype(request.dtype)),)

    def outputs(self, shape, dtype, variants, device="cpu"):
        return (torch.empty(shape, dtype=torch_dtype(dtype), device=device),)

    def scalars(self, shape, variants, tensors):
        return {"N": shape[0], "D": shape[1]}

    def reference(self, inputs, variants):
        return (inputs[0].double() * 2,)

    def baseline(self, inputs, dtype, variants):
        return (inputs[0] * 2,)

    def peers(self, dtype, variants):
        return {"mul": lambda x: x * 2, "add": lambda x: x + x}

    def flops(self, shape, variants):
        return math.prod(shape)

    def bytes(self, shape, dtype, variants):
        return 2 * math.prod(shape) * torch_dtype(dtype).itemsize


class ScaleAll(Scale):
    """The same of several matrices at once, [B, N, D]: another problem of that part of the course."""

    name = "scale_all"
    axes = ("B", "N", "D")

    def bench_shapes(self, variants):
        return ((2, 64, 8),)

    def scalars(self, shape, variants, tensors):
        return dict(zip("BND", shape))

    def output_axes(self, variants):
        return (("matrix", "row", "column"),)


HOPPER = '''"""Stage h99: registers moved between warps."""

from common.stage import Stage

stage = Stage(
    package=__name__,
    idea="An instruction that no GPU but those of 9.0 has.",
    ladder="gemm on Hopper",
    follows="09_swizzle",
    min_arch="9.0a",
    unit="wgmma",
    dtypes=("fp16", "bf16"),
    variants={"COALESCED": (0, 1)},
    counters=("global_load_sectors",),
)
'''


@pytest.fixture
def stages_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder with the course's stages, to which a test may add some."""
    folder, found = tmp_path / "kernels", course.names()
    folder.mkdir()
    for name in (*found, "library"):
        (folder / name).symlink_to(KERNELS / name)
    for module in (course, stages):
        monkeypatch.setattr(module, "KERNELS", folder)
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(folder)])
    yield folder
    for name in set(course.names()) - set(found):
        for module in [module for module in sys.modules if module.startswith(f"kernels.{name}")]:
            del sys.modules[module]
    monkeypatch.undo()
    course.look_again()


@pytest.fixture
def hopper(stages_folder: Path) -> Stage:
    """The course with one more stage, h99_registers: of 9.0a, in a ladder of its own, which starts from stage 09."""
    folder = stages_folder
    (folder / "h99_registers").mkdir()
    (folder / "h99_registers" / "__init__.py").write_text(HOPPER)
    lines = (KERNELS / "01_naive" / "kernel.cu").read_text().splitlines(keepends=True)
    after = next(at for at, line in enumerate(lines, 1) if "const int thread = threadIdx.x;" in line)
    lines.insert(after, '  asm volatile("setmaxnreg.inc.sync.aligned.u32 40;");  // for sm_90a alone\n')
    (folder / "h99_registers" / "kernel.cu").write_text("".join(lines))
    course.look_again()
    return course.load("h99")


@pytest.fixture
def second_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Stage]:
    """Two more stages at the end of the course, 98_scale and 99_scale_all: a part of two problems."""
    for name in ("98_scale", "99_scale_all"):
        source = tmp_path / name / "kernel.cu"
        source.parent.mkdir()
        source.write_text("#ifndef DTYPE\n#define DTYPE half  // type\n#endif\n")
        if name == "99_scale_all":
            source.write_text(source.read_text() + "#ifndef HALVES\n#define HALVES 0  // setting\n#endif\n")
    about = {"dtypes": ("fp16", "bf16"), "unit": "FMA", "counters": ("instructions",)}
    first = Stage("kernels.98_scale", "", problem="scale", ladder="scaling", **about)
    second = Stage(
        "kernels.99_scale_all", "", problem="scale_all", ladder="scaling", variants={"HALVES": (0, 1)}, **about
    )
    specs = {"scale": Scale(), "scale_all": ScaleAll()}
    specs["scale"].like = lambda other, shape: (shape[0] * shape[1], shape[2]) if len(shape) == 3 else shape
    load, found, before = problem.load, course.ladder(), Stage.directory.fget
    monkeypatch.setattr(problem, "load", lambda name: specs.get(name) or load(name))
    monkeypatch.setattr(course, "_stages", lambda: [*found, first, second])
    monkeypatch.setattr(
        Stage,
        "directory",
        property(lambda stage: tmp_path / stage.name if stage.number in ("98", "99") else before(stage)),
    )
    return [first, second]
