"""The headers that the programs of NVIDIA's cuda-samples include: written anew, last on the path."""

from __future__ import annotations

import pytest

import cudaemu
from tests.cudaemu.sources import source

pytestmark = pytest.mark.full  # each is a compile

USES = r"""
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <helper_cuda.h>
#include <helper_functions.h>
#include <helper_math.h>
#include <multithreading.h>

__global__ void lengths(const float3 *in, float *out) { out[threadIdx.x] = length(in[threadIdx.x] * 2.0f); }

void *more(void *count) { return ++*static_cast<int *>(count), nullptr; }

int main(int argc, char **argv) {
  const char **const words = const_cast<const char **>(argv);
  const int device = findCudaDevice(argc, words);
  char *text = nullptr;
  float real = 0;
  printf("device %d, n %d, x %g, verbose %d, quiet %d\n", device, getCmdLineArgumentInt(argc, words, "n"),
         getCmdLineArgumentFloat(argc, words, "x"), checkCmdLineFlag(argc, words, "verbose"),
         checkCmdLineFlag(argc, words, "quiet"));
  printf("%d", getCmdLineArgumentString(argc, words, "name", &text));
  printf(" %s\n", text);
  printf("%d", getCmdLineArgumentValue(argc, words, "x", &real));
  printf(" %g %d\n", real, getCmdLineArgumentInt(argc, words, "k"));

  StopWatchInterface *timer = nullptr;
  sdkCreateTimer(&timer), sdkStartTimer(&timer), sdkStopTimer(&timer), sdkStartTimer(&timer), sdkStopTimer(&timer);
  const float mean = sdkGetAverageTimerValue(&timer), all = sdkGetTimerValue(&timer);
  printf("timer %d", mean >= 0 && fabsf(all - 2 * mean) <= 1e-6f + all / 100);
  sdkResetTimer(&timer);
  printf(" %g", sdkGetTimerValue(&timer));
  printf(" %d", sdkDeleteTimer(&timer));
  printf(" %d\n", timer == nullptr);

  float3 host[4], *in;
  float *out, got[4];
  for (int i = 0; i < 4; ++i) host[i] = make_float3(float(i), 0.0f, 0.0f) + make_float3(make_float2(0.0f, 3.0f), 4.0f);
  checkCudaErrors(cudaMalloc(&in, sizeof host));
  checkCudaErrors(cudaMalloc(&out, sizeof got));
  checkCudaErrors(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
  lengths<<<1, 4>>>(in, out);
  getLastCudaError("lengths");
  checkCudaErrors(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
  printf("%g %g\n", got[0], dot(host[3], cross(make_float3(1, 0, 0), make_float3(0, 1, 0))));
  const int3 clamped = clamp(make_int3(-5, 5, 50), 0, 9);
  const float2 mixed = lerp(make_float2(0.0f), make_float2(make_int2(4, 8)), 0.25f);
  uint4 sum = make_uint4(1u) + 2u;
  sum *= make_uint4(3u);
  printf("%d %d %d, %g %g, %u, %g\n", clamped.x, clamped.y, clamped.z, mixed.x, mixed.y, sum.w,
         (-fabs(make_float4(-2.0f)) / 4.0f).z);
  printf("%g %g %d\n", smoothstep(0.0f, 1.0f, 0.5f), normalize(make_float2(3.0f, 4.0f)).y,
         max(make_int2(1), make_int2(2)).y);

  unsigned char pixels[6] = {0, 51, 102, 153, 204, 255}, *bytes = nullptr;
  float *values = nullptr, *numbers = nullptr;
  unsigned width = 0, height = 0, count = 0;
  printf("%d", sdkSavePGM("image.pgm", pixels, 3, 2));
  printf("%d", sdkLoadPGM("image.pgm", &values, &width, &height));
  printf("%d: ", sdkLoadPGM("image.pgm", &bytes, &width, &height));
  printf("%ux%u %g %d\n", width, height, values[5], bytes[2]);
  unsigned char coloured[8] = {1, 2, 3, 9, 4, 5, 6, 9}, *four = nullptr;
  printf("%d", sdkSavePPM4ub("image.ppm", coloured, 2, 1));
  printf("%d: ", sdkLoadPPM4(sdkFindFilePath("image.ppm", argv[0]), &four, &width, &height));
  printf("%u %d %d %d\n", width, four[3], four[4], four[6]);
  unsigned char three[6], *into = three;
  printf("%d", __loadPPM("image.ppm", &into, &width, &height, &count));
  printf(" %u %d %d\n", count, three[3], three[5]);
  coloured[0] = 8;
  sdkSavePPM4ub("other.ppm", coloured, 2, 1);
  printf("%d%d%d\n", sdkComparePPM("image.ppm", "other.ppm", 7, 0.1f, false),
         sdkComparePPM("image.ppm", "other.ppm", 6, 0.1f, false),
         sdkComparePGM("image.ppm", "image.pgm", 6, 0.1f, false));
  printf("%d", sdkWriteFile("numbers.txt", got, 4, 0.0f, false));
  sdkDumpBin(got, sizeof got, "numbers.bin");
  printf("%d", sdkReadFile("plain.txt", &numbers, &count, false));
  printf("%d", sdkCompareBin2BinFloat("numbers.bin", "numbers.bin", 4, 0, 0, argv[0]));
  printf("%d: %u %g\n", sdkCompareL2fe(got, got, 4, 1e-6f), count, numbers[2]);

  int threads = 0;
  const CUTThread thread = cutStartThread(more, &threads);
  cutWaitForThreads(&thread, 1);
  printf("threads %d, cores %d %d\n", threads, _ConvertSMVer2Cores(8, 0), _ConvertSMVer2Cores(9, 0));
  try {
    RUNTIME_EXCEPTION("broken");
  } catch (const std::runtime_error &error) {
    puts(strstr(error.what(), "broken"));
  }
  checkCudaErrors(cudaProfilerStop());
  fflush(stdout);
  checkCudaErrors(cudaMalloc(&in, size_t(1) << 62));
  puts("not reached");
}
"""
PRINTED = """device 0, n 5, x 1.5, verbose 1, quiet 0
1 abc
1 1.5 0
timer 1 0 1 1
10 4
0 5 9, 1 2, 9, -0.5
0.5 0.8 2
111: 3x2 1 102
11: 2 0 4 6
1 3 4 6
1 of 6 values differ by more than 6
100
1111: 3 2.5
threads 1, cores 64 128
broken
"""


