"""The fewest clocks in which a kernel can run: what it needs of each resource, at the rate measured on the same GPU.

What a kernel needs is counted by the hardware: the recorded profile of the same kernel at the same size. Rates are
those of a recorded ceiling run, all work spread evenly over all SMs. A bound in clocks is compared with measured
clocks, so that the SM clock cancels out; only where L2 or device memory binds does it matter, as these have a pace of
their own.

A kernel's own bound counts all that it executes, waste included. The problem's bound counts the problem's FLOP alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from common import problem
from common.dtypes import PRECISIONS
from common.results.runs import ANY, Only, Record, Row, Run, choose, not_zero, records, runs
from common.stage import Kernel
from cudaemu.units import FMA, MMA, UNITS, WGMMA, Unit

Rates = Mapping[str, Row]  # the rows of a ceiling run by their keys

WARP = 32
SCHEDULERS = 4  # of an SM; each issues one instruction per clock
LINE = 128  # bytes of a wavefront of shared memory
SECTOR = 32  # bytes
MEASURE = "`python -m common.measure.ceiling --json docs/results/ceiling.json`"
STALL = "stall: "  # how names of stall reasons begin in a profile


@dataclass(frozen=True)
class Need:
    """What a kernel needs of one resource, and the fewest clocks of an SM that this takes."""

    resource: str
    count: float
    unit: str  # of the count
    rate: float  # in that unit, per clock and SM or per second
    per_second: bool
    clocks: float


@dataclass(frozen=True)
class Bound:
    """All that one recorded row of a bench run needs, the longest first."""

    record: Record
    profile: Record  # where the counts come from
    ceilings: Run  # the run that the rates come from
    needs: tuple[Need, ...]
    measured: float  # clocks of an SM that a launch took
    problem: float | None  # clocks that the problem's FLOP take at least; None where their rate is not known

    @property
    def clocks(self) -> float:
        """The fewest clocks: those of the resource which takes longest."""
        return self.needs[0].clocks

    @property
    def share(self) -> float:
        """The fewest clocks as a share of the measured ones: 1 is the best that is possible."""
        return self.clocks / self.measured

    def stalls(self, count: int = 3) -> list[tuple[str, float]]:
        """The reasons for which warps waited longest, (name, warps per issued instruction), as ncu counted them.

        A warp that was not selected could have run: it does not count."""
        found = {
            name.removeprefix(STALL): value
            for name, value in self.profile.row["metrics"].items()
            if name.startswith(STALL) and name != f"{STALL}not selected"
        }
        return sorted(found.items(), key=lambda stall: -stall[1])[:count]

    def waits(self) -> dict[str, float]:
        """What a resident warp's time goes into: see `waits`."""
        return waits(self.profile)

    @property
    def busy(self) -> dict[str, float]:
        """How busy the pipe that does the arithmetic was, and the issue slots: percent of the time, as ncu counted."""
        pipe = "tensor pipe" if _unit(self.record.row).tensor else "FMA pipe"
        metrics = self.profile.row["metrics"]
        return {name: metrics[f"{name} busy"] for name in (pipe, "issue slots") if f"{name} busy" in metrics}


@dataclass(frozen=True)
class Resource:
    """One thing that a kernel can run out of: how much it needs (of a profile's row), how much there is."""

    name: str
    unit: str
    count: Callable[[Row, Rates], float | None]
    rate: Callable[[Row, Rates], float | None]  # per clock and SM, or per second
    per_second: bool = False


def _counted(key: str) -> Callable[[Row, Rates], float | None]:
    return lambda row, _: row["counters"].get(key, {}).get("ncu")


def _metric(name: str) -> Callable[[Row, Rates], float | None]:
    return lambda row, _: row["metrics"].get(name)


def _per_clock(key: str, each: float = 1.0) -> Callable[[Row, Rates], float | None]:
    """What an SM does per clock, in portions of `each`: 64 FLOP are one FMA instruction of a warp."""

    def rate(_: Row, rates: Rates) -> float | None:
        row = rates.get(key, {})
        value = row.get("per_clock", {}).get("value", row.get("value") if "clock" in row.get("unit", "") else None)
        portions: float | None = value and value / each
        return portions

    return rate


def rates(ceilings: Run) -> dict[str, Row]:
    """The rows of a ceiling run by their keys."""
    return {row["key"]: row for row in ceilings["rows"]}


