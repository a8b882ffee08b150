// SPDX-License-Identifier: Apache-2.0
// Draws on the terminal's other screen, and restores what was there before, however the process
// goes on or ends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

// There is at most one object at a time; one caller at a time. It does not use the streams of
// Terminal: write nothing else to the terminal while it exists.
class LiveScreen final {
 public:
  // Switches to the other screen and hides the cursor. fd: a terminal; borrowed.
  explicit LiveScreen(int fd);
  // Restores the screen. A fatal signal, and one that stops the process, also restore it.
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  struct Size {
    int columns = 80, rows = 24;
  };
  // The current size. Ask before every drawing, so that the next one follows a change of the
  // window.
  Size size() const;

  // Draws `lines`, no more and no wider than `size`. Returns false if the terminal is gone.
  bool Draw(std::vector<std::string> lines, Size size);

 private:
  const int fd_;
};

// Returns the bytes of one drawing. Every line begins at the first column.
std::string FrameOf(const std::vector<std::string>& lines);

}  // namespace takt::cli
