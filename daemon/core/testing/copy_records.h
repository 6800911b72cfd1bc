// CopyRecords: a restart's transfer of one table's records, for tests of that table.

#ifndef DAEMON_CORE_TESTING_COPY_RECORDS_H_
#define DAEMON_CORE_TESTING_COPY_RECORDS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/base/archive.h"
#include "daemon/base/ledger_record.h"
#include "gtest/gtest.h"

namespace berth::core {

// Makes `to` read the records of `from`, in the order of their keys.
template <typename Table>
void CopyRecords(const Table& from, Table* to) {
  std::vector<RecordKey> keys;
  from.ListRecords(&keys);
  std::sort(keys.begin(), keys.end());
  for (const RecordKey& key : keys) {
    std::string record;
    ArchiveWriter writer(&record);
    ASSERT_TRUE(from.WriteRecord(key, writer));
    ArchiveReader reader(record);
    to->ReadRecord(key, reader);
    ASSERT_TRUE(reader.Finish().ok());
  }
}

}  // namespace berth::core

#endif  // DAEMON_CORE_TESTING_COPY_RECORDS_H_
