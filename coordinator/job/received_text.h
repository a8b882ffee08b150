// SPDX-License-Identifier: Apache-2.0
// Bounds the texts for people that a worker sends. Most of them are stored with the job, and a
// message may have 8 MiB.
#pragma once

#include <cstddef>
#include <string>

#include "common/control/attachment.h"

namespace takt::job {

inline constexpr std::size_t kMostTextBytes = 4096;  // of each text
inline constexpr std::size_t kMostTexts = 16;        // of notes, and of violations

// Returns the text, cut to kMostTextBytes.
std::string Bounded(const std::string& text);
// Returns the update with the beginnings of its texts, and with the first notes and violations.
control::JobUpdate Bounded(control::JobUpdate update);

}  // namespace takt::job
