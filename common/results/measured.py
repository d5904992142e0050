"""Tables of what common/measure/ measured: arithmetic units, levels of memory, first kernels, what fusion saves."""

from __future__ import annotations

import math
import re
import statistics

from common.results.markdown import NOTHING, markdown, number, table
from common.results.runs import ANY, Only, Record, Row, Run, choose, runs
from cudaemu.hardware import GPUS, Gpu

LEVELS = (  # of memory: name, the keys of its latency and of its rate
    ("shared memory", "shared", "shared load"),
    ("L1", "L1", "L1"),
    ("L2", "L2", "L2"),
    ("device memory", "DRAM", "DRAM read"),
)


def newest(kind: str, only: Only) -> Run | None:
    """The newest run of that kind."""
    return choose(runs(kind, only), lambda run: run)


def _ceilings(only: Only) -> tuple[Run, dict[str, Row]]:
    """The newest ceiling run, and its rows by their keys; ({}, {}) if there is none."""
    run = newest("ceiling", only) or {}
    return run, {row["key"]: row for row in run.get("rows", ())}


@table("limits")
def limits_table(only: Only = ANY) -> str:
    """What the arithmetic units do: per clock; in single launches and for a second without a pause, with the SM clock
    that follows from rate and rate per clock."""
    run, rows = _ceilings(only)
    if not run:
        return NOTHING
    body = []
    for row in rows.values():
        if "ms" not in row or "per_clock" not in row:
            continue
        each, held = row["per_clock"]["value"], row.get("sustained", {})

        def cells(rate: float | None, each: float = each) -> list[str | None]:
            ghz = rate and rate * 1e3 / each / run["sms"]
            return [number(rate, "{:,.4g}"), number(ghz, "{:.2f} GHz")]

        power = number(held.get("power_w", {}).get("median"), "{:.0f} W")
        body.append([row["name"], f"{each:,.4g}", *cells(row["value"]), *cells(held.get("value")), power])
    head = [
        "10¹² per second",
        "per clock and SM",
        "single launches",
        "SM clock",
        "one second without a pause",
        "SM clock",
    ]
    return markdown([*head, "power"], body, [Record(run, {})])


def _bytes_per_clock(row: Row) -> float:
    """What a level delivers to an SM."""
    rate: float = row["value"] if "clock" in row["unit"] else row["per_clock"]["value"]
    return rate


@table("levels")
def levels_table(only: Only = ANY) -> str:
    """What each level of memory holds, how long a load waits for it, and what it delivers."""
    run, rows = _ceilings(only)
    model = next((each for each in GPUS if run.get("gpu") and gpu_named(run["gpu"], each)), None)
    if "latency shared" not in rows or model is None:
        return NOTHING

    def latency(key: str) -> str:
        return f"{rows[f'latency {key}']['value']:.0f}"

    def all_sms(key: str) -> str:
        row = rows[key]
        tb = row["value"] if row["unit"] == "TB/s" else row["value"] * run["sms"] * run["highest_mhz"] / 1e6
        return f"{tb:.3g} TB/s"

    holds = (
        f"{model.shared_kb} KB per SM",
        "what shared memory leaves",
        f"{model.l2_mb} MB",
        f"{run['memory_bytes'] / 2**30:.0f} GiB",
    )
    body: list[list[object]] = [["registers", f"{model.registers * 4 >> 10} KB per SM", latency("FMA"), None, None]]
    for (name, waits, delivers), size in zip(LEVELS, holds):
        clocks = latency(waits) + (f" ({latency('L2 nearest')} to {latency('L2 farthest')})" if waits == "L2" else "")
        body.append([name, size, clocks, number(_bytes_per_clock(rows[delivers]), "{:.3g}"), all_sms(delivers)])
    head = ["level", "holds", "latency, clocks", "bytes per clock and SM", "all SMs together"]
    return markdown(head, body, [Record(run, {})])


@table("tma")
def tma_table(only: Only = ANY) -> str:
    """What TMA brings from L2 to all SMs together, by how many SMs share a chunk and whether it is sent to several."""
    run, rows = _ceilings(only)
    body = [
        [row["name"], number(_bytes_per_clock(row), "{:.3g}"), f"{row['value']:.3g} TB/s"]
        for key, row in rows.items()
        if key == "L2" or key.startswith("L2, TMA")
    ]
    head = ["what arrives", "bytes per clock and SM", "all SMs together"]
    return markdown(head, body, [Record(run, {})]) if len(body) > 1 else NOTHING


def gpu_named(name: str, model: Gpu) -> bool:
    """Whether a GPU called "NVIDIA H200" is one of the devices of that compute capability."""
    return any(device in name.split() for device in re.split(r",\s*", model.devices))


