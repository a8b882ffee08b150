// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_file.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/bounded_text.h"
#include "common/base/counted.h"
#include "common/base/status.h"
#include "common/config/file_names.h"
#include "common/config/job_tree.h"
#include "common/config/yaml_tree.h"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Kind = YamlNode::Kind;

constexpr std::size_t kMaxErrors = 20;

std::string Shown(const YamlNode& node) {
  switch (node.kind) {
    case Kind::kNull:
      return "null";
    case Kind::kList:
      return "a list";
    case Kind::kMap:
      return "a mapping";
    case Kind::kScalar:
      break;
  }
  constexpr std::size_t kLongest = 60;
  if (node.text.empty()) return "\"\"";
  return Shortened(absl::Utf8SafeCHexEscape(node.text), kLongest);
}

// Returns the Levenshtein distance.
std::size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

// Returns "did you mean X?" for the closest of `names`, or nothing if none is close.
std::string Suggestion(std::string_view written, const std::vector<std::string>& names) {
  constexpr std::size_t kLongestName = 40;
  if (written.size() > kLongestName) return "";
  std::size_t best = std::max<std::size_t>(2, written.size() / 3) + 1;
  const std::string* closest = nullptr;
  for (const std::string& name : names) {
    const std::size_t distance = Distance(written, name);
    if (distance < best && distance < name.size()) {
      best = distance;
      closest = &name;
    }
  }
  return closest == nullptr ? "" : absl::StrCat("did you mean ", *closest, "?");
}

// Returns the suggestion for a value that is none of `names`, or `otherwise` if there is none.
std::string SuggestionOr(const YamlNode& node, const std::vector<std::string>& names,
                         const std::string& otherwise) {
  const std::string suggestion = node.kind == Kind::kScalar ? Suggestion(node.text, names) : "";
  return suggestion.empty() ? otherwise : suggestion;
}

// Returns the names that a field of this type can have in files.
std::vector<std::string> NamesOf(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 1; i < type.value_count(); ++i) {
    if (IsOffered(*type.value(i))) names.push_back(FileName(*type.value(i)));
  }
  return names;
}

// Returns the enumerator of this name, or null if there is none.
const google::protobuf::EnumValueDescriptor* FindNamed(const google::protobuf::EnumDescriptor& type,
                                                       std::string_view name) {
  for (int i = 1; i < type.value_count(); ++i) {
    if (FileName(*type.value(i)) == name) return type.value(i);
  }
  return nullptr;
}

// Returns the rule of a field of text that takes few texts. Who reads its section checks them, and
// this is for values that are no text at all.
std::string_view TextsOf(const FieldDescriptor& field) {
  static constexpr std::pair<std::string_view, std::string_view> kTexts[] = {
      {"takt.v1.OptimizerSpec.barrier", "auto, true or false"},
      {"takt.v1.CheckpointSpec.in_memory", "auto, off or a number of steps above 0"},
      {"takt.v1.CheckpointSpec.resume", "auto, none or the number of a step"}};
  for (const auto& [name, texts] : kTexts) {
    if (name == field.full_name()) return texts;
  }
  return "text";
}

// Fills a message from a tree. What does not fit becomes an error and is left out.
class Filler {
 public:
  explicit Filler(std::string what) : what_(std::move(what)) {}

  void FillMessage(const YamlNode& node, Message& message, const std::string& path) {
    const Descriptor& type = *message.GetDescriptor();
    const std::vector<std::string> names = FieldNames(type);
    if (node.kind != Kind::kMap) {
      return Fail(node, path.empty() ? what_ : path, "must be a mapping of fields",
                  absl::StrCat("fields: ", absl::StrJoin(names, ", ")));
    }
    std::map<std::string_view, std::size_t> first_of;  // where each key is written first
    for (std::size_t i = 0; i < node.keys.size(); ++i) {
      const std::string& key = node.keys[i];
      const std::string field_path =
          absl::StrCat(path, path.empty() ? "" : ".", Shown({Kind::kScalar, key}));
      const auto [first, is_first] = first_of.try_emplace(key, i);
      const auto field = std::ranges::find(names, key) - names.begin();
      if (field == type.field_count()) {
        UnknownField(names, key, field_path, node.values[i], node.key_where[i]);
      } else if (!is_first) {
        Add({.field = field_path,
             .rule = absl::StrCat("is given twice, first at ", node.key_where[first->second]),
             .fix = "remove one",
             .where = node.key_where[i]});
      } else {
        FillField(node.values[i], message, *type.field(static_cast<int>(field)), field_path);
      }
    }
  }

