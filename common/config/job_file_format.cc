// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/config/file_names.h"
#include "common/config/job_file.h"
#include "nlohmann/json.hpp"

namespace takt::config {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

ordered_json ToJson(const Message& message);

// Writes the field, or element `index` of a repeated one.
ordered_json ToJson(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool element = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(element ? r.GetRepeatedMessage(message, &field, index)
                            : r.GetMessage(message, &field));
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = element ? r.GetRepeatedEnumValue(message, &field, index)
                                 : r.GetEnumValue(message, &field);
      const auto* value = field.enum_type()->FindValueByNumber(number);
      return value == nullptr ? ordered_json(number) : ordered_json(FileName(*value));
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      const std::int32_t number =
          element ? r.GetRepeatedInt32(message, &field, index) : r.GetInt32(message, &field);
      const bool is_auto = number != 0 && number == AutoNumber(field);
      return is_auto ? ordered_json("auto") : ordered_json(number);
    }
    case FieldDescriptor::CPPTYPE_INT64:
      return r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64:
      return r.GetUInt64(message, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return r.GetBool(message, &field);
    default:
      return r.GetString(message, &field);
  }
}

ordered_json ToJson(const Message& message) {
  ordered_json object = ordered_json::object();
  std::vector<const FieldDescriptor*> fields;  // the fields that are set, by number
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    ordered_json& value = object[FileName(*field)];
    if (!field->is_repeated()) {
      value = ToJson(message, *field, 0);
      continue;
    }
    value = ordered_json::array();
    for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
      value.push_back(ToJson(message, *field, i));
    }
  }
  return object;
}

std::string Dump(const ordered_json& json, int indent) {
  const std::string text = json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
  // JSON leaves this control character as it is, and YAML does not take it.
  return absl::StrReplaceAll(text, {{"\x7f", "\\u007f"}});
}

// Returns whether nothing in `value` is itself a mapping or a list.
bool IsFlat(const ordered_json& value) {
  if (!value.is_structured()) return true;
  for (const ordered_json& inner : value) {
    if (inner.is_structured()) return false;
  }
  return true;
}

// Returns a flat value on one line: {a: 1, b: "x"}.
std::string Flow(const ordered_json& value) {
  if (!value.is_object()) return Dump(value, -1);
  std::string text = "{";
  for (const auto& [key, inner] : value.items()) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", key, ": ", Dump(inner, -1));
  }
  return text + "}";
}

// Appends a mapping. What is not flat takes a line for each of its fields.
void AppendYaml(const ordered_json& object, std::size_t indent, std::string& text) {
  const std::string margin(indent, ' ');
  for (const auto& [key, value] : object.items()) {
    absl::StrAppend(&text, margin, key, ":");
    if (IsFlat(value)) {
      absl::StrAppend(&text, " ", Flow(value), "\n");
      continue;
    }
    absl::StrAppend(&text, "\n");
    if (value.is_object()) {
      AppendYaml(value, indent + 2, text);
      continue;
    }
    for (const ordered_json& element : value) {
      if (IsFlat(element)) {
        absl::StrAppend(&text, margin, "  - ", Flow(element), "\n");
        continue;
      }
      const std::size_t dash = text.size() + indent + 2;
      AppendYaml(element, indent + 4, text);
      text[dash] = '-';
    }
  }
}

}  // namespace

std::string FormatJobFile(const v1::JobSpec& spec, int indent) {
  return Dump(ToJson(spec), indent);
}

std::string FormatMessageJson(const Message& message) { return Dump(ToJson(message), -1); }

std::string FormatMessageYaml(const Message& message) {
  std::string text;
  AppendYaml(ToJson(message), 0, text);
  return text;
}

}  // namespace takt::config
