// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/checkpoint/hash.h"
#include "common/checkpoint/layout.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr int kMaxDepth = 64;
constexpr std::size_t kHashDigits = 32;
// The text around the manifest's own hash. The hash covers the text before kHashOpening.
constexpr std::string_view kHashOpening = ",\n  \"manifest_xxh3_128\": \"";
constexpr std::string_view kHashClosing = "\"\n}\n";

absl::Status Refuse(std::string field, const std::string& value, std::string rule) {
  return InvalidField({.field = std::move(field),
                       .value = absl::CHexEscape(value.substr(0, 100)),
                       .rule = std::move(rule),
                       .fix = "use another checkpoint; manifests are not written by hand"});
}

bool IsPlain(std::string_view text, std::size_t longest) {
  return !text.empty() && text.size() <= longest && text.front() != '.' &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' ||
                  c == '.';
         });
}

bool IsHash(std::string_view text) {
  return text.size() == kHashDigits && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f');
         });
}

absl::Status CheckFile(const FileEntry& file, const std::string& field) {
  if (!IsPlain(file.name, 255) || file.name == kManifestFile) {
    return Refuse(absl::StrCat(field, ".name"), file.name,
                  "must be the name of a file beside the manifest");
  }
  if (file.bytes < 0)
    return Refuse(absl::StrCat(field, ".bytes"), absl::StrCat(file.bytes), "must not be negative");
  if (!IsHash(file.xxh3_128)) {
    return Refuse(absl::StrCat(field, ".xxh3_128"), file.xxh3_128,
                  "must be 32 hexadecimal digits in small letters");
  }
  return absl::OkStatus();
}

absl::Status Check(const Manifest& manifest) {
  if (!IsPlain(manifest.job, 63))
    return Refuse("job", manifest.job, "must be the name of a job: letters, digits, '-', '_', '.'");
  if (manifest.generation.value() < 0) {
    return Refuse("generation", absl::StrCat(manifest.generation.value()), "must not be negative");
  }
  if (manifest.step.value() < 1)
    return Refuse("step", absl::StrCat(manifest.step.value()), "must be at least 1");
  if (manifest.windows < 0)
    return Refuse("data.windows", absl::StrCat(manifest.windows), "must not be negative");
  if (!manifest.plan_hash.empty() && !IsPlain(manifest.plan_hash, 128))
    return Refuse("plan_hash", manifest.plan_hash, "must be letters and digits");
  std::string_view last;
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string field = absl::StrCat("files[", i, "]");
    RETURN_IF_ERROR(CheckFile(manifest.files[i], field));
    if (i > 0 && manifest.files[i].name <= last) {
      return Refuse(absl::StrCat(field, ".name"), manifest.files[i].name,
                    "must be given once, files sorted by name");
    }
    last = manifest.files[i].name;
  }
  return absl::OkStatus();
}

