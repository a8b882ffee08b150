// SPDX-License-Identifier: Apache-2.0
// HTTP/2 as bytes, for what no client of gRPC would say (RFC 9113, RFC 7541).
#pragma once

#include <cstdint>
#include <string>

namespace takt::security {

// What a client says first: the preface and empty settings.
std::string Hello();

// Opens stream 1, 3, 5, ... with a call of `method`, e.g. "/takt.v1.JobService/WatchJob", and
// leaves it open.
std::string OpenCall(std::uint32_t stream, const std::string& method);

// Bytes of a stream; at most 16 KiB.
std::string Data(std::uint32_t stream, const std::string& bytes);

}  // namespace takt::security
