// SPDX-License-Identifier: Apache-2.0
// What two ranks say on a new TCP connection before either uses it for anything else:
//
//   listener -> dialer   Challenge   magic, the listener's nonce                             40
//   bytes dialer -> listener   Answer      magic, the dialer's rank, its nonce, its proof 80 bytes
//   listener -> dialer   Welcome     the listener's proof                                    32
//   bytes
//
// A proof is an HMAC over side, both ranks and both nonces under the generation's secret. Fresh
// nonces of both ends: nothing that was heard elsewhere or earlier can be played again. The side:
// nothing can be sent back to who said it. The listener proves itself only to who has done so.
#pragma once

#include <cstdint>

#include "worker/transport/handshake.h"
#include "worker/transport/transport.h"

namespace takt::transport {

inline constexpr std::uint64_t kIntroductionMagic = 0x5441'4b54'4441'5431;  // "TAKTDAT1"

// Little endian, sent as they lie in memory.
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
static_assert(sizeof(Challenge) == 40 && sizeof(Answer) == 80 && sizeof(Welcome) == 32);

// options: the dialer's, here and in IsFrom; the listener's in the other two.
Answer AnswerTo(const Challenge& challenge, const TransportOptions& options, Rank listener);
// Whether `answer` proves that a rank of this generation, other than this one, dialed.
bool IsProven(const Answer& answer, const Challenge& challenge, const TransportOptions& options);
Welcome WelcomeFor(const Answer& answer, const Challenge& challenge,
                   const TransportOptions& options);
// Whether `welcome` proves that `listener` of this generation took the answer.
bool IsFrom(Rank listener, const Welcome& welcome, const Answer& answer, const Challenge& challenge,
            const TransportOptions& options);

}  // namespace takt::transport
