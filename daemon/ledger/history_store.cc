#include "daemon/ledger/history_store.h"

#include <errno.h>
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/os_error.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace berth {
namespace {

// "Brth": whose the database is. And the version of its table.
constexpr int64_t kApplication = 0x42727468;
constexpr int64_t kVersion = 1;

constexpr uint64_t kPageSize = 4096;
// Of a page in the log.
constexpr uint64_t kFrameSize = kPageSize + 24;
// A quarter of the bytes is the log's: half of that until it is written back, the rest for one transaction more.
constexpr uint64_t kLogShare = 4;
constexpr uint64_t kMostChanges = 512;
// What room is made for when there is none: so much of all, so that it is made seldom.
constexpr uint64_t kRoomShare = 16;

constexpr char kCreate[] =
    "BEGIN; CREATE TABLE leases(number INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, kind INTEGER NOT NULL, "
    "lease INTEGER NOT NULL, session INTEGER NOT NULL, uid INTEGER NOT NULL, container TEXT NOT NULL, "
    "pid INTEGER NOT NULL, process TEXT NOT NULL, label TEXT NOT NULL, pool TEXT NOT NULL, units INTEGER NOT NULL, "
    "bytes INTEGER NOT NULL, devices TEXT NOT NULL, granted INTEGER NOT NULL, waited INTEGER NOT NULL, "
    "outcome INTEGER NOT NULL, ended INTEGER, held INTEGER) STRICT;";
constexpr char kInsert[] =
    "INSERT INTO leases VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)";
constexpr char kEnd[] = "UPDATE leases SET outcome = ?2, ended = ?3, held = ?4 WHERE number = ?1";
constexpr char kEndOthers[] =
    "UPDATE leases SET outcome = ?1 WHERE number IN "
    "(SELECT number FROM leases WHERE outcome = 0 AND incarnation != ?2 LIMIT ?3)";
constexpr char kFindOpen[] = "SELECT number, incarnation, kind, lease, outcome FROM leases";
constexpr char kOldestEnded[] = "SELECT number FROM leases WHERE outcome != 0 ORDER BY number LIMIT 1 OFFSET ?1";
constexpr char kDeleteEnded[] = "DELETE FROM leases WHERE outcome != 0 AND number <= ?1";
constexpr char kOldest[] = "SELECT number FROM leases ORDER BY number LIMIT 1 OFFSET ?1";
constexpr char kDelete[] = "DELETE FROM leases WHERE number <= ?1";
constexpr char kList[] =
    "SELECT number, incarnation, kind, lease, session, uid, container, pid, process, label, pool, units, bytes, "
    "devices, granted, waited, outcome, ended, held FROM leases WHERE number < ?1 AND granted <= ?2 AND "
    "(outcome = 0 OR ifnull(ended, granted) >= ?3) AND (?4 = 0 OR kind = ?4) AND (?5 = '' OR pool = ?5) AND "
    "(?6 IS NULL OR (uid = ?6 AND container = ?7)) ORDER BY number DESC LIMIT ?8";

std::string PathOf(const std::string& folder, const char* name) { return absl::StrCat(folder, "/", name); }

int64_t ToNumber(absl::Time time) { return absl::ToInt64Nanoseconds(time - absl::UnixEpoch()); }
absl::Time ToTime(int64_t number) { return absl::UnixEpoch() + absl::Nanoseconds(number); }

}  // namespace

// One use of a prepared statement, from its first value to its last row.
class HistoryStore::Statement {
 public:
  // `text` is one of the constants above.
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

  // The next value; null where nothing is given.
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

  // Whether there is another row.
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

  // Columns of the row, one after the other; a number that is not there is 0.
  bool HasNext() const { return sqlite3_column_type(statement_, column_) != SQLITE_NULL; }
  int64_t Number() { return sqlite3_column_int64(statement_, column_++); }
  std::string Text() {
    const unsigned char* const text = sqlite3_column_text(statement_, column_);
    const int size = sqlite3_column_bytes(statement_, column_++);
    return text == nullptr ? "" : std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(size));
  }
  // From the first column again.
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
  // Else its row is there.
  bool fresh = false;
  core::LeaseRecord lease;
  // Its end is known, but not when.
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

absl::Status HistoryStore::PutAside(const std::string& folder) {
  const std::string from = PathOf(folder, kName), to = PathOf(folder, kAsideName);
  // What its log has belongs to it.
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
    // For its user's eyes alone, as what SQLite puts beside it then is, too.
    const UniqueFd file(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
    if (!file) return OsError(absl::StrCat("open ", path_), errno);
  }
  const int code =
      sqlite3_open_v2(path_.c_str(), &database_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX, nullptr);
  if (code != SQLITE_OK) return Fault(code);
  // Nobody else opens it, so that nothing is shared with others through a file that may be cut short.
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
    return absl::FailedPreconditionError(absl::StrCat(path_, ": it is another program's database"));
  }
  if (!empty && version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": it is of version ", version, ", this daemon reads ", kVersion));
  }
  if (empty) BERTH_RETURN_IF_ERROR(Execute(absl::StrCat("PRAGMA page_size = ", kPageSize).c_str()));
  BERTH_RETURN_IF_ERROR(Execute("PRAGMA journal_mode = WAL"));
  // A commit is in the page cache: it outlives the daemon, and a crash of the machine costs the last ones.
  BERTH_RETURN_IF_ERROR(Execute("PRAGMA synchronous = NORMAL"));
  if (!empty) return absl::OkStatus();
  return Execute(absl::StrCat(kCreate, "PRAGMA application_id = ", kApplication, "; PRAGMA user_version = ", kVersion,
                              "; COMMIT")
                     .c_str());
}

