// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/base/clock.h"
#include "worker/inference/requests.h"

namespace takt::inference {

// Opens the model and does the work. It tells the results as they come, the last one included, but
// returns an error instead of telling it. If `tell` fails, the work ends with that error.
// Errors: those of LocalModel::Open, of data::Corpus::Open and of the work, with a FieldError for
// whatever the user got wrong.
absl::Status Serve(const Request& request, const std::function<absl::Status(const Answer&)>& tell,
                   const Clock& clock = Clock::Real());

}  // namespace takt::inference
