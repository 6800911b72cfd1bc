#include "daemon/ledger/history_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/os/os_error.h"
#include "common/os/unique_fd.h"
#include "common/status_macros.h"

namespace berth {
namespace {

// "Brth", SQLite's application_id of the database; and the version of its table.
constexpr int64_t kApplication = 0x42727468;
constexpr int64_t kVersion = 2;

constexpr uint64_t kPageSize = 4096;
// SQLite's limit of 512 bytes holds for its longest name, with "-journal".
constexpr size_t kLongestName = 512 - sizeof("-journal") + 1;
// Bytes of a page in the database's log.
constexpr uint64_t kFrameSize = kPageSize + 24;
// A quarter of the bytes is for the log: half of that until SQLite writes the log back, the rest for one more
// transaction.
constexpr uint64_t kLogShare = 4;
constexpr uint64_t kMostChanges = 512;
// The share of the limit that an eviction frees, so that evictions are rare.
constexpr uint64_t kCapacityShare = 16;

// Version 1.
constexpr char kCreate[] =
    "CREATE TABLE leases(number INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, kind INTEGER NOT NULL, "
    "lease INTEGER NOT NULL, session INTEGER NOT NULL, uid INTEGER NOT NULL, container TEXT NOT NULL, "
    "pid INTEGER NOT NULL, process TEXT NOT NULL, label TEXT NOT NULL, pool TEXT NOT NULL, units INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, devices TEXT NOT NULL, granted INTEGER NOT NULL, waited INTEGER NOT NULL, "
    "outcome INTEGER NOT NULL, ended INTEGER, held INTEGER) STRICT;";
// Upgrades version 1 to 2. The holder is the account to which the row counts, or kOperatorsHolder; a row of version 1
// counts to its uid. The size is the approximate size of the row in bytes.
constexpr char kAddHolders[] =
    "ALTER TABLE leases ADD COLUMN account INTEGER; "
    "ALTER TABLE leases ADD COLUMN holder INTEGER AS (ifnull(account, uid)) VIRTUAL; "
    "ALTER TABLE leases ADD COLUMN size INTEGER AS (128 + length(CAST(container AS BLOB)) + "
    "length(CAST(process AS BLOB)) + length(CAST(label AS BLOB)) + length(CAST(pool AS BLOB)) + "
    "length(CAST(devices AS BLOB))) VIRTUAL; "
    "CREATE INDEX leases_of_holders ON leases(holder); "
    "CREATE INDEX leases_of_tenants ON leases(uid, container);";
constexpr char kInsert[] =
    "INSERT INTO leases VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, "
    "?20)";
constexpr char kEnd[] = "UPDATE leases SET outcome = ?2, ended = ?3, held = ?4 WHERE number = ?1";
constexpr char kEndOthers[] =
    "UPDATE leases SET outcome = ?1 WHERE number IN "
    "(SELECT number FROM leases WHERE outcome = 0 AND incarnation != ?2 LIMIT ?3)";
constexpr char kFindAll[] =
    "SELECT number, incarnation, kind, lease, outcome, holder, size, granted FROM leases ORDER BY number";
constexpr char kFindFirst[] = "SELECT granted FROM leases ORDER BY number LIMIT 1";
// Select the last number of a holder's first ?2 rows, and their count.
constexpr char kFirstEnded[] =
    "SELECT max(number), count(*) FROM "
    "(SELECT number FROM leases WHERE holder = ?1 AND outcome != 0 ORDER BY number LIMIT ?2)";
constexpr char kFirst[] =
    "SELECT max(number), count(*) FROM (SELECT number FROM leases WHERE holder = ?1 ORDER BY number LIMIT ?2)";
constexpr char kDelete[] =
    "DELETE FROM leases WHERE holder = ?1 AND number <= ?2 AND (?3 = 0 OR outcome != 0) RETURNING granted, size";
// Lists all leases, or one tenant's; the latter reads no other rows (leases_of_tenants).
const std::string& ListText(bool of_tenant) {
  const auto text = [](const char* of) {
    return new std::string(absl::StrCat(
        "SELECT number, incarnation, kind, lease, session, uid, container, pid, process, label, pool, units, bytes, "
        "devices, granted, waited, outcome, ended, held FROM leases WHERE number < ?1 AND granted <= ?2 AND "
        "(outcome = 0 OR ifnull(ended, granted) >= ?3) AND (?4 = 0 OR kind = ?4) AND (?5 = '' OR pool = ?5) ",
        of, "ORDER BY number DESC LIMIT ?6"));
  };
  static const std::string* const of_all = text("");
  static const std::string* const of_one = text("AND uid = ?7 AND container = ?8 ");
  return of_tenant ? *of_one : *of_all;
}

std::string PathOf(const std::string& folder, const char* name) { return absl::StrCat(folder, "/", name); }

constexpr int64_t kOperatorsHolder = -1;

int64_t ToHolder(const core::RingKey& key) {
  return key.part == core::RingPart::kOperators ? kOperatorsHolder : int64_t{key.account};
}
core::RingKey FromHolder(int64_t holder) {
  if (holder == kOperatorsHolder) return {.part = core::RingPart::kOperators};
  return {.account = static_cast<uint32_t>(holder)};
}

// The approximate bytes of a row, like the column "size".
uint64_t SizeOf(const core::LeaseRecord& lease) {
  return 128 + lease.tenant.container.size() + lease.process.name.size() + lease.label.size() + lease.pool.size() +
         lease.devices.size();
}

int64_t ToNumber(absl::Time time) { return absl::ToInt64Nanoseconds(time - absl::UnixEpoch()); }
absl::Time ToTime(int64_t number) { return absl::UnixEpoch() + absl::Nanoseconds(number); }

}  // namespace

// One use of a prepared statement, from its first value to its last row.
class HistoryStore::Statement {
 public:
  // `text` is a constant above and is identified by its address.
  Statement(HistoryStore* store, const char* text) : store_(*store) {
    sqlite3_stmt*& made = store_.statements_[text];
    if (made == nullptr) {
      code_ = sqlite3_prepare_v3(store_.database_, text, -1, SQLITE_PREPARE_PERSISTENT, &made, nullptr);
    }
    statement_ = made;
  }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() {
    if (statement_ == nullptr) return;
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }

