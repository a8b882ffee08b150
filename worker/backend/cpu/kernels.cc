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

std::vector<const Kernels*> RunnableKernels() {
  std::vector<const Kernels*> tables;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_avx2 && __builtin_cpu_supports("avx512f")) tables.push_back(&avx512::kTable);
  if (has_avx2) tables.push_back(&avx2::kTable);
#endif
  tables.push_back(&baseline::kTable);
  return tables;
}

bool MultipliesWithAvx2([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__)
  return &kernels == &avx2::kTable && !__builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

bool MultipliesBf16([[maybe_unused]] const Kernels& kernels) {
#if defined(__x86_64__)
  return &kernels == &avx512::kTable && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

}  // namespace takt::backend
