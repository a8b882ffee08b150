// SPDX-License-Identifier: Apache-2.0
#include "cli/ui/seen_lines.h"

#include <functional>

namespace takt::cli {

bool SeenLines::IsNew(std::string_view line) {
  const std::size_t hash = std::hash<std::string_view>()(line);
  if (!hashes_.insert(hash).second) return false;
  in_order_.push_back(hash);
  if (in_order_.size() > most_) {
    hashes_.erase(in_order_.front());
    in_order_.pop_front();
  }
  return true;
}

}  // namespace takt::cli