  absl::Status status() {
    if (errors_.empty()) return absl::OkStatus();
    if (num_errors_ > errors_.size()) {
      errors_.push_back(
          {.field = what_,
           .rule = absl::StrCat(
               "has ",
               Counted(static_cast<std::int64_t>(num_errors_ - errors_.size()), "more error"))});
    }
    return InvalidFields(std::move(errors_));
  }

 private:
  static std::vector<std::string> FieldNames(const Descriptor& type) {
    std::vector<std::string> names;
    for (int i = 0; i < type.field_count(); ++i) names.push_back(FileName(*type.field(i)));
    return names;
  }

  void Add(FieldError error) {
    ++num_errors_;
    if (errors_.size() < kMaxErrors) errors_.push_back(std::move(error));
  }

  void Fail(const YamlNode& node, const std::string& path, std::string rule, std::string fix = "") {
    Add({.field = path,
         .value = Shown(node),
         .rule = std::move(rule),
         .fix = std::move(fix),
         .where = node.where});
  }

  void UnknownField(const std::vector<std::string>& names, const std::string& key,
                    const std::string& path, const YamlNode& value, const std::string& where) {
    if (errors_.size() >= kMaxErrors) return Add({});  // it is counted, and nobody sees it
    const std::string suggestion = Suggestion(key, names);
    Add({.field = path,
         .value = Shown(value),
         .rule = "is not a known field",
         .fix = absl::StrCat(suggestion, suggestion.empty() ? "" : " ",
                             "fields here: ", absl::StrJoin(names, ", ")),
         .where = where});
  }

  void FillField(const YamlNode& node, Message& message, const FieldDescriptor& field,
                 const std::string& path) {
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool is_auto = node.kind == Kind::kScalar && node.text == "auto";
    if (node.kind == Kind::kNull && (is_message || AcceptsAuto(field))) return;
    if (is_auto && AutoNumber(field) != 0)
      return message.GetReflection()->SetInt32(&message, &field, AutoNumber(field));
    if (is_auto && AcceptsAuto(field)) return;
    if (!field.is_repeated() || node.kind != Kind::kList)
      return FillValue(node, message, field, path);
    for (std::size_t i = 0; i < node.values.size(); ++i) {
      FillValue(node.values[i], message, field, absl::StrCat(path, "[", i, "]"));
    }
  }

