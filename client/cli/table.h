// Table: rows for people, in aligned columns.

#ifndef CLIENT_CLI_TABLE_H_
#define CLIENT_CLI_TABLE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace berth::cli {

// Thread-compatible.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // Requires: as many cells as columns. Cells may contain text of other users: characters unsafe for a terminal are
  // escaped.
  void AddRow(std::vector<std::string> cells);

  bool empty() const { return rows_.empty(); }

  // Returns the titles and rows, one line each, two spaces between columns, no trailing spaces. An empty cell is shown
  // as "-".
  std::string Format() const;

 private:
  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace berth::cli

#endif  // CLIENT_CLI_TABLE_H_
