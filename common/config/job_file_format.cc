// SPDX-License-Identifier: Apache-2.0
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
    case FieldDescriptor::CPPTYPE_INT32:
      return element ? r.GetRepeatedInt32(message, &field, index) : r.GetInt32(message, &field);
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

}  // namespace

std::string FormatJobFile(const v1::JobSpec& spec, int indent) {
  return ToJson(spec).dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace takt::config
