// Views: which tenants' objects `berth` shows to which user, and its output about hidden objects. The verbs accept the
// ids that the command prints.

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "berth/v1/permit.grpc.pb.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/berth_command.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/subprocess.h"
#include "tests/support/testing.h"
#include "tests/support/wire/raw_client.h"

namespace berth::testing {
namespace {

using Words = std::vector<std::string>;

// A group of every Debian system; a process becomes a member with this as its gid.
constexpr char kGroup[] = "users";
constexpr gid_t kMembers = 100;

// A copy of `berth` that other users may execute.
class CommandOfUsers {
 public:
  CommandOfUsers() {
    std::filesystem::copy_file(ProgramPath("client/cli/berth"), path_);
    std::filesystem::permissions(path_, std::filesystem::perms(0755));
  }
  ~CommandOfUsers() { std::filesystem::remove(path_); }

  // Returns the command's output, both streams, for that user.
  std::string Show(const std::string& folder, uid_t uid, gid_t gid, const Words& words, int* code = nullptr) const {
    Words argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"};
    if (uid != ::getuid()) {
      const std::string user = absl::StrCat("--reuid=", uid), group = absl::StrCat("--regid=", gid);
      const std::string groups =
          OtherUser().has_value() ? absl::StrCat("--groups=", kClientsGroup) : std::string("--clear-groups");
      argv.insert(argv.end(), {"/usr/bin/setpriv", user, group, groups});
    }
    argv.push_back(path_);
    argv.insert(argv.end(), words.begin(), words.end());
    Subprocess command = Subprocess::Start(
        {.argv = std::move(argv), .environment = {absl::StrCat("BERTH_FOLDER=", folder), "BERTH_SESSION"},
         .of_operator = true});
    std::string text = command.ReadAll();
    const int end = command.Wait();
    if (code != nullptr) *code = end;
    return text;
  }

