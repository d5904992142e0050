"""The course as a static site: `make site` writes it to site/. README, notebooks with their outputs, docs, and each
source file that one of them links to. mkdocs-material makes the pages; nothing in them comes from another server.

    python docs/site.py [FOLDER]
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import latex2mathml.converter
import matplotlib.pyplot as plt
import nbformat
import yaml
from matplotlib.figure import Figure
from nbconvert import MarkdownExporter

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)(#[^)\s]*)?(?=\))")
MATH = re.compile(r"`[^`]*`|(?<!\$)(\$\$?)(?! )([^$`\n]+)(?<! )\1(?![\w$])")  # or code, which is none
CODE = {".cu": "cuda", ".cuh": "cuda", ".h": "cpp", ".cpp": "cpp", ".py": "python", ".patch": "diff", ".sh": "bash"}
SLIDES = {  # stage: what the cell has that draws its figure, and the slide's title
    "01_naive": ('traced.sectors("B")', "Neighbouring lanes read neighbouring elements"),
    "02_block_tile": ("traced.rhythm()", "Fetch once, read from shared memory many times"),
    "03_thread_tile": ('traced.registers("C"', "64 results per thread: more products per read"),
    "04_wmma": ("measured = [kernels.pr", "One instruction of the tensor cores, many FMA"),
    "05_mma_ptx": ("given = fragments.rows_given", "ldmatrix: a lane points at a row, and gets pairs"),
    "06_padding": ("before, after = accesses.run", "16 bytes of padding, and no two rows collide"),
    "07_cp_async": ("ring.ring(traced)", "Copies go to shared memory by themselves"),
    "08_multi_stage": ("ring.ring(*rings.values())", "A ring: some tiles come while one is multiplied"),
    "09_swizzle": ("swizzle.keys(", "XOR instead of padding: which key?"),
    "10_register_double_buffer": ("loop.fragments({name", "Fragments are loaded one step ahead"),
    "11_any_shape": ("exchanges = source", "Four lanes exchange pairs: whole sectors leave"),
    "12_flash_attention": ("scores = np.array", "Online softmax: a new maximum corrects the sums"),
    "13_split_q": ("attention_tiles.readers(", "Warps split the queries: P stays in registers"),
    "14_shared_qkv": ("ring.ring(", "One buffer for Q, K and V"),
    "15_wide_warps": ("notebook.costs(before.kernel(), stage.kernel(), ", "32 queries per warp: half the reads"),
    "16_final": ("from matplotlib.patches import Patch", "Causal: skip tiles, mask only on the diagonal"),
    "h1_wgmma": ("warpgroup.steps(traced)", "wgmma reads shared memory by descriptors"),
    "h2_tma": ("tma.explore(rows=20", "One thread copies a box: TMA"),
    "h3_warp_specialized": ("warps.ring(", "One warp copies, the others multiply"),
    "h4_ping_pong": ("warps.turns(", "One tile is stored while the next is multiplied"),
    "h5_final": ("gemm_tiles.shares(", "A tile of 128 × 256 reads less than two of 128 × 128"),
    "h6_wgmma_attention": ("__device__ unsigned long long descriptor", "A result is the next operand, in its lane"),
    "h7_flash_attention_3": ("notebook.timeline(stage)", "Softmax under the products"),
    "h8_fp8": ("__device__ unsigned long long descriptor", "8 bits: the same lanes have other keys"),
}


class Site:
    """The sources that mkdocs reads, in `folder`: pages as Markdown, pictures, data."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.pages: set[Path] = set()
        self.broken: list[str] = []

    def add(self, source: Path) -> None:
        """A page and all that it links to."""
        source = source.resolve()
        if source in self.pages:
            return
        self.pages.add(source)
        target = self.folder / self.name(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".ipynb":
            text = self.notebook(source, target)
        elif source.suffix == ".md":
            text = source.read_text()
        elif source.is_dir():
            entries = sorted(each.name for each in source.iterdir() if each.is_file() and self.name(each))
            text = f"# {source.relative_to(ROOT)}/\n\n" + "".join(f"- [{name}]({name})\n" for name in entries)
        else:
            language = CODE[source.suffix]
            text = f"# {source.relative_to(ROOT)}\n\n````{language}\n{source.read_text()}````\n"
            target.write_text(text)
            return
        target.write_text("".join(self.linked(source, target, text)))

    def linked(self, source: Path, target: Path, text: str) -> Iterator[str]:
        """The lines of a page; links in its prose lead to pages of the site."""
        code = False
        for line in text.splitlines(keepends=True):
            code ^= line.lstrip().startswith("```") or ("<pre" in line) != ("</pre" in line)
            prose = not code and not line.startswith("    ")
            yield MATH.sub(_math, LINK.sub(lambda match: self.follow(source, target, match), line)) if prose else line

    def name(self, source: Path) -> Path | None:
        """Where the page of a file or folder is, under `folder`; None: it has none."""
        within = source.relative_to(ROOT)
        if within == Path("README.md"):
            return Path("index.md")
        if source.is_dir():
            return within / "index.md"
        if source.suffix == ".ipynb":
            return within.with_suffix(".md")
        if source.suffix == ".md":
            return within
        return within.with_name(within.name + ".md") if source.suffix in CODE else None

    def follow(self, source: Path, page: Path, match: re.Match[str]) -> str:
        """A link of a page, as it must read on the site; what it leads to is added."""
        linked = (source if source.is_dir() else source.parent) / match[1]
        if not linked.exists():
            if (page.parent / match[1]).exists():  # a picture of a notebook
                return match[0]
            self.broken.append(f"{source.relative_to(ROOT)} links to {match[1]}, which does not exist")
            return match[0]
        linked = linked.resolve()
        name = self.name(linked)
        if name is None:
            name = linked.relative_to(ROOT)
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, self.folder / name)
        else:
            self.add(linked)
        up = len(page.relative_to(self.folder).parts) - 1
        return "../" * up + name.as_posix() + (match[2] or "")

    def notebook(self, source: Path, target: Path) -> str:
        """A notebook with its outputs; each picture's text is the heading that it is under."""
        text, resources = MarkdownExporter().from_notebook_node(nbformat.read(source, as_version=4))
        pictures = target.with_suffix("")
        for name, data in resources["outputs"].items():
            pictures.mkdir(parents=True, exist_ok=True)
            (pictures / name).write_bytes(data)
        out, heading, fenced = [], "", False
        for line in text.split("\n"):
            fenced ^= line.startswith("```")
            if not fenced and line.startswith("#"):
                heading = line.lstrip("# ").replace("[", "").replace("]", "")
            line = re.sub(
                r"(?<=\]\(#)[^)]+", lambda anchor: re.sub(r"[^\w-]", "", anchor[0].lower()), line
            )  # as mkdocs has it
            out.append(re.sub(r"!\[\w+\]\(([^)]+)\)", rf"![Figure: {heading}]({pictures.name}/\1)", line))
        return "\n".join(out)


