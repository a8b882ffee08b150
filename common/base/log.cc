// SPDX-License-Identifier: Apache-2.0
#include "common/base/log.h"

#include <algorithm>
#include <memory>

#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace takt {
namespace {

struct LogState {
  LogOptions options;
  std::function<void(LogLevel, std::string_view)> sink;
  std::shared_ptr<spdlog::logger> logger, audit;
};

constexpr char kAudit[] = "audit";

LogState& State() {
  static LogState* const state = [] {
    auto* s = new LogState;
    const auto errors = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    errors->set_pattern("%Y-%m-%dT%H:%M:%S.%f%z %l %v");
    s->logger = std::make_shared<spdlog::logger>("takt", errors);
    s->audit = std::make_shared<spdlog::logger>(kAudit, errors);
    s->logger->flush_on(spdlog::level::debug);
    return s;
  }();
  return *state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  constexpr std::array kLevels = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                  spdlog::level::err};
  return kLevels[static_cast<std::size_t>(level)];
}

// Quotes a value that has anything but plain printable characters. So a line splits back into its
// pairs, is UTF-8, and does nothing to a terminal.
void AppendValue(std::string& line, const std::string& value) {
  const auto is_plain = [](char c) { return c > ' ' && c <= '~' && c != '"' && c != '='; };
  if (!value.empty() && std::ranges::all_of(value, is_plain)) {
    line += value;
  } else {
    line += nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

template <class Fields>
void AppendFields(std::string& line, const Fields& fields) {
  for (const auto& [key, value] : fields)
    AppendValue(line.append(" ").append(key).append("="), value);
}

std::string JsonLine(LogLevel level, std::string_view logger, std::string_view message,
                     std::initializer_list<LogField> fields) {
  nlohmann::ordered_json object;
  object["time"] = absl::FormatTime(absl::Now(), absl::UTCTimeZone());
  object["level"] = Name(level);
  if (!logger.empty()) object["logger"] = logger;
  object["message"] = message;
  for (const auto& [key, value] : State().options.fields) object[key] = value;
  for (const auto& [key, value] : fields) object[std::string(key)] = value;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string TextLine(std::string_view message, std::initializer_list<LogField> fields) {
  std::string line(message);
  AppendFields(line, State().options.fields);
  AppendFields(line, fields);
  return line;
}

}  // namespace

std::optional<LogLevel> FindLogLevel(std::string_view name) {
  const auto found = std::ranges::find(kLogLevelNames, name);
  if (found == kLogLevelNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kLogLevelNames.begin());
}

void InitLogging(LogOptions options) {
  LogState& state = State();
  state.logger->set_level(ToSpdlog(options.level));
  if (options.format == LogFormat::kJson) state.logger->set_pattern("%v");  // both share this sink
  state.options = std::move(options);
}

void SetLogSink(std::function<void(LogLevel, std::string_view line)> sink) {
  State().sink = std::move(sink);
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  LogState& state = State();
  if (!state.logger->should_log(ToSpdlog(level))) return;
  const bool json = state.options.format == LogFormat::kJson;
  state.logger->log(
      ToSpdlog(level), "{}",
      json ? JsonLine(level, /*logger=*/"", message, fields) : TextLine(message, fields));
  if (!state.sink || level < LogLevel::kInfo) return;
  std::string line(message);
  AppendFields(line, fields);
  state.sink(level, line);
}

void LogAudit(std::initializer_list<LogField> fields) {
  LogState& state = State();
  const bool json = state.options.format == LogFormat::kJson;
  const std::string line =
      json ? JsonLine(LogLevel::kInfo, kAudit, kAudit, fields) : TextLine(kAudit, fields);
  state.audit->info("{}", line);
  if (state.sink) state.sink(LogLevel::kInfo, line);
}

}  // namespace takt
