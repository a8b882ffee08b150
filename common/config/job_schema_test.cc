// SPDX-License-Identifier: Apache-2.0
#include "common/config/job_schema.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/file_names.h"
#include "common/config/job_file.h"
#include "common/config/yaml_tree.h"
#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "takt/v1/job_spec.pb.h"

namespace takt::config {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::MessageFactory;
using nlohmann::json;
using ::testing::StartsWith;

// Judges values by the schema. It has the keywords that JobSchema uses, and fails on any other.
class Schema {
 public:
  bool Fits(const json& value) const { return Fits(value, root_); }

  bool Fits(const json& value, const json& schema) const {
    for (const auto& item : schema.items()) {
      if (!Holds(item.key(), item.value(), schema, value)) return false;
    }
    return true;
  }

  const json& Of(const Descriptor& type) const {
    return &type == v1::JobSpec::descriptor() ? root_ : root_.at("$defs").at(type.name());
  }

 private:
  bool Holds(const std::string& keyword, const json& rule, const json& schema,
             const json& value) const {
    const auto fits = [&](const json& inner) { return Fits(value, inner); };
    const auto is_rule = [&](const json& inner) { return Fits(inner, rule); };
    const auto is_type = [&](const json& type) { return IsOfType(value, type); };
    if (keyword == "$schema" || keyword == "$defs" || keyword == "title" ||
        keyword == "description") {
      return true;
    }
    if (keyword == "$ref")
      return fits(root_.at(json::json_pointer(rule.get<std::string>().substr(1))));
    if (keyword == "anyOf") return std::any_of(rule.begin(), rule.end(), fits);
    if (keyword == "const") return value == rule;
    if (keyword == "enum") return std::find(rule.begin(), rule.end(), value) != rule.end();
    if (keyword == "minimum") return !value.is_number() || value >= rule;
    if (keyword == "items")
      return !value.is_array() || std::all_of(value.begin(), value.end(), is_rule);
    if (keyword == "type")
      return rule.is_array() ? std::any_of(rule.begin(), rule.end(), is_type) : is_type(rule);
    if (keyword == "properties") return HoldProperties(rule, value);
    if (keyword == "additionalProperties") {
      EXPECT_EQ(rule, false);
      return HasNoOther(schema.at("properties"), value);
    }
    ADD_FAILURE() << "the test does not know the keyword " << keyword;
    return false;
  }

  bool HoldProperties(const json& properties, const json& value) const {
    if (!value.is_object()) return true;
    for (const auto& item : value.items()) {
      if (properties.contains(item.key()) && !Fits(item.value(), properties.at(item.key())))
        return false;
    }
    return true;
  }

  static bool HasNoOther(const json& properties, const json& value) {
    if (!value.is_object()) return true;
    for (const auto& item : value.items()) {
      if (!properties.contains(item.key())) return false;
    }
    return true;
  }

  static bool IsOfType(const json& value, const json& type) {
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    EXPECT_EQ(type, "string");
    return value.is_string();
  }

