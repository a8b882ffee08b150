// SPDX-License-Identifier: Apache-2.0
// The terminal's other screen, drawn anew again and again, and what was there before put back
// however the process goes on or ends.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace takt::cli {

// One object at a time; one caller at a time. What is written passes by the streams of Terminal:
// write nothing else to the terminal while it lives.
class LiveScreen final {
 public:
  // fd: a terminal; borrowed. Switches to the other screen and hides the cursor.
  explicit LiveScreen(int fd);
  // Back to the screen before. A fatal signal and one that stops the process do that too.
  ~LiveScreen();
  LiveScreen(const LiveScreen&) = delete;
  LiveScreen& operator=(const LiveScreen&) = delete;

  struct Size {
    int columns = 80, rows = 24;
  };
  // As it is now: asked before every drawing, so that a change of the window shows in the next one.
  Size size() const;

  // lines: no more, and no wider, than `size`. False: the terminal is gone.
  bool Draw(std::vector<std::string> lines, Size size);

 private:
  const int fd_;
};

// The bytes of one drawing, every line from the first column on.
std::string FrameOf(const std::vector<std::string>& lines);

}  // namespace takt::cli