def test_what_programs_use_of_them(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain.txt").write_text("1 2\n2.5")
    path = source(USES, "uses_helpers")
    report = cudaemu.program(path, ["-n=5", "--x=1.5", "verbose", "-name=abc"], own_terminal=True)
    said = capfd.readouterr()
    assert not report.findings and report.status == 1
    assert said.out.partition("\n\n")[2] == PRINTED and 'GPU Device 0: "Ampere" with' in said.out
    assert "code=2(cudaErrorMemoryAllocation)" in said.err and f"{path}:" in said.err


def test_headers_of_the_users_own_win(tmp_path, capfd):
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc" / "helper_cuda.h").write_text("#define WHOSE 1\n")
    (tmp_path / "helper_timer.h").write_text("#define TIMER 2\n")
    text = '#include <cstdio>\n#include <helper_cuda.h>\n#include "helper_timer.h"\n'
    (tmp_path / "main.cu").write_text(text + 'int main() { printf("%d%d\\n", WHOSE, TIMER); }\n')
    assert cudaemu.program(tmp_path / "main.cu", include=[tmp_path / "inc"], own_terminal=True).ok
    assert capfd.readouterr().out == "12\n"


def test_by_the_drivers_functions(capfd):
    text = r"""
#include <cuda.h>
#include <helper_cuda_drvapi.h>
#include <drvapi_error_string.h>
int main(int argc, char **argv) {
  const CUdevice device = findCudaDeviceDRV(argc, const_cast<const char **>(argv));
  int warp = 0;
  getCudaAttribute(&warp, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device);
  printf("%d %d %d %d\n", warp, checkCudaCapabilitiesDRV(7, 5, device), checkCudaCapabilitiesDRV(9, 0, device),
         getCudaDrvErrorString(CUDA_ERROR_INVALID_VALUE)[0] != 0);
}
"""
    assert cudaemu.program(source(text, "uses_driver_helpers"), own_terminal=True).ok
    assert capfd.readouterr().out.splitlines()[-1] == "32 1 0 1"