  const json root_ = json::parse(JobSchema());
};

// Collects the message of a job file and those of its sections.
void Collect(const Descriptor& type, std::set<const Descriptor*>& types) {
  if (!types.insert(&type).second) return;
  for (int i = 0; i < type.field_count(); ++i) {
    if (type.field(i)->message_type() != nullptr) Collect(*type.field(i)->message_type(), types);
  }
}

// Returns values of all kinds, as JSON, which is YAML, too.
std::vector<std::string> Values(const FieldDescriptor& field) {
  std::vector<std::string> values = {
      "null", "true", "1",    "1.5",    "\"auto\"",   "\"word\"",   "{}",
      "[]",   "[1]",  "[{}]", "[null]", "[\"auto\"]", "[\"word\"]", "{\"no_field\": 1}"};
  // The reader leaves negative numbers of the other fields to ToJobSpec, and the schema refuses
  // them.
  if (AutoNumber(field) == 0) values.push_back("-5");
  if (field.enum_type() != nullptr) {
    const std::string name = FileName(*field.enum_type()->value(1));
    values.push_back(absl::StrCat("\"", name, "\""));
    values.push_back(absl::StrCat("[\"", name, "\"]"));
  }
  return values;
}

TEST(JobSchema, HasEveryFieldAndTakesWhatTheReaderTakes) {
  const Schema schema;
  std::set<const Descriptor*> types;
  Collect(*v1::JobSpec::descriptor(), types);
  for (const Descriptor* type : types) {
    const json& mapping = schema.Of(*type);
    EXPECT_EQ(mapping.at("properties").size(), static_cast<std::size_t>(type->field_count()));
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor& field = *type->field(i);
      bool any_is_taken = false;
      for (const std::string& value : Values(field)) {
        const std::string text = absl::StrCat("{\"", FileName(field), "\": ", value, "}");
        const std::unique_ptr<Message> message(
            MessageFactory::generated_factory()->GetPrototype(type)->New());
        const bool taken = ParseMessageFile(text, {}, *message).ok();
        EXPECT_EQ(schema.Fits(json::parse(text), mapping), taken) << type->name() << ": " << text;
        any_is_taken |= taken;
      }
      EXPECT_TRUE(any_is_taken) << field.full_name();
    }
  }
}

TEST(JobSchema, OffersNoValueThatNoJobMayHave) {
  const Schema schema;
  EXPECT_TRUE(schema.Fits(json::parse(R"({"parallelism": {"shard": "parameters"}})")));
  EXPECT_FALSE(schema.Fits(json::parse(R"({"parallelism": {"shard": "gradients"}})")));
}

TEST(JobSchema, RefusesNumbersBelowTheLeast) {
  const Schema schema;
  EXPECT_TRUE(schema.Fits(json::parse(R"({"batch": {"microbatch": 1}})")));
  EXPECT_FALSE(schema.Fits(json::parse(R"({"batch": {"microbatch": -1}})")));
  EXPECT_FALSE(schema.Fits(json::parse(R"({"seed": -1})")));
}

json ToJson(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return nullptr;
    case YamlNode::Kind::kList: {
      json list = json::array();
      for (const YamlNode& value : node.values) list.push_back(ToJson(value));
      return list;
    }
    case YamlNode::Kind::kMap: {
      json object = json::object();
      for (std::size_t i = 0; i < node.keys.size(); ++i)
        object[node.keys[i]] = ToJson(node.values[i]);
      return object;
    }
    case YamlNode::Kind::kScalar:
      break;
  }
  if (node.text == "true" || node.text == "false") return node.text == "true";
  std::int64_t integer = 0;
  if (absl::SimpleAtoi(node.text, &integer)) return integer;
  double number = 0;
  if (absl::SimpleAtod(node.text, &number)) return number;
  return node.text;
}

TEST(JobSchema, EveryExampleFitsAndNoUnknownField) {
  const Schema schema;
  int num_examples = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat(TAKT_SOURCE_DIR, "/deploy/examples"))) {
    if (entry.path().extension() != ".yaml") continue;
    ++num_examples;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    json job = ToJson(*ParseYaml(text, entry.path().string()));
    EXPECT_TRUE(schema.Fits(job)) << entry.path();
    job["model"]["no_field"] = 1;
    EXPECT_FALSE(schema.Fits(job)) << entry.path();
  }
  EXPECT_GE(num_examples, 4);
}

TEST(JobSchema, ExplainsFieldsByTheCommentsOfTheProto) {
  const json schema = json::parse(JobSchema(-1));
  const json& definitions = schema.at("$defs");
  const auto text = [](const json& described) {
    return described.at("description").get<std::string>();
  };
  EXPECT_THAT(text(schema.at("properties").at("name")), StartsWith("Unique among jobs"));
  EXPECT_EQ(text(definitions.at("AdamwSpec").at("properties").at("beta1")), "default 0.9");
  EXPECT_THAT(text(definitions.at("RopeScalingSpec")), StartsWith("Stretches rotary positions"));
}

}  // namespace
}  // namespace takt::config