  // Fills one value, which is the field or the next element of a repeated one.
  void FillValue(const YamlNode& node, Message& message, const FieldDescriptor& field,
                 const std::string& path) {
    const Reflection& reflection = *message.GetReflection();
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Message* inner = field.is_repeated() ? reflection.AddMessage(&message, &field)
                                           : reflection.MutableMessage(&message, &field);
      return FillMessage(node, *inner, path);
    }
    const bool accepts_auto = AcceptsAuto(field) || AutoNumber(field) != 0;
    const std::string or_auto = accepts_auto ? ", or auto" : "";
    if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM)
      return FillEnum(node, message, field, path, or_auto);
    if (node.kind != Kind::kScalar || !SetScalar(node.text, message, field)) {
      Fail(node, path,
           absl::StrCat("must be ", TypeName(field), BoundPassed(node.text, field), or_auto),
           FixOf(node, field));
    }
  }

  void FillEnum(const YamlNode& node, Message& message, const FieldDescriptor& field,
                const std::string& path, const std::string& or_auto) {
    const auto* const value =
        node.kind == Kind::kScalar ? FindNamed(*field.enum_type(), node.text) : nullptr;
    if (value == nullptr) {
      const std::vector<std::string> names = NamesOf(*field.enum_type());
      return Fail(node, path, absl::StrCat("must be one of ", absl::StrJoin(names, ", "), or_auto),
                  SuggestionOr(node, names, "use one of them"));
    }
    const Reflection& reflection = *message.GetReflection();
    field.is_repeated() ? reflection.AddEnum(&message, &field, value)
                        : reflection.SetEnum(&message, &field, value);
  }

  static std::string TypeName(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return AutoNumber(field) != 0 ? "a whole number, 1 or more" : "a whole number";
      case FieldDescriptor::CPPTYPE_INT64:
        return "a whole number";
      case FieldDescriptor::CPPTYPE_UINT64:
        return "a whole number, 0 or more";
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return "a finite number";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "true or false";
      default:
        return std::string(TextsOf(field));
    }
  }

  // Returns what to do about a value of another type than the field's, or out of its range.
  static std::string FixOf(const YamlNode& node, const FieldDescriptor& field) {
    std::string_view digits = node.text;
    if (digits.starts_with('-')) digits.remove_prefix(1);
    const bool is_whole = !digits.empty() && std::ranges::all_of(digits, absl::ascii_isdigit);
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
      case FieldDescriptor::CPPTYPE_INT64:
      case FieldDescriptor::CPPTYPE_UINT64:
        if (!is_whole) return "write digits alone, e.g. 8";
        if (!node.text.starts_with('-')) return "lower it";
        return AutoNumber(field) != 0 ? "write auto in words, or raise it" : "raise it";
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return "write digits, e.g. 0.001";
      case FieldDescriptor::CPPTYPE_BOOL:
        return "use one of them";
      default:
        return TextsOf(field) == "text" ? "write it as one text, in quotes if need be"
                                        : "use one of them";
    }
  }

  // Returns the bound of the field's type that `text` passes if it is a whole number, as the end of
  // a rule.  Precondition: the field refused `text`.
  static std::string BoundPassed(const std::string& text, const FieldDescriptor& field) {
    const bool negative = text.starts_with('-');
    const std::string_view digits = std::string_view(text).substr(negative ? 1 : 0);
    if (digits.empty() || !std::ranges::all_of(digits, absl::ascii_isdigit)) return "";
    const auto bound_of = [&](auto limits) -> std::string {
      if (!negative) return absl::StrCat(", at most ", limits.max());
      const bool has_lowest = limits.is_signed && AutoNumber(field) == 0;
      return has_lowest ? absl::StrCat(", at least ", limits.min()) : "";
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return bound_of(std::numeric_limits<std::int32_t>());
      case FieldDescriptor::CPPTYPE_INT64:
        return bound_of(std::numeric_limits<std::int64_t>());
      case FieldDescriptor::CPPTYPE_UINT64:
        return bound_of(std::numeric_limits<std::uint64_t>());
      default:
        return "";
    }
  }

  // Returns false if `text` is not of the field's type.  Precondition: the field is neither a
  // message nor an enumeration.
  static bool SetScalar(const std::string& text, Message& message, const FieldDescriptor& field) {
    const Reflection& r = *message.GetReflection();
    const bool add = field.is_repeated();
    const auto set_integer = [&](auto value, auto set) {
      if (!absl::SimpleAtoi(text, &value)) return false;
      const bool means_auto =
          AutoNumber(field) != 0 && static_cast<std::int64_t>(value) == AutoNumber(field);
      if (means_auto) return false;  // files say `auto` in words
      (r.*set)(&message, &field, value);
      return true;
    };
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        return set_integer(std::int32_t{0}, add ? &Reflection::AddInt32 : &Reflection::SetInt32);
      case FieldDescriptor::CPPTYPE_INT64:
        return set_integer(std::int64_t{0}, &Reflection::SetInt64);
      case FieldDescriptor::CPPTYPE_UINT64:
        return set_integer(std::uint64_t{0}, &Reflection::SetUInt64);
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        double value = 0;
        if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) return false;
        r.SetDouble(&message, &field, value);
        return true;
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        if (text != "true" && text != "false") return false;
        r.SetBool(&message, &field, text == "true");
        return true;
      case FieldDescriptor::CPPTYPE_STRING:
        add ? r.AddString(&message, &field, text) : r.SetString(&message, &field, text);
        return true;
      default:
        TAKT_CHECK(!"a type that no field of a file has");
        return false;
    }
  }

  const std::string what_;
  std::vector<FieldError> errors_;
  std::size_t num_errors_ = 0;
};

}  // namespace

absl::Status ParseMessageFile(std::string_view text, const JobFileOptions& options,
                              Message& message) {
  ASSIGN_OR_RETURN(const YamlNode root, ParseJobTree(text, options));
  Filler filler(options.rules.what);
  filler.FillMessage(root, message, "");
  return filler.status();
}

absl::StatusOr<v1::JobSpec> ParseJobFile(std::string_view text, const JobFileOptions& options) {
  v1::JobSpec spec;
  RETURN_IF_ERROR(ParseMessageFile(text, options, spec));
  return spec;
}

}  // namespace takt::config
