// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace takt::tokenizer {

// Returns `text` in Unicode's normalization form C: `text` itself if it is ASCII, else a view of
// `storage`. Precondition: `text` is UTF-8.
std::string_view ToNfc(std::string_view text, std::string& storage);

}  // namespace takt::tokenizer
