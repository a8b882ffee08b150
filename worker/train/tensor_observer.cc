// SPDX-License-Identifier: Apache-2.0
#include "worker/train/tensor_observer.h"

#include <bit>
#include <cstddef>
#include <vector>

#include "common/base/status.h"

namespace takt::train {
namespace {

template <class T>
std::vector<T> Fetch(backend::Backend& backend, const T* data, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  TAKT_CHECK(backend
                 .CopyToHost(reinterpret_cast<const std::byte*>(data),
                             std::as_writable_bytes(std::span(values)))
                 .ok());
  TAKT_CHECK(backend.Synchronize().ok());
  return values;
}

std::vector<float> FetchFloats(backend::Backend& backend, const backend::Operand& data,
                               std::int64_t count) {
  if (data.bf16 == nullptr) return Fetch(backend, data.f32, count);
  std::vector<float> floats;
  for (const backend::Bf16 value : Fetch(backend, data.bf16, count)) {
    floats.push_back(std::bit_cast<float>(std::uint32_t{value.bits} << 16));
  }
  return floats;
}

}  // namespace

void TensorProbe::operator()(const std::string& name, const Matrix& matrix) const {
  const std::int64_t stride = matrix.stride == 0 ? matrix.columns : matrix.stride;
  const std::vector<float> rows = FetchFloats(*backend, matrix.data, matrix.rows * stride);
  std::vector<float> values;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const auto first = rows.begin() + row * stride;
    values.insert(values.end(), first, first + matrix.columns);
  }
  (*observer)(name, microbatch, values);
}

}  // namespace takt::train