  // Binds the next parameter. An unbound parameter is null.
  Statement& Bind(uint64_t value) { return Bind(static_cast<int64_t>(value)); }
  Statement& Bind(int64_t value) {
    if (code_ == SQLITE_OK) code_ = sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  // `text` outlives the statement's use.
  Statement& Bind(const std::string& text) {
    if (code_ != SQLITE_OK) return *this;
    code_ = sqlite3_bind_text(statement_, ++bound_, text.data(), static_cast<int>(text.size()), SQLITE_STATIC);
    return *this;
  }
  Statement& BindNull() {
    ++bound_;
    return *this;
  }

  // Advances to the next row; returns whether there is one.
  absl::StatusOr<bool> Next() {
    if (code_ == SQLITE_OK) code_ = sqlite3_step(statement_);
    if (code_ == SQLITE_ROW) {
      code_ = SQLITE_OK;
      return true;
    }
    if (code_ == SQLITE_DONE) return false;
    return store_.Fault(code_);
  }
  absl::Status Run() { return Next().status(); }

  // The columns of the row, in order; a null number reads as 0.
  bool HasNext() const { return sqlite3_column_type(statement_, column_) != SQLITE_NULL; }
  int64_t Number() { return sqlite3_column_int64(statement_, column_++); }
  std::string Text() {
    const unsigned char* const text = sqlite3_column_text(statement_, column_);
    const int size = sqlite3_column_bytes(statement_, column_++);
    return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  }
  // Starts again at the first column.
  void Rewind() { column_ = 0; }

 private:
  HistoryStore& store_;
  sqlite3_stmt* statement_ = nullptr;
  int code_ = SQLITE_OK;
  int bound_ = 0;
  int column_ = 0;
};

struct HistoryStore::Change {
  uint64_t number = 0;
  // The row is new; otherwise it exists already.
  bool fresh = false;
  core::LeaseRecord lease;
  // The lease has ended at an unknown time.
  bool unseen = false;
};

HistoryStore::HistoryStore(const Options& options)
    : options_(options),
      path_(PathOf(options.folder, kName)),
      most_changes_(std::min(kMostChanges, options.size.count() / kLogShare / kFrameSize / 3)),
      most_pages_((options.size.count() - options.size.count() / kLogShare) / kPageSize) {}

HistoryStore::~HistoryStore() {
  for (const auto& [text, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(database_);
}

absl::Status HistoryStore::RenameUnreadable(const std::string& folder) {
  const std::string from = PathOf(folder, kName), to = PathOf(folder, kUnreadableName);
  // The log belongs to the database that it extends.
  const std::string log = from + "-wal";
  if (::rename(log.c_str(), (to + "-wal").c_str()) < 0 && errno == ENOENT) ::remove((to + "-wal").c_str());
  if (::rename(from.c_str(), to.c_str()) < 0 && errno != ENOENT) return OsError(absl::StrCat("rename ", from), errno);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HistoryStore>> HistoryStore::Open(const Options& options) {
  if (::mkdir(options.folder.c_str(), 0700) < 0 && errno != EEXIST) {
    return OsError(absl::StrCat("mkdir ", options.folder), errno);
  }
  std::unique_ptr<HistoryStore> store(new HistoryStore(options));
  BERTH_RETURN_IF_ERROR(store->Begin());
  return store;
}

absl::Status HistoryStore::Begin() {
  {
    // Only the daemon's user may read the file. SQLite gives its files beside it the same mode.
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!file) return OsError(absl::StrCat("open ", path_), errno);
  }
  // SQLite reads a name that begins with "file:" as a URI.
  const std::string name = path_[0] == '/' ? path_ : absl::StrCat("./", path_);
  const int code =
      sqlite3_open_v2(name.c_str(), &database_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code == SQLITE_CANTOPEN && name.size() > kLongestName) {
    return absl::InvalidArgumentError(absl::StrCat("open ", path_, ": ", name.size(), " bytes, limit ", kLongestName,
                                                   " of SQLite; choose another folder with --state"));
  }
  if (code != SQLITE_OK) return Fault(code);
  // No other process opens the database, so SQLite need not share state through a file that may be truncated.
  BERTH_RETURN_IF_ERROR(Execute("PRAGMA locking_mode = EXCLUSIVE"));
  BERTH_RETURN_IF_ERROR(CheckIdentity());
  BERTH_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA max_page_count = ", most_pages_).c_str()));
  const uint64_t log_pages = options_.size.count() / kLogShare / kFrameSize;
  BERTH_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA wal_autocheckpoint = ", log_pages / 2).c_str()));
  BERTH_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA journal_size_limit = ", log_pages * kFrameSize).c_str()));
  return ReadRows();
}

absl::Status HistoryStore::CheckIdentity() {
  BERTH_ASSIGN_OR_RETURN(const int64_t application, ReadNumber("PRAGMA application_id"));
  BERTH_ASSIGN_OR_RETURN(const int64_t version, ReadNumber("PRAGMA user_version"));
  BERTH_ASSIGN_OR_RETURN(const int64_t tables, ReadNumber("SELECT count(*) FROM sqlite_schema"));
  const bool empty = application == 0 && version == 0 && tables == 0;
  if (!empty && application != kApplication) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": the database belongs to another program"));
  }
  if (!empty && (version < 1 || version > kVersion)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": version ", version, ", and this daemon reads ", kVersion));
  }
  if (empty) BERTH_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA page_size = ", kPageSize).c_str()));
  BERTH_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  // A commit is in the page cache: it outlives the daemon, but a crash of the machine loses the last commits.
  BERTH_RETURN_IF_ERROR(Execute("PRAGMA synchronous = NORMAL"));
  if (!empty && version == kVersion) return absl::OkStatus();
  absl::Status made = Execute(absl::StrCat("BEGIN; ", empty ? kCreate : "", kAddHolders, "PRAGMA application_id = ",
                                           kApplication, "; PRAGMA user_version = ", kVersion, "; COMMIT")
                                  .c_str());
  // The database has our application_id but another table.
  if (!empty && absl::IsInternal(made)) made = absl::DataLossError(made.message());
  return made;
}