 private:
  const std::string path_ = absl::StrCat("/tmp/berth_of_users.", ::getpid());
};

struct Row {
  const char* name;
  Words words;
  // The output where the caller owns no object.
  const char* none;
};

TEST(SightTest, ListsShowAllOnlyToObserversAndOperators) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  TestDaemon daemon(
      {.flags = {absl::StrCat("--observer-group=", kGroup)}, .environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const CommandOfUsers berth;
  constexpr char kMark[] = "the list shows your tenant only; --observer";
  const Row rows[] = {
      {"permits", {"permits"}, "no permits of yours are out\n"},
      {"blocks", {"blocks"}, "no blocks of yours; --observer"},
      {"imports", {"blocks", "--imports"}, "no imports of yours; --observer"},
      {"sessions", {"sessions"}, kMark},
      {"reservations", {"reservations"}, "no reservations of yours; --observer"},
      {"plans", {"plans"}, "no plans of yours; --observer"},
      {"streams", {"streams"}, "no streams of yours; --observer"},
      {"strays", {"strays"}, "no processes of yours using a device without a permit; --observer"},
      {"history", {"history"}, "no leases of yours; --observer"},
      {"log", {"log"}, kMark},
      {"modules", {"modules"}, kMark},
      {"bytes", {"bytes"}, kMark},
      {"budgets", {"budget", "show"}, kMark},
  };
  // Kinds of which the holder has an object.
  const std::set<std::string> held = {"permits", "blocks", "imports", "sessions", "log", "bytes", "budgets", "history"};
  {
    Actor holder(daemon, {.uid = 1001, .open = false});
    holder.Do("open label=of-holder");
    holder.Do("acquire p label=of-holder");
    holder.Do("allocate b 4096 label=of-holder");
    Actor waiter(daemon, {.uid = 1001, .open = false});
    waiter.Do("open label=of-holder");
    waiter.Do("begin w label=of-holder");
    ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));
    ASSERT_TRUE(Eventually([&] {
      return absl::StrContains(berth.Show(daemon.folder(), 0, 0, {"history"}), "of-holder");
    }));
    const struct {
      const char* name;
      uid_t uid;
      gid_t gid;
      bool sees_all;
      bool is_holder;
    } callers[] = {{"root", 0, 0, true, false},
                   {"observer", 1003, kMembers, true, false},
                   {"stranger", 1002, 1002, false, false},
                   {"holder", 1001, 1001, false, true}};
    for (const auto& caller : callers) {
      for (const Row& row : rows) {
        int code = -1;
        const std::string shown = berth.Show(daemon.folder(), caller.uid, caller.gid, row.words, &code);
        const std::string where = absl::StrCat(row.name, " by ", caller.name, ": ", shown);
        EXPECT_EQ(code, 0) << where;
        if (held.contains(row.name)) {
          EXPECT_EQ(absl::StrContains(shown, "of-holder") || absl::StrContains(shown, " 1001 "),
                    caller.sees_all || caller.is_holder)
              << where;
        }
        EXPECT_EQ(absl::StrContains(shown, "--observer"), !caller.sees_all) << where;
        EXPECT_EQ(absl::StrContains(shown, " your"), !caller.sees_all) << where;
        if (!caller.sees_all && !caller.is_holder) {
          EXPECT_TRUE(absl::StrContains(shown, row.none)) << where;
        }
      }
      const std::string permits = berth.Show(daemon.folder(), caller.uid, caller.gid, {"permits"});
      constexpr char kOthers[] = "pool gpu-tests: 1 of 1 units are held by other tenants, and 1 of their requests wait";
      EXPECT_EQ(absl::StrContains(permits, kOthers), !caller.sees_all && !caller.is_holder) << permits;
      EXPECT_FALSE(absl::StrContains(permits, "no permits are out")) << permits;
      const std::string number = absl::StrCat(Must(daemon.inspector().ListPermits()).waiters(0).number());
      const std::string why = berth.Show(daemon.folder(), caller.uid, caller.gid, {"explain", number});
      EXPECT_FALSE(absl::StrContains(why, "no permits")) << why;
      EXPECT_EQ(absl::StrContains(why, "of-holder"), caller.sees_all || caller.is_holder) << why;
    }
    waiter.Kill();
    holder.Quit();
  }
  EXPECT_EQ(berth.Show(daemon.folder(), 0, 0, {"permits"}), "no permits are out\n");
  EXPECT_EQ(berth.Show(daemon.folder(), 0, 0, {"permits", "--pool", "gpu-tests"}),
            "no permits of pool gpu-tests are out\n");
  daemon.ExpectAccountsBack();
}

// The list of waiters has at most a thousand; the counts around it have no such limit.
TEST(SightTest, CountsIncludeWaitersThatListOmits) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  // A process has at most 512 calls in progress.
  constexpr size_t kActors = 3, kWaitersEach = 400, kWaiters = kActors * kWaitersEach;
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=2"}});
  const CommandOfUsers berth;
  Actor holder(daemon, {.uid = 1001}), other(daemon, {.uid = 1002});
  for (const char* const key : {"a", "b"}) holder.Do(absl::StrCat("acquire ", key, " key=", key));
  std::vector<Actor> crowd;
  for (size_t i = 0; i < kActors; ++i) {
    Actor& actor = crowd.emplace_back(daemon, ActorOptions{.uid = 1001});
    for (size_t k = 0; k < kWaitersEach; ++k) actor.Do(absl::StrCat("async ", k, " key=", k));
  }
  other.Do("begin w");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == kWaiters + 1; }));

  const std::string own = berth.Show(daemon.folder(), 1001, 1001, {"permits"});
  EXPECT_TRUE(absl::StrContains(own, "\nthe list shows 1000 of 1200 waiters\n")) << own;
  EXPECT_TRUE(absl::StrContains(
      own, "\npool gpu-tests: 0 of 2 units are held by other tenants, and 1 of their requests wait\n"))
      << own;
  const std::string all = berth.Show(daemon.folder(), 0, 0, {"permits"});
  EXPECT_TRUE(absl::StrContains(all, "\nthe list shows 1000 of 1201 waiters\n")) << all;
  EXPECT_FALSE(absl::StrContains(all, "other tenants")) << all;
  const std::string others = berth.Show(daemon.folder(), 1002, 1002, {"permits"});
  EXPECT_TRUE(absl::StrContains(
      others, "\npool gpu-tests: 2 of 2 units are held by other tenants, and 1200 of their requests wait\n"))
      << others;
  EXPECT_FALSE(absl::StrContains(others, " waiters\n")) << others;
  const std::string stop = berth.Show(daemon.folder(), 0, 0, {"stop"});
  EXPECT_TRUE(absl::StrContains(stop, "out: 2 permits, 1201 waiting requests, ")) << stop;

  // Page by page: the first page has the counts.
  RawClient client = RawClient::Open(daemon.folder(), "admin.sock");
  v1::ListPermitsRequest list;
  list.set_page_size(1);
  const v1::ListPermitsResponse page = Must(client.Call(&v1::PermitService::Stub::ListPermits, list));
  EXPECT_EQ(page.permits_size(), 1);
  EXPECT_EQ(page.waiters_size(), 1);
  ASSERT_EQ(page.pools_size(), 1);
  EXPECT_EQ(page.pools(0).visible_holders(), 2u);
  EXPECT_EQ(page.pools(0).visible_waiters(), kWaiters + 1);
  EXPECT_EQ(page.waiting_requests(), kWaiters + 1);
  list.set_page_token(page.next_page_token());
  const v1::ListPermitsResponse last = Must(client.Call(&v1::PermitService::Stub::ListPermits, list));
  EXPECT_EQ(last.permits_size(), 1);
  EXPECT_EQ(last.waiters_size() + last.pools_size(), 0);
  EXPECT_EQ(last.waiting_requests(), 0u);
  for (Actor& actor : crowd) actor.Kill();
  other.Kill();
}

