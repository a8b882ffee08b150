// SPDX-License-Identifier: Apache-2.0
#include "common/certificates/join_tokens.h"

#include <openssl/rand.h>
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/certificates/openssl.h"

namespace takt::certificates {
namespace {

constexpr std::size_t kMaxTokens = 1000;
constexpr int kTokenBytes = 32;

std::string Hash(const std::string& token) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

}  // namespace

absl::StatusOr<std::string> JoinTokens::Create(const std::string& worker, absl::Duration lifetime,
                                               absl::Time now) {
  std::erase_if(grants_, [now](const auto& entry) { return entry.second.expires < now; });
  if (grants_.size() >= kMaxTokens)
    return absl::ResourceExhaustedError("1000 tokens are out already; wait until some expire");
  unsigned char bytes[kTokenBytes];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return SslError("no random bytes");
  const std::string token =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<char*>(bytes), sizeof(bytes)));
  grants_[Hash(token)] = {.worker = worker, .expires = now + lifetime};
  return token;
}

absl::StatusOr<std::string> JoinTokens::Find(const std::string& token, absl::Time now) const {
  const auto it = grants_.find(Hash(token));
  if (it != grants_.end() && it->second.expires >= now) return it->second.worker;
  return absl::PermissionDeniedError(
      "the token is not known, was used, or has expired; an administrator makes another with `takt "
      "certs token WORKER`");
}

absl::StatusOr<std::string> JoinTokens::Redeem(const std::string& token, absl::Time now) {
  absl::StatusOr<std::string> worker = Find(token, now);
  grants_.erase(Hash(token));
  return worker;
}

}  // namespace takt::certificates
