// SPDX-License-Identifier: Apache-2.0
// The memory of a GPU that other processes of the host copy from, by CUDA's interprocess handles.
#pragma once

#include <memory>

#include "worker/backend/cuda/arena.h"
#include "worker/backend/peer_memory.h"

namespace takt::backend::cuda {

// Shows the regions of `arena`, each of which the driver reserved as a whole (cudaMalloc). Memory
// of a pool has no such handles.  arena: of the device, borrowed for the object's life.
std::unique_ptr<PeerMemory> CreateCudaPeerMemory(int device, const Arena& arena);

}  // namespace takt::backend::cuda