TEST(SightTest, OperatorListsWithoutSession) {
  TestDaemon daemon;
  const BerthCommand berth(daemon.folder());
  if (OtherUser().has_value()) GTEST_SKIP() << "clients may not see all";
  EXPECT_TRUE(berth.ShowJson({"sessions"})["sessions"].size() == 1) << "the test's own alone";
}

TEST(SightTest, OperatorFreesShownBlock) {
  if (!IsRoot()) GTEST_SKIP() << "needs root: changes users";
  TestDaemon daemon;
  const CommandOfUsers berth;
  Actor holder(daemon, {.uid = 1001});
  const std::string block = absl::StrCat(holder.Allocate("b", 4096).block.value());
  EXPECT_TRUE(absl::StrContains(berth.Show(daemon.folder(), 0, 0, {"blocks"}), block));
  int code = -1;
  const std::string refused = berth.Show(daemon.folder(), 1002, 1002, {"blocks", "free", block}, &code);
  EXPECT_EQ(code, 1) << refused;
  EXPECT_TRUE(absl::StrContains(refused, block)) << refused;
  const std::string freed = berth.Show(daemon.folder(), 0, 0, {"blocks", "free", block}, &code);
  EXPECT_EQ(code, 0) << freed;
  holder.Quit();
  daemon.ExpectAccountsBack();
}

// ---- Ids ----------------------------------------------------------------------------------------------------

std::string InHex(const std::string& id) {
  uint64_t number = 0;
  EXPECT_TRUE(absl::SimpleAtoi(id, &number)) << id;
  return absl::StrCat(absl::Hex(number, absl::kZeroPad16));
}

