#include "../../emulator_torch.h"