def _math(match: re.Match[str]) -> str:
    """A formula as MathML, which browsers draw by themselves."""
    if match[2] is None:
        return match[0]
    return latex2mathml.converter.convert(match[2], display="block" if match[1] == "$$" else "inline")


def title(notebook: Path) -> str:
    """The first heading of a notebook."""
    cells = json.loads(notebook.read_text())["cells"]
    return next(line.lstrip("# ").strip() for cell in cells for line in cell["source"] if line.startswith("# "))


def slide(notebook: Path, code: str, heading: str) -> Figure:
    """The figure that a notebook's cell has drawn, 16:9, under a title. ValueError if no single cell is that one."""
    cells = [each for each in json.loads(notebook.read_text())["cells"] if code in "".join(each["source"])]
    data = [out["data"]["image/png"] for each in cells for out in each.get("outputs", ()) if "image/png" in
            out.get("data", ())]  # fmt: skip
    if len(cells) != 1 or not data:
        raise ValueError(f"{notebook.name} must have one cell with '{code}' that draws, got {len(cells)}")
    figure = plt.figure(figsize=(16, 9), dpi=120)
    figure.text(0.04, 0.92, heading, fontsize=36, weight="bold", va="center")
    figure.text(0.04, 0.035, f"{notebook.stem} · CUDA kernels, step by step", fontsize=16, color="gray", va="center")
    axes = figure.add_axes((0.04, 0.08, 0.92, 0.76))
    axes.imshow(plt.imread(io.BytesIO(base64.b64decode("".join(data[0])))), interpolation="lanczos")
    axes.axis("off")
    return figure


