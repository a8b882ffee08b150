// SPDX-License-Identifier: Apache-2.0
#include "common/config/yaml_tree.h"

#include <cstdint>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/bounded_text.h"
#include "common/base/status.h"
#include "yaml-cpp/eventhandler.h"
#include "yaml-cpp/exceptions.h"
#include "yaml-cpp/parser.h"

namespace takt::config {
namespace {

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMostOfReason = 100;  // bytes; some versions of the parser quote the text

absl::Status Bad(const YamlRules& rules, std::string rule, std::string fix, std::string where) {
  return InvalidField({.field = rules.what,
                       .rule = std::move(rule),
                       .fix = std::move(fix),
                       .where = std::move(where)});
}

std::string WhereOf(const YAML::Mark& mark, std::string_view name) {
  return absl::StrCat(std::string(name), ":", mark.line + 1, ":", mark.column + 1);
}

// Refuses what is YAML, but not allowed here.
class Refusal final : public YAML::ParserException {
 public:
  Refusal(const YAML::Mark& mark, const char* rule, const char* fix)
      : YAML::ParserException(mark, rule), rule_(rule), fix_(fix) {}

  const char* rule() const { return rule_; }
  const char* fix() const { return fix_; }

 private:
  const char *rule_, *fix_;
};

// Builds the tree from yaml-cpp's events. A map's children arrive as key, value, key, value.
class TreeBuilder final : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view name, std::size_t max_nodes) : name_(name), max_nodes_(max_nodes) {}

  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(mark, "", anchor, {.kind = YamlNode::Kind::kNull});
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refusal(mark, "must have no aliases", kNoAnchors);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Add(mark, tag, anchor, {.kind = YamlNode::Kind::kScalar, .text = value});
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, tag, anchor, YamlNode::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

 private:
  static constexpr char kNoAnchors[] = "write the value out wherever it is used";

  std::string Where(const YAML::Mark& mark) const { return WhereOf(mark, name_); }

  // yaml-cpp says "?" for plain scalars and "!" for quoted ones.
  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refusal(mark, "must have no anchors", kNoAnchors);
    if (tag.size() > 1)
      throw Refusal(mark, "must have no tags",
                    "remove it, or put text that begins with ! in quotes");
    if (++num_nodes_ > max_nodes_) throw Refusal(mark, "has too many values", "write fewer");
  }

  void Open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlNode::Kind kind) {
    Check(mark, tag, anchor);
    if (expects_key()) throw YAML::ParserException(mark, "a key must be a word");
    if (open_.size() >= kMaxDepth)
      throw Refusal(mark, "is nested too deeply", "write fewer levels");
    open_.push_back({.kind = kind, .where = Where(mark)});
  }

  void Close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    Place(std::move(node));
  }

  void Add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode node) {
    Check(mark, tag, anchor);
    node.where = Where(mark);
    if (!expects_key()) return Place(std::move(node));
    if (node.kind == YamlNode::Kind::kNull) throw YAML::ParserException(mark, "a key is missing");
    open_.back().keys.push_back(std::move(node.text));
    open_.back().key_where.push_back(std::move(node.where));
  }

  void Place(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
    } else {
      open_.back().values.push_back(std::move(node));
    }
  }

  bool expects_key() const {
    return !open_.empty() && open_.back().kind == YamlNode::Kind::kMap &&
           open_.back().keys.size() == open_.back().values.size();
  }

  const std::string name_;
  const std::size_t max_nodes_;
  std::size_t num_nodes_ = 0;
  std::vector<YamlNode> open_;  // the maps and lists that have begun, outermost first
  YamlNode root_;
};

// Returns the offset of the first byte that is no well-formed UTF-8 (RFC 3629) or a control
// character other than tab and line ends. Returns text.size() if there is none.
std::size_t FindNonText(std::string_view text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto byte = [&](std::size_t k) { return static_cast<std::uint8_t>(text[k]); };
    const std::uint8_t lead = byte(i);
    if (lead < 0x80) {
      const bool control = lead < 0x20 && lead != '\t' && lead != '\n' && lead != '\r';
      if (control || lead == 0x7f) return i;
      ++i;
      continue;
    }
    const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || i + length > text.size()) return i;
    const std::uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const std::uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (byte(i + 1) < low || byte(i + 1) > high) return i;
    for (std::size_t k = 2; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    }
    i += length;
  }
  return i;
}