@table("latencies")
def latencies_table(only: Only = ANY) -> str:
    """What waiting for one thing takes, in clocks of the SM and in nanoseconds; a launch in microseconds."""
    run, rows = _ceilings(only)
    found = [row for key, row in rows.items() if key.startswith("latency ")]
    if not found:
        return NOTHING
    body: list[list[object]] = []
    for row in sorted(found, key=lambda row: row["value"]):
        mhz = row.get("sm_mhz", {}).get("median")
        body.append([row["name"], f"{row['value']:.4g}", number(mhz and row["value"] / mhz * 1e3, "{:.3g} ns")])
    if "launch" in rows:
        body.append([rows["launch"]["name"], None, f"{rows['launch']['value'] * 1e3:,.0f} ns"])
    return markdown(["latency of", "clocks", "time"], body, [Record(run, {})])


@table("flight")
def flight_table(only: Only = ANY) -> str:
    """Little's law: bytes in flight = latency × bytes per clock, on each SM; as loads of a warp. Of the numbers as
    shown, so that a reader gets the same."""
    run, rows = _ceilings(only)
    if "latency shared" not in rows:
        return NOTHING
    body: list[list[object]] = []
    for name, waits, delivers in LEVELS:
        latency, rate = f"{rows[f'latency {waits}']['value']:.0f}", f"{_bytes_per_clock(rows[delivers]):.3g}"
        flight = int(latency) * float(rate)
        body.append([name, latency, rate, f"{flight:,.0f}", math.ceil(flight / 128), math.ceil(flight / 512)])
    head = ["level", "latency, clocks", "bytes per clock and SM", "bytes in flight per SM", "warps, 4 bytes per lane"]
    return markdown([*head, "warps, 16 bytes per lane"], body, [Record(run, {})])


@table("first_kernels")
def first_kernels_table(only: Only = ANY) -> str:
    """The first kernels of examples/ beside torch: time, the least bytes per second, what share of the rate of device
    memory that is. Of the newest such run."""
    run = newest("first_kernels", only)
    if run is None:
        return NOTHING
    _, ceilings = _ceilings(only._replace(gpu=run["gpu"].split()[-1]))
    memory = ceilings["DRAM read"]["value"] if "DRAM read" in ceilings else None
    body: list[list[object]] = []
    for row in run["rows"]:
        mine, theirs = row["ms"]["median"], row["peer"]["ms"]["median"]
        rate = row["bytes"] / mine / 1e9
        share = number(memory and rate / memory, "{:.0%}")
        cells = [f"{mine * 1e3:,.0f} µs", f"{rate:.2f}", share, f"`{row['peer']['name']}`", f"{theirs * 1e3:,.0f} µs"]
        body.append([f"{row['name']}, {row['size']}", *cells, f"{theirs / mine:.2f}"])
    head = ["kernel", "time", "TB/s", "% of device memory", "torch", "its time", "× torch"]
    said = (
        f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}, {run['date'][:10]}"
    )
    return markdown(head, body) + f"\n\n{said}, [{run['file']}]."


def fused_cells(run: Run) -> tuple[list[str], list[list[str]]]:
    """Of a run of measure/fused.py, a row per size: what the product takes, and what follows it in its kernel or in one
    of its own."""
    sizes: dict[int, dict[str, float]] = {}
    for row in run["rows"]:
        sizes.setdefault(row["size"], {})[row["name"]] = row["ms"]["median"] * 1e3
    names = list(dict.fromkeys(row["name"] for row in run["rows"]))
    body = []
    for size, us in sizes.items():
        _, one, two = (us[name] for name in names)
        body.append([str(size), *(f"{us[name]:,.1f} µs" for name in names), f"{two - one:,.1f} µs", f"{two / one:.2f}"])
    return ["M = N = K", *names, "saved", "×"], body


@table("fused")
def fused_table(only: Only = ANY) -> str:
    """What fusion saves: the newest run of measure/fused.py."""
    run = newest("fused", only)
    if run is None:
        return NOTHING
    said = f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}"
    return markdown(*fused_cells(run)) + f"\n\n{said}, {run['date'][:10]}, [{run['file']}]."


