"""The package as a user gets it: built, installed into an environment of its own, used from another folder."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

import cudaemu
from cudaemu.compiler import toolchain

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ("saxpy_grid_stride", "votes")
NUMPY = ("numpy", "numpy.libs")  # of this environment's packages: no network, no minutes of installing


def done(words: Sequence[object], folder: Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that ends with `status`, in a folder, without PYTHONPATH and with no nvcc on the PATH."""
    path = [entry for entry in os.environ["PATH"].split(os.pathsep) if not (Path(entry) / "nvcc").exists()]
    hidden = ("PYTHONPATH", "CUDA_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = os.pathsep.join(path)
    made = subprocess.run(
        [*map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert made.returncode == status, f"{words}\n{made.stdout}\n{made.stderr}"
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The source distribution, built from the files of this checkout."""
    folder = tmp_path_factory.mktemp("package")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "notebooks", "results")
    shutil.copytree(ROOT, folder / "checkout", ignore=ignored)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done([sys.executable, "-c", build, folder], folder / "checkout")
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def wheel(source) -> Path:
    """The wheel, built from the source distribution alone."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    done([*pip, source.name], source.parent)
    (archive,) = source.parent.glob("*.whl")
    return archive


def environment(wheel: Path, folder: Path, packages: Sequence[str]) -> Path:
    """The bin folder of a virtual environment with the wheel and these packages, and nothing else."""
    done([sys.executable, "-m", "venv", "--without-pip", folder], folder)
    python = folder / "bin" / "python"
    done([sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel], folder)
    (there,) = folder.glob("lib/python*/site-packages")
    spec = importlib.util.find_spec("numpy")
    assert spec is not None and spec.origin is not None
    for name in packages:
        here = Path(spec.origin).parents[1] / name
        if here.exists():
            (there / name).symlink_to(here)
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """With what the package depends on."""
    return environment(wheel, tmp_path_factory.mktemp("environment"), [*NUMPY, "nvidia"])


def test_what_the_readme_supports_is_what_is_promised_and_tested():
    supported = dict(re.findall(r"^\| ([\w+]+) \| (.+) \|$", (ROOT / "README.md").read_text(), re.MULTILINE))
    metadata, ci, make = (
        (ROOT / name).read_text() for name in ("pyproject.toml", ".github/workflows/ci.yml", "Makefile")
    )
    first, last = (int(minor) for minor in re.findall(r"3\.(\d+)", supported["Python"]))
    pythons = [f"3.{minor}" for minor in range(first, last + 1)]
    assert re.findall(r'"Programming Language :: Python :: (3\.\d+)"', metadata) == pythons
    assert f'requires-python = ">={pythons[0]}"' in metadata and f"sys.version_info < (3, {first})" in make
    tested = re.findall(r'python: "([\d.]+)", gxx: "(\d+)"', ci)
    assert sorted({python for python, _ in tested}, key=lambda text: int(text[2:])) == pythons
    oldest, newest = map(int, re.findall(r"\d+", supported["g++"]))
    assert {int(gxx) for _, gxx in tested} == set(range(oldest, newest + 1))
    cuda = ".".join(map(str, toolchain.OLDEST_NVCC))
    assert supported["CUDA"] == f"{cuda} or newer"
    assert f'"cuda-toolkit[nvcc,cccl]>={cuda};' in metadata and f'"nvidia-cuda-nvdisasm>={cuda};' in metadata


def test_the_source_distribution_has_what_people_need(source):
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"LICENSE", "CHANGELOG.md", "docs/emulator.md", "pyproject.toml", "examples/votes.cu"}
    assert wanted | {f"examples/{path.name}" for path in (ROOT / "examples").glob("*.cu")} <= names
    assert not [name for name in names if name.startswith(("tests/", "kernels/", "common/", "examples/broken/"))]


def test_the_wheel_has_the_sources_of_the_emulator_and_nothing_of_the_course(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    code = (path for path in (ROOT / "cudaemu").rglob("*") if path.suffix in (".py", ".cpp", ".h", ".map", ".typed"))
    assert {path.relative_to(ROOT).as_posix() for path in code} == {n for n in names if n.startswith("cudaemu/")}
    assert {name.partition("/")[0] for name in names} == {"cudaemu", f"cudaemu-{cudaemu.__version__}.dist-info"}


@pytest.mark.full
def test_nothing_else_is_imported(installed, tmp_path):
    modules = ("torch", "rich", "common", "kernels", "tests")
    script = f"import cudaemu, importlib.util; print([n for n in {modules} if importlib.util.find_spec(n)])"
    assert done([installed / "python", "-c", script], tmp_path).stdout == "[]\n"


@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_command_runs_examples_from_any_folder(installed, tmp_path, name):
    path = ROOT / "examples" / f"{name}.cu"
    there = done([installed / "cudaemu", path], tmp_path)
    here = done([sys.executable, "-m", "cudaemu", path], ROOT)
    assert there.stdout == here.stdout == "PASS\n"
    summaries = [re.sub(r".*\.\.\.\n|[\d.]+ s$", "", each.stderr.rstrip()).strip() for each in (there, here)]
    assert summaries[0].endswith("no findings,") and summaries[0].count("<<<") >= 1  # without progress and time
    if name != "votes":  # the order of its atomics decides which sectors are stored to
        assert summaries[0] == summaries[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_course_is_imported_in_any_folder_of_its_own_environment(tmp_path):
    """By what `make` does when it sets the environment up; the wheel has nothing of it."""
    folder = tmp_path / "environment"
    assert "gpu_kernels_course.pth" in done(["make", "-n", "setup", f"VENV={folder}"], ROOT).stdout
    done([sys.executable, "-m", "venv", "--without-pip", folder], tmp_path)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    script = "from kernels import attention, attention_fp8, matmul; import common; print(common.__file__)"
    assert "No module named 'kernels'" in done([folder / "bin" / "python", "-c", script], tmp_path, status=1).stderr
    done(["make", "importable", f"VENV={folder}"], ROOT)
    assert done([folder / "bin" / "python", "-c", script], tmp_path).stdout == f"{ROOT / 'common' / '__init__.py'}\n"


@pytest.mark.full
def test_the_module_is_the_command(installed, tmp_path):
    commands = ([installed / "cudaemu"], [installed / "python", "-m", "cudaemu"])
    asked = [done([*command, "--help"], tmp_path).stdout for command in commands]
    assert asked[0] == asked[1] and asked[0].startswith("usage: cudaemu [OPTIONS] FILE.cu")


@pytest.mark.full
def test_versions_are_told(installed, tmp_path):
    said = done([installed / "cudaemu", "--version"], tmp_path).stdout.splitlines()
    assert said[0] == f"cudaemu {cudaemu.__version__}"
    assert re.fullmatch(r"nvcc \d+\.\d+ \(.*/nvidia/.*/bin/nvcc\)", said[1]), "the one from pip"
    assert re.fullmatch(rf"g\+\+ \d+\.\d+\.\d+ \({re.escape(toolchain.find_cxx())}\)", said[2])


@pytest.mark.full
def test_kernels_are_launched_with_numpy_alone(installed, tmp_path):
    (tmp_path / "mine.cu").write_text(
        "__global__ void twice(float *x, int n) {\n"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i < n) x[i] *= FACTOR;\n}\n"
    )
    script = (
        "import numpy as np, cudaemu\n"
        'library = cudaemu.load("mine.cu", defines={"FACTOR": 2})\n'
        "x = np.ones(100, np.float32)\n"
        'library.launch("twice", 1, 128, x, 100).raise_if_findings()\n'
        "print(x.sum())"
    )
    assert done([installed / "python", "-c", script], tmp_path).stdout == "200.0\n"


PTX_ALONE = """
import numpy as np, cudaemu
x = np.arange(100, dtype=np.float32)
report = cudaemu.run_ptx('''.version 8.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 x) {
  .reg .b64 %rd<4>; .reg .b32 %r; .reg .f32 %f;
  ld.param.u64 %rd1, [x]; mov.u32 %r, %tid.x; mul.wide.u32 %rd2, %r, 4; add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f, [%rd1]; add.f32 %f, %f, %f; st.global.f32 [%rd1], %f; ret;
}''', "twice", 1, 100, [x])
report.raise_if_findings()
print(x.sum(), report.counters["global_load_sectors"])
try:
    cudaemu.load("__global__ void k() {}")
except cudaemu.UserError as error:
    print(error)
"""


@pytest.mark.full
@pytest.mark.parametrize("cxx", ["g++", "clang++"])
def test_ptx_runs_without_a_cuda_compiler(wheel, tmp_path, monkeypatch, cxx):
    """With NumPy alone, and any C++ compiler."""
    if shutil.which(cxx) is None:
        pytest.skip(f"there is no {cxx}")
    monkeypatch.setenv("CXX", cxx)
    result, *error = done(
        [environment(wheel, tmp_path, NUMPY) / "python", "-c", PTX_ALONE], tmp_path
    ).stdout.splitlines()
    assert result == "9900.0 13"
    assert error[0].startswith("no CUDA compiler found.") and "PTX needs no compiler of CUDA" in error[-1]
