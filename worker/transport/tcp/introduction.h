// SPDX-License-Identifier: Apache-2.0
// The messages that two ranks exchange on a new TCP connection before they use it:
//
//   listener -> dialer   Challenge   40 bytes: magic, the listener's nonce
//   dialer -> listener   Answer      80 bytes: magic, the dialer's rank, its nonce, its proof
//   listener -> dialer   Welcome     32 bytes: the listener's proof
//
// A proof is an HMAC over side, both ranks and both nonces under the generation's secret. Both ends
// make fresh nonces, so a proof that was heard elsewhere or earlier cannot be replayed. A proof
// includes the side, so it cannot be sent back to its maker. The listener proves itself only to a
// dialer that has proved itself.
//
// Where each channel has a connection of its own (tcp.h), these follow:
//
//   dialer -> listener   Opening     24 bytes: magic, channel, the dialer's largest message
//   listener -> dialer   Opening     24 bytes: the same of the listener, once it opens the channel
#pragma once

#include <cstdint>

#include "worker/transport/handshake.h"
#include "worker/transport/transport.h"

namespace takt::transport {

inline constexpr std::uint64_t kIntroductionMagic = 0x5441'4b54'4441'5431;  // "TAKTDAT1"
inline constexpr std::uint64_t kOpeningMagic = 0x5441'4b54'4f50'4e31;       // "TAKTOPN1"

// These structs are little endian and are sent as they lie in memory.
struct Challenge {
  std::uint64_t magic = kIntroductionMagic;
  Nonce nonce;
};
struct Answer {
  std::uint64_t magic = kIntroductionMagic;
  std::int64_t rank = 0;
  Nonce nonce;
  Proof proof;
};
struct Welcome {
  Proof proof;
};
struct Opening {
  std::uint64_t magic = kOpeningMagic;
  std::uint64_t channel = 0;    // a hash of ChannelKey (handshake.h)
  std::uint64_t max_bytes = 0;  // the largest message for which this end was opened
};
static_assert(sizeof(Challenge) == 40 && sizeof(Answer) == 80 && sizeof(Welcome) == 32);
static_assert(sizeof(Opening) == 24);

// options: the dialer's, here and in IsFrom; the listener's in the other two.
Answer AnswerTo(const Challenge& challenge, const TransportOptions& options, Rank listener);
// Returns whether `answer` proves that a rank of this generation, other than this one, dialed.
bool IsProven(const Answer& answer, const Challenge& challenge, const TransportOptions& options);
Welcome WelcomeFor(const Answer& answer, const Challenge& challenge,
                   const TransportOptions& options);
// Returns whether `welcome` proves that `listener` of this generation took the answer.
bool IsFrom(Rank listener, const Welcome& welcome, const Answer& answer, const Challenge& challenge,
            const TransportOptions& options);

}  // namespace takt::transport
