// SPDX-License-Identifier: Apache-2.0
#include "worker/session/fp8_metrics.h"

#include <cstddef>
#include <vector>

#include "common/metrics/catalog.h"

namespace takt::session {
namespace {

const char* Name(backend::Fp8Operand operand) {
  switch (operand) {
    case backend::Fp8Operand::kActivation:
      return "activation";
    case backend::Fp8Operand::kWeight:
      return "weight";
    case backend::Fp8Operand::kGradient:
      return "gradient";
  }
  return "";
}

}  // namespace

Fp8Metrics::Fp8Metrics(metrics::Registry& registry, const std::string& job,
                       const mesh::Coordinates& at, backend::Fp8Counters& counters)
    : counters_(counters) {
  const std::string pp_rank = std::to_string(at.pp.value());
  for (std::size_t i = 0; i < series_.size(); ++i) {
    const backend::Fp8Operand operand = backend::kFp8Operands[i];
    const std::vector<std::string> labels = {job, pp_rank, Name(operand)};
    series_[i] = {.overflows = &registry.Counter(metrics::kFp8Overflows, labels),
                  .underflows = &registry.Counter(metrics::kFp8Underflows, labels)};
    counters_.Take(operand);
  }
}

void Fp8Metrics::Record() {
  for (std::size_t i = 0; i < series_.size(); ++i) {
    const backend::Fp8Counts counts = counters_.Take(backend::kFp8Operands[i]);
    series_[i].overflows->Increment(static_cast<double>(counts.overflows));
    series_[i].underflows->Increment(static_cast<double>(counts.underflows));
  }
}

}  // namespace takt::session