TEST(IdsTest, PrintedIdsAreAcceptedAndDecimal) {
  TestDaemon daemon({.environment = {"BERTH_GPU_TEST_CONCURRENCY=1"}});
  const BerthCommand berth(daemon.folder());
  Actor holder(daemon), waiter(daemon);
  for (const char* const lease : {"acquire p", "allocate b 4096", "reserve r 0=4096", "plan l 4"}) holder.Do(lease);
  waiter.Do("begin w");
  ASSERT_TRUE(daemon.AccountsBecome([](const Accounts& accounts) { return accounts.waiters == 1; }));

  // For each kind: the id as JSON has it, the lists that contain it, and the verbs that take it.
  const auto first = [&](const Words& words, const char* list) { return berth.ShowJson(words)[list].at(0); };
  const auto id_of = [](const nlohmann::json& json) { return json.get<std::string>(); };
  struct Kind {
    const char* name;
    std::string id;
    std::vector<Words> lists;
    std::vector<Words> takers;
  };
  const nlohmann::json held = first({"permits"}, "permits");
  const Kind kinds[] = {
      {"plan", id_of(first({"plans"}, "plans")["id"]), {{"plans"}}, {{"plans", "ID"}}},
      {"reservation", id_of(first({"reservations"}, "reservations")["id"]), {{"reservations"}}, {}},
      {"waiter", id_of(berth.ShowJson({"permits"})["waiters"][0]["number"]), {{"permits"}}, {{"explain", "ID"}}},
      {"block",
       id_of(first({"blocks"}, "blocks")["handle"]["block"]),
       {{"blocks"}, {"blocks", "--imports"}, {"log"}},
       {{"blocks", "recall", "ID"}, {"blocks", "clear-torn", "ID"}, {"blocks", "free", "ID"}}},
      {"permit", id_of(held["id"]), {{"permits"}}, {{"permits", "revoke", "ID"}}},
      {"session",
       id_of(held["session"]),
       {{"permits"}, {"sessions"}, {"blocks"}, {"plans"}, {"bytes"}, {"log"}},
       {{"budget", "set", "1GiB", "--session", "ID"}, {"sessions", "end", "ID"}}},
  };
  for (const Kind& kind : kinds) {
    for (const Words& list : kind.lists) {
      EXPECT_TRUE(absl::StrContains(berth.Show(list), kind.id)) << kind.name << " in " << list[0];
      EXPECT_TRUE(absl::StrContains(berth.Show({list[0], "--json"}), absl::StrCat("\"", kind.id, "\""))) << kind.name;
      if (kind.id.size() < 10) continue;
      EXPECT_FALSE(absl::StrContains(berth.Show(list), InHex(kind.id))) << kind.name << " in " << list[0];
    }
  }
  const auto run = [&](Words words, const std::string& id, std::string* said) {
    for (std::string& word : words) word = word == "ID" ? id : word;
    Words argv = {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh", ProgramPath("client/cli/berth")};
    argv.insert(argv.end(), words.begin(), words.end());
    Subprocess command = Subprocess::Start(
        {.argv = argv, .environment = {absl::StrCat("BERTH_FOLDER=", daemon.folder()), "BERTH_SESSION"}});
    *said = command.ReadAll();
    return command.Wait();
  };
  for (const Kind& kind : kinds) {
    for (const Words& taker : kind.takers) {
      const std::string where = absl::StrCat(kind.name, ", ", taker[0], " ", taker[1], ": ");
      std::string said;
      // An error about an unknown id repeats the id as it was given.
      EXPECT_NE(run(taker, "4711", &said), 0) << where << said;
      EXPECT_TRUE(absl::StrContains(said, "4711")) << where << said;
      EXPECT_FALSE(absl::StrContains(said, "1267")) << where << said;
      for (const std::string& odd : Words{absl::StrCat("0x", InHex(kind.id)), kind.id + "x", "-" + kind.id, "0"}) {
        EXPECT_EQ(run(taker, odd, &said), 64) << where << odd << ": " << said;
      }
      // A block that is not torn cannot be cleared; that is another error.
      EXPECT_NE(run(taker, kind.id, &said), 64) << where << said;
      EXPECT_FALSE(absl::StrContains(said, absl::StrCat("no ", kind.name, " "))) << where << said;
    }
  }
  // The audit log has the ids in the same form.
  EXPECT_TRUE(Eventually([&] {
    std::ifstream file(daemon.folder() + "/state/audit.jsonl");
    const std::string text(std::istreambuf_iterator<char>(file), {});
    bool all = true;
    for (const Kind& kind : kinds) {
      if (kind.id.size() < 10) continue;
      EXPECT_FALSE(absl::StrContains(text, InHex(kind.id))) << kind.name;
      if (kind.takers.size() > 1) all &= absl::StrContains(text, absl::StrCat("\"", kind.id, "\""));
    }
    return all;
  }));
  holder.Kill();
  waiter.Kill();
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