// Parses JSON of bounded depth, since a recursion prints it again. The error lacks the field's
// name.
absl::StatusOr<ordered_json> ParseJson(std::string_view text) {
  bool too_deep = false;
  const auto watch_depth = [&](int depth, ordered_json::parse_event_t, const ordered_json&) {
    too_deep |= depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  ordered_json parsed = ordered_json::parse(text, watch_depth, /*allow_exceptions=*/false);
  if (too_deep) return absl::InvalidArgumentError("is nested too deeply");
  if (parsed.is_discarded()) return absl::InvalidArgumentError("is not JSON");
  return parsed;
}

// Reads the fields of one JSON object, each once. The first error stays.
class Fields {
 public:
  Fields(const ordered_json& object, std::string prefix)
      : object_(object), prefix_(std::move(prefix)) {
    if (!object.is_object()) Fail("", "must be an object");
  }

  std::string String(const char* key) {
    const ordered_json* value = Take(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    Fail(key, "must be a string");
    return {};
  }

  template <class Int>
  Int Integer(const char* key) {
    const ordered_json* value = Take(key);
    if (value == nullptr) return {};
    if (value->is_number_unsigned()) {
      const auto number = value->get<std::uint64_t>();
      if (std::in_range<Int>(number)) return static_cast<Int>(number);
    } else if (value->is_number_integer() && std::in_range<Int>(value->get<std::int64_t>())) {
      return static_cast<Int>(value->get<std::int64_t>());
    }
    using Limits = std::numeric_limits<Int>;
    Fail(key, absl::StrCat("must be a whole number from ", Limits::min(), " to ", Limits::max()));
    return {};
  }

  const ordered_json& Object(const char* key) { return Typed(key, &ordered_json::is_object); }
  const ordered_json& Array(const char* key) { return Typed(key, &ordered_json::is_array); }

  bool ok() const { return error_.ok(); }

  // Returns the first error, or an error about a field that was not read.
  absl::Status Finish() {
    if (!error_.ok()) return error_;
    for (const auto& [key, value] : object_.items()) {
      if (!taken_.contains(key)) return Refuse(prefix_ + key, "", "is no field of a manifest");
    }
    return absl::OkStatus();
  }

 private:
  const ordered_json* Take(const char* key) {
    taken_.insert(key);
    if (!error_.ok()) return nullptr;
    const auto it = object_.find(key);
    if (it != object_.end()) return &*it;
    Fail(key, "is missing");
    return nullptr;
  }

  const ordered_json& Typed(const char* key, bool (ordered_json::*is)() const noexcept) {
    static const ordered_json kNothing;
    const ordered_json* value = Take(key);
    if (value == nullptr) return kNothing;
    if ((value->*is)()) return *value;
    Fail(key, "has the wrong type");
    return kNothing;
  }

  void Fail(const char* key, std::string rule) {
    if (error_.ok()) error_ = Refuse(prefix_ + key, "", std::move(rule));
  }

  const ordered_json& object_;
  const std::string prefix_;
  std::set<std::string> taken_;
  absl::Status error_;
};

absl::StatusOr<std::vector<FileEntry>> ReadFiles(const ordered_json& array) {
  std::vector<FileEntry> files;
  for (std::size_t i = 0; i < array.size(); ++i) {
    Fields fields(array[i], absl::StrCat("files[", i, "]."));
    files.push_back({.name = fields.String("name"),
                     .bytes = fields.Integer<std::int64_t>("bytes"),
                     .xxh3_128 = fields.String("xxh3_128")});
    RETURN_IF_ERROR(fields.Finish());
  }
  return files;
}

absl::StatusOr<Manifest> ReadManifest(const ordered_json& json) {
  Fields fields(json, "");
  const int format = fields.Integer<int>("format");
  if (fields.ok() && format != kFormat) {
    return Refuse("format", absl::StrCat(format),
                  absl::StrCat("must be ", kFormat, ", the only one that this version reads"));
  }
  Manifest manifest;
  manifest.job = fields.String("job");
  manifest.generation = Generation(fields.Integer<std::int64_t>("generation"));
  manifest.step = StepId(fields.Integer<std::int64_t>("step"));
  const ordered_json& data = fields.Object("data");
  manifest.seed = fields.Integer<std::uint64_t>("seed");
  manifest.plan_hash = fields.String("plan_hash");
  manifest.job_spec = fields.Object("job_spec").dump();
  const ordered_json& files = fields.Array("files");
  (void)fields.String("manifest_xxh3_128");
  RETURN_IF_ERROR(fields.Finish());
  Fields data_fields(data, "data.");
  manifest.windows = data_fields.Integer<std::int64_t>("windows");
  RETURN_IF_ERROR(data_fields.Finish());
  ASSIGN_OR_RETURN(manifest.files, ReadFiles(files));
  return manifest;
}

// Errors: kDataLoss, without the file's name: the text does not end with the hash of what is before
// it.
absl::Status CheckOwnHash(std::string_view text) {
  const std::size_t tail = kHashOpening.size() + kHashDigits + kHashClosing.size();
  if (text.size() < tail) return absl::DataLossError("too short for a manifest");
  const std::string_view covered = text.substr(0, text.size() - tail);
  const std::string expected =
      absl::StrCat(std::string(kHashOpening), HashOf(std::as_bytes(std::span(covered))),
                   std::string(kHashClosing));
  if (text.substr(covered.size()) == expected) return absl::OkStatus();
  return absl::DataLossError("damaged: it does not match its own hash");
}

}  // namespace

const FileEntry* Manifest::Find(std::string_view name) const {
  const auto it = std::ranges::find(files, name, &FileEntry::name);
  return it == files.end() ? nullptr : &*it;
}

absl::StatusOr<std::string> FormatManifest(Manifest manifest) {
  std::ranges::sort(manifest.files, {}, &FileEntry::name);
  RETURN_IF_ERROR(Check(manifest));
  const absl::StatusOr<ordered_json> job_spec = ParseJson(manifest.job_spec);
  if (!job_spec.ok() || !job_spec->is_object())
    return Refuse("job_spec", manifest.job_spec, "must be an object of JSON");
  ordered_json json = {{"format", kFormat},
                       {"job", manifest.job},
                       {"generation", manifest.generation.value()},
                       {"step", manifest.step.value()},
                       {"data", {{"windows", manifest.windows}}},
                       {"seed", manifest.seed},
                       {"plan_hash", manifest.plan_hash},
                       {"job_spec", *job_spec},
                       {"files", ordered_json::array()}};
  for (const FileEntry& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.xxh3_128}});
  }
  std::string text = json.dump(2);
  text.resize(text.size() - 2);  // removes "\n}", since more follows
  const std::string hash = HashOf(std::as_bytes(std::span(text)));
  absl::StrAppend(&text, std::string(kHashOpening), hash, std::string(kHashClosing));
  return text;
}

absl::StatusOr<Manifest> ParseManifest(std::string_view text, std::string_view name) {
  if (const absl::Status status = CheckOwnHash(text); !status.ok()) return Annotate(status, name);
  const absl::StatusOr<ordered_json> json = ParseJson(text);
  if (!json.ok()) return Annotate(json.status(), name);
  absl::StatusOr<Manifest> manifest = ReadManifest(*json);
  if (!manifest.ok()) return Annotate(manifest.status(), name);
  if (const absl::Status status = Check(*manifest); !status.ok()) return Annotate(status, name);
  const absl::StatusOr<std::string> again = FormatManifest(*manifest);
  if (!again.ok()) return Annotate(again.status(), name);
  // Finds any other difference, such as a key given twice.
  if (*again != text) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(name), ": must be as takt writes it, each key once"));
  }
  return manifest;
}

}  // namespace takt::checkpoint
