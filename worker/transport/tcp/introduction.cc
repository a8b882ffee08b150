// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/tcp/introduction.h"

#include <string_view>

#include "absl/strings/str_cat.h"

namespace takt::transport {

namespace {

Proof ProofOf(const TransportOptions& options, std::string_view side, std::int64_t dialer,
              std::int64_t listener, const Nonce& dialer_nonce, const Nonce& listener_nonce) {
  std::string message = "tcp ";
  message.append(side);
  absl::StrAppend(&message, " ", dialer, "-", listener, " ", ToHex(AsText(dialer_nonce)), " ",
                  ToHex(AsText(listener_nonce)));
  return Prove(options, message);
}

}  // namespace

Answer AnswerTo(const Challenge& challenge, const TransportOptions& options, Rank listener) {
  Answer answer{.rank = options.rank.value(), .nonce = RandomNonce()};
  answer.proof =
      ProofOf(options, "dialer", answer.rank, listener.value(), answer.nonce, challenge.nonce);
  return answer;
}

bool IsProven(const Answer& answer, const Challenge& challenge, const TransportOptions& options) {
  if (answer.magic != kIntroductionMagic || answer.rank == options.rank.value()) return false;
  return SameProof(answer.proof, ProofOf(options, "dialer", answer.rank, options.rank.value(),
                                         answer.nonce, challenge.nonce));
}

Welcome WelcomeFor(const Answer& answer, const Challenge& challenge,
                   const TransportOptions& options) {
  return {ProofOf(options, "listener", answer.rank, options.rank.value(), answer.nonce,
                  challenge.nonce)};
}

bool IsFrom(Rank listener, const Welcome& welcome, const Answer& answer, const Challenge& challenge,
            const TransportOptions& options) {
  return SameProof(welcome.proof, ProofOf(options, "listener", answer.rank, listener.value(),
                                          answer.nonce, challenge.nonce));
}

}  // namespace takt::transport
