// SPDX-License-Identifier: Apache-2.0
#include "common/daemon/log_flags.h"

#include <map>
#include <string>

namespace takt::daemon {

void AddLogFlags(CLI::App& app, LogLevel& level, LogFormat& format) {
  std::map<std::string, LogLevel> levels;
  for (const char* const name : kLogLevelNames) levels.emplace(name, *FindLogLevel(name));
  app.add_option("--log-level", level, "debug, info, warning or error")
      ->transform(CLI::CheckedTransformer(levels).description("{debug,info,warning,error}"));
  const std::map<std::string, LogFormat> formats = {{"text", LogFormat::kText},
                                                    {"json", LogFormat::kJson}};
  app.add_option("--log-format", format, "text or json")
      ->transform(CLI::CheckedTransformer(formats).description("{text,json}"));
}

}  // namespace takt::daemon
