#include "block.h"
namespace vm {
void register_tensor(Registry &) {}
}