def slides(folder: Path) -> None:
    """Draw all of them, slides/STAGE.png, and write the page that shows them."""
    (folder / "slides").mkdir()
    page = ["# Slides", "A figure for each stage, 1920 × 1080. [Teaching with this course](docs/teaching.md)"]
    for stage, (code, heading) in SLIDES.items():
        figure = slide(ROOT / "notebooks" / f"{stage}.ipynb", code, heading)
        figure.savefig(folder / "slides" / f"{stage}.png")
        plt.close(figure)
        page.append(f"## {heading}\n\n[Notebook](notebooks/{stage}.md)\n\n![{heading}](slides/{stage}.png)")
    (folder / "slides.md").write_text("\n\n".join(page) + "\n")


def config(folder: Path, out: Path) -> dict[str, Any]:
    """What mkdocs is told."""
    by_number = lambda page: [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", page.stem)]
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"), key=by_number)  # h9 before h10
    docs = [ROOT / "docs" / f"{name}.md" for name in ("performance", "emulator", "sanitizers", "api", "glossary")]
    docs += [ROOT / "docs" / f"{name}.md" for name in ("practice", "teaching")]
    appendix = sorted((ROOT / "docs" / "appendix").glob("*.md"))
    interview = sorted((ROOT / "docs" / "interview").glob("*.md"), key=lambda page: (page.stem != "README", page.stem))
    site = Site(folder)
    for page in (ROOT / "README.md", *notebooks, *docs, *appendix, *interview):
        site.add(page)
    slides(folder)
    if site.broken:
        raise SystemExit("error: " + "\n".join(site.broken))
    return {
        "site_name": "CUDA kernels, step by step",
        "docs_dir": str(folder),
        "site_dir": str(out),
        "use_directory_urls": False,  # pages can be read without a server
        "strict": True,
        "validation": {"unrecognized_links": "warn", "anchors": "warn"},
        "nav": [
            {"Start": "index.md"},
            {"Notebooks": [{title(each): str(site.name(each))} for each in notebooks]},
            {"Reference": [str(site.name(each)) for each in docs]},
            {"Slides": "slides.md"},
            {"Interview": [str(site.name(each)) for each in interview]},
            {"Appendix": [str(site.name(each)) for each in appendix]},
        ],
        "not_in_nav": "*",
        "theme": {
            "name": "material",
            "font": False,
            "features": ["navigation.footer", "navigation.tabs", "content.code.copy", "search.highlight"],
            "palette": [
                {"media": "(prefers-color-scheme: light)", "scheme": "default",
                 "toggle": {"icon": "material/weather-night", "name": "Dark mode"}},
                {"media": "(prefers-color-scheme: dark)", "scheme": "slate",
                 "toggle": {"icon": "material/weather-sunny", "name": "Light mode"}},
            ],
        },
        "plugins": ["search"],
        "extra_css": ["site.css"],
        "markdown_extensions": [
            "tables", "attr_list", "md_in_html", {"toc": {"permalink": True, "slugify": "GITHUB"}},
            {"pymdownx.highlight": {"use_pygments": True}}, "pymdownx.superfences", "pymdownx.details",
        ],
    }  # fmt: skip


CSS = """.md-typeset math { display: inline-block; max-width: 100%; overflow-x: auto; }
.md-typeset details, .md-typeset .highlight { max-width: 100%; overflow-x: auto; }
.md-typeset table:not([class]) { display: block; overflow-x: auto; }
.md-typeset pre, .md-typeset .jp-RenderedHTML { overflow-x: auto; }
.md-typeset img { max-width: 100%; background: white; }
"""


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "site").resolve()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / "pages"
        folder.mkdir()
        (folder / "site.css").write_text(CSS)
        settings = Path(temporary) / "mkdocs.yml"
        text = yaml.safe_dump(config(folder, out), sort_keys=False)
        settings.write_text(
            text.replace("GITHUB", "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}")
        )
        command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--config-file", str(settings)]
        status = subprocess.run(command, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if status.returncode:
        raise SystemExit(status.returncode)
    print(f"written: {out}/index.html")


if __name__ == "__main__":
    main()
