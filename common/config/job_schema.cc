// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_schema.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/config/file_names.h"
#include "common/config/job_spec_descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "nlohmann/json.hpp"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorProto;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptorProto;
using nlohmann::ordered_json;

// Has the comments of the proto, by "Message" and "Message.field". Compiled messages do not have
// them.
using Comments = std::map<std::string, std::string>;

Comments ReadComments() {
  google::protobuf::FileDescriptorSet files;
  TAKT_CHECK(files.ParseFromArray(kJobSpecDescriptor, sizeof(kJobSpecDescriptor)));
  Comments comments;
  for (const FileDescriptorProto& file : files.file()) {
    for (const auto& location : file.source_code_info().location()) {
      const auto& path = location.path();
      if (path.size() < 2 || path.Get(0) != FileDescriptorProto::kMessageTypeFieldNumber) continue;
      const DescriptorProto& message = file.message_type(path.Get(1));
      std::string name = message.name();
      if (path.size() == 4 && path.Get(2) == DescriptorProto::kFieldFieldNumber) {
        absl::StrAppend(&name, ".", message.field(path.Get(3)).name());
      } else if (path.size() != 2) {
        continue;
      }
      const std::string& text = location.has_leading_comments() ? location.leading_comments()
                                                                : location.trailing_comments();
      const std::vector<std::string> words =
          absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
      if (!words.empty()) comments[name] = absl::StrJoin(words, " ");
    }
  }
  return comments;
}

// Returns a schema of one keyword.
ordered_json Rule(const char* keyword, ordered_json value) {
  ordered_json schema = ordered_json::object();
  schema[keyword] = std::move(value);
  return schema;
}

class SchemaWriter {
 public:
  // Returns the schema of a mapping with the fields of `type`. definitions() gets those of its
  // sections.
  ordered_json Mapping(const Descriptor& type) {
    ordered_json schema = ordered_json::object();
    Describe(type.name(), schema);
    schema["type"] = "object";
    ordered_json& properties = schema["properties"] = ordered_json::object();
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      properties[FileName(field)] = Property(field);
    }
    schema["additionalProperties"] = false;
    return schema;
  }

  const ordered_json& definitions() const { return definitions_; }

 private:
  void Describe(const std::string& name, ordered_json& schema) const {
    const auto comment = comments_.find(name);
    if (comment != comments_.end()) schema["description"] = comment->second;
  }

  // Names the forms that Filler (job_file.cc) takes for this field.
  ordered_json Property(const FieldDescriptor& field) {
    const bool is_message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const ordered_json value = Value(field);
    ordered_json forms = ordered_json::array({value});
    if (field.is_repeated()) forms.push_back({{"type", "array"}, {"items", value}});
    if (AcceptsAuto(field) || AutoNumber(field) != 0) forms.push_back(Rule("const", "auto"));
    if (AcceptsAuto(field) || is_message) forms.push_back(Rule("type", "null"));
    ordered_json schema = ordered_json::object();
    Describe(absl::StrCat(field.containing_type()->name(), ".", field.name()), schema);
    if (forms.size() == 1) {
      schema.update(value);
    } else {
      schema["anyOf"] = forms;
    }
    return schema;
  }

  // Returns the schema of one value, which is the field or an element of a repeated one.
  ordered_json Value(const FieldDescriptor& field) {
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Reference(*field.message_type());
      case FieldDescriptor::CPPTYPE_ENUM: {
        ordered_json names = ordered_json::array();
        for (int i = 0; i < field.enum_type()->value_count(); ++i) {
          const auto& named = *field.enum_type()->value(i);
          if (IsOffered(named)) names.push_back(FileName(named));
        }
        return Rule("enum", names);
      }
      case FieldDescriptor::CPPTYPE_INT32:
        if (AutoNumber(field) != 0) return {{"type", "integer"}, {"minimum", 1}};
        return Rule("type", "integer");
      case FieldDescriptor::CPPTYPE_INT64:
        return Rule("type", "integer");
      case FieldDescriptor::CPPTYPE_UINT64:
        return {{"type", "integer"}, {"minimum", 0}};
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Rule("type", "number");
      case FieldDescriptor::CPPTYPE_BOOL:
        return Rule("type", "boolean");
      default:
        // Text that looks like a number or a truth value needs no quotes, as in `resume: 120`.
        return Rule("type", ordered_json::array({"string", "number", "boolean"}));
    }
  }

  ordered_json Reference(const Descriptor& type) {
    if (!definitions_.contains(type.name())) {
      definitions_[type.name()] = nullptr;  // keeps its place, and ends the recursion
      ordered_json mapping = Mapping(type);
      definitions_[type.name()] = std::move(mapping);
    }
    return Rule("$ref", absl::StrCat("#/$defs/", type.name()));
  }

  const Comments comments_ = ReadComments();
  ordered_json definitions_ = ordered_json::object();
};

}  // namespace

std::string JobSchema(int indent) {
  SchemaWriter writer;
  ordered_json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                         {"title", "Takt job file"}};
  schema.update(writer.Mapping(*v1::JobSpec::descriptor()));
  schema["$defs"] = writer.definitions();
  return schema.dump(indent);
}

}  // namespace takt::config
