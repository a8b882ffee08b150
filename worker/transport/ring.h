// SPDX-License-Identifier: Apache-2.0
// One direction of messages through memory that both ends see: a byte ring with one writer and one
// reader. In shared memory it joins processes (shm/); on the heap it joins threads, in tests.
//
//   [RingHeader][bytes: capacity]     a message is a MessageHeader and its bytes, padded to kAlign
//
// Large messages pass in pieces: the reader copies one out while the writer copies the next one in.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/transport/abort_signal.h"
#include "worker/transport/handshake.h"
#include "worker/transport/transport.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

inline constexpr std::size_t kCacheLine = 64;

// An all-zero header is a valid empty ring. head and tail count bytes since the start and never
// wrap.
struct RingHeader {
  // Written once before the other end looks.
  std::uint64_t magic;
  Nonce token;  // which ring this is, as announced
  std::uint64_t capacity_bytes;
  std::uint64_t max_message_bytes;
  Proof receiver_proof, sender_proof;                    // each written before its `phase`
  alignas(kCacheLine) std::atomic<std::uint32_t> phase;  // RingPhase
  WakeWord phase_moved;
  // Written by the sender.
  alignas(kCacheLine) std::atomic<std::uint64_t> head;
  std::atomic<std::uint32_t> sender_left;
  alignas(kCacheLine) WakeWord head_moved;  // the receiver sleeps here
  // Written by the receiver.
  alignas(kCacheLine) std::atomic<std::uint64_t> tail;
  std::atomic<std::uint32_t> receiver_left;
  alignas(kCacheLine) WakeWord tail_moved;  // the sender sleeps here
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

enum RingPhase : std::uint32_t { kRingOffered = 0, kRingAttached = 1, kRingAccepted = 2 };

// Returns the bytes to allocate for a ring that carries messages of up to max_message_bytes, header
// included.
std::size_t RingBytes(std::size_t max_message_bytes);

struct RingOptions {
  // Owns the memory, which starts with the RingHeader.
  std::shared_ptr<std::byte> memory;
  std::size_t max_message_bytes = 0;
  std::string channel;  // for messages: "F to rank 1"
  absl::Duration operation_timeout;
  std::shared_ptr<AbortSignal> abort;
};

// Returns the capacity that RingBytes provides for.
std::size_t RingCapacity(std::size_t max_message_bytes);

std::unique_ptr<SendChannel> MakeRingSender(RingOptions options);
std::unique_ptr<RecvChannel> MakeRingReceiver(RingOptions options);

}  // namespace takt::transport
