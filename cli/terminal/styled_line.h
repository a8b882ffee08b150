// SPDX-License-Identifier: Apache-2.0
// One line of a terminal: text of known width, some of it in colour.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

enum class Style { kPlain, kBold, kDim, kGood, kWarn, kBad, kAccent };

// Columns that `text` takes: its characters. Text of ours has none that are wide or combine.
int WidthOf(std::string_view text);

// What may come from elsewhere (reasons, names): every byte that is not printable ASCII becomes
// '?', so that it can neither move the cursor nor be of another width than it seems.
std::string Printable(std::string_view text);

class StyledLine final {
 public:
  StyledLine() = default;
  explicit StyledLine(std::string_view text, Style style = Style::kPlain) { Append(text, style); }

  StyledLine& Append(std::string_view text, Style style = Style::kPlain);
  StyledLine& Append(const StyledLine& other);
  // Blanks up to `column`.
  StyledLine& PadTo(int column);
  int width() const { return width_; }

  // The first `columns` characters, nothing after the last that is not blank; with the sequences
  // of its colours, or without.
  std::string Text(int columns, bool color) const;

 private:
  struct Span {
    std::string text;
    Style style;
  };
  std::vector<Span> spans_;
  int width_ = 0;
};

// "[#####-----]" of `width` columns; empty below five.
std::string BarOf(double fraction, int width, bool unicode);

}  // namespace takt::cli
