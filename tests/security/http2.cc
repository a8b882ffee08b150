// SPDX-License-Identifier: Apache-2.0
#include "tests/security/http2.h"

namespace takt::security {

namespace {

enum FrameType : char { kData = 0, kHeaders = 1, kSettings = 4 };
constexpr char kEndHeaders = 4;

std::string BigEndian(std::uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    text += static_cast<char>(value >> shift);
  return text;
}

std::string Frame(FrameType type, char flags, std::uint32_t stream, const std::string& payload) {
  return BigEndian(payload.size(), 3) + static_cast<char>(type) + flags + BigEndian(stream, 4) +
         payload;
}

// A literal without indexing or Huffman code; shorter than 127 bytes each.
std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

}  // namespace

std::string Hello() { return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + Frame(kSettings, 0, 0, ""); }

std::string OpenCall(std::uint32_t stream, const std::string& method) {
  return Frame(kHeaders, kEndHeaders, stream,
               Header(":method", "POST") + Header(":scheme", "http") + Header(":path", method) +
                   Header(":authority", "x") + Header("content-type", "application/grpc") +
                   Header("te", "trailers"));
}

std::string Data(std::uint32_t stream, const std::string& bytes) {
  return Frame(kData, 0, stream, bytes);
}

}  // namespace takt::security
