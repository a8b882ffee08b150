// SPDX-License-Identifier: Apache-2.0
// Holds one line of a terminal: text of known width, some of it in colour.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

enum class Style { kPlain, kBold, kDim, kGood, kWarn, kBad, kAccent };

// The number of columns that `text` takes, which is its number of characters: our text has no
// characters that are wide or combine.
int WidthOf(std::string_view text);

// Cleans text from elsewhere (reasons, names): every byte that is not printable ASCII becomes '?',
// so that the text cannot move the cursor and has the width of its characters.
std::string Printable(std::string_view text);

class StyledLine final {
 public:
  StyledLine() = default;
  explicit StyledLine(std::string_view text, Style style = Style::kPlain) { Append(text, style); }

  StyledLine& Append(std::string_view text, Style style = Style::kPlain);
  StyledLine& Append(const StyledLine& other);
  // Appends blanks up to `column`.
  StyledLine& PadTo(int column);
  int width() const { return width_; }

  // Returns the first `columns` characters without blanks at their end, with the sequences of
  // colours if `color` is set.
  std::string Text(int columns, bool color) const;

 private:
  struct Span {
    std::string text;
    Style style;
  };
  std::vector<Span> spans_;
  int width_ = 0;
};

// Returns "[#####-----]" of `width` columns, or nothing if there are fewer than five.
std::string BarOf(double fraction, int width, bool unicode);

}  // namespace takt::cli
