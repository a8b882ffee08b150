// SPDX-License-Identifier: Apache-2.0
#include "common/tokenizer/bytes.h"

#include <string>

namespace takt::tokenizer {
namespace {

constexpr std::int32_t kNumBytes = 256;

class ByteEncoder final : public Encoder {
 public:
  absl::Status Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return absl::OkStatus();
  }
};

class ByteTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<Encoder> NewEncoder(const EncodeOptions& /*options*/) const override {
    return std::make_unique<ByteEncoder>();
  }
  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) {
      if (id >= 0 && id < kNumBytes) text += static_cast<char>(id);
    }
    return text;
  }
  std::int32_t vocab_size() const override { return kNumBytes; }
  std::optional<std::int32_t> FindToken(std::string_view content) const override {
    if (content.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(content.front());
  }
};

}  // namespace

std::unique_ptr<const Tokenizer> CreateByteTokenizer() {
  return std::make_unique<const ByteTokenizer>();
}

}  // namespace takt::tokenizer
