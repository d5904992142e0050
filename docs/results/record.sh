#!/usr/bin/env bash
# Makes the recorded runs that lie beside it, on one GPU with ncu: docs/results/record.sh [FOLDER [PART ...]]
#
# About seven minutes on an H200, most of it timing; parts: ceiling ladders profiles variants uses.
set -uo pipefail
folder=$(realpath "${1:-docs/results}")
cd "$(dirname "$0")/../.."
shift $(($# > 0))
parts=${*:-ceiling ladders profiles variants uses}
python=${PYTHON:-python3}

run() {  # run NAME COMMAND ...: saves NAME.json
  local name=$1 started=$SECONDS
  shift
  "$python" -m "$@" --json "$folder/$name.json" >"$folder/$name.txt" 2>&1
  echo "$name: exit status $?, $((SECONDS - started)) s"
}

gemm="01 02 03 04 05 06 07 08 09 10 11"
attention="12 13 14 15 16"

ceiling() {
  run ceiling common.measure.ceiling
}

ladders() {
  run ladder-gemm kernels bench $gemm --sizes 1024 2048 4096 8192
  run ladder-attention kernels bench $attention --variant HEAD_DIM=all --sizes 512 1024 4096 16384
}

profiles() {  # of the kernels and sizes of the ladders, for their bounds
  run profile-gemm kernels profile $gemm --sizes 256 4096 2048 8192
  run profile-attention-128 kernels profile $attention --variant HEAD_DIM=128 --sizes 1x2x256 4096 1024 16384
  run profile-attention-64 kernels profile $attention --variant HEAD_DIM=64 --sizes 1x2x256 4096 1024 16384
}

variants() {
  run variants-01 kernels.01_naive bench --variant all --sizes 4096
  run variants-04 kernels.04_wmma bench --variant all --sizes 4096 8192
  run variants-06 kernels.06_padding bench --variant all --sizes 4096
  run variants-08 kernels.08_multi_stage bench --variant all --sizes 4096 8192
  run variants-09 kernels.09_swizzle bench --variant all --sizes 4096 8192
  run variants-10 kernels.10_register_double_buffer bench --variant all --sizes 2048 4096 8192
  run variants-10-from-09 kernels.10_register_double_buffer bench --variant DOUBLE_BUFFER=all \
    --variant BLOCK_K=32 --variant SERPENTINE=0 --variant STAGES=4 --sizes 2048 4096 8192
  run variants-11 kernels.11_any_shape bench --variant all --sizes 2048 4096 8192
  run variants-13 kernels.13_split_q bench --variant all --variant HEAD_DIM=128 --sizes 1024 4096 16384
  run variants-14 kernels.14_shared_qkv bench --variant all --variant HEAD_DIM=128 --sizes 1024 4096 16384
  run variants-15 kernels.15_overlap bench --variant all --variant HEAD_DIM=128 --sizes 1024 4096 16384
  run variants-13-64 kernels.13_split_q bench --variant all --variant HEAD_DIM=64 --sizes 1024 4096 16384
  run variants-14-64 kernels.14_shared_qkv bench --variant all --variant HEAD_DIM=64 --sizes 1024 4096 16384
  run variants-15-64 kernels.15_overlap bench --variant all --variant HEAD_DIM=64 --sizes 1024 4096 16384
}

uses() {  # other types, other shapes, decoding
  run causal kernels.16_final bench --variant CAUSAL=1 --variant HEAD_DIM=all --sizes 512 1024 4096 16384
  run decode kernels.16_final bench --sizes 1x32x8x1x8192 1x32x8x1x65536 4x32x8x1x16384 4x32x8x1x65536 \
    16x32x8x1x8192 16x32x8x1x65536 1x32x8x4x65536 1x32x8x16x65536
  run ragged kernels.11_any_shape bench --sizes 2048 2040x2040x2040 2041x2043x2040 4096 4088x4088x4088 \
    4089x4091x4088 8192 8184x8184x8184 8185x8187x8184
  run ladder-gemm-bf16 kernels bench $gemm --dtype bf16 --sizes 2048 4096 8192
  run ladder-gemm-fp32 kernels bench 01 02 03 --dtype fp32 --sizes 2048 4096 8192
  run ladder-gemm-tf32 kernels.11_any_shape bench --dtype tf32 --sizes 2048 4096 8192
  run ladder-attention-bf16 kernels bench $attention --dtype bf16 --variant HEAD_DIM=all --sizes 1024 4096 16384
}

mkdir -p "$folder"
for part in $parts; do "$part"; done
