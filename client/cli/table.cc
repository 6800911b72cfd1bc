#include "client/cli/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/terminal_text.h"

namespace berth::cli {
namespace {

// Returns the width in code points: labels are UTF-8, and continuation bytes take no space.
size_t WidthOf(absl::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

absl::string_view Shown(const std::string& cell) { return cell.empty() ? "-" : absl::string_view(cell); }

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = ToTerminalWord(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Format() const {
  std::vector<size_t> widths;
  for (const Column& column : columns_) widths.push_back(WidthOf(column.title));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], WidthOf(Shown(row[i])));
  }
  std::string text;
  const auto append = [&](size_t i, absl::string_view cell, std::string* line) {
    const std::string padding(widths[i] - WidthOf(cell), ' ');
    if (i > 0) line->append("  ");
    columns_[i].align == Align::kRight ? absl::StrAppend(line, padding, cell)
                                       : absl::StrAppend(line, cell, padding);
  };
  const auto finish = [&](const std::string& line) {
    absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(line), "\n");
  };
  std::string titles;
  for (size_t i = 0; i < columns_.size(); ++i) append(i, columns_[i].title, &titles);
  finish(titles);
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) append(i, Shown(row[i]), &line);
    finish(line);
  }
  return text;
}

}  // namespace berth::cli
