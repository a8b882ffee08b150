// SPDX-License-Identifier: Apache-2.0
// What the documentation says about a family beyond what schedule::Family holds.
#pragma once

#include <string_view>

namespace takt::cli {

struct FamilyNote {
  std::string_view name;
  std::string_view idea;
  std::string_view sizes;  // what P, V and M may be
  std::string_view care;   // what users trip over; may be empty
};

// Null: none was written.
const FamilyNote* FindFamilyNote(std::string_view family);

}  // namespace takt::cli
