"""What a kernel touches, drawn from the addresses that one of its blocks executes in the emulator.

traced = accesses.run(stage)        then traced.threads("A"), traced.banks(), ... (FIGURES has them all)
accesses.snippet(code, x=…, y=…)    the same for a few lines of CUDA of your own
"""

from __future__ import annotations

import hashlib
import linecache
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

import cudaemu
from common.figures import draw, layout
from common.figures.draw import Picture
from common.stage import Stage
from cudaemu.compiler import cache
from cudaemu.errors import UserError
from cudaemu.trace import Access, Space

if TYPE_CHECKING:
    from torch import Tensor

    from common.stage import Kernel
    from cudaemu import Report

FIGURES = ("footprint", "threads", "registers", "sectors", "copies", "banks", "rhythm")
GOES_ON = ("=", ",", "(", "+", "-", "*", "/", "?", "&", "|", "<<", ">>")  # a line's end: its statement has more
VERBS = {
    Access.LOAD: "load",
    Access.STORE: "store",
    Access.ATOMIC: "atomic",
    Access.CP_ASYNC: "copy",
    Access.LDMATRIX: "ldmatrix",
    Access.STMATRIX: "stmatrix",
    Access.BULK_LOAD: "bulk copy",
    Access.BULK_STORE: "bulk copy",
}


@dataclass(frozen=True)
class Request:
    """One memory instruction, executed once by the active lanes of one warp."""

    warp: int
    order: int  # its place among the warp's memory instructions
    pc: int
    verb: str  # "load", "store", "copy", "ldmatrix", "stmatrix", "atomic"
    size: int  # bytes per lane
    lanes: np.ndarray
    addresses: np.ndarray  # global: addresses; shared: byte offsets in the block's shared memory
    file: str
    line: int
    ptx: str  # the instruction, without its guard predicate

    @property
    def text(self) -> str:
        """The source line without its comment; the whole statement, if it goes over several lines."""
        first = last = self.line
        while first > 1 and self._code(first - 1).endswith(GOES_ON):
            first -= 1
        while self._code(last).endswith(GOES_ON):
            last += 1
        return " ".join(self._code(line) for line in range(first, last + 1))

    def _code(self, line: int) -> str:
        return linecache.getline(self.file, line).split("//")[0].strip()

    @property
    def sectors(self) -> int:
        return len(layout.sectors(self.addresses, self.size))

    @property
    def is_load(self) -> bool:
        """An ordinary load, lane by lane: `layout.wavefronts` serves it in another way than a matrix or a store."""
        return self.ptx.startswith("ld.")

    @property
    def banks(self) -> layout.Wavefronts:
        return layout.wavefronts(self.addresses, self.size, self.lanes, self.is_load)