absl::Status HistoryStore::ReadRows() {
  Statement found(this, kFindAll);
  while (true) {
    const absl::StatusOr<bool> row = found.Next();
    // The database has our application_id but another table.
    if (!row.ok() && absl::IsInternal(row.status())) return absl::DataLossError(row.status().message());
    BERTH_RETURN_IF_ERROR(row.status());
    if (!*row) return absl::OkStatus();
    found.Rewind();
    const uint64_t number = static_cast<uint64_t>(found.Number());
    const uint64_t incarnation = static_cast<uint64_t>(found.Number());
    const auto kind = static_cast<core::LeaseKind>(found.Number());
    const uint64_t lease = static_cast<uint64_t>(found.Number());
    const bool open = found.Number() == 0;
    const core::RingKey holder = FromHolder(found.Number());
    HolderTotals& totals = held_[holder];
    ++totals.rows;
    totals.bytes += static_cast<uint64_t>(found.Number());
    const absl::Time granted = ToTime(found.Number());
    // A missing number is a lease that was evicted.
    if (number != last_number_ + 1) complete_since_ = std::max(complete_since_, granted);
    ++rows_;
    last_number_ = number;
    if (open && incarnation == options_.incarnation) open_[{kind, lease}] = {.number = number, .holder = holder};
  }
}