absl::Status HistoryStore::ReadRows() {
  Statement found(this, kFindOpen);
  while (true) {
    const absl::StatusOr<bool> row = found.Next();
    // What says that it is ours has another table.
    if (!row.ok() && absl::IsInternal(row.status())) return absl::DataLossError(row.status().message());
    BERTH_RETURN_IF_ERROR(row.status());
    if (!*row) return absl::OkStatus();
    found.Rewind();
    const uint64_t number = static_cast<uint64_t>(found.Number());
    const uint64_t incarnation = static_cast<uint64_t>(found.Number());
    const auto kind = static_cast<core::LeaseKind>(found.Number());
    const uint64_t lease = static_cast<uint64_t>(found.Number());
    ++rows_;
    last_number_ = std::max(last_number_, number);
    if (found.Number() == 0 && incarnation == options_.incarnation) open_[{kind, lease}] = number;
  }
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
        changes.push_back({.number = open->second, .lease = record});
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
    changes.push_back({.number = row,
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
    BERTH_RETURN_IF_ERROR(MakeRoom(fresh));
    BERTH_RETURN_IF_ERROR(Execute("BEGIN"));
    absl::Status status;
    for (const Change& change : changes) {
      if (status.ok()) status = Apply(change);
    }
    if (status.ok()) status = Execute("COMMIT");
    // Some faults have rolled it back already.
    if (!status.ok() && sqlite3_get_autocommit(database_) == 0) Execute("ROLLBACK").IgnoreError();
    return status;
  };
  absl::Status status = run();
  // Rows that are larger than others may need more room than there was.
  if (absl::IsResourceExhausted(status) && DeleteOldest(rows_ / kRoomShare + 1).ok()) status = run();
  BERTH_RETURN_IF_ERROR(status);
  for (const Change& change : changes) {
    const Key key = {change.lease.kind, change.lease.id};
    if (change.lease.end != core::LeaseEnd::kNone) {
      open_.erase(key);
    } else {
      open_[key] = change.number;
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
  return insert.Run();
}

absl::Status HistoryStore::MakeRoom(uint64_t rows) {
  if (rows_ + rows > options_.rows) {
    const uint64_t goal = options_.rows - options_.rows / kRoomShare;
    while (rows_ > 0 && rows_ + rows > goal) BERTH_RETURN_IF_ERROR(DeleteOldest(rows_ + rows - goal).status());
  }
  const uint64_t most = most_pages_ - most_pages_ / kRoomShare;
  for (bool over = true; over && rows_ > 0;) {
    BERTH_ASSIGN_OR_RETURN(const int64_t pages, ReadNumber("PRAGMA page_count"));
    BERTH_ASSIGN_OR_RETURN(const int64_t free, ReadNumber("PRAGMA freelist_count"));
    over = static_cast<uint64_t>(pages - free) > most;
    if (over) BERTH_RETURN_IF_ERROR(DeleteOldest(rows_ / kRoomShare + 1).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> HistoryStore::DeleteOldest(uint64_t rows) {
  rows = std::min(rows, most_changes_);
  // Where most of them are still out, those go too: their ends are entered whole.
  const bool ended = rows_ - std::min<uint64_t>(rows_, open_.size()) > rows;
  uint64_t last = 0;
  {
    Statement oldest(this, ended ? kOldestEnded : kOldest);
    oldest.Bind(std::min(rows, rows_) - 1);
    BERTH_ASSIGN_OR_RETURN(const bool found, oldest.Next());
    if (!found) return uint64_t{0};
    last = static_cast<uint64_t>(oldest.Number());
  }
  Statement deletion(this, ended ? kDeleteEnded : kDelete);
  BERTH_RETURN_IF_ERROR(deletion.Bind(last).Run());
  const auto gone = static_cast<uint64_t>(sqlite3_changes(database_));
  rows_ -= std::min(gone, rows_);
  if (!ended) std::erase_if(open_, [&](const auto& open) { return open.second <= last; });
  return gone;
}

absl::StatusOr<core::Page<HistoryLease>> HistoryStore::List(const HistoryQuery& query) {
  core::Page<HistoryLease> page;
  Statement list(this, kList);
  // Numbers are signed there.
  list.Bind(std::min<uint64_t>(query.before, INT64_MAX)).Bind(ToNumber(query.until)).Bind(ToNumber(query.since));
  list.Bind(query.kind.has_value() ? static_cast<int64_t>(*query.kind) : int64_t{0}).Bind(query.pool);
  if (query.tenant.has_value()) {
    list.Bind(uint64_t{query.tenant->uid}).Bind(query.tenant->container);
  } else {
    list.BindNull().BindNull();
  }
  list.Bind(query.rows + 1);
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
