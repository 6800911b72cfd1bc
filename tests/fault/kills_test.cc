// Random SIGKILLs: of permit holders and waiters, of owners and importers of blocks, of the daemon's own processes. By
// an independent witness the count never exceeds the cap, and everything comes back.
//
// BERTH_FAULT_KILLS sets how many clients are killed over permits (60, in the soak 500) and over blocks (20, in the
// soak 120). It also sets how many clients and daemons are killed where the whole daemon is killed and stopped (40, in
// the soak 200). BERTH_FAULT_SEED replays a run.

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <berth/block_handle.h>
#include <berth/error.h>

#include "absl/strings/str_cat.h"
#include "berth/v1/permit.pb.h"
#include "gtest/gtest.h"
#include "tests/support/actor/actor_handle.h"
#include "tests/support/daemon/test_daemon.h"
#include "tests/support/environment.h"
#include "tests/support/testing.h"

namespace berth::testing {
namespace {

class KillsTest : public ::testing::Test {
 protected:
  KillsTest() : seed_(SeedFromEnvironment("BERTH_FAULT_SEED")), random_(seed_) {
    RecordProperty("seed", absl::StrCat(seed_));
  }
  void TearDown() override {
    if (HasFailure()) ADD_FAILURE() << "BERTH_FAULT_SEED=" << seed_;
  }

  // Returns true with a chance of one in `n`.
  bool OneIn(uint64_t n) { return random_() % n == 0; }

  const uint64_t seed_;
  std::mt19937_64 random_;
};

// A client that opens a session, waits for a permit, and holds it until the test acts on it.
struct Client {
  explicit Client(const TestDaemon& daemon) : actor(daemon, {.open = false}) {
    actor.SendLine("open");
    actor.SendLine("acquire p");
  }
  enum class State { kOpening, kWaiting, kHolding, kReleasing, kDying };
  Actor actor;
  State state = State::kOpening;
  // The client was seen to hold; so it may use the GPU until it has released the permit, or has ended.
  bool held = false;
};

// Runs a crowd of clients over one pool and kills them. The crowd is the witness: it counts clients that reported a
// permit and are neither released nor proved dead by their pidfd. The daemon acts on the same proof, and the client
// reports after that. So each counted client does hold at the moment when a new holder reports.
class Crowd {
 public:
  Crowd(const TestDaemon& daemon, size_t size, uint64_t cap) : daemon_(daemon), size_(size), cap_(cap) {}

  uint64_t kills() const { return kills_; }
  uint64_t grants() const { return grants_; }
  uint64_t most() const { return most_; }

  // Waits for a report of some client and processes it; starts new clients for those that ended.
  void Step(std::mt19937_64& random) {
    Bury();
    while (clients_.size() < size_) clients_.emplace_back(daemon_);
    std::vector<pollfd> entries;
    for (Client& client : clients_) {
      const bool dying = client.state == Client::State::kDying;
      entries.push_back({.fd = dying ? client.actor.process().pidfd() : client.actor.process().output_fd(),
                         .events = POLLIN,
                         .revents = 0});
    }
    ASSERT_GT(::poll(entries.data(), entries.size(), static_cast<int>(absl::ToInt64Milliseconds(kPatience))),
              0)
        << "nobody gets on";
    auto entry = entries.begin();
    for (Client& client : clients_) {
      bool heard = (entry++)->revents == 0;
      while (client.state != Client::State::kDying && (!heard || client.actor.process().has_line())) {
        Hear(client, random);
        if (::testing::Test::HasFatalFailure()) return;
        heard = true;
      }
    }
  }

  // Ends the whole daemon by SIGKILL or a stop, and starts another one. Clients die before it serves, too.
  void EndDaemon(TestDaemon& daemon, std::mt19937_64& random) {
    daemon_ends_ = true;
    if (random() % 2 == 0) {
      daemon.KillSupervisorAndBroker();
      ++kills_;
    } else {
      daemon.Stop();
    }
    ++ends_;
    for (uint64_t deaths = random() % 3; deaths > 0; --deaths) KillAny(random);
    daemon.StartAgain();
  }
  uint64_t ends() const { return ends_; }

  void KillAny(std::mt19937_64& random) {
    auto it = clients_.begin();
    std::advance(it, static_cast<ptrdiff_t>(random() % clients_.size()));
    Kill(*it);
  }

 private:
  void Kill(Client& client) {
    if (client.state == Client::State::kDying) return;
    client.actor.process().Kill();
    client.state = Client::State::kDying;
    ++kills_;
  }

  void Bury() {
    clients_.remove_if([](Client& client) {
      return client.state == Client::State::kDying && client.actor.process().IsGone();
    });
  }

  void Hear(Client& client, std::mt19937_64& random) {
    const absl::StatusOr<std::string> answer = client.actor.Answer();
    // No daemon was there to open a session with, or three died right after they received the same call.
    const bool given_up = client.state == Client::State::kOpening || absl::IsUnavailable(answer.status());
    if (daemon_ends_ && !answer.ok() && given_up) return Kill(client);
    ASSERT_TRUE(Ok(answer));
    switch (client.state) {
      case Client::State::kOpening:
        client.state = Client::State::kWaiting;
        return;
      case Client::State::kWaiting:
        client.state = Client::State::kHolding;
        client.held = true;
        ++grants_;
        Witness();
        // Most die while holding; some release, and request again.
        if (random() % 4 != 0) {
          Kill(client);
        } else {
          client.held = false;
          client.state = Client::State::kReleasing;
          client.actor.SendLine("release p");
        }
        return;
      case Client::State::kReleasing:
        client.state = Client::State::kWaiting;
        client.actor.SendLine("acquire p");
        return;
      default:
        FAIL() << "unexpected: " << *answer;
    }
  }

