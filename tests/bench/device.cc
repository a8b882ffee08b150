// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/device.h"

#include "common/base/status.h"
#include "tests/bench/reference_rates.h"
#include "worker/backend/cpu/cpu_backend.h"
#include "worker/plugin/loader.h"

namespace takt::bench {

absl::StatusOr<std::unique_ptr<backend::BackendFactory>> OpenDevice(const DeviceOptions& options) {
  if (options.device == "cpu")
    return backend::CreateCpuBackends({.threads = options.threads, .ledger = options.ledger});
  RETURN_IF_ERROR(plugin::FindDriver());
  ASSIGN_OR_RETURN(const plugin::CudaEntry* const cuda,
                   plugin::LoadCuda(plugin::ModuleDirectory()));
  // The backend chooses its kernels by timing them, as it does for jobs.
  return cuda->open_device({.predicted = options.predicted,
                            .ledger = options.ledger,
                            .any_order_attention = options.any_order_attention,
                            .tune = true});
}

double OpSeconds(backend::Backend& backend, const backend::Op& op, int runs) {
  const int calls = backend.memory_is_host() ? 1 : 10;
  const auto run = [&](int count) {
    for (int call = 0; call < count; ++call) TAKT_CHECK(backend.Run(op).ok());
    TAKT_CHECK(backend.Synchronize().ok());
  };
  if (!backend.memory_is_host()) run(1);
  return BestSeconds(runs, [&] { run(calls); }) / calls;
}

double CopyBytesPerSecond(backend::Backend& backend, int runs) {
  constexpr std::int64_t kCount = std::int64_t{1} << 28;  // 1 GiB, which no cache holds
  const backend::Buffer buffer =
      backend.Allocate(2 * kCount * sizeof(float), MemoryKind::kScratch).value();
  const backend::Copy copy{buffer.floats(), buffer.floats() + kCount, kCount};
  return 2.0 * sizeof(float) * kCount / OpSeconds(backend, copy, runs);
}

double MatmulFlopsPerSecond(backend::Backend& backend, bool bf16, int runs) {
  constexpr std::int64_t kSize = 8192;
  const backend::Buffer buffer =
      backend.Allocate(3 * kSize * kSize * sizeof(float), MemoryKind::kScratch).value();
  float* const a = buffer.floats();
  float* const b = a + kSize * kSize;
  float* const c = b + kSize * kSize;
  const double flops = 2.0 * kSize * kSize * kSize;
  if (bf16) {
    const auto* a16 = reinterpret_cast<const backend::Bf16*>(a);
    const auto* b16 = reinterpret_cast<const backend::Bf16*>(b);
    const backend::MatmulBf16 op{.a = a16, .b = b16, .c = c, .m = kSize, .n = kSize, .k = kSize};
    return flops / OpSeconds(backend, op, runs);
  }
  const backend::Matmul op{.a = a, .b = b, .c = c, .m = kSize, .n = kSize, .k = kSize};
  return flops / OpSeconds(backend, op, runs);
}

}  // namespace takt::bench