absl::StatusOr<core::RingReach> HistoryStore::Reach() {
  core::RingReach reach = {.complete_since = complete_since_};
  Statement first(this, kFindFirst);
  BERTH_ASSIGN_OR_RETURN(const bool found, first.Next());
  if (found) reach.oldest = ToTime(first.Number());
  return reach;
}

absl::Status HistoryStore::Fault(int code) const {
  const std::string what = absl::StrCat(path_, ": ", sqlite3_errmsg(database_));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(what);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(what);
    case SQLITE_ERROR:
    case SQLITE_MISMATCH:
      return absl::InternalError(what);
    default:
      return absl::UnavailableError(what);
  }
}

absl::Status HistoryStore::Execute(const char* text) {
  const int code = sqlite3_exec(database_, text, nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Fault(code);
}

absl::StatusOr<int64_t> HistoryStore::ReadNumber(const char* text) {
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(database_, text, -1, &statement, nullptr);
  if (code == SQLITE_OK) code = sqlite3_step(statement);
  const int64_t number = code == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : 0;
  const absl::Status status = code == SQLITE_ROW ? absl::OkStatus() : Fault(code);
  sqlite3_finalize(statement);
  if (!status.ok()) return status;
  return number;
}

absl::Status HistoryStore::Write(absl::Span<const core::LeaseRecord> records, size_t* written) {
  std::vector<Change> changes;
  while (!records.empty()) {
    changes.clear();
    std::map<Key, size_t> fresh;
    const auto chunk = records.first(std::min<size_t>(records.size(), most_changes_));
    uint64_t number = last_number_;
    for (const core::LeaseRecord& record : chunk) {
      const Key key = {record.kind, record.id};
      const auto open = open_.find(key);
      const auto granted = fresh.find(key);
      if (record.end != core::LeaseEnd::kNone && granted != fresh.end()) {
        core::LeaseRecord& lease = changes[granted->second].lease;
        lease.end = record.end;
        lease.ended_at = record.ended_at;
        lease.held = record.held;
      } else if (open == open_.end()) {
        fresh[key] = changes.size();
        changes.push_back({.number = ++number, .fresh = true, .lease = record});
      } else if (record.end != core::LeaseEnd::kNone) {
        changes.push_back({.number = open->second.number, .lease = record});
      }
    }
    BERTH_RETURN_IF_ERROR(Commit(changes));
    *written += chunk.size();
    records.remove_prefix(chunk.size());
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::Resume(const std::vector<core::LeaseRecord>& out) {
  do {
    Statement others(this, kEndOthers);
    others.Bind(static_cast<int64_t>(core::LeaseEnd::kDaemonEnd)).Bind(options_.incarnation).Bind(most_changes_);
    BERTH_RETURN_IF_ERROR(others.Run());
  } while (sqlite3_changes(database_) > 0);
  std::set<Key> known;
  std::vector<Change> changes;
  uint64_t number = last_number_;
  for (const core::LeaseRecord& lease : out) {
    const Key key = {lease.kind, lease.id};
    known.insert(key);
    if (!open_.contains(key)) changes.push_back({.number = ++number, .fresh = true, .lease = lease});
  }
  for (const auto& [key, row] : open_) {
    if (known.contains(key)) continue;
    changes.push_back({.number = row.number,
                       .lease = {.kind = key.first, .id = key.second, .end = core::LeaseEnd::kUnseen},
                       .unseen = true});
  }
  absl::Span<const Change> left = changes;
  while (!left.empty()) {
    const auto chunk = left.first(std::min<size_t>(left.size(), most_changes_));
    BERTH_RETURN_IF_ERROR(Commit(chunk));
    left.remove_prefix(chunk.size());
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::Commit(absl::Span<const Change> changes) {
  const auto fresh = static_cast<uint64_t>(
      std::count_if(changes.begin(), changes.end(), [](const Change& change) { return change.fresh; }));
  const auto run = [&]() -> absl::Status {
    BERTH_RETURN_IF_ERROR(FreeCapacity(fresh));
    BERTH_RETURN_IF_ERROR(Execute("BEGIN"));
    absl::Status status;
    for (const Change& change : changes) {
      if (status.ok()) status = Apply(change);
    }
    if (status.ok()) status = Execute("COMMIT");
    // SQLite has already rolled back after some errors.
    if (!status.ok() && sqlite3_get_autocommit(database_) == 0) Execute("ROLLBACK").IgnoreError();
    return status;
  };
  absl::Status status = run();
  // Rows of more than average size may need more capacity than FreeCapacity() freed.
  if (absl::IsResourceExhausted(status) && EvictBytes().ok()) status = run();
  BERTH_RETURN_IF_ERROR(status);
  for (const Change& change : changes) {
    const Key key = {change.lease.kind, change.lease.id};
    const core::RingKey holder = core::RingKeyOf(change.lease.tenant, options_.operators);
    if (change.lease.end != core::LeaseEnd::kNone) {
      open_.erase(key);
    } else {
      open_[key] = {.number = change.number, .holder = holder};
    }
    if (change.fresh) {
      HolderTotals& totals = held_[holder];
      ++totals.rows;
      totals.bytes += SizeOf(change.lease);
    }
    last_number_ = std::max(last_number_, change.number);
  }
  rows_ += fresh;
  return absl::OkStatus();
}

absl::Status HistoryStore::Apply(const Change& change) {
  const core::LeaseRecord& lease = change.lease;
  const bool ended = lease.end != core::LeaseEnd::kNone && !change.unseen;
  const auto bind_end = [&](Statement& statement) {
    statement.Bind(static_cast<int64_t>(lease.end));
    if (!ended) return void(statement.BindNull().BindNull());
    statement.Bind(ToNumber(lease.ended_at)).Bind(absl::ToInt64Nanoseconds(lease.held));
  };
  if (!change.fresh) {
    Statement end(this, kEnd);
    bind_end(end.Bind(change.number));
    return end.Run();
  }
  Statement insert(this, kInsert);
  insert.Bind(change.number).Bind(options_.incarnation).Bind(static_cast<int64_t>(lease.kind)).Bind(lease.id);
  insert.Bind(lease.session.value()).Bind(uint64_t{lease.tenant.uid}).Bind(lease.tenant.container);
  insert.Bind(int64_t{lease.process.pid}).Bind(lease.process.name).Bind(lease.label).Bind(lease.pool);
  insert.Bind(lease.units).Bind(lease.bytes.count()).Bind(lease.devices).Bind(ToNumber(lease.granted_at));
  bind_end(insert.Bind(absl::ToInt64Nanoseconds(lease.waited)));
  insert.Bind(ToHolder(core::RingKeyOf(lease.tenant, options_.operators)));
  return insert.Run();
}

absl::Status HistoryStore::FreeCapacity(uint64_t rows) {
  if (rows_ + rows > options_.rows) {
    const uint64_t goal = options_.rows - options_.rows / kCapacityShare;
    while (rows_ > 0 && rows_ + rows > goal) BERTH_RETURN_IF_ERROR(Evict(&HolderTotals::rows, rows_ + rows - goal));
  }
  const uint64_t most = most_pages_ - most_pages_ / kCapacityShare;
  for (bool over = true; over && rows_ > 0;) {
    BERTH_ASSIGN_OR_RETURN(const int64_t pages, ReadNumber("PRAGMA page_count"));
    BERTH_ASSIGN_OR_RETURN(const int64_t free, ReadNumber("PRAGMA freelist_count"));
    over = static_cast<uint64_t>(pages - free) > most;
    if (over) BERTH_RETURN_IF_ERROR(EvictBytes());
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::EvictBytes() {
  uint64_t bytes = 0;
  for (const auto& [holder, totals] : held_) bytes += totals.bytes;
  return Evict(&HolderTotals::bytes, bytes / kCapacityShare + 1);
}

absl::Status HistoryStore::Evict(uint64_t HolderTotals::*what, uint64_t amount) {
  uint64_t total = 0;
  std::map<core::RingKey, uint64_t> held;
  for (const auto& [holder, totals] : held_) total += held[holder] = totals.*what;
  for (const auto& [holder, limit] : core::LimitRing(total - std::min(amount, total), held)) {
    const HolderTotals totals = held_.at(holder);
    if (totals.*what <= limit) continue;
    // Rounded up, so that at least one row is deleted.
    const uint64_t rows = (totals.rows * (totals.*what - limit) - 1) / totals.*what + 1;
    BERTH_RETURN_IF_ERROR(DeleteOldest(holder, std::min(rows, most_changes_)));
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::DeleteOldest(const core::RingKey& holder, uint64_t rows) {
  // If too few leases have ended, open leases are deleted too; their ends later become complete rows.
  for (const bool ended : {true, false}) {
    int64_t last = 0;
    uint64_t count = 0;
    {
      Statement first(this, ended ? kFirstEnded : kFirst);
      BERTH_RETURN_IF_ERROR(first.Bind(ToHolder(holder)).Bind(rows).Next().status());
      last = first.Number();
      count = static_cast<uint64_t>(first.Number());
    }
    if (count > 0) BERTH_RETURN_IF_ERROR(DeleteUpTo(holder, static_cast<uint64_t>(last), ended));
    rows -= count;
    if (rows == 0) break;
  }
  return absl::OkStatus();
}

absl::Status HistoryStore::DeleteUpTo(const core::RingKey& holder, uint64_t last, bool ended) {
  HolderTotals gone;
  absl::Time latest = absl::InfinitePast();
  Statement deletion(this, kDelete);
  deletion.Bind(ToHolder(holder)).Bind(last).Bind(int64_t{ended});
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const bool found, deletion.Next());
    if (!found) break;
    deletion.Rewind();
    latest = std::max(latest, ToTime(deletion.Number()));
    ++gone.rows;
    gone.bytes += static_cast<uint64_t>(deletion.Number());
  }
  complete_since_ = std::max(complete_since_, latest);
  rows_ -= gone.rows;
  HolderTotals& totals = held_.at(holder);
  totals.rows -= gone.rows;
  totals.bytes -= std::min(gone.bytes, totals.bytes);
  if (totals.rows == 0) held_.erase(holder);
  if (!ended) {
    std::erase_if(open_, [&](const auto& open) { return open.second.holder == holder && open.second.number <= last; });
  }
  return absl::OkStatus();
}

absl::StatusOr<core::Page<HistoryLease>> HistoryStore::List(const HistoryQuery& query) {
  core::Page<HistoryLease> page;
  Statement list(this, ListText(query.tenant.has_value()).c_str());
  // SQLite's integers are signed.
  list.Bind(std::min<uint64_t>(query.before, INT64_MAX)).Bind(ToNumber(query.until)).Bind(ToNumber(query.since));
  list.Bind(query.kind.has_value() ? static_cast<int64_t>(*query.kind) : int64_t{0}).Bind(query.pool);
  list.Bind(query.rows + 1);
  if (query.tenant.has_value()) list.Bind(uint64_t{query.tenant->uid}).Bind(query.tenant->container);
  while (true) {
    BERTH_ASSIGN_OR_RETURN(const bool found, list.Next());
    if (!found) return page;
    page.more = page.size() == query.rows;
    if (page.more) return page;
    list.Rewind();
    HistoryLease& row = page.emplace_back();
    core::LeaseRecord& lease = row.lease;
    row.number = page.last = static_cast<uint64_t>(list.Number());
    row.incarnation = static_cast<uint64_t>(list.Number());
    lease.kind = static_cast<core::LeaseKind>(list.Number());
    lease.id = static_cast<uint64_t>(list.Number());
    lease.session = SessionId(static_cast<uint64_t>(list.Number()));
    lease.tenant.uid = static_cast<uint32_t>(list.Number());
    lease.tenant.container = list.Text();
    lease.process.pid = static_cast<int32_t>(list.Number());
    lease.process.uid = lease.tenant.uid;
    lease.process.name = list.Text();
    lease.label = list.Text();
    lease.pool = list.Text();
    lease.units = static_cast<uint64_t>(list.Number());
    lease.bytes = Bytes(static_cast<uint64_t>(list.Number()));
    lease.devices = list.Text();
    lease.granted_at = ToTime(list.Number());
    lease.waited = absl::Nanoseconds(list.Number());
    lease.end = static_cast<core::LeaseEnd>(list.Number());
    row.end_seen = list.HasNext();
    lease.ended_at = ToTime(list.Number());
    lease.held = absl::Nanoseconds(list.Number());
  }
}

}  // namespace berth
