// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/cpu/kernels.h"

namespace takt::backend {

namespace baseline {
extern const Kernels kTable;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kTable;
}
namespace avx512 {
extern const Kernels kTable;
}
#endif

KernelsList RunnableKernels() {
  KernelsList list = {{}, 0};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f")) list.tables[list.count++] = &avx512::kTable;
  if (has_avx2) list.tables[list.count++] = &avx2::kTable;
#endif
  list.tables[list.count++] = &baseline::kTable;
  return list;
}

const Kernels& BestKernels() {
  static const Kernels& best = *RunnableKernels().tables[0];
  return best;
}

}  // namespace takt::backend
