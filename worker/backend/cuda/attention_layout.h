// SPDX-License-Identifier: Apache-2.0
// How q, k and v (or their gradients) lie, and where copies of them in bf16 lie alike: so that they
// are converted as they come, without gaps. Needs no device.
#pragma once

#include <cstdint>
#include <optional>

#include "worker/backend/ops.h"

namespace takt::backend::cuda {

enum class QkvLayout {
  kApart,     // three dense matrices
  kTogether,  // rows of q, k and v side by side, and nothing else
};

inline std::int64_t QueryColumns(const AttentionShape& s) { return s.heads * s.head_size; }
inline std::int64_t KeyColumns(const AttentionShape& s) { return s.kv_heads * s.head_size; }
inline std::int64_t Rows(const AttentionShape& s) { return s.batch * s.context; }

// Of q, k and v, in whatever type.
template <class T>
struct Qkv {
  T* q = nullptr;
  T* k = nullptr;
  T* v = nullptr;
};

// Nothing: with gaps.
template <class T>
std::optional<QkvLayout> LayoutOf(const AttentionShape& s, const Qkv<T>& p) {
  const std::int64_t query = QueryColumns(s), key = KeyColumns(s), all = query + 2 * key;
  if (s.q_stride == query && s.kv_stride == key) return QkvLayout::kApart;
  if (s.q_stride == all && s.kv_stride == all && p.k == p.q + query && p.v == p.k + key)
    return QkvLayout::kTogether;
  return std::nullopt;
}

inline std::int64_t QkvCount(const AttentionShape& s) {
  return Rows(s) * (QueryColumns(s) + 2 * KeyColumns(s));
}

// QkvCount(s) elements from `base`, laid out so.
template <class T>
Qkv<T> Place(const AttentionShape& s, QkvLayout layout, T* base) {
  const std::int64_t rows = layout == QkvLayout::kTogether ? 1 : Rows(s);
  T* const k = base + rows * QueryColumns(s);
  return {.q = base, .k = k, .v = k + rows * KeyColumns(s)};
}

}  // namespace takt::backend::cuda