def newest_ceilings(gpu: str | None = None, only: Only = ANY) -> Run | None:
    """The newest recorded ceiling run with rates per clock, of a GPU of that name if one is given."""
    return choose(runs("ceiling", only), lambda run: run if "sms" in run and gpu in (None, run["gpu"]) else None)


def problem_clocks(record: Record, ceilings: Run) -> float | None:
    """Clocks of an SM that a row's FLOP take at least, spread over all SMs.

    The rate is that of the ladder's fastest unit, mma.sync where the precision has it: the same for all stages, so that
    shares of it rank them. None if it is not among the ceilings."""
    _, rate = problem_rate(record, ceilings)
    return rate and record.operations / rate / ceilings["sms"]


def problem_rate(record: Record, ceilings: Run) -> tuple[str, float | None]:
    """The unit whose rate the problem's bound has ("mma.sync fp16"), and its FLOP per clock and SM."""
    row, known = record.row, rates(ceilings)
    tensor = MMA.ceiling(row["dtype"])
    key = row["limit"] if _unit(row).background or tensor not in known else tensor
    return key, _per_clock(key)(row, known)


def waits(profile: Record) -> dict[str, float]:
    """What a resident warp's time goes into, as shares that make up 1: why it did not issue, and issuing.

    ncu gives each reason in warps per issued instruction; the warp that issues is one more."""
    metrics = profile.row["metrics"]
    found = {name.removeprefix(STALL): value for name, value in metrics.items() if name.startswith(STALL)}
    whole = sum(found.values()) + 1
    return {name: value / whole for name, value in {**found, "issuing": 1.0}.items()}


def profiled_clocks(profile: Record) -> float | None:
    """Clocks of an SM that a profiled launch took, as ncu counted."""
    metrics = profile.row["metrics"]
    if "duration" not in metrics or "SM clock" not in metrics:
        return None
    clocks: float = metrics["duration"] * 1e-9 * metrics["SM clock"]
    return clocks


def least_clocks(kernel: Kernel, shape: Sequence[int], counts: Mapping[str, int], known: Rates) -> dict[str, float]:
    """Clocks of an SM that a launch with these counters of the emulator takes at least: {"arithmetic": …,
    "shared memory": …}."""
    spec = kernel.stage.spec
    row: Row = {
        "dtype": kernel.dtype,
        "limit": kernel.ceiling,
        "problem": spec.name,
        "shape": dict(zip(spec.axes, shape)),
        "variants": kernel.variants,
        "counters": {name: {"ncu": count} for name, count in counts.items()},
        "metrics": {"instructions, FMA pipe": counts.get(f"instructions.{FMA.category}", 0)},
    }
    arithmetic, shared = (resource(name) for name in (ARITHMETIC[_unit(row)], SHARED))
    return {
        name: (each.count(row, known) or 0.0) / (each.rate(row, known) or 1.0)
        for name, each in (("arithmetic", arithmetic), ("shared memory", shared))
    }


def _unit(row: Row) -> Unit:
    """What multiplies."""
    return UNITS[row["limit"].split()[0]]


def _mma_flops(row: Row, _: Rates) -> float | None:
    """Of kernels with FMA none, though ncu counts a tensor instruction per warp in those, too."""
    count = row["counters"].get(f"instructions.{MMA.category}", {}).get("ncu")
    per_instruction = PRECISIONS[row["dtype"]].flop_per_mma
    return count and per_instruction and count * per_instruction if _unit(row) is MMA else None


def _wgmma_flops(row: Row, _: Rates) -> float | None:
    """Those of the computation: how many one instruction does is in its name, which no counter has."""
    if _unit(row) is not WGMMA:
        return None
    return problem.load(row["problem"]).flops(tuple(row["shape"].values()), row["variants"])


def _limit(row: Row, rates: Rates) -> float | None:
    return _per_clock(row["limit"])(row, rates)


def _wavefronts(row: Row, rates: Rates) -> float | None:
    """Loads and stores of shared memory, and of L1 where it was counted; copies, if they take turns with loads."""
    counters, metrics = row["counters"], row["metrics"]
    loads, stores = (counters.get(f"shared_{kind}_wavefronts", {}).get("ncu") for kind in ("load", "store"))
    if loads is None or stores is None:
        return None
    copies = counters.get("cp_async_sectors", {}).get("ncu") or 0
    served: float = max(loads + stores, metrics.get("L1 wavefronts, data", 0))
    return served + copies * SECTOR / LINE * _taken_turns(rates)


