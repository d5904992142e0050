#!/usr/bin/env bash
# Makes the recorded runs that lie beside it, on one GPU with ncu: docs/results/record.sh [FOLDER [NAME ...]]
#
# NAME: a group (ceilings ladders profiles variants together uses timelines) or one file (ladder-gemm); default: all,
# about a quarter of an hour on an H200.
set -uo pipefail
folder=$(realpath "${1:-docs/results}")
cd "$(dirname "$0")/../.."
shift $(($# > 0))
wanted=" $* "
python=${PYTHON:-python3}

run() {  # run NAME COMMAND ...: saves NAME.json
  local name=$1 started=$SECONDS
  shift
  [[ $wanted == "  " || $wanted == *" $group "* || $wanted == *" $name "* ]] || return 0
  "$python" -m "$@" --json "$folder/$name.json" >"$folder/$name.txt" 2>&1
  echo "$name: exit status $?, $((SECONDS - started)) s"
}

gemm="01 02 03 04 05 06 07 08 09 10 11"
attention="12 13 14 15 16"
hopper="h1 h2 h3 h4 h5"
hopper_attention="h6 h7 h8"
matmul=kernels.library.hopper_matmul
mkdir -p "$folder"

group=ceilings
run ceiling common.measure.ceiling
run first-kernels common.measure.first_kernels

group=ladders
run ladder-gemm kernels bench $gemm --sizes 1024 2048 4096 8192
run ladder-hopper kernels bench $hopper hopper_matmul --sizes 1024 2048 4096 8192
run ladder-attention kernels bench $attention --variant HEAD_DIM=all --sizes 512 1024 4096 16384
run ladder-hopper-attention kernels bench $hopper_attention --variant HEAD_DIM=all --sizes 512 1024 2048 4096 8192 16384

run sustained-hopper $matmul bench --sizes 2048 4096 8192 --repeat 2 --sustained 1
run sustained-h7 kernels.h7_flash_attention_3 bench --variant HEAD_DIM=all --variant CAUSAL=all --sizes 1024 4096 16384 --sustained 1

group=profiles  # of the kernels and sizes of the ladders, for their bounds; and of sizes that the emulator counts, too
run profile-gemm kernels profile $gemm --sizes 256 4096 2048 8192
run profile-hopper kernels profile $hopper hopper_matmul --sizes 4096 2048 8192
run profile-attention-128 kernels profile $attention --variant HEAD_DIM=128 --sizes 4096 1024 16384
run profile-attention-64 kernels profile $attention --variant HEAD_DIM=64 --sizes 4096 1024 16384
run counts-attention-128 kernels profile $attention --variant HEAD_DIM=128 --sizes 1x2x256
run counts-attention-64 kernels profile $attention --variant HEAD_DIM=64 --sizes 1x2x256

run counts-hopper kernels profile $hopper hopper_matmul --sizes 256
for d in 128 64; do
  run counts-hopper-attention-$d kernels profile $hopper_attention --variant HEAD_DIM=$d --sizes 1x2x256
  run profile-hopper-attention-$d kernels profile $hopper_attention --variant HEAD_DIM=$d --sizes 4096 1024 16384
done

group=variants
run variants-01 kernels.01_naive bench --variant all --sizes 4096
run variants-04 kernels.04_wmma bench --variant BLOCK_N=all --variant BLOCK_K=all --sizes 4096 8192
run variants-06 kernels.06_padding bench --variant all --sizes 4096
run variants-08 kernels.08_multi_stage bench --variant all --sizes 4096 8192
run variants-09 kernels.09_swizzle bench --variant all --sizes 4096 8192
run variants-10 kernels.10_register_double_buffer bench --variant all --sizes 2048 4096 8192
run variants-11 kernels.11_any_shape bench --variant all --sizes 2048 4096 8192 --repeat 2
run slices-11 kernels.11_any_shape bench --variant SLICE_BYTES=all --variant STAGES=all --sizes 2048 4096 8192 --repeat 2
run tiles-11 kernels.11_any_shape bench --variant TILE_N=all --sizes 512 1024 --repeat 2
run slices-10 kernels.10_register_double_buffer bench --variant STAGES=3 --sizes 2048 4096 8192 --trial slices --repeat 3
run one-way-11 kernels.11_any_shape bench --sizes 2048 4096 8192 --trial one-way --repeat 3
run left-to-right-11 kernels.11_any_shape bench --sizes 2048 4096 8192 --trial left-to-right --repeat 3
run cvt-rna-11 kernels.11_any_shape bench --dtype tf32 --sizes 2048 4096 8192 --trial cvt-rna --repeat 2
for d in 128 64; do
  run variants-14-$d kernels.14_shared_qkv bench --variant all --variant HEAD_DIM=$d --sizes 4096 --repeat 2
  run variants-15-$d kernels.15_wide_warps bench --variant all --variant HEAD_DIM=$d --sizes 1024 4096 16384 --repeat 2
  run variants-16-$d kernels.16_final bench --variant all --variant HEAD_DIM=$d --variant CAUSAL=0 --sizes 1024 4096 16384 --repeat 2
  run variants-h7-$d kernels.h7_flash_attention_3 bench --variant all --variant HEAD_DIM=$d --sizes 1024 4096 16384 --repeat 2
done
for d in 128 64; do
  run variants-h8-$d kernels.h8_fp8 bench --variant KEYS=all --variant HEAD_DIM=$d --sizes 1024 4096 16384 --repeat 2
  for trial in maxima-first scales-late sums-by-fma; do
    run $trial-h8-$d kernels.h8_fp8 bench --variant HEAD_DIM=$d --sizes 1024 4096 16384 --trial $trial --repeat 2
  done
done
run variants-h1 kernels.h1_wgmma bench --variant all --sizes 4096 8192 --repeat 2
run variants-h2 kernels.h2_tma bench --variant all --sizes 4096 8192 --repeat 2
run variants-h3 kernels.h3_warp_specialized bench --variant all --sizes 2048 4096 8192 --repeat 2
run variants-h4 kernels.h4_ping_pong bench --variant all --sizes 1024 2048 4096 8192 --repeat 2
run tiles-h5 kernels.h5_final bench --variant BLOCK_N=all --variant BY_ROWS=all --sizes 1024 2048 4096 8192 --repeat 2
run variants-h5 $matmul bench --variant GROUP_M=all --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 1536 2560 4096 8192 --repeat 2
for rows in 4 16; do
  run profile-order-$rows-h5 $matmul profile --variant GROUP_M=$rows --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
    --sizes 1536 2560
done
run parts-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 384x384x16384 512x512x16384 512x1024x16384 --trial parts --repeat 2
run multicast-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 2048 4096 8192 --trial multicast --repeat 2
run profile-multicast-h5 $matmul profile --variant B_TRANSPOSED=0 --variant FP32_OUT=0 --sizes 4096 2048 8192 \
  --trial multicast
run apart-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 3000 8200 4096x5000x4096 4096x4096x1000 --trial apart --repeat 2
run profile-apart-h5 $matmul profile --variant B_TRANSPOSED=0 --variant FP32_OUT=0 --sizes 3000 8200 \
  --trial apart
run profile-shared-h5 $matmul profile --variant B_TRANSPOSED=0 --variant FP32_OUT=0 --sizes 3000 8200
run lane-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 1024x1024x4096 1024x1024x8192 2048 --trial lane --repeat 2
run steps-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 1024 1024x1024x8192 2048 --trial steps --repeat 2
run turns-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 1024 1024x1024x8192 2048 --trial turns --repeat 2
run rows-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 1152 1536x1024x1024 1152x1152x4096 192x8192x2048 --trial rows --repeat 2
run squares-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 2056 3000 4104 2056x4104x4096 2304x6144x2304 --trial squares --repeat 2
run early-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 \
  --sizes 16x4096x4096 64x4096x4096 16x8192x8192 2048 2056 4096 --trial early --repeat 2 --sustained 1
run widths-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 --sizes 1216 1536 1600 1792 2560 \
  --trial widths --repeat 2
run without-setmaxnreg-h3 kernels.h3_warp_specialized bench --sizes 2048 4096 8192 --trial without-setmaxnreg --repeat 2
run one-group-on-h3 kernels.h3_warp_specialized bench --sizes 2048 4096 8192 --trial one-group-on --repeat 2
run release-cluster-h3 kernels.h3_warp_specialized bench --sizes 2048 4096 8192 --trial release-cluster --repeat 2
run one-barrier-02 kernels.02_block_tile bench --sizes 2048 4096 --trial one-barrier
run neighbours-03 kernels.03_thread_tile bench --sizes 2048 4096 --trial neighbours
for stage in 07_cp_async 08_multi_stage 09_swizzle; do
  run through-l1-$stage kernels.$stage bench --sizes 2048 4096 8192 --trial through-l1
done
run wait-for-all-08 kernels.08_multi_stage bench --sizes 4096 8192 --trial wait-for-all

group=together  # what is compared with each other: precisions, and layouts of B
run together-05 kernels.05_mma_ptx bench --dtype fp16,bf16 --together --sizes 4096
run together-11 kernels.11_any_shape bench --dtype fp16,bf16 --variant B_TRANSPOSED=all --together \
  --sizes 2048 4096 8192
run together-16 kernels.16_final bench --dtype fp16,bf16 --together --sizes 1024 4096 16384 --repeat 2
run together-h5 $matmul bench --dtype fp16,bf16 --variant B_TRANSPOSED=all --variant FP32_OUT=0 --together \
  --sizes 2048 4096 8192

group=uses  # other masks, shapes and types
run decode kernels.16_final bench --sizes 1x32x8x1x8192 1x32x8x1x65536 4x32x8x1x16384 4x32x8x1x65536 \
  16x32x8x1x8192 16x32x8x1x65536 1x32x8x16x65536 --repeat 2
run uses-h5 $matmul bench --variant B_TRANSPOSED=0 --variant FP32_OUT=0 --sizes 512x512x16384 384x384x16384 \
  512x1024x16384 512x512x8192 64x4096x4096 16x8192x8192 16x4096x4096 64x8192x8192 64x16384x4096 16x16384x16384 \
  1024x1024x8192 1024x1024x16384 768x768x16384 1152 1184 1216 1280 1536 1600 1792 2560 3000 3072 16384 --repeat 2
run fused common.measure.fused
run fp8 common.measure.fp8
run triton common.measure.beside_triton  # where Triton is installed
run scores common.measure.any_scores
run causal-h7 kernels.h7_flash_attention_3 bench --variant CAUSAL=1 --variant HEAD_DIM=all --sizes 1024 4096 16384 --repeat 2
run causal kernels.16_final bench --variant CAUSAL=1 --variant HEAD_DIM=all --sizes 1024 4096 16384 --repeat 2
run ragged kernels.11_any_shape bench --sizes 2048 2040 2032 1984 2047x2047x2040 4096 4088 4080 4032 4095x4095x4088 \
  8192 8184 8176 8128 8191x8191x8184 --repeat 2
run profile-ragged kernels.11_any_shape profile --sizes 2048 2040 2032 1984 2047x2047x2040 4096 4088 4080 4032 \
  4095x4095x4088
run ladder-gemm-tf32 kernels.11_any_shape bench --dtype tf32 --sizes 2048 4096 8192 --repeat 2
run ladder-gemm-fp32 kernels bench 01 02 03 --dtype fp32 --sizes 4096 --repeat 2
run ladder-attention-bf16 kernels bench $attention --dtype bf16 --variant HEAD_DIM=all --sizes 4096 --repeat 2
run ladder-gemm-bf16 kernels bench $gemm --dtype bf16 --sizes 4096 --repeat 2

group=timelines  # of a block, by stamps in the kernel
for stage in h3_warp_specialized h4_ping_pong h7_flash_attention_3; do
  run timeline-${stage%%_*} kernels.$stage timeline
done
