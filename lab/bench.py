"""bench.py NAME=SOURCE:-Dflags ... : variants beside cuBLAS, bursts and sustained."""
import ctypes, subprocess, sys, time, json, concurrent.futures as cf, os
import torch
out = os.environ.get("OUT", "/tmp")
args = [a for a in sys.argv[1:] if "=" in a and not a.startswith("--")]
opts = dict(a[2:].split("=") for a in sys.argv[1:] if a.startswith("--"))
sizes = [tuple(int(v) for v in s.split("x")) for s in opts.get("sizes", "2048,4096,8192").split(",")]
sizes = [s * 3 if len(s) == 1 else s for s in sizes]
rounds = int(opts.get("rounds", 15)); sustained = float(opts.get("sustained", 0))
def build(a):
    name, rest = a.split("=", 1); src, _, flags = rest.partition(":")
    so = f"/tmp/{name}.so"
    r = subprocess.run(["nvcc", "-O3", "-std=c++17", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas=-v", *flags.split(), "-shared", "-Xcompiler", "-fPIC", "-o", so, src], capture_output=True, text=True)
    if r.returncode: print(name, r.stderr[-2000:]); return name, None, flags
    for l in r.stderr.splitlines():
        if "spill" in l and " 0 bytes spill stores" not in l or "C75" in l: print(name, l)
    return name, ctypes.CDLL(so), flags
with cf.ThreadPoolExecutor(12) as ex: libs = list(ex.map(build, args))
flush = torch.empty(64 * 1024 * 1024, dtype=torch.int32, device="cuda")
stream = torch.cuda.current_stream().cuda_stream
def P(t): return ctypes.c_void_p(t.data_ptr())
results = {}
for (M, N, K) in sizes:
    runs = {}
    for dt in (torch.float16, torch.bfloat16):
        tag = "fp16" if dt == torch.float16 else "bf16"
        A = torch.randn(M, K, device="cuda", dtype=dt); B = torch.randn(K, N, device="cuda", dtype=dt); BT = B.t().contiguous()
        ref = A @ B
        todo = [(n, l, f) for n, l, f in libs if l is not None and (("bfloat" in f) == (tag == "bf16"))]
        if not todo: continue
        runs[f"cublas {tag} NN"] = lambda A=A, B=B, o=torch.empty_like(ref): torch.matmul(A, B, out=o)
        if any("B_TRANSPOSED=1" in f for _, _, f in todo): runs[f"cublas {tag} TN"] = lambda A=A, B=BT, o=torch.empty_like(ref): torch.matmul(A, B.t(), out=o)
        for n, l, f in todo:
            C = torch.full_like(ref, float("nan")); b = BT if "B_TRANSPOSED=1" in f else B
            fn = lambda l=l, A=A, b=b, C=C: l.launch_gemm(P(A), P(b), P(C), M, N, K, ctypes.c_void_p(stream))
            st = fn(); torch.cuda.synchronize()
            err = (C.float() - ref.float()).abs().max().item(); lim = 0.02 * ref.float().abs().max().item()
            bad = st != 0 or not (err <= lim)
            print(f"{n} {M}x{N}x{K} status {st} max diff {err:.4g}" + ("  WRONG" if bad else ""))
            if not bad: runs[n] = fn
    times = {n: [] for n in runs}; ev = lambda: torch.cuda.Event(enable_timing=True)
    for r in range(rounds):
        for n, fn in runs.items():
            flush.sum(); time.sleep(0.002); a, b = ev(), ev(); 
            a.record(); fn(); b.record(); torch.cuda.synchronize(); times[n].append(a.elapsed_time(b))
    flop = 2 * M * N * K
    for n, t in times.items():
        t.sort(); med = t[len(t) // 2]; row = f"{M}x{N}x{K} {n:28s} burst {flop / med / 1e9:7.1f} (best {flop / t[0] / 1e9:6.1f})"
        results[f"{M}x{N}x{K} {n}"] = flop / med / 1e9
        lib = dict((x, l) for x, l, _ in libs).get(n)
        if lib is not None and hasattr(lib, "read_stamps"):
            try:
                s = (ctypes.c_ulonglong * 4)(); runs[n](); torch.cuda.synchronize(); lib.read_stamps(s)
                row += f"  clocks {s[3]-s[1]} ns {s[2]-s[0]} GHz {(s[3]-s[1])/max(1,s[2]-s[0]):.3f}"
            except AttributeError: pass
        if sustained:
            per = max(1, int(sustained / (med / 1e3) / 1)); a, b = ev(), ev(); fn = runs[n]
            for _ in range(per // 3): fn()
            a.record()
            for _ in range(per): fn()
            b.record(); torch.cuda.synchronize(); row += f"  sustained {flop * per / a.elapsed_time(b) / 1e9:7.1f}"
        print(row, flush=True)
json.dump(results, open(f"{out}/lab.json", "w"))
