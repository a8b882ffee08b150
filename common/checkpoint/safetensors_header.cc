// SPDX-License-Identifier: Apache-2.0
#include "common/checkpoint/safetensors_header.h"

#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace takt::checkpoint {
namespace {

using nlohmann::json;

constexpr char kMetadata[] = "__metadata__";

std::string Shown(const std::string& name) {
  return absl::StrCat("\"", absl::Utf8SafeCHexEscape(name.substr(0, 100)), "\"");
}

// This is a SAX handler, because a DOM keeps only the last of a repeated key. The depth says where
// the parser is: 1 in the header, 2 in an entry or the metadata, 3 in `shape` or `data_offsets`.
class HeaderHandler final : public nlohmann::json_sax<json> {
 public:
  Header Take() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool null() override { return Unexpected(); }
  bool boolean(bool) override { return Unexpected(); }
  bool number_integer(number_integer_t) override { return Unexpected(); }  // negative
  bool number_float(number_float_t, const string_t&) override { return Unexpected(); }
  bool binary(binary_t&) override { return Unexpected(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ != 3) return Unexpected();
    numbers_.push_back(value);
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ != 2) return Unexpected();
    if (in_metadata_) {
      header_.metadata[field_] = std::move(value);
      return true;
    }
    if (field_ != "dtype") return Unexpected();
    header_.entries.back().dtype = std::move(value);
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ >= 2) return Unexpected();
    ++depth_;
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) return Entry(name);
    if (!fields_.insert(name).second)
      return Fail(absl::StrCat(Place(), ": ", Shown(name), " is given twice"));
    if (!in_metadata_ && name != "dtype" && name != "shape" && name != "data_offsets") {
      return Fail(absl::StrCat(Place(), ": unknown key ", Shown(name)));
    }
    field_ = name;
    return true;
  }

  bool end_object() override {
    if (depth_ == 2 && !in_metadata_ && fields_.size() != 3) {
      return Fail(absl::StrCat(Place(), ": must have dtype, shape and data_offsets"));
    }
    --depth_;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || field_ == "dtype") return Unexpected();
    ++depth_;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    --depth_;
    HeaderEntry& entry = header_.entries.back();
    if (field_ == "shape") {
      entry.shape = std::move(numbers_);
    } else {
      if (numbers_.size() != 2)
        return Fail(absl::StrCat(Place(), ": data_offsets must be two numbers"));
      entry.begin = numbers_[0];
      entry.end = numbers_[1];
    }
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) override {
    return Fail(absl::StrCat("the header is not JSON at byte ", position));
  }

 private:
  bool Entry(const std::string& name) {
    if (!names_.insert(name).second)
      return Fail(absl::StrCat("the header has ", Shown(name), " twice"));
    in_metadata_ = name == kMetadata;
    if (!in_metadata_) header_.entries.push_back({.name = name});
    fields_.clear();
    return true;
  }

  std::string Place() const {
    return in_metadata_ ? kMetadata : absl::StrCat("tensor ", Shown(header_.entries.back().name));
  }

  bool Unexpected() {
    if (depth_ < 2) return Fail("the header must be an object of objects");
    return Fail(absl::StrCat(Place(), ": ", Shown(field_), " has a value of the wrong type"));
  }

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  Header header_;
  std::string error_;
  int depth_ = 0;
  bool in_metadata_ = false;
  std::set<std::string> names_;   // of the entries
  std::set<std::string> fields_;  // of the current entry
  std::string field_;
  std::vector<std::uint64_t> numbers_;
};

}  // namespace

absl::StatusOr<Header> ParseHeader(std::string_view text) {
  if (text.empty() || text.front() != '{') {
    return absl::InvalidArgumentError("the header must begin with '{'");
  }
  HeaderHandler handler;
  if (!json::sax_parse(text, &handler)) return absl::InvalidArgumentError(handler.error());
  return handler.Take();
}

}  // namespace takt::checkpoint