def _taken_turns(rates: Rates) -> bool:
    """Whether ldmatrix and cp.async share one path: together they move no more than ldmatrix alone."""
    both, alone = rates.get("ldmatrix + cp.async"), rates.get("ldmatrix")
    return bool(both and alone and both["value"] < 1.02 * alone["value"])


def _shared_rate(row: Row, rates: Rates) -> float | None:
    each = [rate for key in ("shared load", "shared store", "ldmatrix") if (rate := _per_clock(key, LINE)(row, rates))]
    return max(each, default=None)


def _request_rate(row: Row, rates: Rates) -> float | None:
    each = [rate for key in ("L1 requests", "L1 broadcasts") if (rate := _per_clock(key)(row, rates))]
    return max(each, default=None)


def _compulsory(row: Row, _: Rates) -> float:
    """Bytes of all inputs and outputs, each once."""
    shape = tuple(row["shape"].values())
    return problem.load(row["problem"]).bytes(shape, row["dtype"], row["variants"])


def _l2_rate(row: Row, rates: Rates) -> float | None:
    """Of kernels with wgmma that of TMA, which feeds it: the fastest way to bring the same to several SMs. Of others,
    that of loads."""
    if not _unit(row).background:
        return _per_second("L2")(row, rates)
    return _per_second(*(key for key in rates if key.startswith("L2, TMA")))(row, rates)


def _per_second(*keys: str) -> Callable[[Row, Rates], float | None]:
    """The fastest of these, which are in TB/s."""
    return lambda _, rates: max((rates[key]["value"] * 1e12 for key in keys if key in rates), default=None)


ARITHMETIC = {unit: f"tensor cores ({unit.name})" if unit.tensor else "FMA pipe" for unit in UNITS.values()}
SHARED = "shared memory and L1"
L2, DEVICE_MEMORY = "L2 → SMs", "device memory"
INSTRUCTIONS = "warp instructions"
RESOURCES = (
    Resource(ARITHMETIC[MMA], "FLOP", _mma_flops, _limit),
    Resource(ARITHMETIC[WGMMA], "FLOP", _wgmma_flops, _limit),
    Resource(
        ARITHMETIC[FMA], INSTRUCTIONS, _metric("instructions, FMA pipe"), _per_clock(FMA.ceiling("fp32"), 2 * WARP)
    ),
    Resource("ALU pipe", INSTRUCTIONS, _metric("instructions, ALU pipe"), _per_clock("ALU", WARP)),
    Resource("XU pipe (exp2)", INSTRUCTIONS, _metric("instructions, XU pipe"), _per_clock("exp2", WARP)),
    Resource("issue slots", INSTRUCTIONS, _metric("instructions"), lambda *_: SCHEDULERS),
    Resource(SHARED, "wavefronts", _wavefronts, _shared_rate),
    Resource("L1 look-ups", "wavefronts", _metric("L1 wavefronts, tags, global loads"), _request_rate),
    Resource(L2, "byte", _metric("L2 → L1"), _l2_rate, per_second=True),
    Resource(DEVICE_MEMORY, "byte", _compulsory, _per_second("DRAM read", "DRAM copy"), per_second=True),
)


def resource(name: str) -> Resource:
    return next(each for each in RESOURCES if each.name == name)


