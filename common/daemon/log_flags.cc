// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/log_flags.h"

#include <string>

namespace takt::daemon {

void AddLogFlags(CLI::App& app, LogLevel& level, LogFormat& format) {
  const auto set_level = [&level](const std::string& name) { level = *FindLogLevel(name); };
  app.add_option_function<std::string>("--log-level", set_level, "debug, info, warning or error")
      ->check(CLI::IsMember(kLogLevelNames));
  const auto set_format = [&format](const std::string& name) {
    format = name == "json" ? LogFormat::kJson : LogFormat::kText;
  };
  app.add_option_function<std::string>("--log-format", set_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
}

}  // namespace takt::daemon
