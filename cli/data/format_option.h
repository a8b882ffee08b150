// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "CLI/App.hpp"
#include "common/config/job_spec.h"

namespace takt::cli {

// Adds --format, whose values are the names that job files use.
CLI::Option* AddFormat(CLI::App& app, std::optional<config::DataFormat>& format,
                       const std::string& description);

}  // namespace takt::cli
