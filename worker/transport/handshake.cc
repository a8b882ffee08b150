// SPDX-License-Identifier: Apache-2.0
#include "worker/transport/handshake.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status.h"
#include "worker/transport/wake_word.h"

namespace takt::transport {

namespace {

// An error shows so many bytes of a message that cannot be read.
constexpr std::size_t kMostQuotedBytes = 64;

// The lengths keep ("ab", "c") and ("a", "bc") apart.
void AppendField(std::string& out, std::string_view field) {
  absl::StrAppend(&out, field.size(), ":");
  out.append(field);
}

}  // namespace

Nonce RandomNonce() {
  Nonce nonce;
  TAKT_CHECK(getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

Proof Prove(const TransportOptions& options, std::string_view message) {
  std::string text;
  AppendField(text, options.job);
  AppendField(text, std::to_string(options.generation));
  AppendField(text, message);
  Proof proof;
  unsigned size = 0;
  TAKT_CHECK(HMAC(EVP_sha256(), options.secret.data(), static_cast<int>(options.secret.size()),
                  reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                  reinterpret_cast<unsigned char*>(proof.data()), &size) != nullptr);
  TAKT_CHECK(size == proof.size());
  return proof;
}

bool SameProof(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string ChannelKey(Rank from, Rank to, std::string_view name) {
  std::string key = absl::StrCat(from.value(), "-", to.value(), "/");
  key.append(name);
  return key;
}

absl::StatusOr<std::string> AwaitKey(Rendezvous& rendezvous, const std::string& key,
                                     absl::Duration timeout, AbortSignal& abort,
                                     std::string_view what) {
  ASSIGN_OR_RETURN(std::vector<std::string> values,
                   AwaitKeys(rendezvous, {key}, timeout, abort, what));
  return std::move(values.front());
}

absl::StatusOr<std::vector<std::string>> AwaitKeys(Rendezvous& rendezvous,
                                                   const std::vector<std::string>& keys,
                                                   absl::Duration timeout, AbortSignal& abort,
                                                   std::string_view what) {
  const std::int64_t start = MonotonicNanos();
  for (;;) {
    if (abort.raised()) return AbortedStatus();
    const absl::Duration left = timeout - absl::Nanoseconds(MonotonicNanos() - start);
    if (left <= absl::ZeroDuration()) return TimeoutStatus(what, timeout);
    absl::StatusOr<std::vector<std::string>> values =
        rendezvous.WaitAllUnless(abort, keys, std::min(left, rendezvous.longest_wait()));
    if (!values.ok() && abort.raised()) return AbortedStatus();
    if (values.ok() || !absl::IsDeadlineExceeded(values.status())) return values;
  }
}

absl::Status AbortedStatus() { return absl::AbortedError("transport aborted"); }

absl::Status TimeoutStatus(std::string_view what, absl::Duration timeout) {
  std::string message = absl::StrCat("waited ", absl::FormatDuration(timeout), " for ");
  message.append(what);
  return absl::DeadlineExceededError(message);
}

absl::Status UnreadableStatus(Rank peer, const std::string& what, const std::string& told) {
  return absl::UnavailableError(absl::StrCat("rank ", peer.value(), " told ", what, " as \"",
                                             absl::CHexEscape(told.substr(0, kMostQuotedBytes)),
                                             "\", which cannot be read"));
}

std::string ToHex(std::string_view bytes) {
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

absl::StatusOr<std::string> FromHex(std::string_view hex) {
  const bool valid =
      hex.size() % 2 == 0 &&
      std::all_of(hex.begin(), hex.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  if (!valid) return absl::InvalidArgumentError("not hexadecimal");
  return absl::HexStringToBytes(absl::string_view(hex.data(), hex.size()));
}

}  // namespace takt::transport