class Bounds:
    """The bounds of recorded rows; profiles and ceilings are read once.

    `missing(record)` says in words why there is none."""

    def __init__(self, only: Only = ANY):
        self._only = only._replace(gpu=None)  # that of each record
        self._ceilings: dict[str, Run | None] = {}
        self._profiles = runs("profile", self._only)

    def of(self, record: Record) -> Bound | None:
        """The bound of a row of a bench run; None where no profile of that kernel and size or no ceilings are."""
        profile, ceilings = self._profile(record), self._ceiling(record)
        if profile is None or ceilings is None or not self._has_limit(record, ceilings):
            return None
        row = {**profile.row, "limit": record.row["limit"]}
        known = rates(ceilings)
        hz = self._hz(record, profile, ceilings)
        needs = []
        for each in RESOURCES:
            count, rate = each.count(row, known), each.rate(row, known)
            if count and rate:
                clocks = count / rate * hz if each.per_second else count / rate / ceilings["sms"]
                needs.append(Need(each.name, count, each.unit, rate, each.per_second, clocks))
        measured = self.clocks(record) or record.row["ms"]["median"] * 1e-3 * hz
        ordered = tuple(sorted(needs, key=lambda need: -need.clocks))
        return Bound(record, profile, ceilings, ordered, measured, problem_clocks(record, ceilings))

    def clocks(self, record: Record) -> float | None:
        """Clocks of an SM that a row's launches took: counted around them, or else by ncu for the same kernel."""
        if record.clocks:
            return record.clocks
        profile = self._profile(record)
        return None if profile is None else profiled_clocks(profile)

    def of_problem(self, record: Record) -> float | None:
        """The problem's fewest clocks as a share of a row's; None of a library, or where one of the two is not
        known."""
        ceilings, measured = self._ceiling(record), self.clocks(record)
        if record.row["role"] == "peer" or record.row.get("source") or ceilings is None or measured is None:
            return None
        least = problem_clocks(record, ceilings)
        return least and least / measured

    def rates_of_problem(self, found: Sequence[Record]) -> str:
        """The rates that the problem's bounds of these rows have, as a line below their table; "" if none is known."""
        units: dict[tuple[str, float | None], dict[str, None]] = {}  # -> the stages whose FLOP they do
        for record in found:
            ceilings = self._ceiling(record)
            if ceilings and self.of_problem(record):
                units.setdefault(problem_rate(record, ceilings), {})[record.row["name"]] = None
        said = [
            f"{rate:,.4g} FLOP per clock and SM ({unit}{': ' + ', '.join(names) if len(units) > 1 else ''})"
            for (unit, rate), names in units.items()
        ]
        return f"\nThe problem's bound is at {', '.join(said)}." if said else ""

    @staticmethod
    def _hz(record: Record, profile: Record, ceilings: Run) -> float:
        """The SM clock: of the timed launches, or of the profiled one; the GPU's highest where neither is known."""
        clock = record.row.get("clock", {}).get("ghz")
        hz: float = clock * 1e9 if clock else profile.row["metrics"].get("SM clock") or ceilings["highest_mhz"] * 1e6
        return hz

    @staticmethod
    def _has_limit(record: Record, ceilings: Run) -> bool:
        """Whether the rate of its tensor instruction was measured: a run recorded before `ceiling` measured wgmma has
        none."""
        return not _unit(record.row).background or record.row["limit"] in rates(ceilings)

    def missing(self, record: Record) -> str:
        """What has to be recorded for `of` to give a bound, and how; "" if nothing is missing."""
        row = record.row
        if self._ceiling(record) is None:
            return f"No rates per clock of {record.run['gpu']} are recorded: {MEASURE}"
        if not self._has_limit(record, self._ceiling(record) or {}):
            return f"The rate of {row['limit']} on {record.run['gpu']} is not measured yet."
        if self._profile(record) is None:
            settings = "".join(f" --variant {name}={value}" for name, value in row["settings"].items())
            return (
                f"No profile of {row['name']} {row['dtype']} at {row['size']} with all that a bound needs is recorded: "
                f"`python -m kernels.{row['name']} profile --dtype {row['dtype']}{settings} --sizes {row['size']} "
                "--json docs/results/NAME.json`"
            )
        return ""

    def _profile(self, record: Record) -> Record | None:
        row = record.row
        if row["role"] == "peer" or row.get("source"):
            return None
        case = {name: row[name] for name in ("name", "dtype", "size", "problem", "variants")}

        def counted(run: Run) -> Record | None:
            rows = records(run, **case) if run["gpu"] == record.run["gpu"] else []
            same = (r for r in rows if not_zero(r.row["settings"]) == not_zero(row["settings"]))
            return next((r for r in same if "instructions" in r.row["metrics"]), None)

        return choose(self._profiles, counted)

    def _ceiling(self, record: Record) -> Run | None:
        gpu = record.run["gpu"]
        if gpu not in self._ceilings:
            self._ceilings[gpu] = newest_ceilings(gpu, self._only)
        return self._ceilings[gpu]
