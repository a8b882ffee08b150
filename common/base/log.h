// SPDX-License-Identifier: Apache-2.0
// Logging front: one line an event, key=value pairs (or one JSON object a line), to stderr.
//   Log(LogLevel::kInfo, "job started", {{"job", name}, {"generation", "3"}});
// error: someone must act; warning: may heal; info: a person could read it live; debug: anything.
#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace takt {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
// In the order of LogLevel: as flags, lines and messages name the levels.
inline constexpr std::array kLogLevelNames = {"debug", "info", "warning", "error"};
inline const char* Name(LogLevel level) { return kLogLevelNames[static_cast<int>(level)]; }
// nullopt: there is no such level.
std::optional<LogLevel> FindLogLevel(std::string_view name);

enum class LogFormat { kText, kJson };
using LogField = std::pair<std::string_view, std::string>;

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  // Fields on every line of this process, e.g. {"worker", "w0"}.
  std::vector<std::pair<std::string, std::string>> fields;
};

// Once, at the start of main.
void InitLogging(LogOptions options);

// Thread-safe.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// A line of the logger "audit" (JSON: "logger": "audit"): who did what. Whatever the level.
void LogAudit(std::initializer_list<LogField> fields);

// Called with every line at info and above, from the logging thread; at most one, set before
// threads start. A worker ships its lines to the coordinator this way. line: key=value text
// whatever the format, without time, level and the fields of the process. `sink` must not log.
void SetLogSink(std::function<void(LogLevel, std::string_view line)> sink);

}  // namespace takt
