// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/isa_kernels.h"

namespace takt::backend::TAKT_ISA {

#define TAKT_STRING_INNER(x) #x
#define TAKT_STRING(x) TAKT_STRING_INNER(x)

extern const Kernels kTable;
const Kernels kTable = {
    .name = TAKT_STRING(TAKT_ISA),
#define TAKT_KERNEL(result, member, function, parameters) .member = function,
#include "worker/backend/cpu/kernel_list.inc"
};

}  // namespace takt::backend::TAKT_ISA
