// Special registers that are constants of a frame: written when a block gets its storage, and those that say which block
// it is, whenever it begins another one. Clocks are instructions: warp.cpp.
#include "block.h"

namespace vm {

struct Special {
  const char *name;
  bool per_block;
  u64 (*value)(const Block &, u32 thread);
};

#define ONE(name, per_block, expression) \
  {name, per_block, []([[maybe_unused]] const Block &b, [[maybe_unused]] u32 thread) -> u64 { return expression; }}
#define AXES(name, per_block, array) \
  ONE(name ".x", per_block, array[0]), ONE(name ".y", per_block, array[1]), ONE(name ".z", per_block, array[2])

static u64 workspace(const Launch &l) { return l.cooperative ? reinterpret_cast<u64>(l.workspace) : 0; }

static const Special SPECIALS[] = {
    ONE("%tid.x", false, thread % b.launch.block[0]),
    ONE("%tid.y", false, thread / b.launch.block[0] % b.launch.block[1]),
    ONE("%tid.z", false, thread / b.launch.block[0] / b.launch.block[1]),
    AXES("%ntid", false, b.launch.block),
    AXES("%ctaid", true, b.ctaid),
    AXES("%nctaid", false, b.launch.grid),
    ONE("%laneid", false, thread % LANES),
    ONE("%warpid", false, thread / LANES),
    ONE("%nwarpid", false, b.launch.warps),
    ONE("%lanemask_eq", false, 1u << thread % LANES),
    ONE("%lanemask_le", false, ALL >> (LANES - 1 - thread % LANES)),
    ONE("%lanemask_lt", false, (1u << thread % LANES) - 1),
    ONE("%lanemask_ge", false, ~((1u << thread % LANES) - 1)),
    ONE("%lanemask_gt", false, ~(ALL >> (LANES - 1 - thread % LANES))),
    ONE("%dynamic_smem_size", false, b.launch.dynamic_shared),
    ONE("%total_smem_size", false, b.launch.shared_bytes),
    ONE("%smid", true, b.index % b.launch.multiprocessors),  // a place, not a promise
    ONE("%nsmid", false, b.launch.multiprocessors),
    ONE("%gridid", false, 0),
    ONE("%envreg1", false, workspace(b.launch) >> 32),  // where cooperative groups look for the address of theirs
    ONE("%envreg2", false, u32(workspace(b.launch))),
    AXES("%clusterid", true, b.cluster.id),
    AXES("%nclusterid", false, b.launch.clusters),
    AXES("%cluster_ctaid", false, b.place),
    AXES("%cluster_nctaid", false, b.launch.cluster),
    ONE("%cluster_ctarank", false, b.rank),
    ONE("%cluster_nctarank", false, b.launch.cluster_blocks),
    ONE("%is_explicit_cluster", false, b.launch.explicit_cluster),
};

const std::string &special_names() {
  static const std::string names = [] {
    std::string all;
    for (const Special &special : SPECIALS) all += std::string(special.name) + "\n";
    return all;
  }();
  return names;
}

// `anew`: only what differs from block to block.
void Block::write_constants(Warp &w, bool anew) const {
  for (const Constant &c : program.constants) {
    const Special *special = c.special ? &SPECIALS[c.special - 1] : nullptr;
    if (anew && !(special && special->per_block)) continue;
    const auto value = [&](u32 lane) { return special ? special->value(*this, w.index * LANES + lane) : c.value; };
    if (c.width == 0) {
      w.pred(c.offset) = value(0) ? ALL : 0;
      continue;
    }
    for (u32 lane = 0; lane < LANES; ++lane) {
      const u64 bits = value(lane);
      memcpy(w.frame + c.offset + lane * c.width, &bits, c.width);
    }
  }
}

}  // namespace vm