class Traced:
    """The memory accesses that one block of a kernel executed in its first launch, and the pictures of them.

    `report` is the emulator's whole report, `requests` the block's accesses as warps issued them.
    """

    def __init__(self, report: Report, label: str, outputs: Sequence[str], block: int = 0, mosaic: str | None = None):
        self.report, self.label, self.outputs, self.block = report, label, tuple(outputs), block
        self.tensors = report.tensors
        self.mosaic = mosaic
        rows = report.trace[(report.trace["launch"] == 0) & (report.trace["block"] == block)]
        rows = rows[np.isin(rows["kind"], [*VERBS, Access.WMMA])]  # synchronisation between threads is not a request
        if not len(rows):
            raise UserError(f"{label}: block {block} made no memory access; the grid is {report.launches[0].grid}")
        self.rows = rows[np.lexsort((rows["thread"], rows["space"], rows["seq"], rows["thread"] // layout.WARP))]

    # ---- requests ----------------------------------------------------------------------------------------------------

    @cached_property
    def _all(self) -> list[tuple[int, str, Request]]:
        """(space, tensor name, request) of every request, warp by warp, in the order of execution.

        One whose lanes go to several tensors (a pointer that differs from lane to lane) is there once for each."""
        rows = self.rows
        warp = rows["thread"] // layout.WARP
        keys = np.stack([warp, rows["seq"], rows["space"]], 1).astype(np.int64)
        starts = np.flatnonzero(np.r_[True, np.any(np.diff(keys, axis=0) != 0, axis=1)])
        found = []
        for begin, end in zip(starts, np.r_[starts[1:], len(rows)]):
            request = rows[begin:end]
            names = (
                self._tensors_at(request["addr"])
                if request["space"][0] == Space.GLOBAL
                else np.array([""] * len(request))
            )
            for name in dict.fromkeys(names.tolist()):
                found.append((int(request["space"][0]), name, self._request(request[names == name])))
        return found

    def _request(self, rows: np.ndarray) -> Request:
        first = rows[0]
        place = self.report.source(first)
        verb = VERBS.get(Access(first["kind"])) or ("store" if "store" in place.category else "load")  # WMMA does both
        return Request(
            warp=int(first["thread"]) // layout.WARP,
            order=int(first["seq"]),
            pc=int(first["pc"]),
            verb=verb,
            size=int(first["size"]),
            lanes=rows["thread"].astype(np.int64) % layout.WARP,
            addresses=rows["addr"].astype(np.int64),
            file=place.file,
            line=place.line,
            ptx=re.sub(r"^@!?\S+\s+", "", place.text),
        )

    def _tensors_at(self, addresses: np.ndarray) -> np.ndarray:
        """The names of the tensors at these addresses, "" where there is none."""
        names = np.full(len(addresses), "", dtype=object)
        for name, place in self.tensors.items():
            names[(addresses >= place.base) & (addresses < place.base + place.size)] = name
        return names

    def requests(self, tensor: str | None = None, *, warp: int | None = None, verb: str | None = None) -> list[Request]:
        """Requests to a tensor in global memory, or (tensor None) to shared memory, of all warps or of one."""
        if tensor is not None:
            self._check_tensor(tensor)
        place = (Space.SHARED, "") if tensor is None else (Space.GLOBAL, tensor)
        return [
            r
            for space, name, r in self._all
            if (space, name) == place and warp in (None, r.warp) and verb in (None, r.verb)
        ]

    def copied(self, warp: int | None = None) -> list[tuple[Request, np.ndarray]]:
        """`cp.async` past L1: (its global side, its targets in shared memory, lane by lane). Copies that only fill with
        zeros have no global side; copies through L1 (`.ca`) fetch sectors as loads do, and are `requests` only."""
        landing = {(r.warp, r.order): dict(zip(r.lanes.tolist(), r.addresses)) for r in self.requests(verb="copy")}
        return [
            (r, np.array([landing[r.warp, r.order][lane] for lane in r.lanes.tolist()]))
            for space, _, r in self._all
            if space == Space.GLOBAL and r.ptx.startswith("cp.async.cg") and warp in (None, r.warp)
        ]

    def patterns(self, warp: int = 0, verb: str | None = None) -> list[Request]:
        """One shared-memory request of `warp` for each kind of it: the worst of those from one source line that ask for
        as many bytes at as many different addresses. Copies are left out: they do not go by banks."""
        worst: dict[tuple[int, str, int, int], Request] = {}
        for request in self.requests(warp=warp, verb=verb):
            if request.verb == "copy":
                continue
            key = (request.line, request.verb, request.size, len(np.unique(request.addresses)))
            if key not in worst or request.banks.count > worst[key].banks.count:
                worst[key] = request
        return list(worst.values())

    def _check_tensor(self, name: str) -> None:
        if name not in self.tensors:
            raise UserError(f"{self.label} has no tensor '{name}'; it has {', '.join(self.tensors)}")

    def _accesses(self, name: str, requests: Sequence[Request]) -> dict[str, np.ndarray]:
        """thread, row, column and width (elements) of accesses to a tensor, seen as a matrix of its last two axes."""
        base, item = self.tensors[name].base, self.tensors[name].itemsize
        columns = self._shape(name)[1]
        none = [np.zeros(0, np.int64)]
        thread = np.concatenate([r.warp * layout.WARP + r.lanes for r in requests] or none)
        first = np.concatenate([(r.addresses - base) // item for r in requests] or none)
        width = np.concatenate([np.full(len(r.lanes), max(1, r.size // item)) for r in requests] or none)
        return {"thread": thread, "row": first // columns, "column": first % columns, "width": width}

    def _shape(self, name: str) -> tuple[int, int]:
        shape = self.tensors[name].shape
        return int(np.prod(shape[:-1], dtype=np.int64)), int(shape[-1]) if shape else 1

    def _own(self, warp: int) -> None:
        warps = sorted({r.warp for _, _, r in self._all})
        if warp not in warps:
            raise UserError(
                f"{self.label}: block {self.block} has no warp {warp} that accesses memory; it has {draw.ranges(warps)}"
            )

    # ---- pictures ----------------------------------------------------------------------------------------------------

    def threads(self, tensor: str, warp: int = 0, lane: int | None = None, when: str | None = None) -> Picture:
        """Which thread touches which element of `tensor`.

        `when`: "first" (each warp's first request), "before" (those before it first reads shared memory) or "all"; by
        default all stores, or, of a tensor that is only loaded, "before", or "first" if nothing is shared.
        """
        self._own(warp)
        requests = self.requests(tensor)
        stores = [r for r in requests if r.verb in ("store", "atomic")]
        chosen = stores or requests
        if not chosen:
            raise UserError(f"{self.label}: block {self.block} does not access {tensor}")
        reads = {r.warp: r.order for r in reversed(self.requests()) if r.verb in ("load", "ldmatrix")}
        when = when or ("all" if stores else "before" if reads else "first")
        if when == "first":
            first = {r.warp: r.order for r in reversed(chosen)}
            chosen = [r for r in chosen if r.order == first[r.warp]]
        elif when == "before":
            chosen = [r for r in chosen if r.order < reads.get(r.warp, np.inf)]
        elif when != "all":
            raise UserError(f"when must be first, before or all, got '{when}'")
        accesses = self._accesses(tensor, chosen)
        boxes = set(zip(*(accesses[key].tolist() for key in ("row", "column", "width"))))
        elements = len({(y, x + reach) for y, x, width in boxes for reach in range(width)})
        rows = np.ptp(accesses["row"]) + 1
        columns = (accesses["column"] + accesses["width"]).max() - accesses["column"].min()
        area = f"{rows} × {columns}" if elements == rows * columns else f"{elements:,}"
        each, width = len(accesses["row"]) / len(boxes), accesses["width"].max()
        moment = {
            "first": f", each warp's first {'store' if stores else 'load'}",
            "before": ", first slice",
            "all": "",
        }[when]
        what = (
            f"{self.label}, block {self.block} {'stores' if stores else 'loads'} {area} elements of {tensor}{moment}: "
            f"{'one thread' if each == 1 else f'{each:g} threads'} each" + (f", {width} at a time" if width > 1 else "")
        )
        return draw.threads(**accesses, shape=self._shape(tensor), what=what, warp=warp, lane=lane)

    def registers(self, tensor: str | None = None, warp: int = 0, lane: int = 0) -> Picture:
        """Which elements of an output one thread holds: those that it stores."""
        self._own(warp)
        tensor = tensor or self.outputs[0]
        accesses = self._accesses(tensor, [r for r in self.requests(tensor) if r.verb in ("store", "atomic")])
        mine = accesses["thread"] == warp * layout.WARP + lane
        rows = len(np.unique(accesses["row"][mine]))
        total = int(accesses["width"][mine].sum())
        if not total:
            raise UserError(
                f"{self.label}: lane {lane} of warp {warp} in block {self.block} stores nothing in {tensor}"
            )
        whole = int(accesses["width"][accesses["thread"] // layout.WARP == warp].sum())
        held = f"{draw.plural(total, 'element')} of {tensor}, {rows} rows × {total // rows} columns"
        what = f"{self.label}: a thread holds {held}; a warp holds {whole:,}"
        return draw.threads(**accesses, shape=self._shape(tensor), what=what, warp=warp, lane=lane)

    def sectors(self, tensor: str, warp: int = 0, index: int = 0) -> Picture:
        """The sectors of one global request: the `index`-th that `warp` makes to `tensor`."""
        self._own(warp)
        requests = self.requests(tensor, warp=warp)
        if not 0 <= index < len(requests):
            raise UserError(
                f"{self.label}: warp {warp} makes {draw.plural(len(requests), 'request')} to {tensor}; "
                f"there is no number {index}"
            )
        request = requests[index]
        offsets = request.addresses - self.tensors[tensor].base
        item = self.tensors[tensor].itemsize
        return draw.sectors(
            offsets,
            request.size,
            request.lanes,
            element=item,
            warp=warp,
            what=f"{self.label}, warp {warp} {request.verb}s {tensor}".replace("copys", "copies"),
            source=_quote(request),
            store=request.verb == "store",
        )

    def copies(self, tensor: str, warp: int = 0, index: int = 0) -> Picture:
        """Where the `index`-th `cp.async` past L1 with which `warp` copies from `tensor` puts its bytes."""
        self._own(warp)
        place = self.tensors[tensor]
        found = [each for each in self.copied(warp) if place.base <= each[0].addresses[0] < place.base + place.size]
        if not 0 <= index < len(found):
            raise UserError(
                f"{self.label}: warp {warp} makes {draw.plural(len(found), 'copy').replace('copys', 'copies')} from "
                f"{tensor} with cp.async.cg; there is no number {index}"
            )
        source, targets = found[index]
        what = f"{self.label}, warp {warp} copies {tensor}"
        return draw.copies(source.addresses - place.base, targets, source.lanes, what=what, source=_quote(source))

    def banks(self, request: Request | int = 0, warp: int = 0) -> Picture:
        """The banks of one shared-memory request: a `Request`, or the number of one of `patterns(warp)`."""
        self._own(warp)
        if isinstance(request, int):
            patterns = self.patterns(warp)
            if not 0 <= request < len(patterns):
                kinds = draw.plural(len(patterns), "kind")
                raise UserError(
                    f"{self.label}: warp {warp} has {kinds} of shared-memory request, none with the number {request}"
                )
            request = patterns[request]
        kind = request.verb if request.verb.endswith("matrix") else f"shared {request.verb}"
        what = f"{self.label}, warp {request.warp}, {kind}, {request.size} bytes per lane"
        return draw.banks(
            request.addresses, request.size, request.lanes, what=what, source=_quote(request), load=request.is_load
        )

    def footprint(self, warp: int = 0, lane: int = 0) -> Picture:
        """What the block, a warp and a lane touch of each tensor, and how often an element is asked for."""
        self._own(warp)
        panels, reuse = {}, []
        for name in self.tensors:
            accesses = self._accesses(name, self.requests(name))
            if not len(accesses["row"]):
                continue
            seen = np.zeros(self._shape(name), bool)
            for reach in range(int(accesses["width"].max())):
                here = reach < accesses["width"]
                seen[accesses["row"][here], accesses["column"][here] + reach] = True
            times = accesses["width"].sum() / seen.sum()
            verb = "stored" if name in self.outputs else "asked for"
            often = "once" if times == 1 else f"{times:.3g} times"
            panels[name] = accesses | {
                "shape": self._shape(name),
                "title": f"{name}: {seen.sum():,} elements,\neach {verb} {often}",
            }
            if name not in self.outputs:
                reuse.append(f"each element of {name} {often}")
        takeaway = f"{self.label}: a block asks global memory for " + ", ".join(reuse)
        mosaic = self.mosaic if self.mosaic and set(self.mosaic) - set(".;") == set(panels) else None
        return draw.footprint(panels, mosaic, takeaway, self.block, warp, lane)

    def rhythm(self, warp: int = 0) -> Picture:
        """The order of a warp's memory requests."""
        self._own(warp)
        names: dict[tuple[int, str], str] = {
            (Space.GLOBAL, "load"): "global load",
            (Space.GLOBAL, "store"): "global store",
            (Space.SHARED, "load"): "shared load",
            (Space.SHARED, "store"): "shared store",
            (Space.SHARED, "ldmatrix"): "shared load",
            (Space.SHARED, "stmatrix"): "shared store",
            (Space.GLOBAL, "copy"): "async copy",
        }
        tracks: dict[str, list[int]] = {}
        for space, _, request in self._all:
            if request.warp == warp and not (space == Space.SHARED and request.verb == "copy"):
                name = names.get((space, request.verb), "local" if space == Space.LOCAL else "atomic")
                tracks.setdefault(name, []).append(request.order)
        length = max(max(track) for track in tracks.values()) + 1
        found = [name for name in draw.RHYTHM if name in tracks]
        counts = ", ".join(draw.plural(len(tracks[name]), name).replace("copys", "copies") for name in found)
        return draw.rhythm(
            {name: np.array(track) for name, track in tracks.items()}, length, f"{self.label}, warp {warp}: {counts}"
        )

    def all(
        self, names: Sequence[str] = FIGURES, tensor: str | None = None, warp: int = 0, lane: int = 0
    ) -> Iterator[tuple[str, Picture]]:
        """(file stem, picture) of every figure that this kernel has something for."""
        touched = [name for name in self.tensors if self.requests(name)]
        if tensor is not None:
            self._check_tensor(tensor)
            touched = [name for name in touched if name == tensor]
        for figure in names:
            if figure == "footprint":
                yield figure, self.footprint(warp, lane)
            elif figure == "rhythm":
                yield figure, self.rhythm(warp)
            elif figure == "threads":
                yield from ((f"threads-{name}", self.threads(name, warp)) for name in touched)
            elif figure == "registers":
                for name in touched:
                    stores = self._accesses(name, [r for r in self.requests(name, warp=warp) if r.verb == "store"])
                    if (
                        name in self.outputs
                        and stores["width"][stores["thread"] == warp * layout.WARP + lane].sum() > 1
                    ):
                        yield f"registers-{name}", self.registers(name, warp, lane)
            elif figure == "sectors":
                yield from (
                    (f"sectors-{name}", self.sectors(name, warp)) for name in touched if self.requests(name, warp=warp)
                )
            elif figure == "copies":
                yield from (
                    (f"copies-{name}", self.copies(name, warp))
                    for name in touched
                    if any(r.ptx.startswith("cp.async.cg") for r in self.requests(name, warp=warp))
                )
            elif figure == "banks":
                for number, request in enumerate(self.patterns(warp)):
                    yield f"banks-{number}-line-{request.line}-{request.verb}", self.banks(request)


def _quote(request: Request) -> str:
    return f"{Path(request.file).name}:{request.line}    {request.text}" if request.line else ""


# ---- tracing ---------------------------------------------------------------------------------------------------------


def run(
    kernel: Stage | Kernel,
    shape: Sequence[int] | None = None,
    *,
    dtype: str | None = None,
    block: int = 0,
    seed: int = 0,
    sanitize: bool = False,
    **variants: int,
) -> Traced:
    """Run a stage or kernel in the emulator and record what `block` accesses.

    `shape` is by default one whose pictures are small."""
    if isinstance(kernel, Stage):
        kernel = kernel.kernel(dtype, variants)
    spec = kernel.stage.spec
    shape = tuple(shape or spec.figure_shape(kernel.multiples, kernel.variants))
    kernel.check_shape(*shape)
    inputs = spec.inputs(shape, kernel.dtype, kernel.variants, seed=seed)
    outputs = spec.outputs(shape, kernel.dtype, kernel.variants)
    report = kernel.emulate(inputs, outputs, sanitize=sanitize, trace=cudaemu.Trace(blocks=range(block, block + 1)))
    return Traced(report, kernel.label, spec.output_names(kernel.variants), block, spec.mosaic)


def write(code: str, name: str = "snippet.cu") -> Path:
    """Write code to a file in a folder of its own, the same one each time, so that what was built is found again."""
    source = cache.folder() / "snippets" / hashlib.sha256(code.encode()).hexdigest()[:16] / name
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text(code, encoding="utf-8")
    return source


def snippet(
    code: str,
    symbol: str = "launch",
    *,
    block: int = 0,
    sanitize: bool = True,
    defines: Mapping[str, str] | None = None,
    **arguments: Tensor | int | float,
) -> Traced:
    """Compile and run a few lines of CUDA in the emulator, and record what `block` accesses.

    `code` exports `extern "C" cudaError_t launch(...)`; `arguments` are its arguments in order, tensors on the CPU by
    the names that the pictures use. What the kernel writes is in the tensors afterwards, findings are in `.report`.
    """
    report = cudaemu.run(
        write(code),
        symbol,
        list(arguments.values()),
        names=list(arguments),
        defines=dict(defines or {}),
        sanitize=sanitize,
        trace=cudaemu.Trace(blocks=range(block, block + 1)),
    )
    if report.status:
        raise UserError(f"the launcher returned CUDA error {report.status}: {report.error}")
    traced = Traced(report, "snippet", [], block)
    traced.outputs = tuple(name for name in traced.tensors if traced.requests(name, verb="store"))
    return traced
