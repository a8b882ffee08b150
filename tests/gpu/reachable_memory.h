// SPDX-License-Identifier: Apache-2.0
// `new` from memory that the device reaches: so that tests which hold tensors in vectors, as those
// of the CPU's ops do, run on a GPU as they are. Replaces the operators of the whole program.
#pragma once

#include <cstddef>
#include <span>

namespace takt::gpu {

// From here on `new` takes from `memory`, which is aligned to a cache line and never given back;
// what it cannot give comes from malloc.
void AllocateFrom(std::span<std::byte> memory);

}  // namespace takt::gpu
