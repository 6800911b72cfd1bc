// Random SIGKILLs: of permit holders and waiters, of owners and importers of blocks, of the daemon's own
// processes. The count never exceeds the cap, by a witness of its own, and everything comes back.
//
// BERTH_FAULT_KILLS sets how many clients are killed over permits (60, in the soak 500) and over blocks (20, in the
// soak 120), BERTH_FAULT_SEED replays a run.

#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/block_handle.h"
#include "common/error.h"
#include "gtest/gtest.h"
#include "tests/support/actor_handle.h"
#include "tests/support/environment.h"
#include "tests/support/test_daemon.h"
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

  // One chance in `n`.
  bool OneIn(uint64_t n) { return random_() % n == 0; }

  const uint64_t seed_;
  std::mt19937_64 random_;
};

// A client that opens a session, waits for a permit, and holds it until something is done with it.
struct Client {
  explicit Client(const TestDaemon& daemon) : actor(daemon, {.open = false}) {
    actor.Tell("open");
    actor.Tell("acquire p");
  }
  enum class State { kOpening, kWaiting, kHolding, kReleasing, kDying };
  Actor actor;
  State state = State::kOpening;
  // It was seen to hold; so it may use the GPU until it gave that back, or is gone.
  bool held = false;
};

// Keeps a crowd of clients over one pool and kills them. It is the witness: it counts those that said that
// they hold and are neither released nor proved gone by their pidfd. The daemon acts on the same proof and
// the client speaks after it, so whoever is counted when a new holder speaks does hold at that moment.
class Crowd {
 public:
  Crowd(const TestDaemon& daemon, size_t size, uint64_t cap) : daemon_(daemon), size_(size), cap_(cap) {}

  uint64_t kills() const { return kills_; }
  uint64_t grants() const { return grants_; }
  uint64_t most() const { return most_; }

  // Waits until some client says something, and takes it in; sends new ones for those that are gone.
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
        // Most die holding; some give back, and ask again.
        if (random() % 4 != 0) {
          Kill(client);
        } else {
          client.held = false;
          client.state = Client::State::kReleasing;
          client.actor.Tell("release p");
        }
        return;
      case Client::State::kReleasing:
        client.state = Client::State::kWaiting;
        client.actor.Tell("acquire p");
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
  uint64_t grants_ = 0;
  uint64_t most_ = 0;
};

TEST_F(KillsTest, NeverMoreThanTheCapOfKilledClientsHold) {
  TestDaemon daemon;
  const uint64_t wanted = FromEnvironment("BERTH_FAULT_KILLS", ByLane(60, 500));
  {
    Crowd crowd(daemon, /*size=*/8, /*cap=*/2);
    while (crowd.kills() < wanted) {
      crowd.Step(random_);
      if (HasFatalFailure()) return;
      // Waiters, and those that are still opening, die too.
      if (OneIn(6)) crowd.KillAny(random_);
    }
    EXPECT_LE(crowd.most(), 2u);
    RecordProperty("kills", absl::StrCat(crowd.kills()));
    RecordProperty("grants", absl::StrCat(crowd.grants()));
    printf("%lu kills, %lu grants, at most %lu held at once\n", crowd.kills(), crowd.grants(), crowd.most());
  }
  const v1::ListPoolsResponse pools = Must(daemon.inspector().ListPools());
  EXPECT_EQ(pools.pools(0).peak(), 2u);
  daemon.ExpectBooksBack();
}

TEST_F(KillsTest, OwnersAndImportersKilledAnywhereLeaveNoBytes) {
  TestDaemon daemon;
  const uint64_t kills = FromEnvironment("BERTH_FAULT_KILLS", ByLane(20, 120));
  for (uint64_t killed = 0; killed < kills; killed += 2) {
    Actor owner(daemon);
    Actor importer(daemon);
    const BlockHandle handle = owner.Allocate("b", 1 << 20);
    owner.Do(absl::StrCat("grant-session b ", importer.session().value()));
    // Both work on; each dies after as many answers as chance has it, so the deaths fall anywhere in between.
    const std::vector<std::string> owners = {"map b",  "fill b 1",        "unmap b",
                                             "free b", "allocate c 4096", "drop c"};
    const std::vector<std::string> importers = {absl::StrCat("import b ", FormatHandle(handle)), "map b",
                                                "drop b", "allocate d 4096", "map d"};
    for (const std::string& command : owners) owner.Tell(command);
    for (const std::string& command : importers) importer.Tell(command);
    const size_t owner_lives = random_() % owners.size();
    const size_t importer_lives = random_() % importers.size();
    const bool owner_first = OneIn(2);
    for (int turn = 0; turn < 2; ++turn) {
      const bool owners_turn = (turn == 0) == owner_first;
      Actor& actor = owners_turn ? owner : importer;
      const size_t lives = owners_turn ? owner_lives : importer_lives;
      for (size_t i = 0; i < lives; ++i) {
        const absl::Status status = actor.Answer().status();
        // A block that its owner freed meanwhile is not for the importer any more.
        if (owners_turn) {
          EXPECT_TRUE(Ok(status)) << owners[i];
        }
      }
      actor.process().Kill();
    }
  }
  daemon.ExpectBooksBack();
}

TEST_F(KillsTest, ABrokerKilledAnywhereIsReplacedAndNoClientHangs) {
  TestDaemon daemon;
  const uint64_t rounds = ByLane(4, 12);
  // None ends holding, so whoever waits is served in the end.
  const std::vector<std::string> commands = {"open",     "acquire p", "allocate b 4096", "map b",
                                             "fill b 1", "release p", "drop b",          "allocate c 8192"};
  for (uint64_t round = 0; round < rounds; ++round) {
    std::vector<std::unique_ptr<Actor>> actors;
    for (int i = 0; i < 4; ++i) {
      actors.push_back(std::make_unique<Actor>(daemon, ActorOptions{.open = false}));
      for (const std::string& command : commands) actors.back()->Tell(command);
    }
    const size_t before = random_() % commands.size();
    for (size_t i = 0; i < before; ++i) EXPECT_TRUE(Ok(actors[0]->Answer())) << commands[i];
    ASSERT_EQ(::kill(daemon.broker(), SIGKILL), 0);
    for (size_t k = 0; k < actors.size(); ++k) {
      for (size_t i = k == 0 ? before : 0; i < commands.size(); ++i) {
        // An error is an answer too; only silence is none.
        const absl::Status status = actors[k]->Answer().status();
        EXPECT_FALSE(absl::IsOutOfRange(status)) << status << " to " << commands[i];
      }
    }
    Actor next(daemon);
    EXPECT_TRUE(Ok(next.Ask("acquire p wait_ms=20000")));
  }
  daemon.ExpectBooksBack();
}

}  // namespace
}  // namespace berth::testing
