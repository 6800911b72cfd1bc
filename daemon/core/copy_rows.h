// CopyRows: what a restart does with a table's rows, for tests of one table.

#ifndef DAEMON_CORE_COPY_ROWS_H_
#define DAEMON_CORE_COPY_ROWS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "common/archive.h"
#include "common/row.h"
#include "gtest/gtest.h"

namespace berth::core {

// The rows of `from`, in the order of their keys, read by `to`.
template <typename Table>
void CopyRows(const Table& from, Table* to) {
  std::vector<RowKey> keys;
  from.ListRows(&keys);
  std::sort(keys.begin(), keys.end());
  for (const RowKey& key : keys) {
    std::string row;
    ArchiveWriter writer(&row);
    ASSERT_TRUE(from.WriteRow(key, writer));
    ArchiveReader reader(row);
    to->ReadRow(key, reader);
    ASSERT_TRUE(reader.Finish().ok());
  }
}

}  // namespace berth::core

#endif  // DAEMON_CORE_COPY_ROWS_H_
