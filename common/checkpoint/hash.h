// SPDX-License-Identifier: Apache-2.0
// Computes XXH3-128, which verifies checkpoints, as the 32 hexadecimal digits that `xxhsum -H2`
// prints.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

struct XXH3_state_s;

namespace takt::checkpoint {

// Hashes bytes that come in pieces.
class Hasher {
 public:
  Hasher();
  Hasher(Hasher&&) = default;
  Hasher& operator=(Hasher&&) = default;
  ~Hasher() = default;

  void Add(std::span<const std::byte> bytes);
  // Returns the hash of everything added so far.
  std::string Digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

std::string HashOf(std::span<const std::byte> bytes);

}  // namespace takt::checkpoint
