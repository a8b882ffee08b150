// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/received_text.h"

#include <cstddef>
#include <vector>

#include "common/base/bounded_text.h"

namespace takt::job {
namespace {

void Cut(std::string& text) { text.resize(FirstBytes(text, kMostTextBytes).size()); }

template <class T>
void CutList(std::vector<T>& list) {
  if (list.size() > kMostTexts)
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(kMostTexts), list.end());
}

}  // namespace

std::string Bounded(const std::string& text) {
  return std::string(FirstBytes(text, kMostTextBytes));
}

control::JobUpdate Bounded(control::JobUpdate update) {
  Cut(update.failure.error);
  CutList(update.failure.violations);
  for (FieldError& error : update.failure.violations) {
    for (std::string* const text :
         {&error.field, &error.value, &error.rule, &error.fix, &error.where})
      Cut(*text);
  }
  CutList(update.resumed.notes);
  for (std::string& note : update.resumed.notes) Cut(note);
  Cut(update.resumed.kernel_plan);
  return update;
}

}  // namespace takt::job
