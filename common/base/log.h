// SPDX-License-Identifier: Apache-2.0
// The logging front. It writes one line for each event to stderr, as key=value pairs or as a JSON
// object:
//   Log(LogLevel::kInfo, "job started", {{"job", name}, {"generation", "3"}});
// Levels: error: someone must act; warning: it may heal; info: a person could read it live; debug:
// anything.
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
// The names of the levels in flags, lines and messages, in the order of LogLevel.
inline constexpr std::array kLogLevelNames = {"debug", "info", "warning", "error"};
inline const char* Name(LogLevel level) { return kLogLevelNames[static_cast<int>(level)]; }
// Returns nullopt if there is no such level.
std::optional<LogLevel> FindLogLevel(std::string_view name);

enum class LogFormat { kText, kJson };
using LogField = std::pair<std::string_view, std::string>;

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  // These fields are on every line of this process, e.g. {"worker", "w0"}.
  std::vector<std::pair<std::string, std::string>> fields;
};

// Call it once, at the start of main.
void InitLogging(LogOptions options);

// Thread-safe.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// Writes a line of the logger "audit" (JSON: "logger": "audit"), which says who did what. The level
// of InitLogging does not suppress it.
void LogAudit(std::initializer_list<LogField> fields);

// Sets the function that gets every line at info and above, on the logging thread. There is at most
// one, and it is set before threads start. A worker ships its lines to the coordinator this way.
// `line` is key=value text in either format, without time, level and the fields of the process.
// `sink` must not log.
void SetLogSink(std::function<void(LogLevel, std::string_view line)> sink);

}  // namespace takt
