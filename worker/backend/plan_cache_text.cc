// SPDX-License-Identifier: Apache-2.0
#include "worker/backend/plan_cache_text.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"

namespace takt::backend {
namespace {

using json = nlohmann::ordered_json;

constexpr std::size_t kDigitsPerWord = 16;
constexpr char kFix[] = "a new one is made in its place";
// This is far above what candidates may ask for. Scratch memory of this size is taken without
// further checks.
constexpr std::uint64_t kMostWorkspaceBytes = std::uint64_t{1} << 30;
constexpr std::size_t kLongestKey = 512;

std::string AlgorithmText(const KernelPlan& plan) {
  std::string text;
  for (const std::uint64_t word : plan.algorithm) absl::StrAppendFormat(&text, "%016x", word);
  return text;
}

std::optional<decltype(KernelPlan::algorithm)> AlgorithmOf(const std::string& text) {
  decltype(KernelPlan::algorithm) algorithm;
  if (text.size() != algorithm.size() * kDigitsPerWord ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    if (!absl::SimpleHexAtoi(text.substr(i * kDigitsPerWord, kDigitsPerWord), &algorithm[i]))
      return std::nullopt;
  }
  return algorithm;
}

// Reads a parsed text and collects its errors.
class Reader {
 public:
  explicit Reader(std::string_view where) : where_(where) {}

  void CheckTarget(const json& text, const PlanTarget& ours) {
    const json* target = Object(text, "target", "target");
    if (target == nullptr) return;
    const auto expect = [&](const char* name, const json& value) {
      const auto it = target->find(name);
      const json found = it == target->end() ? json() : *it;
      if (found != value) {
        Refuse(absl::StrCat("target.", name), found.dump(),
               absl::StrCat("must be ", value.dump(), ", as on this worker"));
      }
    };
    expect("compute_capability", ours.compute_capability);
    expect("sm_count", ours.sm_count);
    expect("cublaslt", ours.cublaslt);
    expect("cudnn", ours.cudnn);
  }

  PlanCache::Plans Plans(const json& text) {
    PlanCache::Plans plans;
    const json* entries = Object(text, "plans", "plans");
    if (entries == nullptr) return plans;
    for (const auto& [key, entry] : entries->items()) {
      if (key.empty() || key.size() > kLongestKey) {
        Refuse("plans", key.substr(0, kLongestKey), "must have names of 1 to 512 bytes");
        continue;
      }
      plans.emplace(key, Plan(key, entry));
    }
    return plans;
  }

  void Refuse(std::string field, std::string value, std::string rule) {
    constexpr std::size_t kMostErrors = 10, kLongestValue = 200;
    if (errors_.size() == kMostErrors) return;
    if (value.size() > kLongestValue) value = "so long a value";
    errors_.push_back({.field = std::move(field),
                       .value = std::move(value),
                       .rule = std::move(rule),
                       .fix = kFix,
                       .where = where_});
  }

  absl::Status Verdict() {
    return errors_.empty() ? absl::OkStatus() : InvalidFields(std::move(errors_));
  }

 private:
  const json* Object(const json& parent, const char* name, const std::string& field) {
    const auto it = parent.find(name);
    if (it != parent.end() && it->is_object()) return &*it;
    Refuse(field, it == parent.end() ? "" : it->dump(), "must be an object");
    return nullptr;
  }

  KernelPlan Plan(const std::string& key, const json& entry) {
    KernelPlan plan;
    const json fused = Value(entry, "fused_epilogue"), bytes = Value(entry, "workspace_bytes"),
               algorithm = Value(entry, "algorithm");
    const auto field = [&](const char* name) { return absl::StrCat("plans.", key, ".", name); };
    if (fused.is_boolean()) {
      plan.fused_epilogue = fused.get<bool>();
    } else {
      Refuse(field("fused_epilogue"), fused.dump(), "must be true or false");
    }
    if (bytes.is_number_unsigned() && bytes.get<std::uint64_t>() <= kMostWorkspaceBytes) {
      plan.workspace_bytes = bytes.get<std::int64_t>();
    } else {
      Refuse(field("workspace_bytes"), bytes.dump(), "must be a number of bytes, at most 1 GiB");
    }
    if (const json implementation = Value(entry, "implementation"); !implementation.is_null()) {
      if (implementation == kByCudnn || implementation == kByOurKernels) {
        plan.implementation = implementation.get<std::string>();
      } else {
        Refuse(field("implementation"), implementation.dump(),
               absl::StrCat("must be ", kByCudnn, " or ", kByOurKernels));
      }
    }
    const auto words =
        algorithm.is_string() ? AlgorithmOf(algorithm.get<std::string>()) : std::nullopt;
    if (words.has_value()) {
      plan.algorithm = *words;
    } else {
      Refuse(field("algorithm"), algorithm.dump(), "must be 128 hexadecimal digits");
    }
    return plan;
  }

  static json Value(const json& entry, const char* name) {
    return entry.is_object() && entry.contains(name) ? entry[name] : json();
  }

  const std::string where_;
  std::vector<FieldError> errors_;
};

}  // namespace

std::string PlanText(const PlanTarget& target, const PlanCache::Plans& plans) {
  json entries = json::object();
  for (const auto& [key, plan] : plans) {
    entries[key] = {{"fused_epilogue", plan.fused_epilogue},
                    {"workspace_bytes", static_cast<std::uint64_t>(plan.workspace_bytes)},
                    {"algorithm", AlgorithmText(plan)}};
    if (!plan.implementation.empty()) entries[key]["implementation"] = plan.implementation;
  }
  const json text = {{"format", kPlanFormat},
                     {"target",
                      {{"compute_capability", target.compute_capability},
                       {"sm_count", target.sm_count},
                       {"cublaslt", target.cublaslt},
                       {"cudnn", target.cudnn}}},
                     {"plans", entries}};
  return text.dump(1) + "\n";
}

absl::StatusOr<PlanCache::Plans> ParsePlanText(std::string_view text, std::string_view where,
                                               const PlanTarget& target) {
  Reader reader(where);
  if (text.size() > kMostPlanBytes) {
    reader.Refuse("format", "", absl::StrCat("must have at most ", kMostPlanBytes, " bytes"));
    return reader.Verdict();
  }
  // A plan is three objects deep at most, so a deeper text is no plan.
  bool too_deep = false;
  const auto watch_depth = [&](int depth, json::parse_event_t, const json&) {
    constexpr int kMostDepth = 4;
    too_deep |= depth > kMostDepth;
    return depth <= kMostDepth;
  };
  const json parsed = json::parse(text, watch_depth, /*allow_exceptions=*/false);
  if (too_deep || !parsed.is_object() || parsed.value("format", json()) != kPlanFormat) {
    const bool has_format = parsed.is_object() && parsed.contains("format");
    reader.Refuse("format", has_format ? parsed["format"].dump() : "",
                  absl::StrCat("must be \"", std::string(kPlanFormat), "\""));
    return reader.Verdict();
  }
  reader.CheckTarget(parsed, target);
  PlanCache::Plans plans = reader.Plans(parsed);
  RETURN_IF_ERROR(reader.Verdict());
  return plans;
}

absl::Status MergePlanText(std::string_view text, std::string_view where, PlanCache& plans) {
  ASSIGN_OR_RETURN(const PlanCache::Plans found, ParsePlanText(text, where, plans.target()));
  plans.Merge(found);
  return absl::OkStatus();
}

}  // namespace takt::backend