def fp8_cells(run: Run, head_dim: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Of a run of measure/fp8.py, a row per size, or per size of one head dimension: TFLOP/s of the kernel in 16 bits,
    of that in fp8 with what quantizes and without it, their quotients, and what quantizing takes."""
    sizes: dict[tuple[int, int], dict[str, float]] = {}
    for row in run["rows"]:
        if head_dim in (None, row["head_dim"]):
            sizes.setdefault((row["head_dim"], row["size"]), {"flops": row["flops"]})[row["name"]] = row["ms"]["median"]
    names = list(dict.fromkeys(row["name"] for row in run["rows"]))
    body = []
    for (d, n), ms in sizes.items():
        before, both, alone, quantize, plain = map(ms.__getitem__, names)
        rates = [f"{ms['flops'] / each / 1e9:,.0f}" for each in (before, both, alone)]
        quotients = [f"{before / each:.2f}" for each in (both, alone)]
        body.append([f"{d}, {n}", *rates, *quotients, *(f"{each * 1e3:,.1f} µs" for each in (quantize, plain))])
    rates = [f"{name}, TFLOP/s" for name in (names[0], "quantizing and attention", "attention in fp8")]
    return ["D, N", *rates, f"both × {names[0]}", f"attention × {names[0]}", *names[3:]], body


@table("fp8")
def fp8_table(only: Only = ANY, HEAD_DIM: str = "") -> str:
    """Attention in fp8 with what quantizes, beside that in 16 bits: the newest run of measure/fp8.py."""
    run = newest("fp8", only)
    if run is None:
        return NOTHING
    said = f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}"
    return (
        markdown(*fp8_cells(run, int(HEAD_DIM) if HEAD_DIM else None))
        + f"\n\n{said}, {run['date'][:10]}, [{run['file']}]."
    )


def triton_cells(run: Run, problem: str) -> tuple[list[str], list[list[str]]]:
    """Of a run of measure/beside_triton.py, a row per size of a problem: what each kernel takes, beside torch's, and at
    which SM clock, if that was counted."""
    sizes: dict[int, dict[str, str]] = {}
    for row in run["rows"]:
        if row["problem"] == problem:
            clock = f", {row['clock']['ghz']:.2f} GHz" if row["clock"] else ""
            sizes.setdefault(row["size"], {})[row["name"]] = f"{row['ms']['median'] * 1e3:,.1f} µs{clock}"
    names = list(dict.fromkeys(name for said in sizes.values() for name in said))
    return [problem, *names], [[str(size), *(said[name] for name in names)] for size, said in sizes.items()]


@table("triton")
def triton_table(problem: str, only: Only = ANY) -> str:
    """Triton's kernels of examples/triton beside ours and torch's: "product" or "attention", of the newest run of
    measure/beside_triton.py."""
    run = newest("triton", only)
    if run is None:
        return NOTHING
    said = f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}"
    said += f", Triton {run['triton']}, {run['date'][:10]}, [{run['file']}]."
    return markdown(*triton_cells(run, problem)) + f"\n\n{said}"


def scores_cells(run: Run, dtype: str, head_dim: int) -> tuple[list[str], list[list[str]]]:
    """Of a run of measure/any_scores.py, a row per kind of scores: what ours makes without a mask and with a causal
    one, in TFLOP/s, and how many times as much as the better of the libraries; and over all kinds."""
    found: dict[str, dict[tuple[int, int], dict[str, Row]]] = {}
    for row in run["rows"]:
        if (row["dtype"], row["head_dim"]) == (dtype, head_dim):
            case = found.setdefault(row["scores"], {}).setdefault((row["causal"], row["size"]), {})
            case[row["name"]] = row
    cases = list(dict.fromkeys(case for kind in found.values() for case in kind))

    def ratio(rows: dict[str, Row]) -> float:
        (_, ours), *others = ((name, row["ms"]["median"]) for name, row in rows.items())
        return float(min(each for _, each in others) / ours)

    def said(rows: dict[str, Row]) -> str:
        return f"{next(iter(rows.values()))['tflops']:.0f} ({ratio(rows):.2f})"

    body = [[name, *(said(kind[case]) for case in cases)] for name, kind in found.items()]
    means = [statistics.geometric_mean([ratio(kind[case]) for kind in found.values()]) for case in cases]
    least = [min(ratio(kind[case]) for kind in found.values()) for case in cases]
    body.append(["geometric mean, least", *(f"{mean:.2f}, {low:.2f}" for mean, low in zip(means, least))])
    return ["scores", *(f"{'causal' if causal else 'no mask'}, N = {size}" for causal, size in cases)], body


@table("scores")
def scores_table(dtype: str, head_dim: str, only: Only = ANY) -> str:
    """`attention` on scores of many kinds: TFLOP/s and, in brackets, how many times as fast as the better of cuDNN and
    FA-CuTe, of the newest run of measure/any_scores.py."""
    run = newest("scores", only)
    if run is None:
        return NOTHING
    libraries = ", ".join(dict.fromkeys(row["name"] for row in run["rows"] if row["name"] != "kernels.attention"))
    said = f"{dtype}, D = {head_dim}, B · N = 16384, H · D = 2048; libraries: {libraries}. "
    said += f"Recorded: {run['gpu']}, driver {run['driver']}, CUDA {run['cuda']}, torch {run['torch']}"
    return markdown(*scores_cells(run, dtype, int(head_dim))) + f"\n\n{said}, {run['date'][:10]}, [{run['file']}]."
