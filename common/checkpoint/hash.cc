// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/hash.h"

#ifdef TAKT_XXHASH_DISPATCH
// Uses the widest vectors of this processor, which give four times the rate of the plain functions,
// since those are built for any x86-64. The header makes XXH3_128bits_update mean the fast one.
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

#include "absl/strings/str_format.h"
#include "common/base/status.h"

namespace takt::checkpoint {

void Hasher::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Hasher::Hasher() : state_(XXH3_createState()) {
  TAKT_CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
}

void Hasher::Add(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  TAKT_CHECK(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

std::string Hasher::Digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

std::string HashOf(std::span<const std::byte> bytes) {
  Hasher hasher;
  hasher.Add(bytes);
  return hasher.Digest();
}

}  // namespace takt::checkpoint