  void Witness() {
    uint64_t holding = 0;
    for (Client& client : clients_) holding += client.held && !client.actor.process().IsGone();
    most_ = std::max(most_, holding);
    ASSERT_LE(holding, cap_) << "after " << kills_ << " kills";
  }

  const TestDaemon& daemon_;
  const size_t size_;
  const uint64_t cap_;
  std::list<Client> clients_;
  uint64_t kills_ = 0;
  uint64_t ends_ = 0;
  uint64_t grants_ = 0;
  bool daemon_ends_ = false;
  uint64_t most_ = 0;
};

TEST_F(KillsTest, KilledClientsNeverExceedCap) {
  TestDaemon daemon;
  const uint64_t wanted = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(60, 500));
  {
    Crowd crowd(daemon, /*size=*/8, /*cap=*/2);
    while (crowd.kills() < wanted) {
      crowd.Step(random_);
      if (HasFatalFailure()) return;
      // Waiters and clients that are still opening a session die, too.
      if (OneIn(6)) crowd.KillAny(random_);
    }
    EXPECT_LE(crowd.most(), 2u);
    RecordProperty("kills", absl::StrCat(crowd.kills()));
    RecordProperty("grants", absl::StrCat(crowd.grants()));
    printf("%lu kills, %lu grants, at most %lu held at once\n", crowd.kills(), crowd.grants(), crowd.most());
  }
  const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).peak(), 2u);
  daemon.ExpectAccountsBack();
}

TEST_F(KillsTest, DaemonEndsGrantNoUnitTwice) {
  TestDaemon daemon;
  const uint64_t wanted = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(40, 200));
  {
    Crowd crowd(daemon, /*size=*/8, /*cap=*/2);
    while (crowd.kills() < wanted) {
      crowd.Step(random_);
      if (HasFatalFailure()) return;
      if (OneIn(6)) crowd.KillAny(random_);
      if (OneIn(24)) crowd.EndDaemon(daemon, random_);
    }
    EXPECT_LE(crowd.most(), 2u);
    printf("%lu kills, %lu ends of the daemon, %lu grants, at most %lu held at once\n", crowd.kills(), crowd.ends(),
           crowd.grants(), crowd.most());
  }
  EXPECT_TRUE(
      daemon.AccountsBecome([](const Accounts& accounts) { return accounts.permits == 0 && accounts.waiters == 0; }));
  daemon.ExpectAccountsBack();
}

TEST_F(KillsTest, KilledOwnersAndImportersLeaveNoBytes) {
  TestDaemon daemon;
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", GateOrSoak(20, 120));
  for (uint64_t killed = 0; killed < kills; killed += 2) {
    Actor owner(daemon);
    Actor importer(daemon);
    const BlockHandle handle = owner.Allocate("b", 1 << 20);
    owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
    // Both continue to work; each dies after a random number of answers, so that the deaths fall anywhere in between.
    const std::vector<std::string> owners = {"map b",  "fill b 1",        "unmap b",
                                             "free b", "allocate c 4096", "drop c"};
    const std::vector<std::string> importers = {absl::StrCat("import b ", FormatHandle(handle)), "map b",
                                                "drop b", "allocate d 4096", "map d"};
    for (const std::string& command : owners) owner.SendLine(command);
    for (const std::string& command : importers) importer.SendLine(command);
    const size_t owner_lives = random_() % owners.size();
    const size_t importer_lives = random_() % importers.size();
    const bool owner_first = OneIn(2);
    for (int turn = 0; turn < 2; ++turn) {
      const bool owners_turn = (turn == 0) == owner_first;
      Actor& actor = owners_turn ? owner : importer;
      const size_t lives = owners_turn ? owner_lives : importer_lives;
      for (size_t i = 0; i < lives; ++i) {
        const absl::Status status = actor.Answer().status();
        // The importer cannot get a block that its owner has freed meanwhile.
        if (owners_turn) {
          EXPECT_TRUE(Ok(status)) << owners[i];
        }
      }
      actor.process().Kill();
    }
  }
  daemon.ExpectAccountsBack();
}

TEST_F(KillsTest, KilledBrokerIsReplacedAndNoClientHangs) {
  TestDaemon daemon;
  const uint64_t rounds = GateOrSoak(4, 12);
  // None ends while holding, so every waiter is served in the end.
  const std::vector<std::string> commands = {"open",     "acquire p", "allocate b 4096", "map b",
                                             "fill b 1", "release p", "drop b",          "allocate c 8192"};
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 4; ++i) {
      actors.push_back(std::make_unique<Actor>(daemon, ActorOptions{.open = false}));
      for (const std::string& command : commands) actors.back()->SendLine(command);
    }
    const size_t before = random_() % commands.size();
    for (size_t i = 0; i < before; ++i) EXPECT_TRUE(Ok(actors[0]->Answer())) << commands[i];
    ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
    for (size_t k = 0; k < actors.size(); ++k) {
      for (size_t i = k == 0 ? before : 0; i < commands.size(); ++i) {
        // An error is an answer, too; only the end of the process is none.
        const absl::Status status = actors[k]->Answer().status();
        EXPECT_FALSE(absl::IsOutOfRange(status)) << status << " to " << commands[i];
      }
    }
    Actor next(daemon);
    EXPECT_TRUE(Ok(next.Ask("acquire p wait_ms=20000")));
  }
  daemon.ExpectAccountsBack();
}

}  // namespace
}  // namespace berth::testing