// A character of the text, and its line and column, counted from 1.
struct Place {
  char character = 0;
  std::size_t line = 1, column = 1;

  std::string Text() const { return absl::StrCat(line, ":", column); }
};

// Reads the brackets and quotes of a text that begins with a bracket, as JSON does.
class BracketReader {
 public:
  // Returns false if a closing bracket closes no other one, or if too many are open.
  bool Read(std::string_view text) {
    for (const char c : text) {
      here_.character = c;
      if (!Take(c) || open_.size() > kMaxDepth) return false;
      if ((static_cast<std::uint8_t>(c) & 0xc0) != 0x80) ++here_.column;
      if (c == '\n') here_ = {.line = here_.line + 1};
    }
    return true;
  }
  // Returns the brackets and the quote that are open at the end of the text, outermost first.
  const std::vector<Place>& open() const { return open_; }
  const Place& end() const { return here_; }

 private:
  bool Take(char c) {
    const bool quoted = !open_.empty() && open_.back().character == '"';
    if (quoted) {
      if (c == '"' && !escaped_) open_.pop_back();
      escaped_ = c == '\\' && !escaped_;
      return true;
    }
    if (c == '{' || c == '[' || c == '"') open_.push_back(here_);
    if (c != '}' && c != ']') return true;
    if (open_.empty() || open_.back().character != (c == '}' ? '{' : '[')) return false;
    open_.pop_back();
    return true;
  }

  std::vector<Place> open_;
  Place here_;
  bool escaped_ = false;  // a backslash stands before this character of a text in quotes
};

// Returns the error of JSON that ends too early, or OK if `text` is not that.
absl::Status CheckEnd(std::string_view text, std::string_view name, const YamlRules& rules) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || (text[first] != '{' && text[first] != '['))
    return absl::OkStatus();
  BracketReader reader;
  if (!reader.Read(text) || reader.open().empty()) return absl::OkStatus();
  const Place& open = reader.open().back();
  return Bad(rules,
             absl::StrCat("ends before the ", std::string(1, open.character), " at ", open.Text(),
                          " is closed"),
             "give the whole text, or close it",
             absl::StrCat(std::string(name), ":", reader.end().Text()));
}

}  // namespace

absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view name,
                                   const YamlRules& rules) {
  const std::string instead = absl::StrCat("give a ", rules.what, " in YAML or JSON");
  if (text.size() > rules.max_bytes) {
    return Bad(rules,
               absl::StrCat("has ", text.size(), " bytes; at most ", rules.max_bytes, " are read"),
               instead, std::string(name));
  }
  if (const std::size_t offset = FindNonText(text); offset != text.size()) {
    return Bad(rules,
               absl::StrCat("is not text: byte ", offset, " is not UTF-8, or a control character"),
               instead, std::string(name));
  }
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder(name, rules.max_nodes), rest(name, rules.max_nodes);
    if (!parser.HandleNextDocument(builder)) {
      return YamlNode{.kind = YamlNode::Kind::kMap,
                      .where = absl::StrCat(std::string(name), ":1:1")};
    }
    if (parser.HandleNextDocument(rest)) {
      return Bad(rules, "holds more than one document", "keep one, without `---` between",
                 std::string(name));
    }
    return builder.Take();
  } catch (const Refusal& error) {
    return Bad(rules, error.rule(), error.fix(), WhereOf(error.mark, name));
  } catch (const YAML::Exception& error) {
    RETURN_IF_ERROR(CheckEnd(text, name, rules));
    return Bad(rules,
               absl::StrCat("is not YAML: ", std::string(FirstBytes(error.msg, kMostOfReason))),
               "correct it, or put text in quotes", WhereOf(error.mark, name));
  }
}

}  // namespace takt::config
